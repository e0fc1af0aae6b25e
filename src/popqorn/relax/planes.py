"""Planes: minimum-volume relaxations of the gates over a box. Slopes are free; offsets are exact (`minimum.py`).

The plane of least volume supports the convex envelope of the gate at the box centre.

The envelope at the centre is the linear program `min sum_i w_i f(p_i)` over points `p_i` of the box whose weighted mean is the
centre. Nearly always the points are two that lie opposite each other (corners, or on opposite edges), or the centre itself: then
the slopes are closed forms (`_guess`). What is left is solved by exchanging points of a triangle (`_exchange`).
"""

import math

import torch
from torch import Tensor

from popqorn.arithmetic import large, lost, narrow, rounding, unit
from popqorn.relax.activations import tanh_touch
from popqorn.relax.gates import GateKind
from popqorn.relax.minimum import GateBox, gradient, least_value, lowest_point, offset
from popqorn.relax.relaxation import Interval, Linear, Relaxation

EXCHANGE_STEPS = 6
QUICK_STEPS = 4


def planes(kind: GateKind, v: Interval, z: Interval) -> Relaxation:
    """The minimum-volume planes of a gate over `v x z`: `lower(v, z) <= s(v) z <= upper(v, z)` (or with `tanh z`)."""
    v_lower, v_upper, z_lower, z_upper = torch.broadcast_tensors(v.lower, v.upper, z.lower, z.upper)
    shape = v_lower.shape
    # Two problems in one batch: the lower plane of f on (v, z), and of f on (v, -z).
    box = GateBox.of(
        kind,
        Interval(torch.stack([v_lower, v_lower]).flatten(), torch.stack([v_upper, v_upper]).flatten()),
        Interval(torch.stack([z_lower, -z_upper]).flatten(), torch.stack([z_upper, -z_lower]).flatten()),
    )
    a, b, least = envelope_slopes(box)
    c = offset(box, a, b, least)
    # Where products overflow, the least value of the gate will do.
    huge = torch.maximum(box.v.magnitude, box.z.magnitude) > large(c.dtype)
    lowest = torch.where(box.t.lower >= 0, box.s.lower, box.s.upper) * box.t.lower
    a, b, c = (
        a.masked_fill(huge, 0.0),
        b.masked_fill(huge, 0.0),
        torch.where(huge, lowest - rounding(lowest) - lost(box.t.lower), c),
    )
    a, b, c = (x.reshape(2, *shape) for x in (a, b, c))
    return Relaxation(Linear((a[0], b[0]), c[0]), Linear((-a[1], b[1]), -c[1]))


