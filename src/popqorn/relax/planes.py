"""Planes: minimum-volume relaxations of the gates `s(v) z` and `s(v) tanh(z)` over a box.

Slopes are free, offsets are exact: for any slopes `(a, b)` the plane `a v + b z + c` with `c = min over the box of f - a v - b z`
is valid, and that minimum has a closed form (`lowest_point`). The plane of least volume supports the convex envelope of `f` at
the box centre; `envelope_slopes` finds it, in closed form for most boxes (`envelope.py` has the rest). Planes above follow from
`-f(v, z) = f(v, -z)`, which both gates obey.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.program import GateKind
from popqorn.relax.relaxation import Box, rounding

NEWTON_STEPS = 6


@dataclass(frozen=True)
class GateBox:
    """A gate over a box, with both factors at the ends: `s` (of `v`) and `t` (`z` or `tanh z`)."""

    kind: GateKind
    v: Box
    z: Box
    s: Box
    t: Box

    @staticmethod
    def of(kind: GateKind, v: Box, z: Box) -> "GateBox":
        s = Box(torch.sigmoid(v.lower), torch.sigmoid(v.upper))
        return GateBox(kind, v, z, s, Box(kind.factor(z.lower), kind.factor(z.upper)))

    def select(self, index: Tensor) -> "GateBox":
        """The boxes at `index` (of one axis)."""
        parts = (Box(box.lower[index], box.upper[index]) for box in (self.v, self.z, self.s, self.t))
        return GateBox(self.kind, *parts)

    @property
    def center(self) -> tuple[Tensor, Tensor]:
        return (self.v.lower + self.v.upper) / 2, (self.z.lower + self.z.upper) / 2


@dataclass(frozen=True)
class Lowest:
    """Where `f - a v - b z` is least on a box: the point, the gate there, and a proven lower bound of that least value."""

    v: Tensor
    z: Tensor
    height: Tensor
    value: Tensor


def gradient(kind: GateKind, v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Partial derivatives of the gate by `v` and `z`."""
    factor = kind.factor(z)
    slope = 1 - factor.square() if kind is GateKind.TANH else torch.ones_like(z)
    s = torch.sigmoid(v)
    return s * (1 - s) * factor, s * slope


def offset(box: GateBox, a: Tensor, b: Tensor) -> Tensor:
    """The greatest `c` (less rounding) with `a v + b z + c <= f(v, z)` on the box."""
    reach_v = torch.maximum(box.v.lower.abs(), box.v.upper.abs())
    reach_z = torch.maximum(box.z.lower.abs(), box.z.upper.abs())
    reach_t = torch.maximum(box.t.lower.abs(), box.t.upper.abs())
    return lowest_point(box, a, b).value - rounding(reach_t, a * reach_v, b * reach_z)


def lowest_point(box: GateBox, a: Tensor, b: Tensor, *, newton_steps: int = NEWTON_STEPS) -> Lowest:
    """The minimum of `f - a v - b z` over the box: a proven bound of it for any `newton_steps`, exact to rounding for six."""
    v, z, s, t = box.v, box.z, box.s, box.t
    points = [
        (v.lower, z.lower, s.lower * t.lower, None),
        (v.lower, z.upper, s.lower * t.upper, None),
        (v.upper, z.lower, s.upper * t.lower, None),
        (v.upper, z.upper, s.upper * t.upper, None),
        _on_z_edge(box, z.lower, t.lower, a),
        _on_z_edge(box, z.upper, t.upper, a),
    ]
    if box.kind is GateKind.TANH:  # s(v) z is linear in z: its minimum is on one of the two edges above
        points.append(_on_v_edge(box, v.lower, s.lower, b))
        points.append(_on_v_edge(box, v.upper, s.upper, b))
        points.append(_inside(box, a, b, newton_steps))
    best_v, best_z, best_height, _ = points[0]
    best = best_height - a * best_v - b * best_z
    best_v, best_z, best_height = (x.expand_as(best) for x in (best_v, best_z, best_height))
    for point_v, point_z, height, penalty in points[1:]:
        value = height - a * point_v - b * point_z
        if penalty is not None:
            value = value + penalty
        lower = value < best
        best = torch.where(lower, value, best)
        best_v, best_z = torch.where(lower, point_v, best_v), torch.where(lower, point_z, best_z)
        best_height = torch.where(lower, height, best_height)
    return Lowest(best_v, best_z, best_height, best)


# A candidate for the minimum: v, z, the gate there, and what to add to its value (inf where there is no such point).
Candidate = tuple[Tensor, Tensor, Tensor, Tensor]


