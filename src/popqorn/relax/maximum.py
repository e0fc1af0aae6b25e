"""Relaxations of the maximum of several operands, entry by entry."""

import torch
from torch import Tensor

from popqorn.arithmetic import rounding
from popqorn.relax.relaxation import Interval, Linear, Relaxation

TIE = 1e-9


def maximum_image(*operands: Interval) -> Interval:
    """The least and greatest value of the maximum: those of the ends."""
    lower, upper = _stacked(operands)
    return Interval(lower.amax(0), upper.amax(0))


def maximum_planes(*operands: Interval) -> Relaxation:
    """Below: the operand whose middle is highest. Above: for the best `t`, `max_i x_i <= t + sum_i relu(x_i - t)`, by chords.

    The bound above holds for every `t`. Its value at the centre of the box is piecewise linear in `t` with kinks at the ends of
    the operands, so one of these is best; the value at the centre, times the box's volume, is the volume below the plane.
    """
    lower, upper = _stacked(operands)
    middle = (lower + upper) / 2
    highest = middle.argmax(0, keepdim=True)
    below = torch.zeros_like(lower).scatter(0, highest, 1.0)
    at_center = torch.stack([_chords(lower, upper, t)[1] for t in (*lower, *upper)])
    # Many are equally good; which of them is taken must not be left to rounding, or radii would depend on the batch.
    least = at_center.amin(0)
    equal = at_center <= least + TIE * (least.abs() + (upper - lower).amax(0))
    best = torch.cat([lower, upper]).gather(0, equal.to(torch.uint8).argmax(0, keepdim=True)).squeeze(0)
    slopes, _ = _chords(lower, upper, best)
    # The least offset that is valid, from what was chosen: each chord is slope (x - lower), or x - t itself where x is always
    # above.
    starts = torch.where(lower >= best, best, lower)
    offset = best - (slopes * starts).sum(0)
    error = rounding(best, *(slopes * starts), *(slopes * upper))
    zero = torch.zeros_like(best)
    return Relaxation(Linear(tuple(below), zero), Linear(tuple(slopes), offset + error))


def _stacked(operands: tuple[Interval, ...]) -> tuple[Tensor, Tensor]:
    lower = torch.stack(torch.broadcast_tensors(*(operand.lower for operand in operands)))
    return lower, torch.stack(torch.broadcast_tensors(*(operand.upper for operand in operands)))


def _chords(lower: Tensor, upper: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The slope of every `relu(x_i - t)`'s chord over `[lower, upper]`, and the value of the sum, `t` added, at the centre."""
    width = upper - lower
    slopes = ((upper - t) / torch.where(width > 0, width, 1.0)).clamp(0.0, 1.0)
    slopes = torch.where(lower >= t, 1.0, slopes)
    rise = torch.where(lower >= t, (lower + upper) / 2 - t, slopes * width / 2)
    return slopes, t + rise.sum(0)
