"""The exact minimum of a gate less a plane, `f - a v - b z` with `f = s(v) z` or `s(v) tanh(z)`, over a box.

It makes every plane valid: for any slopes `(a, b)` the plane `a v + b z + c` with `c` this minimum lies below the gate. Planes
above follow from `-f(v, z) = f(v, -z)`, which both gates obey.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from popqorn.arithmetic import rounding, tiny, unit
from popqorn.relax.gates import GateKind
from popqorn.relax.relaxation import Interval

NEWTON_STEPS = 6


class Points(NamedTuple):
    """Candidates for the minimum of `f - a v - b z`, `[points, ...]`: where, the gate there, and what to add to the value.

    `penalty` is inf where there is no such point, and negative where the true minimum may lie below the value at the point.
    """

    v: Tensor
    z: Tensor
    height: Tensor
    penalty: Tensor

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        return self.height - a * self.v - b * self.z + self.penalty


@dataclass(frozen=True)
class GateBox:
    """A gate over a box, with both factors at the ends: `s` (of `v`) and `t` (`z` or `tanh z`)."""

    kind: GateKind
    v: Interval
    z: Interval
    s: Interval
    t: Interval

    @staticmethod
    def of(kind: GateKind, v: Interval, z: Interval) -> "GateBox":
        s = Interval(torch.sigmoid(v.lower), torch.sigmoid(v.upper))
        return GateBox(kind, v, z, s, Interval(kind.factor(z.lower), kind.factor(z.upper)))

    def select(self, index: Tensor) -> "GateBox":
        """The boxes at `index` (of one axis)."""
        parts = (Interval(box.lower[index], box.upper[index]) for box in (self.v, self.z, self.s, self.t))
        return GateBox(self.kind, *parts)

    @cached_property
    def corners(self) -> "Points":
        """The four corners as candidates for a minimum."""
        v, z, s, t = self.v, self.z, self.s, self.t
        heights = s.lower * t.lower, s.lower * t.upper, s.upper * t.lower, s.upper * t.upper
        at_v, at_z = (v.lower, v.lower, v.upper, v.upper), (z.lower, z.upper, z.lower, z.upper)
        return Points(
            torch.stack(at_v), torch.stack(at_z), torch.stack(heights), torch.zeros_like(v.lower).expand(4, *v.lower.shape)
        )

    @cached_property
    def z_edges(self) -> tuple[Tensor, Tensor]:
        """`z` and `t` on the lower and the upper edge, `[2, ...]`."""
        return torch.stack([self.z.lower, self.z.upper]), torch.stack([self.t.lower, self.t.upper])

    @cached_property
    def v_edges(self) -> tuple[Tensor, Tensor]:
        """`v` and `s` on the lower and the upper edge, `[2, ...]`."""
        return torch.stack([self.v.lower, self.v.upper]), torch.stack([self.s.lower, self.s.upper])

    @cached_property
    def closed(self) -> Interval:
        """`1 - s` at the ends of `v`, accurate for open gates; the lower end belongs to `v.upper`."""
        return Interval(torch.sigmoid(-self.v.upper), torch.sigmoid(-self.v.lower))

    @cached_property
    def flatness(self) -> tuple[Tensor, Tensor]:
        """`1 - tanh(z)^2` where `z` is lowest and where it is highest, as far as `z` is negative."""
        return _flatness(self.z.lower), _flatness(self.z.upper)

    @property
    def center(self) -> tuple[Tensor, Tensor]:
        return (self.v.lower + self.v.upper) / 2, (self.z.lower + self.z.upper) / 2


def _flatness(z: Tensor) -> Tensor:
    """`1 - tanh(z)^2` for negative `z` (1 for others), accurate where tanh has saturated."""
    falling = torch.exp(2 * z.clamp(max=0))
    return (4 * falling / (1 + falling).square()).clamp(min=tiny(z.dtype))


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


def offset(box: GateBox, a: Tensor, b: Tensor, least: Tensor | None = None) -> Tensor:
    """The greatest `c` (less rounding) with `a v + b z + c <= f(v, z)` on the box; `least` is `least_value`, if known."""
    least = least_value(box, a, b) if least is None else least
    return least - rounding(box.t.magnitude, a * box.v.magnitude, b * box.z.magnitude)


def least_value(box: GateBox, a: Tensor, b: Tensor, *, newton_steps: int = NEWTON_STEPS) -> Tensor:
    """The minimum of `f - a v - b z` over the box: a proven bound of it for any `newton_steps`, exact to rounding for six."""
    least = torch.full_like(a, math.inf)
    for points in _candidates(box, a, b, newton_steps):
        least = torch.minimum(least, points.value(a, b).amin(0))
    return least


def lowest_point(box: GateBox, a: Tensor, b: Tensor, *, newton_steps: int = NEWTON_STEPS) -> Lowest:
    """`least_value`, and where it is attained; for boxes and slopes along one axis."""
    points = Points(*map(torch.cat, zip(*_candidates(box, a, b, newton_steps), strict=True)))
    value, index = points.value(a, b).min(dim=0, keepdim=True)
    return Lowest(points.v.gather(0, index)[0], points.z.gather(0, index)[0], points.height.gather(0, index)[0], value[0])


def _candidates(box: GateBox, a: Tensor, b: Tensor, newton_steps: int) -> list[Points]:
    """The points where the minimum of `f - a v - b z` can be: corners, edges, inside."""
    if box.kind is GateKind.IDENTITY:  # s(v) z is linear in z: its minimum is on an edge of constant z
        return [box.corners, _on_z_edges(box, a)]
    return [box.corners, _on_z_edges(box, a), _on_v_edges(box, b), _inside(box, a, b, newton_steps)]


def _on_z_edges(box: GateBox, a: Tensor) -> Points:
    """The local minima of `t s(v) - a v` in `v`: `s(1-s) = a/t` where that is convex."""
    z, t = box.z_edges
    ratio = a / t  # inf or NaN for t = 0: then there is none
    missing = ~((ratio > 0) & (ratio < 0.25))
    ratio = ratio.masked_fill_(missing, 0.125)
    small = 2 * ratio / (1 + (1 - 4 * ratio).sqrt())  # the smaller root, without cancellation
    logit = torch.log(small / (1 - small))
    positive = t > 0
    v, s = torch.where(positive, logit, -logit), torch.where(positive, small, 1 - small)
    missing = missing | (v <= box.v.lower) | (v >= box.v.upper)
    return Points(v, z, t * s, torch.zeros_like(v).masked_fill_(missing, math.inf))


def _on_v_edges(box: GateBox, b: Tensor) -> Points:
    """The local minima of `s tanh(z) - b z` in `z`: `tanh z = -sqrt(1 - b/s)`."""
    v, s = box.v_edges
    ratio = b / s  # inf or NaN for s = 0: then there is none
    missing = ~((ratio > 0) & (ratio < 1))
    z, t = _descending(ratio.masked_fill_(missing, 0.5))
    missing = missing | (z <= box.z.lower) | (z >= box.z.upper)
    return Points(v, z, s * t, torch.zeros_like(z).masked_fill_(missing, math.inf))


def _descending(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """`z < 0` with `1 - tanh(z)^2 = ratio`, and `tanh z`; the two agree to rounding, near 0 and far out."""
    root = (1 - ratio).clamp(min=0).sqrt()
    opening = torch.log1p(root)
    closing = torch.where(root > 0.5, torch.log(ratio) - opening, torch.log1p(-root))  # log(1 - root), without cancellation
    return (closing - opening) / 2, -root


def _inside(box: GateBox, a: Tensor, b: Tensor, steps: int) -> Points:
    """The interior local minimum of `s(v) tanh(z) - a v - b z`, less how far below its value the true one can lie.

    With `S = s(v)`, minimising over `z` first leaves a function of `v` whose derivative is `-phi(S)`,
    `phi(S) = (1-S) sqrt(S (S-b)) - |a|`: a concave function with its peak at `S*`, so the minimum is its root right of `S*`.
    That the root lies in the box bounds `S` from both sides; Newton from the right end is monotone and stays inside.
    The iteration runs in `w = 1 - S`, which keeps its precision when the gate is nearly open.
    """
    least = tiny(a.dtype)
    impossible = ~((a < 0) & (b > 0) & (b < 1))
    a, b = a.masked_fill(impossible, -0.05), b.masked_fill(impossible, 0.5)
    linear = 2 + 3 * b
    peak = (linear + (linear.square() - 16 * b).clamp(min=0).sqrt()) / 8
    # tanh z lies in [t.lower, t.upper] and is negative: b / (1 - tanh^2) bounds S.
    deepest, shallowest = (b / flatness for flatness in box.flatness)
    least_w = torch.maximum(box.closed.lower, 1 - deepest)
    greatest_w = torch.minimum(box.closed.upper, 1 - torch.maximum(peak, shallowest))
    impossible = impossible | (greatest_w < least_w * (1 - 16 * unit(a.dtype)))
    least_w = least_w.clamp(least, 0.5)  # S* >= 1/2: no root has w > 1/2
    greatest_w = torch.maximum(greatest_w, least_w)
    w = least_w
    for _ in range(steps):
        s = 1 - w
        above = s - b
        root = (s * above).clamp_(min=least).sqrt_()
        rise = torch.addcdiv(root, above.add_(s).mul_(w), root, value=-0.5)  # the derivative of w root
        excess = torch.addcmul(a, w, root)
        w = torch.addcdiv(w, excess, rise.masked_fill_(rise <= 0, math.inf), value=-1).clamp_(least_w, greatest_w)
    s = 1 - w
    residual = w * (s * (s - b)).clamp_(min=0).sqrt_() + a
    v = torch.log(s / w)
    short = (v - torch.log((1 - greatest_w) / greatest_w)).clamp(min=0)
    z, t = _descending((b / s).clamp(max=1))
    # Rounding may put the point a hair outside; the clip keeps it a point of the box, where `f` is what it is.
    v, z = v.clamp(box.v.lower, box.v.upper), z.clamp(box.z.lower, box.z.upper)
    penalty = (residual.clamp(max=0) * short).masked_fill_(impossible, math.inf)
    return Points(v.unsqueeze(0), z.unsqueeze(0), (s * t).unsqueeze(0), penalty.unsqueeze(0))
