"""Plain CROWN of feed-forward networks, written as loops: slow and obvious, for tests only.

A network is a list of `(weight, bias)` with one activation between them. Bounds of every layer are walked back to the input and
intersected with intervals; lines are those of least area.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Layer = tuple[Array, Array]
Line = tuple[float, float]
"""Slope and offset."""


@dataclass(frozen=True)
class Bend:
    """An activation: the function, which rises, and its lines below and above on an interval."""

    function: Callable[[float], float]
    lines: Callable[[float, float], tuple[Line, Line]]


def relu_lines(low: float, high: float) -> tuple[Line, Line]:
    """Above, the chord; below, 0 or x, whichever leaves less area."""
    if low >= 0:
        return (1.0, 0.0), (1.0, 0.0)
    if high <= 0:
        return (0.0, 0.0), (0.0, 0.0)
    slope = high / (high - low)
    return (1.0 if high > -low else 0.0, 0.0), (slope, -slope * low)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _through(x: float, slope: float) -> Line:
    """The line of that slope through the sigmoid at `x`."""
    return slope, logistic(x) - slope * x


def _derivative(x: float) -> float:
    return logistic(x) * logistic(-x)


def sigmoid_below(low: float, high: float) -> Line:
    """The line that supports the convex envelope of the sigmoid on `[low, high]` at the middle."""
    middle = (low + high) / 2
    if high <= 0 or high - low < 1e-9:
        return _through(middle, _derivative(middle))
    left, right = low, min(high, 0.0)  # of the points whose tangents stay below the upper end, the last one
    for _ in range(60):
        x = (left + right) / 2
        fits = logistic(x) + _derivative(x) * (high - x) <= logistic(high)
        left, right = (x, right) if fits else (left, x)
    if low < 0 and middle <= left:
        return _through(middle, _derivative(middle))
    start = low if low >= 0 else left
    return _through(high, (logistic(high) - logistic(start)) / (high - start))


def sigmoid_lines(low: float, high: float) -> tuple[Line, Line]:
    """Above by symmetry: `s(x) = 1 - s(-x)`."""
    slope, offset = sigmoid_below(-high, -low)
    return sigmoid_below(low, high), (slope, 1 - offset)


RELU = Bend(lambda x: max(x, 0.0), relu_lines)
SIGMOID = Bend(logistic, sigmoid_lines)


def least_of_input(row: Array, x: Array, eps: float, norm: float) -> float:
    """The least value of `row @ input` over the l_p ball around `x`: Hoelder's inequality."""
    dual = 1.0 if math.isinf(norm) else norm / (norm - 1)
    return float(row @ x - eps * np.linalg.norm(row, ord=dual))


def interval(weight: Array, bias: Array, low: Array, high: Array) -> tuple[Array, Array]:
    rising, falling = np.maximum(weight, 0), np.minimum(weight, 0)
    return rising @ low + falling @ high + bias, rising @ high + falling @ low + bias


def walked(layers: Sequence[Layer], lines: Sequence[list[tuple[Line, Line]]], x: Array, eps: float, norm: float) -> Array:
    """A lower bound of every output of the last of `layers`, walked back to the input through the lines of those before."""
    found = []
    for row, constant in zip(*layers[-1], strict=True):
        row, constant = row.copy(), float(constant)
        for (weight, bias), bent in zip(reversed(layers[:-1]), reversed(lines), strict=True):
            behind = np.zeros(len(row))
            for place, (below, above) in enumerate(bent):
                slope, offset = below if row[place] >= 0 else above
                behind[place] = row[place] * slope
                constant += row[place] * offset
            constant += behind @ bias
            row = behind @ weight
        found.append(constant + least_of_input(row, x, eps, norm))
    return np.array(found)


def crown(layers: Sequence[Layer], bend: Bend, x: Array, eps: float, norm: float, rows: Array) -> Array:
    """Lower bounds of `rows @ network(input)` over the l_p ball of radius `eps` around `x`."""
    low, high = x - eps, x + eps
    lines: list[list[tuple[Line, Line]]] = []
    for number, (weight, bias) in enumerate(layers[:-1]):
        before = list(layers[:number])
        least, most = interval(weight, bias, low, high)
        least = np.maximum(least, walked([*before, (weight, bias)], lines, x, eps, norm))
        most = np.minimum(most, -walked([*before, (-weight, -bias)], lines, x, eps, norm))
        lines.append([bend.lines(*ends) for ends in zip(least.tolist(), most.tolist(), strict=True)])
        low, high = (np.array([bend.function(end) for end in ends.tolist()]) for ends in (least, most))
    last = rows @ layers[-1][0], rows @ layers[-1][1]
    return np.maximum(interval(*last, low, high)[0], walked([*layers[:-1], last], lines, x, eps, norm))
