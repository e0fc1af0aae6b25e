"""Relaxations chosen row by row: at every nonlinear node, whichever of several planes is highest at the row's worst input.

A walk's linear form says where its row would be least. The network is run there; the plane that a row had better used is the one
that comes closest to what the nodes do there. Every candidate is sound over the whole box, so any choice is:

    rows @ node >= sum over rows of the chosen planes, for all allowed inputs.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from popqorn.bounds.joint.choice import Passage
from popqorn.regions.region import AllowedSet
from popqorn.relax.relaxation import Linear, Relaxation
from popqorn.tape.tape import Tape


def worst_values(
    tape: Tape, allowed: AllowedSet, frames: Mapping[int, Tensor], rows: int, fallback: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """The value of every node at the input where each row's linear form is least, `[batch, rows, width]`.

    `frames` is the form: rows by frame. `fallback` is a point and a radius around it, for sets that do not say where forms are
    least.
    """
    batch = len(allowed.center)
    zero = allowed.center.new_zeros(1, 1, tape.features)
    form = torch.stack([frames.get(frame, zero).expand(batch, rows, -1) for frame in range(tape.frames)], dim=2)
    index = torch.arange(batch, device=form.device).repeat_interleave(rows)
    try:
        points = allowed.select(index).lowest(form.flatten(0, 1))
    except NotImplementedError:
        points = (fallback[0].unsqueeze(1) - fallback[1].unsqueeze(1) * form.sign()).flatten(0, 1)
    return [value.expand(batch * rows, -1).unflatten(0, (batch, rows)) for value in tape.values(points)]


def fanned(candidates: Sequence[Relaxation], at: Sequence[Tensor], passage: Passage | None) -> Relaxation:
    """For every row the best candidate at the operands `at` (`[batch, rows, width]`); tangents where a passage has them."""
    lower, upper = (_best([getattr(each, side) for each in candidates], at, sign) for side, sign in (("lower", 1), ("upper", -1)))
    if passage is None:
        return Relaxation(lower, upper)
    own = passage.relaxation
    return Relaxation(_either(passage.curved_below, own.lower, lower), _either(passage.curved_above, own.upper, upper))


def _best(planes: Sequence[Linear], at: Sequence[Tensor], sign: int) -> Linear:
    """The highest of some planes at every row's point; the lowest, with a `sign` of -1."""
    first = planes[0]
    slopes, offset = [slope.unsqueeze(1) for slope in first.slopes], first.offset.unsqueeze(1)
    best = sign * _rowwise(first)(*at)
    slopes, offset = [slope.expand_as(best) for slope in slopes], offset.expand_as(best)
    for plane in planes[1:]:
        other = _rowwise(plane)
        height = sign * other(*at)
        better = height > best  # false for NaN
        best = torch.where(better, height, best)
        slopes = [torch.where(better, new, old) for new, old in zip(other.slopes, slopes, strict=True)]
        offset = torch.where(better, other.offset, offset)
    return Linear(tuple(slopes), offset)


def _rowwise(plane: Linear) -> Linear:
    return Linear(tuple(slope.unsqueeze(1) for slope in plane.slopes), plane.offset.unsqueeze(1))


def _either(curved: Tensor, tangent: Linear, plane: Linear) -> Linear:
    curved, tangent = curved.unsqueeze(1), _rowwise(tangent)
    slopes = tuple(torch.where(curved, new, old) for new, old in zip(tangent.slopes, plane.slopes, strict=True))
    return Linear(slopes, torch.where(curved, tangent.offset, plane.offset))
