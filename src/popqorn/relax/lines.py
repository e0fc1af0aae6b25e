"""Lines: minimum-area relaxations of unary functions.

The line of least area below `f` on `[l, u]` supports the convex envelope of `f` at the midpoint. Each function here picks the
slope of that line and then computes the offset from what is *known* of `f` (convexity, kinks, a bound of `f''`), so that the
line is valid whatever an iteration left over. Lines above `f` are lines below `x -> -f(-x)`, mirrored.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from popqorn.arithmetic import lost, narrow, rounding
from popqorn.relax.activations import Activation, Concave, Convex, Function, PiecewiseLinear, Sigmoidal, Smooth
from popqorn.relax.relaxation import Interval, Linear, Relaxation

TANGENT_STEPS = 26
HULL_ROUNDS = 16
COARSE_CELLS = 256
FINE_CELLS = 16
KEPT_CELLS = 8
REFINEMENTS = 2


def lines(activation: Activation, box: Interval) -> Relaxation:
    """Lower and upper line of `activation` over `box`: `lower(x) <= f(x) <= upper(x)` for all `x` in the box."""
    box, undefined = _domain(activation, box)
    shape, mirrored = activation.shape, _MIRRORED[type(activation.shape)](activation.shape)
    slope, offset = _LOWER_LINES[type(shape)](activation.function, shape, box.lower, box.upper)
    mirrored_slope, mirrored_offset = _LOWER_LINES[type(mirrored)](mirror(activation.function), mirrored, -box.upper, -box.lower)
    lower, upper = offset - activation.slack, activation.slack - mirrored_offset
    if undefined is not None:
        slope, mirrored_slope = slope.masked_fill(undefined, 0.0), mirrored_slope.masked_fill(undefined, 0.0)
        lower, upper = lower.masked_fill(undefined, -math.inf), upper.masked_fill(undefined, math.inf)
    return Relaxation(Linear((slope,), lower), Linear((mirrored_slope,), upper))


def image(activation: Activation, box: Interval) -> Interval:
    """The least and greatest value of `activation` on `box` (an enclosure of them)."""
    box, undefined = _domain(activation, box)
    shape, mirrored = activation.shape, _MIRRORED[type(activation.shape)](activation.shape)
    low = _MINIMUM[type(shape)](activation.function, shape, box.lower, box.upper) - activation.slack
    high = -_MINIMUM[type(mirrored)](mirror(activation.function), mirrored, -box.upper, -box.lower) + activation.slack
    if undefined is not None:
        low, high = low.masked_fill(undefined, -math.inf), high.masked_fill(undefined, math.inf)
    return Interval(low, high)


def _domain(activation: Activation, box: Interval) -> tuple[Interval, Tensor | None]:
    """The box, and where the function is not defined on all of it: there the box becomes the point 1, and nothing is known."""
    if activation.defined is None:
        return box, None
    undefined = ~activation.defined(box.lower, box.upper)
    return Interval(box.lower.masked_fill(undefined, 1.0), box.upper.masked_fill(undefined, 1.0)), undefined


def mirror(function: Function) -> Function:
    """`x -> -f(-x)`: turns a line above `f` into a line below."""
    return lambda x: -function(-x)


# ---- convex up to a knot, concave after it -----------------------------------------------------------------------------------


def _sigmoidal_lower(function: Function, shape: Sigmoidal, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Tangent at the midpoint, or tangent from the upper end, or chord: whichever carries the envelope at the midpoint."""
    middle = (lower + upper) / 2
    convex_end = upper.clamp(max=shape.knot)
    start = _tangent_point(function, shape, lower, upper)
    on_curve = (middle <= start) | (upper <= shape.knot)
    touch = torch.where(on_curve, middle, start)
    run = upper - touch
    chord = (function(upper) - function(touch)) / torch.where(run > 0, run, 1.0)
    slope = torch.where(on_curve | (run < narrow(run.dtype)), shape.derivative(touch), chord)
    # On the convex part, if any, f lies above its tangent at `touch`; on the concave part f - slope x is least at an end.
    bends = lower <= shape.knot
    steeper = torch.where(bends, shape.derivative(touch) - slope, 0.0)
    drop = torch.minimum(steeper * (lower - touch), steeper * (convex_end - touch))
    convex_least = torch.where(bends, function(touch) - slope * touch + drop, math.inf)
    ends_least = torch.minimum(function(lower) - slope * lower, function(upper) - slope * upper)
    furthest = torch.maximum(lower.abs(), upper.abs())
    error = rounding(function(lower), function(upper), slope * furthest, steeper * (upper - lower)) + lost(upper - lower)
    return slope, torch.minimum(convex_least, ends_least) - error


