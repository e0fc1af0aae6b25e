"""The paper's closed forms in plain loops: slow, obvious, and written from the formulas, not from the engine.

Each function takes the weights, one sample, and the slopes and offsets of every neuron and frame, and returns the pair
`(gamma_lower, gamma_upper)` of every output (Table "Quantified robustness bounds", Theorems for vanilla RNNs, LSTMs and GRUs).
A neuron's relaxation is a pair `(lower, upper)` of tuples `(*slopes, offset)`.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Plane = tuple[float, ...]
Neurons = Sequence[tuple[Plane, Plane]]
Bound = tuple[list[float], list[float]]


def dual_norm(row: Array, norm: float) -> float:
    """`||row||_q`, `1/p + 1/q = 1`."""
    magnitudes = [abs(float(entry)) for entry in row]
    if norm == 1:
        return max(magnitudes)
    if np.isinf(norm):
        return sum(magnitudes)
    q = norm / (norm - 1)
    return float(sum(magnitude**q for magnitude in magnitudes) ** (1 / q))


def choose(neuron: tuple[Plane, Plane], coefficient: float, upper: bool) -> Plane:
    """For an upper bound the upper plane where the coefficient is not negative, else the lower one; mirrored for lower bounds."""
    return neuron[1] if (coefficient >= 0) == upper else neuron[0]


def both(row_bound: Callable[[int, bool], float], outputs: int) -> Bound:
    return [row_bound(j, False) for j in range(outputs)], [row_bound(j, True) for j in range(outputs)]


def concretised(row: Array, x0: Array, eps: float, norm: float, upper: bool) -> float:
    return float(row @ x0) + (1 if upper else -1) * eps * dual_norm(row, norm)


def vanilla_rnn(weights: dict[str, Array], frames: Sequence[Array], lines: Sequence[Neurons], eps: float, norm: float) -> Bound:
    """`F = W_F a(m) + b_F`, `a(k) = sigma(W_aa a(k-1) + W_ax x(k) + b_a)`; `row` is Lambda (upper) or Omega (lower)."""

    def row_bound(j: int, upper: bool) -> float:
        coefficient = weights["W_F"][j].copy()  # of a(k)
        total = float(weights["b_F"][j])
        for k in range(len(frames) - 1, -1, -1):
            row = np.zeros_like(coefficient)  # Lambda(k): of y(k)
            for r, entry in enumerate(coefficient):
                slope, offset = choose(lines[k][r], entry, upper)
                row[r] = entry * slope
                total += entry * offset
            total += float(row @ weights["b_a"])
            total += concretised(row @ weights["W_ax"], frames[k], eps, norm, upper)
            coefficient = row @ weights["W_aa"]
        return total + float(coefficient @ weights["a0"])

    return both(row_bound, len(weights["b_F"]))


def lstm(
    weights: dict[str, Array], frames: Sequence[Array], planes: Sequence[dict[str, Neurons]], eps: float, norm: float
) -> Bound:
    """Gates i, f, g, o; `planes[k]` holds `fc` (s(y_f) c(k-1)), `ig` (s(y_i) tanh(y_g)) and `oc` (s(y_o) tanh(c(k)))."""
    size = len(weights["a0"])

    def row_bound(j: int, upper: bool) -> float:
        of_a, of_c = weights["W_F"][j].copy(), np.zeros(size)
        total = float(weights["b_F"][j])
        for k in range(len(frames) - 1, -1, -1):
            of_y = {gate: np.zeros(size) for gate in "ifgo"}
            for r in range(size):
                alpha, beta, gamma = choose(planes[k]["oc"][r], of_a[r], upper)
                of_y["o"][r] = of_a[r] * alpha
                of_c[r] += of_a[r] * beta
                total += of_a[r] * gamma
            previous_c = np.zeros(size)
            for r in range(size):
                alpha, beta, gamma = choose(planes[k]["fc"][r], of_c[r], upper)
                of_y["f"][r] = of_c[r] * alpha
                previous_c[r] = of_c[r] * beta
                total += of_c[r] * gamma
                alpha, beta, gamma = choose(planes[k]["ig"][r], of_c[r], upper)
                of_y["i"][r] = of_c[r] * alpha
                of_y["g"][r] = of_c[r] * beta
                total += of_c[r] * gamma
            of_x = sum(of_y[gate] @ weights[f"W_{gate}x"] for gate in "ifgo")
            of_a = sum(of_y[gate] @ weights[f"W_{gate}a"] for gate in "ifgo")
            total += sum(float(of_y[gate] @ weights[f"b_{gate}"]) for gate in "ifgo")
            total += concretised(of_x, frames[k], eps, norm, upper)
            of_c = previous_c
        return total + float(of_a @ weights["a0"]) + float(of_c @ weights["c0"])

    return both(row_bound, len(weights["b_F"]))


def gru(
    weights: dict[str, Array], frames: Sequence[Array], planes: Sequence[dict[str, Neurons]], eps: float, norm: float
) -> Bound:
    """Gates r, z, n; `planes[k]`: `rw` (s(y_r) w, w = W_na a(k-1) + b_na), `zn` (s(-y_z) tanh(n)), `za` (s(y_z) a(k-1))."""
    size = len(weights["a0"])

    def row_bound(j: int, upper: bool) -> float:
        of_a = weights["W_F"][j].copy()
        total = float(weights["b_F"][j])
        for k in range(len(frames) - 1, -1, -1):
            of_z, of_r, of_n, of_w, previous_a = (np.zeros(size) for _ in range(5))
            for r in range(size):
                alpha, beta, gamma = choose(planes[k]["zn"][r], of_a[r], upper)
                of_z[r] += of_a[r] * alpha
                of_n[r] = of_a[r] * beta
                total += of_a[r] * gamma
                alpha, beta, gamma = choose(planes[k]["za"][r], of_a[r], upper)
                of_z[r] += of_a[r] * alpha
                previous_a[r] = of_a[r] * beta
                total += of_a[r] * gamma
            for r in range(size):
                alpha, beta, gamma = choose(planes[k]["rw"][r], of_n[r], upper)
                of_r[r] = of_n[r] * alpha
                of_w[r] = of_n[r] * beta
                total += of_n[r] * gamma
            of_x = of_r @ weights["W_rx"] + of_z @ weights["W_zx"] + of_n @ weights["W_nx"]
            previous_a += of_r @ weights["W_ra"] + of_z @ weights["W_za"] + of_w @ weights["W_na"]
            total += float(of_r @ weights["b_r"] + of_z @ weights["b_z"] + of_n @ weights["b_nx"] + of_w @ weights["b_na"])
            total += concretised(of_x, frames[k], eps, norm, upper)
            of_a = previous_a
        return total + float(of_a @ weights["a0"])

    return both(row_bound, len(weights["b_F"]))