def envelope_slopes(box: GateBox, *, steps: int = EXCHANGE_STEPS) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes `(a, b)` of the plane below the gate that is highest at the box centre, for boxes along one axis; and `least_value`.

    Any slopes are sound, so this may stop at any point. A plane whose value at the centre meets that of the points it rests on is
    the best there is; only boxes where none of the closed forms does go on to the exchange.
    """
    a, b, above = _guess(box)
    least = least_value(box, a, b)
    middle_v, middle_z = box.center
    value = least + a * middle_v + b * middle_z
    negligible = 1e-6 * (box.t.lower.abs() + box.t.upper.abs()) + 2 * unit(value.dtype)
    index = (above - value > negligible).nonzero().squeeze(1)
    if steps and len(index):
        rest = box.select(index)
        a[index], b[index] = _exchange(rest, a[index], b[index], value[index], steps)
        least[index] = least_value(rest, a[index], b[index])
    return a, b, least


# ---- closed forms ------------------------------------------------------------------------------------------------------------


def _guess(box: GateBox) -> tuple[Tensor, Tensor, Tensor]:
    """The plane on the lowest of the points that planes could rest on: its slopes, and the mean of the gate at those points.

    The envelope lies below all of these points, so only a plane on the lowest of them can be the best.
    """
    middle_v, middle_z = box.center
    half_v, half_z = (box.v.upper - box.v.lower) / 2, (box.z.upper - box.z.lower) / 2
    tangent_a, tangent_b = gradient(box.kind, middle_v, middle_z)
    a, b, above = _on_the_diagonal(box, 2 * half_v, 2 * half_z)
    others = _on_opposite_edges(box, middle_v, middle_z, half_v, half_z)
    if box.kind is GateKind.TANH:  # s(v) z is nowhere convex: no plane below it touches it at the centre of a box
        others.append((tangent_a, tangent_b, torch.sigmoid(middle_v) * torch.tanh(middle_z)))
    for other_a, other_b, resting in others:
        lower = resting < above
        a, b = torch.where(lower, other_a, a), torch.where(lower, other_b, b)
        above = torch.where(lower, resting, above)
    # A side without width leaves its slope open; the tangent's is as good as any.
    a, b = torch.where(half_v > 0, a, tangent_a), torch.where(half_z > 0, b, tangent_b)
    # Over a box that is narrow both ways, chords are mostly rounding, and the tangent loses next to nothing.
    tangent = ~(a.isfinite() & b.isfinite()) | (torch.maximum(half_v, half_z) < narrow(a.dtype))
    a, b = torch.where(tangent, tangent_a, a), torch.where(tangent, tangent_b, b)
    # No good plane is steeper than the gate itself; rounding over a narrow side would make it so.
    a = torch.minimum(torch.maximum(a, box.t.lower.clamp(max=0) / 4), box.t.upper.clamp(min=0) / 4)
    return a, torch.minimum(b.clamp(min=0), box.s.upper), above


def _on_opposite_edges(
    box: GateBox, middle_v: Tensor, middle_z: Tensor, half_v: Tensor, half_z: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Planes that rest on points of opposite edges: slopes, and the mean of the gate at the two (inf where there are none)."""
    s, t = box.s, box.t
    width_v, width_z = 2 * half_v, 2 * half_z
    # Points on the edges z.lower and z.upper at the same slope a: t.lower s'(v1) = t.upper s'(v2), v1 + v2 = 2 middle_v.
    shift = 2 * _balance(t.lower, t.upper, middle_v / 2)
    v1, v2 = middle_v + shift, middle_v - shift
    s1, s2 = torch.sigmoid(v1), torch.sigmoid(v2)
    a = t.lower * s1 * (1 - s1)
    b = (t.upper * s2 - t.lower * s1 - a * (v2 - v1)) / width_z
    pairs = [(a, b, torch.where(shift.abs() < half_v, (t.lower * s1 + t.upper * s2) / 2, math.inf))]
    if box.kind is GateKind.TANH:  # and on the edges v.lower and v.upper at the same slope b
        shift = _balance(s.lower, s.upper, middle_z)
        z1, z2 = middle_z + shift, middle_z - shift
        t1, t2 = torch.tanh(z1), torch.tanh(z2)
        b = s.lower * (1 - t1.square())
        a = (s.upper * t2 - s.lower * t1 - b * (z2 - z1)) / width_v
        pairs.append((a, b, torch.where(shift.abs() < half_z, (s.lower * t1 + s.upper * t2) / 2, math.inf)))
    return pairs


