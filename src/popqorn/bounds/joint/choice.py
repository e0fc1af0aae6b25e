"""Plane or tangent: what a walk is given at a nonlinear node, entry by entry and side by side.

A tangent has no gap at the reference point, but a bend that must be paid for wherever operands go; a plane has no bend, but a
gap everywhere. The tangent is taken where its bend, at a typical displacement, is less than the plane's gap at the reference
point; and not at all where boxes have grown much wider than to first order, as errors would cost more than they save.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.arithmetic import rounding, tiny
from popqorn.relax.quadratic import TYPICAL, Bend, Tangent
from popqorn.relax.relaxation import Interval, Linear, Relaxation


@dataclass(frozen=True)
class Passage:
    """One nonlinear node as a walk passes it; a bend of 0 where it is a plane, and not `curved`."""

    relaxation: Relaxation
    below: Bend
    above: Bend
    curved_below: Tensor
    curved_above: Tensor

    def ordinary(self) -> "Passage":
        """The same as tensors that may take part in gradients."""

        def linear(each: Linear) -> Linear:
            return Linear(tuple(slope.clone() for slope in each.slopes), each.offset.clone())

        def bend(each: Bend) -> Bend:
            cross = None if each.cross is None else each.cross.clone()
            return Bend(tuple(square.clone() for square in each.squares), cross, each.slack.clone())

        relaxation = Relaxation(linear(self.relaxation.lower), linear(self.relaxation.upper))
        return Passage(relaxation, bend(self.below), bend(self.above), self.curved_below.clone(), self.curved_above.clone())


@dataclass(frozen=True)
class Choice:
    """Both ways past a node; `below` and `above` say where the tangent is worth its bend, `inflation` (`[batch]`) how much wider
    boxes are than to first order.
    """

    planes: Relaxation
    lines: Relaxation
    tangent: Tangent
    below: Tensor
    above: Tensor
    inflation: Tensor
    widen: Callable[[Relaxation], Relaxation]

    def passage(self, most: float) -> Passage:
        """Tangents where boxes are at most `most` times as wide as to first order."""
        assert self.tangent.below is not None
        assert self.tangent.above is not None
        narrow = (self.inflation <= most).unsqueeze(-1)
        below, above = self.below & narrow, self.above & narrow
        lower = _either(below, self.lines.lower, self.planes.lower)
        upper = _either(above, self.lines.upper, self.planes.upper)
        bends = _where(below, self.tangent.below), _where(above, self.tangent.above)
        return Passage(self.widen(Relaxation(lower, upper)), *bends, below, above)


def choose(
    planes: Relaxation,
    tangent: Tangent,
    at: tuple[Tensor, ...],
    operands: Sequence[Interval],
    widths: Sequence[Tensor],
    off: Sequence[Interval],
    widen: Callable[[Relaxation], Relaxation],
) -> Choice:
    """Weigh a tangent that has one-sided bends against planes.

    `widths` are the operands' first-order widths, `off` ranges of what is not linear in them.
    """
    assert tangent.below is not None
    assert tangent.above is not None
    typical = [
        TYPICAL**0.5 * width + torch.maximum(-ranges.lower, ranges.upper).clamp(min=0)
        for width, ranges in zip(widths, off, strict=True)
    ]
    wide = torch.stack([(box.upper - box.lower).sum(-1) / 2 for box in operands]).sum(0)
    narrow = torch.stack([width.sum(-1) for width in widths]).sum(0)
    worth, lines = [], []
    for plane, bend, side in ((planes.lower, tangent.below, 1.0), (planes.upper, tangent.above, -1.0)):
        cost = bend.slack
        for square, size in zip(bend.squares, typical, strict=True):
            cost = cost + square * size.square() / 2
        line = _through(tangent, at, side * bend.slack)
        worth.append((cost.clamp(min=0) < (plane(*at) - tangent.value).abs()) & line.offset.isfinite())  # false for NaN
        lines.append(line)
    inflation = wide / narrow.clamp(min=tiny(narrow.dtype))
    return Choice(planes, Relaxation(lines[0], lines[1]), tangent, worth[0], worth[1], inflation, widen)


def _through(tangent: Tangent, at: tuple[Tensor, ...], less: Tensor) -> Linear:
    """The tangent as a linear function of the operands, `less` lower; rounded the way of `less`."""
    offset, terms = tangent.value - less, [tangent.value]
    for slope, point in zip(tangent.slopes, at, strict=True):
        offset = offset - slope * point
        terms.append(slope * point)
    return Linear(tangent.slopes, offset - torch.sign(less) * rounding(*terms))


def _either(chosen: Tensor, line: Linear, plane: Linear) -> Linear:
    slopes = tuple(torch.where(chosen, new, old) for new, old in zip(line.slopes, plane.slopes, strict=True))
    return Linear(slopes, torch.where(chosen, line.offset, plane.offset))


def _where(chosen: Tensor, bend: Bend) -> Bend:
    squares = tuple(torch.where(chosen, square, 0.0) for square in bend.squares)
    return Bend(squares, None if bend.cross is None else torch.where(chosen, bend.cross, 0.0), bend.slack)
