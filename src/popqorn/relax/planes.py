"""Planes: minimum-volume relaxations of the gates `s(v) z` and `s(v) tanh(z)` over a box.

Slopes are free, offsets are exact: for any slopes `(a, b)` the plane `a v + b z + c` with `c = min over the box of f - a v - b z`
is valid, and that minimum has a closed form (`lowest_point`). The plane of least volume supports the convex envelope of `f` at
the box centre; `envelope_slopes` finds it by exchanging the three points the plane rests on. Planes above follow from
`-f(v, z) = f(v, -z)`, which both gates obey.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.program import GateKind
from popqorn.relax.relaxation import Box, Linear, Relaxation, rounding

EXCHANGE_STEPS = 12
NEWTON_STEPS = 6


@dataclass(frozen=True)
class Lowest:
    """Where `f - a v - b z` is least on a box: the point, and a proven lower bound of the value."""

    v: Tensor
    z: Tensor
    value: Tensor


def planes(kind: GateKind, v: Box, z: Box) -> Relaxation:
    """The minimum-volume planes of a gate over `v x z`: `lower(v, z) <= s(v) z <= upper(v, z)` (or with `tanh z`)."""
    # Two problems in one batch: the lower plane of f on (v, z), and of f on (v, -z).
    v_lower, v_upper, z_lower, z_upper = torch.broadcast_tensors(v.lower, v.upper, z.lower, z.upper)
    both_v = Box(torch.stack([v_lower, v_lower]), torch.stack([v_upper, v_upper]))
    both_z = Box(torch.stack([z_lower, -z_upper]), torch.stack([z_upper, -z_lower]))
    a, b = envelope_slopes(kind, both_v, both_z)
    c = offset(kind, both_v, both_z, a, b)
    return Relaxation(Linear((a[0], b[0]), c[0]), Linear((-a[1], b[1]), -c[1]))


def offset(kind: GateKind, v: Box, z: Box, a: Tensor, b: Tensor) -> Tensor:
    """The greatest `c` (less rounding) with `a v + b z + c <= f(v, z)` on the box."""
    reach_v = torch.maximum(v.lower.abs(), v.upper.abs())
    reach_z = torch.maximum(z.lower.abs(), z.upper.abs())
    return lowest_point(kind, v, z, a, b).value - rounding(kind.factor(reach_z), a * reach_v, b * reach_z)


def gradient(kind: GateKind, v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Partial derivatives of the gate by `v` and `z`."""
    factor = kind.factor(z)
    slope = 1 - factor.square() if kind is GateKind.TANH else torch.ones_like(z)
    return torch.sigmoid(v) * torch.sigmoid(-v) * factor, torch.sigmoid(v) * slope


# ---- offsets: the exact minimum of f - a v - b z ----------------------------------------------------------------------------


def lowest_point(kind: GateKind, v: Box, z: Box, a: Tensor, b: Tensor, *, newton_steps: int = NEWTON_STEPS) -> Lowest:
    """The minimum of `f - a v - b z` over the box: a proven bound of it for any `newton_steps`, exact to rounding for six."""
    candidates_v, candidates_z = [], []
    for edge in (z.lower, z.upper):
        stationary = _stationary_on_z_edge(kind.factor(edge), a, v)
        candidates_v += [v.lower, v.upper, stationary]
        candidates_z += [edge, edge, edge]
    slack = torch.zeros_like(a)
    if kind is GateKind.TANH:  # s(v) z is linear in z: its minimum is on one of the two edges above
        for edge in (v.lower, v.upper):
            candidates_v.append(edge)
            candidates_z.append(_stationary_on_v_edge(torch.sigmoid(edge), b, z))
        inner_v, inner_z, slack = _stationary_inside(a, b, v, z, newton_steps)
        candidates_v.append(inner_v)
        candidates_z.append(inner_z)
    points_v, points_z = torch.stack(candidates_v), torch.stack(candidates_z)
    values = torch.sigmoid(points_v) * kind.factor(points_z) - a * points_v - b * points_z
    values[-1] -= slack
    value, index = values.min(dim=0, keepdim=True)
    return Lowest(points_v.gather(0, index)[0], points_z.gather(0, index)[0], value[0])


def _clip(x: Tensor, box: Box) -> Tensor:
    return torch.maximum(torch.minimum(x, box.upper), box.lower)