def _tangent_point(function: Function, shape: Sigmoidal, lower: Tensor, upper: Tensor) -> Tensor:
    """The greatest `x` of the convex part whose tangent stays below `f(upper)`; `lower` if there is none."""
    left, right = lower, torch.maximum(lower, upper.clamp(max=shape.knot))
    if math.isinf(shape.knot):
        return left
    if shape.touch is not None:
        return torch.where(lower > shape.knot, lower, torch.maximum(lower, shape.touch(upper).clamp(max=shape.knot)))
    if bool(((right <= left) | (upper <= shape.knot)).all()):  # only one part of the curve: no tangent to look for
        return left
    target = function(upper)
    for _ in range(TANGENT_STEPS):
        x = (left + right) / 2
        below = function(x) + shape.derivative(x) * (upper - x) <= target
        left, right = torch.where(below, x, left), torch.where(below, right, x)
    return left


def _sigmoidal_minimum(function: Function, shape: Sigmoidal, lower: Tensor, upper: Tensor) -> Tensor:
    value = function(lower)
    return value - rounding(value)


def _mirrored_sigmoidal(shape: Sigmoidal) -> Sigmoidal:
    touch = shape.touch
    if touch is None:
        return Sigmoidal(lambda x: shape.derivative(-x), -shape.knot)
    # symmetric about its knot k, -f(-x) is f shifted by 2k (and up or down)
    shift = 2 * shape.knot
    return Sigmoidal(lambda x: shape.derivative(-x), -shape.knot, lambda upper: touch(upper + shift) - shift)


# ---- convex or concave as a whole --------------------------------------------------------------------------------------------


