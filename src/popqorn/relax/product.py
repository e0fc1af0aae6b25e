"""Planes of the product of two variables over a box (McCormick), with exact offsets."""

import math

import torch
from torch import Tensor

from popqorn.arithmetic import large, rounding
from popqorn.relax.relaxation import Interval, Linear, Relaxation


def product_image(x: Interval, y: Interval) -> Interval:
    """The least and greatest value: each at a corner."""
    xs, ys = _ends(x, y)
    corners = xs * ys
    lower, upper = corners.amin(0), corners.amax(0)
    return Interval(_known(lower - rounding(lower)), -_known(-upper - rounding(upper)))


def product_planes(x: Interval, y: Interval) -> Relaxation:
    """`lower <= x y <= upper` over the box, both of least volume.

    McCormick's two planes below, `x_l y + y_l x - x_l y_l` and `x_u y + y_u x - x_u y_u`, have the same value at the centre of
    the box, and so has every mixture of them. We take the mixture that changes least over the box: it passes least of the
    operands' own errors on. A product less a plane is least at a corner, which gives the offset.
    """
    middle_x, half_x = (x.lower + x.upper) / 2, (x.upper - x.lower) / 2
    middle_y, half_y = (y.lower + y.upper) / 2, (y.upper - y.lower) / 2
    both = half_x * half_y
    area = 2 * torch.where(both > 0, both, torch.inf)
    below = ((middle_y * half_x + middle_x * half_y) / area).clamp(-1.0, 1.0)
    above = ((middle_x * half_y - middle_y * half_x) / area).clamp(-1.0, 1.0)
    huge = ~(torch.maximum(x.magnitude, y.magnitude) <= large(both.dtype))  # where products overflow, the least value will do
    lower = _plane(x, y, middle_y - below * half_y, middle_x - below * half_x, huge, 1.0)
    upper = _plane(x, y, middle_y + above * half_y, middle_x - above * half_x, huge, -1.0)
    return Relaxation(lower, upper)


def product_band(slopes: tuple[Tensor, ...], x: Interval, y: Interval) -> Interval:
    """The least and the greatest value of `x y - a x - b y` over the box, rounded outwards."""
    a, b = slopes
    small = torch.zeros_like(x.lower * y.lower, dtype=torch.bool)
    return Interval(_plane(x, y, a, b, small, 1.0).offset, _plane(x, y, a, b, small, -1.0).offset)


def _plane(x: Interval, y: Interval, a: Tensor, b: Tensor, huge: Tensor, side: float) -> Linear:
    """The plane of slopes `a` and `b` that touches the product from below (`side = 1`) or from above (`side = -1`)."""
    a, b = a.masked_fill(huge, 0.0), b.masked_fill(huge, 0.0)
    xs, ys = _ends(x, y)
    tilted = side * (xs * ys - a * xs - b * ys)
    error = rounding(x.magnitude * y.magnitude, a * x.magnitude, b * y.magnitude)
    return Linear((a, b), side * _known(tilted.amin(0) - error))


def _known(least: Tensor) -> Tensor:
    """A least value; -inf where overflow leaves nothing to say."""
    return least.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)


def _ends(x: Interval, y: Interval) -> tuple[Tensor, Tensor]:
    """Both coordinates of the four corners, along a new first axis."""
    sides = torch.broadcast_tensors(x.lower, x.upper, y.lower, y.upper)
    return torch.stack([sides[0], sides[0], sides[1], sides[1]]), torch.stack([sides[2], sides[3], sides[2], sides[3]])