def _stationary_on_z_edge(t: Tensor, a: Tensor, v: Box) -> Tensor:
    """The local minimum of `t s(v) - a v` in `v`: `s(1-s) = a/t` where it is convex; some point of the box if there is none."""
    ratio = a / torch.where(t == 0, 1.0, t)
    exists = (ratio > 0) & (ratio < 0.25) & (t != 0)
    ratio = torch.where(exists, ratio, 0.125)
    s = 2 * ratio / (1 + (1 - 4 * ratio).sqrt())  # the smaller root, without cancellation
    logit = torch.log(s) - torch.log1p(-s)
    return torch.where(exists, _clip(torch.where(t > 0, logit, -logit), v), v.lower)


def _stationary_on_v_edge(s: Tensor, b: Tensor, z: Box) -> Tensor:
    """The local minimum of `s tanh(z) - b z` in `z`: `tanh z = -sqrt(1 - b/s)`; some point of the box if there is none."""
    ratio = b / s.clamp(min=torch.finfo(s.dtype).tiny)
    exists = (ratio > 0) & (ratio < 1)
    return torch.where(exists, _clip(_negative_arctanh(torch.where(exists, ratio, 0.5)), z), z.lower)


def _negative_arctanh(ratio: Tensor) -> Tensor:
    """`-arctanh(sqrt(1 - ratio))`, accurate for small `ratio`."""
    return 0.5 * torch.log(ratio) - torch.log1p((1 - ratio).clamp(min=0).sqrt())