def _convex_lower(function: Function, shape: Convex, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The tangent at the midpoint."""
    middle = (lower + upper) / 2
    slope, value = shape.derivative(middle), function(middle)
    error = rounding(value, slope * torch.maximum(lower.abs(), upper.abs()), slope * (upper - lower))
    return slope, value - slope * middle - error - lost(upper - lower)  # a slope too small to be a number, over a long way


def _convex_minimum(function: Function, shape: Convex, lower: Tensor, upper: Tensor) -> Tensor:
    value = function(torch.minimum(torch.maximum(lower, torch.full_like(lower, shape.lowest)), upper))
    return value - rounding(value)


def _concave_lower(function: Function, shape: Concave, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The chord; over a narrow box, where it is mostly rounding, the tangent's slope."""
    run = upper - lower
    start, end = function(lower), function(upper)
    slope = torch.where(
        run < narrow(run.dtype), shape.derivative((lower + upper) / 2), (end - start) / torch.where(run > 0, run, 1.0)
    )
    least = torch.minimum(start - slope * lower, end - slope * upper)
    return slope, least - rounding(start, end, slope * torch.maximum(lower.abs(), upper.abs()))


def _concave_minimum(function: Function, shape: Concave, lower: Tensor, upper: Tensor) -> Tensor:
    value = torch.minimum(function(lower), function(upper))
    return value - rounding(value)


# ---- linear between kinks ----------------------------------------------------------------------------------------------------


def _corners(shape: PiecewiseLinear, lower: Tensor, upper: Tensor) -> Tensor:
    """Both ends and the kinks between them, along a new last axis."""
    inner = [torch.maximum(torch.minimum(torch.full_like(lower, kink), upper), lower) for kink in shape.kinks]
    return torch.stack([lower, *inner, upper], dim=-1)


def _precision(shape: PiecewiseLinear, dtype: torch.dtype) -> torch.dtype:
    """In which to look at the corners: double where a kink is no number of `dtype`, as the function would be another one."""
    exact = torch.tensor(shape.kinks, dtype=torch.float64)
    return dtype if dtype == torch.float64 or torch.equal(exact.to(dtype).double(), exact) else torch.float64


def _rounded_down(value: Tensor, dtype: torch.dtype) -> Tensor:
    if value.dtype == dtype:
        return value
    return value.to(dtype) - rounding(value.to(dtype))


def _piecewise_lower(function: Function, shape: PiecewiseLinear, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    dtype = lower.dtype
    lower, upper = (end.to(_precision(shape, dtype)) for end in (lower, upper))
    points = _corners(shape, lower, upper)
    values = function(points)
    slope = _hull_slope(points, values, (lower + upper) / 2).to(dtype)
    tilted = values - slope.to(points.dtype).unsqueeze(-1) * points
    error = rounding(values.abs().amax(-1), (slope.unsqueeze(-1) * points).abs().amax(-1))
    return slope, _rounded_down(tilted.amin(-1) - error, dtype)


def _piecewise_minimum(function: Function, shape: PiecewiseLinear, lower: Tensor, upper: Tensor) -> Tensor:
    dtype = lower.dtype
    value = function(_corners(shape, *(end.to(_precision(shape, dtype)) for end in (lower, upper)))).amin(-1)
    return _rounded_down(value - rounding(value), dtype)


def _hull_slope(points: Tensor, values: Tensor, middle: Tensor) -> Tensor:
    """Slope of the edge of the lower convex hull of `(points, values)` that passes over `middle`; points ascend.

    From the chord between the outermost points: while some point lies below the chord, the lowest one becomes its new end on
    that point's side of the middle. With few points that ends at the hull; with many it is close after a few rounds.
    """
    left = torch.zeros_like(points[..., :1], dtype=torch.long)
    right = left + (points.shape[-1] - 1)
    slope = torch.zeros_like(middle)
    for _ in range(min(points.shape[-1], HULL_ROUNDS)):
        run = points.gather(-1, right) - points.gather(-1, left)
        rise = values.gather(-1, right) - values.gather(-1, left)
        slope = torch.where(run > 0, rise / torch.where(run > 0, run, 1.0), 0.0).squeeze(-1)
        lowest = (values - slope.unsqueeze(-1) * points).argmin(-1, keepdim=True)
        on_left = points.gather(-1, lowest) <= middle.unsqueeze(-1)
        left, right = torch.where(on_left, lowest, left), torch.where(on_left, right, lowest)
    return slope


# ---- second derivative bounded -----------------------------------------------------------------------------------------------


def _smooth_lower(function: Function, shape: Smooth, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    points = _grid(lower, upper, COARSE_CELLS)
    slope = _hull_slope(points, function(points), (lower + upper) / 2)
    return slope, certified_minimum(function, shape.curvature, lower, upper, slope)


def _smooth_minimum(function: Function, shape: Smooth, lower: Tensor, upper: Tensor) -> Tensor:
    return certified_minimum(function, shape.curvature, lower, upper, torch.zeros_like(lower))


def _grid(lower: Tensor, upper: Tensor, cells: int) -> Tensor:
    steps = torch.linspace(0, 1, cells + 1, dtype=lower.dtype, device=lower.device)
    return torch.lerp(lower.unsqueeze(-1), upper.unsqueeze(-1), steps)


def certified_minimum(
    function: Function, curvature: Callable[[Tensor, Tensor], Tensor], lower: Tensor, upper: Tensor, slope: Tensor
) -> Tensor:
    """A lower bound of `min f(x) - slope x` on `[lower, upper]` by branch and bound on a grid.

    On a cell of width h, f sinks below its chord by at most `h^2/8 max|f''|`. The few cells of least bound are cut again; the
    others keep the bound they have, so that the answer is valid however early the cutting stops.
    """
    tilt = slope.unsqueeze(-1)
    points = _grid(lower, upper, COARSE_CELLS)
    starts, ends = points[..., :-1], points[..., 1:]
    bound = _cell_bounds(function, curvature, starts, ends, tilt)
    settled = torch.full_like(lower, math.inf)
    for _ in range(REFINEMENTS):
        order = bound.argsort(-1)
        kept, left_out = order[..., :KEPT_CELLS], order[..., KEPT_CELLS:]
        settled = torch.minimum(settled, bound.gather(-1, left_out).amin(-1))
        points = _grid(starts.gather(-1, kept), ends.gather(-1, kept), FINE_CELLS)
        starts, ends = points[..., :-1].flatten(-2), points[..., 1:].flatten(-2)
        bound = _cell_bounds(function, curvature, starts, ends, tilt)
    return torch.minimum(settled, bound.amin(-1))


def _cell_bounds(
    function: Function, curvature: Callable[[Tensor, Tensor], Tensor], starts: Tensor, ends: Tensor, tilt: Tensor
) -> Tensor:
    """A lower bound of `f(x) - tilt x` on every cell `[starts, ends]`."""
    start_values, end_values = function(starts), function(ends)
    sag = (ends - starts).square() / 8 * curvature(starts, ends)
    # x itself counts too: torch computes x(1 + tanh)/2 and the like, whose error is one of x even where the value is tiny
    error = rounding(starts, ends, start_values, end_values, tilt * starts, tilt * ends)
    return torch.minimum(start_values - tilt * starts, end_values - tilt * ends) - sag - error


LowerLine = Callable[[Function, Any, Tensor, Tensor], tuple[Tensor, Tensor]]
_LOWER_LINES: dict[type, LowerLine] = {
    Sigmoidal: _sigmoidal_lower,
    Convex: _convex_lower,
    Concave: _concave_lower,
    PiecewiseLinear: _piecewise_lower,
    Smooth: _smooth_lower,
}
_MINIMUM: dict[type, Callable[[Function, Any, Tensor, Tensor], Tensor]] = {
    Sigmoidal: _sigmoidal_minimum,
    Convex: _convex_minimum,
    Concave: _concave_minimum,
    PiecewiseLinear: _piecewise_minimum,
    Smooth: _smooth_minimum,
}
_MIRRORED: dict[type, Callable[[Any], Any]] = {
    Sigmoidal: _mirrored_sigmoidal,
    Convex: lambda shape: Concave(lambda x: shape.derivative(-x), -shape.lowest),
    Concave: lambda shape: Convex(lambda x: shape.derivative(-x), -shape.highest),
    PiecewiseLinear: lambda shape: PiecewiseLinear(tuple(-kink for kink in reversed(shape.kinks))),
    Smooth: lambda shape: Smooth(lambda lower, upper: shape.curvature(-upper, -lower)),
}