def _on_the_diagonal(box: GateBox, width_v: Tensor, width_z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The plane through the corners `(v.lower, z.upper)` and `(v.upper, z.lower)` that leans furthest towards `(lower, lower)`.

    Both factors rise, so this is the lower diagonal, and all planes through it have the same value at the centre: the envelope
    leaves the lean open. We take the least slopes that keep the plane below the two edges at `(lower, lower)`. A small `b` passes
    less of an earlier frame's error on; measured on LSTMs, that is worth 10 % of the radius against the middle of the choice.
    """
    s, t = box.s, box.t
    first, last = s.lower * t.upper, s.upper * t.lower
    tanh = box.kind is GateKind.TANH
    steepest = _slope_below_from_top(box.z.lower, box.z.upper, t) if tanh else torch.ones_like(width_z)
    # the sigmoid as a tanh: s(v) = (1 + tanh(v/2)) / 2
    as_tanh = Interval(2 * s.lower - 1, 2 * s.upper - 1)
    rising = _slope_below_from_top(box.v.lower / 2, box.v.upper / 2, as_tanh) / 4
    flattest = torch.minimum(s.upper * (1 - s.upper), (s.upper - s.lower) / width_v)
    least_a = t.lower * torch.where(t.lower > 0, rising, flattest)
    b = torch.maximum(s.lower * steepest, (least_a * width_v - (last - first)) / width_z)
    a = (last - first + b * width_z) / width_v
    return a, b, (first + last) / 2


def _slope_below_from_top(lower: Tensor, upper: Tensor, t: Interval) -> Tensor:
    """The least slope of a line through `(upper, tanh upper)` that stays below tanh on `[lower, upper]`; `t` is tanh at the ends.

    The derivative at `upper` if tanh is convex there; else the tangent from `upper` to the convex part, or the chord.
    """
    chord = (t.upper - t.lower) / (upper - lower)
    touch = tanh_touch(upper)
    tangent = 1 - torch.tanh(touch).square()
    from_top = torch.where(lower < touch, tangent, chord)
    return torch.where(upper <= 0, 1 - t.upper.square(), from_top)


def _balance(first: Tensor, second: Tensor, middle: Tensor) -> Tensor:
    """`x` with `first / cosh(middle + x)^2 = second / cosh(middle - x)^2`; NaN where there is none.

    With `r = sqrt(second / first)` the equation is `tanh(x) tanh(middle) = (1 - r) / (1 + r)`.
    """
    r = (second / first).sqrt()
    return torch.atanh((1 - r) / (1 + r) / torch.tanh(middle))


# ---- exchange ----------------------------------------------------------------------------------------------------------------


def _exchange(box: GateBox, best_a: Tensor, best_b: Tensor, best: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Simplex pivots: the plane through three points, the point where the gate sinks furthest below it, which then replaces one
    of the three so that the centre stays in their triangle. Of all planes met, the highest at the centre is kept.
    """
    middle_v, middle_z = box.center
    half_v, half_z = (box.v.upper - box.v.lower) / 2, (box.z.upper - box.z.lower) / 2
    safe_v, safe_z = torch.where(half_v > 0, half_v, 1.0), torch.where(half_z > 0, half_z, 1.0)
    x, y, height, weight = _first_triangle(box)
    for _ in range(steps):
        x1, y1, rise1 = x[1] - x[0], y[1] - y[0], height[1] - height[0]
        x2, y2, rise2 = x[2] - x[0], y[2] - y[0], height[2] - height[0]
        area = x1 * y2 - x2 * y1
        a, b = (rise1 * y2 - rise2 * y1) / area / safe_v, (x1 * rise2 - x2 * rise1) / area / safe_z
        lowest = lowest_point(box, a, b, newton_steps=QUICK_STEPS)
        value = lowest.value + a * middle_v + b * middle_z
        better = value > best  # false for NaN: a collapsed triangle is never taken
        best_a, best_b, best = torch.where(better, a, best_a), torch.where(better, b, best_b), torch.where(better, value, best)

        new_x, new_y = (lowest.v - middle_v) / safe_v, (lowest.z - middle_z) / safe_z
        along1 = ((new_x - x[0]) * y2 - x2 * (new_y - y[0])) / area
        along2 = (x1 * (new_y - y[0]) - (new_x - x[0]) * y1) / area
        share = torch.stack([1 - along1 - along2, along1, along2])
        ratio = (weight / share.clamp(min=1e-9)).masked_fill_(share <= 1e-9, math.inf)
        step, leaving = ratio.min(dim=0, keepdim=True)
        weight = (weight - step * share).clamp(min=0).scatter(0, leaving, step)
        x = x.scatter(0, leaving, new_x.unsqueeze(0))
        y = y.scatter(0, leaving, new_y.unsqueeze(0))
        height = height.scatter(0, leaving, lowest.height.unsqueeze(0))
    return best_a, best_b


def _first_triangle(box: GateBox) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three corners of each box, `[3, boxes]`: the lower diagonal, whose middle is the centre, and `(lower, lower)`.

    Coordinates scaled to `[-1, 1]`, the gate there, and the weights that make the centre their mean.
    """
    s, t = box.s, box.t
    one = torch.ones_like(s.lower)
    return (
        torch.stack([-one, one, -one]),
        torch.stack([one, -one, -one]),
        torch.stack([s.lower * t.upper, s.upper * t.lower, s.lower * t.lower]),
        torch.stack([one / 2, one / 2, 0 * one]),
    )
