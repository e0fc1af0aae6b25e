"""Bands: between which two parallel planes a gate lies over a box, whatever their slopes.

`least <= f - a v - b z <= greatest` with both extremes exact (`minimum.py`): half as much again as the gap of the best planes
below and above, but with one pair of slopes for both sides, and for any number of boxes.
"""

import torch
from torch import Tensor

from popqorn.arithmetic import narrow
from popqorn.relax.gates import GateKind
from popqorn.relax.minimum import GateBox, gradient, offset
from popqorn.relax.relaxation import Interval


def gate_band(kind: GateKind, v: Interval, z: Interval, a: Tensor, b: Tensor) -> Interval:
    """The least and the greatest value of `f - a v - b z` over `v x z`, rounded outwards."""
    low, high, z_low, z_high, a, b = torch.broadcast_tensors(v.lower, v.upper, z.lower, z.upper, a, b)
    # -f(v, z) = f(v, -z): the greatest value is minus a least one, and both are found in one batch
    first = Interval(torch.stack([low, low]), torch.stack([high, high]))
    second = Interval(torch.stack([z_low, -z_high]), torch.stack([z_high, -z_low]))
    least = offset(GateBox.of(kind, first, second), torch.stack([a, -a]), torch.stack([b, b]))
    return Interval(least[0], -least[1])


def gate_secant(kind: GateKind, v: Interval, z: Interval, *, closing: bool = False) -> tuple[Tensor, Tensor]:
    """The mean slope of one factor times the middle of the other, both ways."""
    if closing:
        a, b = gate_secant(kind, -v, z)
        return -a, b
    s, t = Interval(*map(torch.sigmoid, (v.lower, v.upper))), Interval(*map(kind.factor, (z.lower, z.upper)))
    a, b = gradient(kind, (v.lower + v.upper) / 2, (z.lower + z.upper) / 2)
    width, height = v.upper - v.lower, z.upper - z.lower
    least = narrow(width.dtype)  # over less than that a quotient is rounding
    mean_a = (s.upper - s.lower) / width * (t.lower + t.upper) / 2
    mean_b = (t.upper - t.lower) / height * (s.lower + s.upper) / 2
    return torch.where(width > least, mean_a, a), torch.where(height > least, mean_b, b)