def _stationary_inside(a: Tensor, b: Tensor, v: Box, z: Box, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The interior local minimum of `s(v) tanh(z) - a v - b z`, and how far below its value the true one can lie.

    With `S = s(v)`, minimising over `z` first leaves a function of `v` whose derivative is `-phi(S)`,
    `phi(S) = (1-S) sqrt(S (S-b)) - |a|`: a concave function with its peak at `S*`, so the minimum is its root right of `S*`.
    That the root lies in the box bounds `S` from both sides; Newton from the right end is monotone and stays inside.
    The iteration runs in `w = 1 - S`, which keeps its precision when the gate is nearly open.
    """
    tiny = torch.finfo(a.dtype).tiny
    possible = (a < 0) & (b > 0) & (b < 1)
    depth, b = torch.where(possible, -a, 0.05), torch.where(possible, b, 0.5)
    peak = (2 + 3 * b + ((2 + 3 * b).square() - 16 * b).clamp(min=0).sqrt()) / 8
    # tanh z lies in [tanh lz, tanh uz] and is negative:  b / (1 - tanh^2) bounds S.
    deepest = b / (1 - torch.tanh(z.lower.clamp(max=0)).square()).clamp(min=tiny)
    shallowest = b / (1 - torch.tanh(z.upper.clamp(max=0)).square()).clamp(min=tiny)
    greatest_w = torch.minimum(torch.sigmoid(-v.lower), 1 - torch.maximum(peak, shallowest)).clamp(min=tiny)
    least_w = torch.maximum(torch.sigmoid(-v.upper), 1 - deepest).clamp(tiny, 0.5)  # S* >= 1/2: no root has w > 1/2
    greatest_w = torch.maximum(greatest_w, least_w)

    w = least_w
    for _ in range(steps):
        root = ((1 - w) * (1 - w - b)).clamp(min=tiny).sqrt()
        rise = root - w * (2 * (1 - w) - b) / (2 * root)
        w = w - (w * root - depth) / torch.where(rise > 0, rise, math.inf)
        w = torch.maximum(torch.minimum(w, greatest_w), least_w)
    residual = w * ((1 - w) * (1 - w - b)).clamp(min=0).sqrt() - depth
    inner_v = torch.log1p(-w) - torch.log(w)
    furthest_v = torch.log1p(-greatest_w) - torch.log(greatest_w)
    slack = torch.where(possible & (residual < 0), -residual * (inner_v - furthest_v).clamp(min=0), 0.0)
    inner_z = _negative_arctanh((b / (1 - w)).clamp(max=1))
    return torch.where(possible, _clip(inner_v, v), v.lower), torch.where(possible, _clip(inner_z, z), z.lower), slack


# ---- slopes: the plane that supports the envelope ---------------------------------------------------------------------------


def envelope_slopes(kind: GateKind, v: Box, z: Box, *, steps: int = EXCHANGE_STEPS) -> tuple[Tensor, Tensor]:
    """Slopes `(a, b)` of the plane below the gate that is highest at the box centre.

    The value of the convex envelope at the centre is the linear program `min sum_i w_i f(p_i)` over points `p_i` of the box whose
    weighted mean is the centre. We keep a basis of three points, take the plane through them, ask `lowest_point` where the gate
    sinks furthest below that plane, and let that point replace one of the three so that the centre stays in their triangle (a
    simplex pivot). Coordinates are scaled to `[-1, 1]`, so thin and empty boxes need no special case; of all planes met, the
    tangent plane at the centre among them, the highest at the centre wins. Any slopes are sound, so this may stop at any step.
    """
    middle_v, middle_z = (v.lower + v.upper) / 2, (z.lower + z.upper) / 2
    half_v, half_z = (v.upper - v.lower) / 2, (z.upper - z.lower) / 2
    tangent_a, tangent_b = gradient(kind, middle_v, middle_z)
    best_a, best_b = tangent_a, tangent_b
    best = lowest_point(kind, v, z, best_a, best_b).value + best_a * middle_v + best_b * middle_z
    safe_v, safe_z = torch.where(half_v > 0, half_v, 1.0), torch.where(half_z > 0, half_z, 1.0)

    x, y, height, weight = _first_triangle(kind, v, z)
    for _ in range(steps):
        x1, y1, rise1 = x[1] - x[0], y[1] - y[0], height[1] - height[0]
        x2, y2, rise2 = x[2] - x[0], y[2] - y[0], height[2] - height[0]
        area = x1 * y2 - x2 * y1
        a = torch.where(half_v > 0, (rise1 * y2 - rise2 * y1) / area / safe_v, tangent_a)
        b = torch.where(half_z > 0, (x1 * rise2 - x2 * rise1) / area / safe_z, tangent_b)
        lowest = lowest_point(kind, v, z, a, b, newton_steps=3)
        value = lowest.value + a * middle_v + b * middle_z
        better = value > best  # false for NaN: a collapsed triangle is never taken
        best_a, best_b, best = torch.where(better, a, best_a), torch.where(better, b, best_b), torch.where(better, value, best)

        new_x, new_y = (lowest.v - middle_v) / safe_v, (lowest.z - middle_z) / safe_z
        along1 = ((new_x - x[0]) * y2 - x2 * (new_y - y[0])) / area
        along2 = (x1 * (new_y - y[0]) - (new_x - x[0]) * y1) / area
        share = torch.stack([1 - along1 - along2, along1, along2])
        ratio = torch.where(share > 1e-9, weight / share.clamp(min=1e-9), math.inf)
        step, leaving = ratio.min(dim=0, keepdim=True)
        weight = (weight - step * share).clamp(min=0).scatter(0, leaving, step)
        new_height = torch.sigmoid(lowest.v) * kind.factor(lowest.z)
        x = x.scatter(0, leaving, new_x.unsqueeze(0))
        y = y.scatter(0, leaving, new_y.unsqueeze(0))
        height = height.scatter(0, leaving, new_height.unsqueeze(0))
    return best_a, best_b


def _first_triangle(kind: GateKind, v: Box, z: Box) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three corners of the box (scaled coordinates, gate values, weights): the lower diagonal and the lower other corner."""
    low, high = torch.sigmoid(v.lower), torch.sigmoid(v.upper)
    bottom, top = kind.factor(z.lower), kind.factor(z.upper)
    # corners in the order (-1,-1), (1,1), (-1,1), (1,-1): one diagonal, then the other
    corners = torch.stack([low * bottom, high * top, low * top, high * bottom])
    corner_x = torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=corners.dtype, device=corners.device)
    corner_y = torch.tensor([-1.0, 1.0, 1.0, -1.0], dtype=corners.dtype, device=corners.device)
    rising = corners[0] + corners[1] <= corners[2] + corners[3]
    first = torch.where(rising, 0, 2)
    third = 2 - first + torch.where(rising, corners[3] < corners[2], corners[1] < corners[0]).long()
    chosen = torch.stack([first, first + 1, third])
    half = torch.full_like(corners[0], 0.5)
    weight = torch.stack([half, half, torch.zeros_like(half)])
    return corner_x[chosen], corner_y[chosen], corners.gather(0, chosen), weight
