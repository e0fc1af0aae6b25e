"""How far a walk in floating point may go astray, node by node (docs/theory.md, Rounding).

A computed walk is an exact walk of slightly different operations. `Errors.of` bounds, for every entry of a node, the sum of

- what passing rows through the node adds: `gamma_n` times the magnitudes that are multiplied and summed;
- what collecting the pieces that its users send adds: `gamma` of their number, times the node's magnitude;
- what its operands carry, through the absolute values of its weights.

A row `A` that starts at a node loses at most `|A| error`. Errors are carried forward through linear operations only: at a
nonlinear one they are paid for by moving its relaxation outwards, so no walk has to think of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popqorn.arithmetic import FEW, NORM, gamma, tiny
from popqorn.relax.relaxation import Interval, Relaxation
from popqorn.tape.ops import Affine, Concat, Gate, GateKind, Maximum, Node, Scale, Slice, Sum, pull_back
from popqorn.tape.tape import Tape

SEVERAL = 4  # times a sum's own error: an operand counts at the centre, beside it and in its box, and errors round too


@dataclass(frozen=True)
class Errors:
    """The bounds for one tape and dtype."""

    tape: Tape
    dtype: torch.dtype

    def of(self, node: Node, operands: Sequence[Interval], carried: Sequence[Tensor]) -> Tensor:
        """The error of a linear node, from the boxes of its operands and what they carry."""
        count = node.width + sum(operand.lower.shape[-1] for operand in operands) + self.tape.most_pieces + FEW
        share = SEVERAL * gamma(count, self.dtype)
        weighed = [share * operand.magnitude + error for operand, error in zip(operands, carried, strict=True)]
        constant, total = _ABSOLUTE.get(type(node), _absolute)(node, weighed)
        lost = tiny(self.dtype) * count * sum(operand.magnitude.sum(-1, keepdim=True) + 1 for operand in operands)
        return total + share * constant + lost

    def of_input(self, box: Interval) -> Tensor:
        """The error of a frame: of the norms and dot products that regions take of the rows there."""
        count = self.tape.features + self.tape.frames + self.tape.most_pieces + NORM
        return SEVERAL * gamma(count, self.dtype) * box.magnitude + FEW * tiny(self.dtype)

    def of_value(self, box: Interval) -> Tensor:
        """The error of collecting rows at a node and multiplying them by a value in its box."""
        count = box.lower.shape[-1] + self.tape.most_pieces + FEW
        return SEVERAL * gamma(count, self.dtype) * box.magnitude + FEW * tiny(self.dtype)

    def of_relaxation(
        self, node: Node, relaxation: Relaxation, operands: Sequence[Interval], carried: Sequence[Tensor], known: Sequence[bool]
    ) -> tuple[Tensor, Tensor]:
        """How far the relaxation of a nonlinear node must move outwards, and how far its box: for what its operands carry.

        The value of a known operand is off by its error; the relaxation was made at the value itself.
        """
        width, lower, upper = node.width, relaxation.lower, relaxation.upper
        offset = torch.maximum(lower.offset.abs(), upper.offset.abs())
        lost = SEVERAL * gamma(width + FEW, self.dtype) * offset + tiny(self.dtype) * width
        outside = torch.zeros_like(offset)
        few = gamma(FEW, self.dtype)
        for place, (operand, error) in enumerate(zip(operands, carried, strict=True)):
            slope = torch.maximum(lower.slopes[place].abs(), upper.slopes[place].abs())
            if known[place]:
                outside = outside + _STEEPEST[type(node)](node, operands, place) * error
            lost = lost + slope * (few * operand.magnitude + error)
        return lost + outside, outside

    def underflow(self, box: Interval) -> Tensor:
        """What rows at a node may lose by underflow, whatever their size: `[batch]`."""
        return tiny(self.dtype) * self.tape.most_terms * (1 + box.magnitude.sum(-1))


# ---- linear operations with absolute weights: what a constant adds, and the sum over the operands ----------------------------


def _absolute(node: Node, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    identity = torch.eye(node.width, dtype=values[0].dtype, device=values[0].device).unsqueeze(0)
    constant, jacobians = pull_back(node, identity, [value.shape[-1] for value in values])
    return constant.abs(), _weighed([jacobian[0].abs() for jacobian in jacobians], values)


def _affine(node: Affine, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return node.bias.abs(), _weighed(node.magnitudes, values)


def _weighed(weights: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    total = values[0] @ weights[0].mT
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + value @ weight.mT
    return total


def _evaluated(node: Node, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Operations without a constant whose weights are of one sign."""
    value = node.evaluate(*values).abs()
    return torch.zeros_like(value[..., :1]), value


_ABSOLUTE: dict[type, Callable[[Any, Sequence[Tensor]], tuple[Tensor, Tensor]]] = {
    Affine: _affine,
    Sum: _evaluated,
    Slice: _evaluated,
    Concat: _evaluated,
    Scale: _evaluated,
}


# ---- nonlinear operations of several operands: how fast they change with one of them -----------------------------------------


def _gate_steepest(node: Gate, operands: Sequence[Interval], place: int) -> Tensor:
    """`|ds/dv t| <= |t| / 4`, `|s dt/dz| <= 1`."""
    z = operands[1].magnitude
    if place == 1:
        return torch.ones_like(z)
    return z / 4 if node.kind is GateKind.IDENTITY else torch.full_like(z, 0.25)


_STEEPEST: dict[type, Callable[[Any, Sequence[Interval], int], Tensor]] = {
    Gate: _gate_steepest,
    Maximum: lambda node, operands, place: torch.ones_like(operands[place].lower),
}