def _on_z_edge(box: GateBox, z: Tensor, t: Tensor, a: Tensor) -> Candidate:
    """The local minimum of `t s(v) - a v` in `v`: `s(1-s) = a/t` where that is convex."""
    ratio = a / t  # inf or NaN for t = 0: then there is none
    exists = (ratio > 0) & (ratio < 0.25)
    ratio = torch.where(exists, ratio, 0.125)
    small = 2 * ratio / (1 + (1 - 4 * ratio).sqrt())  # the smaller root, without cancellation
    logit = torch.log(small / (1 - small))
    positive = t > 0
    v, s = torch.where(positive, logit, -logit), torch.where(positive, small, 1 - small)
    exists = exists & (v > box.v.lower) & (v < box.v.upper)
    return v, z, t * s, torch.where(exists, 0.0, math.inf)


def _on_v_edge(box: GateBox, v: Tensor, s: Tensor, b: Tensor) -> Candidate:
    """The local minimum of `s tanh(z) - b z` in `z`: `tanh z = -sqrt(1 - b/s)`."""
    ratio = b / s  # inf or NaN for s = 0: then there is none
    exists = (ratio > 0) & (ratio < 1)
    z, t = _descending(torch.where(exists, ratio, 0.5))
    exists = exists & (z > box.z.lower) & (z < box.z.upper)
    return v, z, s * t, torch.where(exists, 0.0, math.inf)


def _descending(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """`z < 0` with `1 - tanh(z)^2 = ratio`, and `tanh z`; the two agree to rounding, also where both are tiny."""
    root = (1 - ratio).clamp(min=0).sqrt()
    return torch.log1p(-2 * root / (1 + root)) / 2, -root


def _inside(box: GateBox, a: Tensor, b: Tensor, steps: int) -> Candidate:
    """The interior local minimum of `s(v) tanh(z) - a v - b z`, less how far below its value the true one can lie.

    With `S = s(v)`, minimising over `z` first leaves a function of `v` whose derivative is `-phi(S)`,
    `phi(S) = (1-S) sqrt(S (S-b)) - |a|`: a concave function with its peak at `S*`, so the minimum is its root right of `S*`.
    That the root lies in the box bounds `S` from both sides; Newton from the right end is monotone and stays inside.
    The iteration runs in `w = 1 - S`, which keeps its precision when the gate is nearly open.
    """
    tiny = torch.finfo(a.dtype).tiny
    possible = (a < 0) & (b > 0) & (b < 1)
    depth, b = torch.where(possible, -a, 0.05), torch.where(possible, b, 0.5)
    linear = 2 + 3 * b
    peak = (linear + (linear.square() - 16 * b).clamp(min=0).sqrt()) / 8
    # tanh z lies in [t.lower, t.upper] and is negative: b / (1 - tanh^2) bounds S.
    deepest = b / (1 - box.t.lower.clamp(max=0).square()).clamp(min=tiny)
    shallowest = b / (1 - box.t.upper.clamp(max=0).square()).clamp(min=tiny)
    least_w = torch.maximum(torch.sigmoid(-box.v.upper), 1 - deepest).clamp(tiny, 0.5)  # S* >= 1/2: no root has w > 1/2
    greatest_w = torch.minimum(torch.sigmoid(-box.v.lower), 1 - torch.maximum(peak, shallowest))
    possible = possible & (greatest_w >= least_w)
    greatest_w = torch.maximum(greatest_w, least_w)
    w = least_w
    for _ in range(steps):
        root = ((1 - w) * (1 - w - b)).clamp(min=tiny).sqrt()
        rise = root - w * (2 * (1 - w) - b) / (2 * root)
        w = w - (w * root - depth) / torch.where(rise > 0, rise, math.inf)
        w = torch.maximum(torch.minimum(w, greatest_w), least_w)
    residual = w * ((1 - w) * (1 - w - b)).clamp(min=0).sqrt() - depth
    v = torch.log((1 - w) / w)
    short = (v - torch.log((1 - greatest_w) / greatest_w)).clamp(min=0)
    z, t = _descending((b / (1 - w)).clamp(max=1))
    # Rounding may put the point a hair outside; the clip keeps it a point of the box, where `f` is what it is.
    v, z = torch.maximum(torch.minimum(v, box.v.upper), box.v.lower), torch.maximum(torch.minimum(z, box.z.upper), box.z.lower)
    return v, z, (1 - w) * t, torch.where(possible, residual.clamp(max=0) * short, math.inf)
