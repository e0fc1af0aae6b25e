"""Relaxations chosen row by row: at every nonlinear node, whichever of several planes is highest at the row's worst input.

A walk's linear form says where its row would be least. The network is run there; the plane that a row had better used is the one
that comes closest to what the nodes do there. Every candidate is sound over the whole box, so any choice is:

    rows @ node >= sum over rows of the chosen planes, for all allowed inputs.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.bounds.joint.choice import Passage
from popqorn.regions.region import AllowedSet
from popqorn.relax.relaxation import Linear, Relaxation
from popqorn.tape.tape import Tape


def worst_inputs(
    tape: Tape, allowed: AllowedSet, frames: Mapping[int, Tensor], rows: int, units: tuple[Tensor, Tensor]
) -> Float[Tensor, "entries frames features"]:
    """The input where each row's linear form is least, sample by sample and row by row.

    `frames` is the form: rows by frame. `units` is a point and a radius around it, for sets that do not say where forms are
    least: then it is a corner of the box.
    """
    batch = len(allowed.center)
    zero = allowed.center.new_zeros(1, 1, tape.features)
    form = torch.stack([frames.get(frame, zero).expand(batch, rows, -1) for frame in range(tape.frames)], dim=2)
    index = torch.arange(batch, device=form.device).repeat_interleave(rows)
    try:
        return allowed.select(index).lowest(form.flatten(0, 1))
    except NotImplementedError:
        return (units[0].unsqueeze(1) - units[1].unsqueeze(1) * form.sign()).flatten(0, 1)


def worst_values(
    tape: Tape, allowed: AllowedSet, frames: Mapping[int, Tensor], rows: int, units: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """The value of every node there, `[batch, rows, width]`."""
    points = worst_inputs(tape, allowed, frames, rows, units)
    return [value.expand(len(points), -1).unflatten(0, (-1, rows)) for value in tape.values(points)]


def fanned(candidates: Sequence[Relaxation], at: Sequence[Tensor], passage: Passage | None) -> Relaxation:
    """For every row the best candidate at the operands `at` (`[batch, rows, width]`); tangents where a passage has them."""
    lower, upper = (_best([getattr(each, side) for each in candidates], at, sign) for side, sign in (("lower", 1), ("upper", -1)))
    return either(Relaxation(lower, upper), passage)


def either(planes: Relaxation, passage: Passage | None) -> Relaxation:
    """Planes of every row's own (`[batch, rows, width]`), and tangents where a passage has them."""
    if passage is None:
        return planes
    own = passage.relaxation
    return Relaxation(
        _either(passage.curved_below, own.lower, planes.lower), _either(passage.curved_above, own.upper, planes.upper)
    )


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


def of_row(plane: Linear, row: int) -> Linear:
    """One row's plane, `[batch, width]`."""
    return Linear(tuple(slope[:, row] for slope in plane.slopes), plane.offset[:, row])


def in_rows(relaxations: Sequence[Relaxation]) -> Relaxation:
    """Relaxations of one row each as one with an axis of rows."""

    def stacked(planes: Sequence[Linear]) -> Linear:
        slopes = tuple(torch.stack(each, dim=1) for each in zip(*(plane.slopes for plane in planes), strict=True))
        return Linear(slopes, torch.stack([plane.offset for plane in planes], dim=1))

    return Relaxation(stacked([each.lower for each in relaxations]), stacked([each.upper for each in relaxations]))
