"""Slopes trained on the rows' own bound: gradients go through the walk, proofs do not.

A walk through planes of slopes `s` ends in a bound `L(s)`, and every `s` is sound with its exact offset (`relax/resting.py`).
Three things in `L` are minima, and pass gradients as if the place of the minimum stood still: the offset of a plane, the input
where the linear form is least, and the displacement where the quadratic form of tangents is greatest (estimated; all that were
met are kept, and the worst of them counts). Adam climbs; what counts is the bound of the slopes it ends with, computed and proven
like any other.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.bounds.ground import Ground
from popqorn.bounds.joint.choice import Passage
from popqorn.bounds.joint.fan import either, worst_inputs
from popqorn.bounds.joint.forms import Matrix, bent
from popqorn.bounds.walk import Form, walk_forms
from popqorn.regions.region import AllowedSet
from popqorn.relax.relaxation import Interval, Linear, Relaxation
from popqorn.relax.resting import Resting, Slopes
from popqorn.tape.ops.nonlinear import Gate
from popqorn.tape.tape import Tape

RATE = 0.005  # of the first steps; slopes are at most 1
STEPS = 60  # at most, before displacements are looked for again
LAST_RATE = 0.1  # of the rate, at the end
FEWEST = 3  # steps


@dataclass(frozen=True)
class Rows:
    """Rows of a node on their way: everything a walk takes, and how it passes nonlinear nodes.

    `strains` are displacements where the rows' quadratic form was about greatest, each with how much more it cost than they say.
    """

    tape: Tape
    index: int
    rows: Tensor
    relaxations: Mapping[int, Relaxation]
    known: Mapping[int, Tensor]
    allowed: AllowedSet
    units: tuple[Tensor, Tensor]
    boxes: Mapping[int, Interval]
    passages: Mapping[int, Passage]
    strains: Sequence["Strain"]


@dataclass(frozen=True)
class Strain:
    """Displacements of the operands of some nodes (`[batch, rows, width]`), and a factor of the form there (`[batch, rows]`)."""

    moved: Mapping[int, tuple[Tensor, ...]]
    share: Tensor

    def of(self, form: Mapping[int, Matrix]) -> Tensor:
        """`share / 2 delta' Q delta`."""
        total = torch.zeros_like(self.share)
        for n, matrix in form.items():
            for vector, own in zip(matrix.times(*self.moved[n]), self.moved[n], strict=True):
                total = total + (vector * own).sum(-1) / 2
        return self.share * total

    def ordinary(self) -> "Strain":
        return Strain({n: tuple(each.clone() for each in own) for n, own in self.moved.items()}, self.share.clone())


def trained(given: Rows, start: Mapping[int, Relaxation], seconds: float) -> dict[int, Resting]:
    """Better slopes for the gates among the relaxations `start` (`[batch, rows, width]`), and where their planes rest.

    Offsets are exact; rounding of walks is not in them yet.
    """
    ended = time.monotonic() + seconds
    gates = [n for n in start if isinstance(given.tape.nodes[n], Gate)]
    if not gates:
        return {}
    with torch.inference_mode(False), torch.enable_grad():
        given = _ordinary(given)
        slopes = {
            n: [each.detach().clone().requires_grad_() for side in (start[n].lower, start[n].upper) for each in side.slopes]
            for n in gates
        }
        parameters = [each for own in slopes.values() for each in own]
        best = [each.detach().clone() for each in parameters]
        reached: Tensor | None = None
        adam = torch.optim.Adam(parameters, RATE)
        for step in range(STEPS):
            if step >= FEWEST and time.monotonic() > ended:
                break
            bound = _bound(given, slopes)
            value = bound.detach()
            better = torch.ones_like(value, dtype=torch.bool) if reached is None else value > reached
            best = [torch.where(better.unsqueeze(-1), new.detach(), old) for new, old in zip(parameters, best, strict=True)]
            reached = value if reached is None else torch.fmax(reached, value)
            adam.zero_grad()
            (-bound.sum()).backward()
            for group in adam.param_groups:
                group["lr"] = RATE * LAST_RATE ** (step / STEPS)
            adam.step()
    found = iter(best)
    chosen = {n: [next(found) for _ in range(4)] for n in gates}
    return {n: _rested(given, n, own) for n, own in chosen.items()}


def _rested(given: Rows, n: int, slopes: list[Tensor]) -> Resting:
    node = given.tape.nodes[n]
    assert isinstance(node, Gate)
    lower, upper = (slopes[0], slopes[1]), (slopes[2], slopes[3])
    return node.resting(lower, upper, *(given.boxes[source] for source in node.sources))


def _bound(given: Rows, slopes: Mapping[int, list[Tensor]]) -> Tensor:
    """The bound of all rows, with gradients by the slopes: what a proof will probably say, `[batch, rows]`."""
    own: dict[int, Relaxation] = {}
    for n, each in slopes.items():
        with torch.no_grad():
            rested = _rested(given, n, [slope.detach() for slope in each])
        relaxation = Relaxation(
            _through(rested.relaxation.lower, rested.below, (each[0], each[1])),
            _through(rested.relaxation.upper, rested.above, (each[2], each[3])),
        )
        own[n] = either(relaxation, given.passages.get(n))
    form = walk_forms(Ground(given.tape, {**given.relaxations, **own}, given.known, given.allowed), given.index, given.rows)
    total = sum(form.terms) + _least(given, form)
    left = {
        n: bent(rows, given.passages[n].below, given.passages[n].above) for n, rows in form.met.items() if n in given.passages
    }
    if left and given.strains:
        total = total - torch.stack([strain.of(left) for strain in given.strains]).amax(0)
    return total


def _through(plane: Linear, at: Slopes, slopes: Slopes) -> Linear:
    """A plane whose offset follows its slopes around the point where it rests."""
    change = sum((new - old) * point for new, old, point in zip(slopes, plane.slopes, at, strict=True))
    return Linear(slopes, plane.offset - change)


def _least(given: Rows, form: Form) -> Tensor:
    """The least value of the linear form beside its centre: at an input that stands still."""
    count = given.rows.shape[1]
    with torch.no_grad():
        points = worst_inputs(given.tape, given.allowed, form.frames, count, given.units)
    moved = (points - given.allowed.center.repeat_interleave(count, dim=0)).unflatten(0, (-1, count))
    total = given.rows.new_zeros(moved.shape[:2])
    for frame, rows in form.frames.items():
        total = total + (rows * moved[:, :, frame]).sum(-1)
    return total


def _ordinary(given: Rows) -> Rows:
    """The same as ordinary tensors: those made in inference mode take no part in gradients."""

    def of(each: Linear) -> Linear:
        return Linear(tuple(slope.clone() for slope in each.slopes), each.offset.clone())

    relaxations = {n: Relaxation(of(each.lower), of(each.upper)) for n, each in given.relaxations.items()}
    passages = {n: passage.ordinary() for n, passage in given.passages.items()}
    return Rows(
        given.tape,
        given.index,
        given.rows.clone(),
        relaxations,
        {n: value.clone() for n, value in given.known.items()},
        given.allowed,
        given.units,
        {n: Interval(box.lower.clone(), box.upper.clone()) for n, box in given.boxes.items()},
        passages,
        [strain.ordinary() for strain in given.strains],
    )
