"""How far a walk in floating point may go astray, node by node (docs/theory.md, Rounding).

A computed walk is an exact walk of slightly different operations. `Errors.of` bounds, for every entry of a node, the sum of

- what passing rows through the node adds: `gamma_n` times the magnitudes that are multiplied and summed;
- what collecting the pieces that its users send adds: `gamma` of their number, times the node's magnitude;
- what its operands carry, through the absolute values of its weights.

A row `A` that starts at a node loses at most `|A| error`. Errors are carried forward through linear operations only: at a
nonlinear one they are paid for by moving its relaxation outwards, so no walk has to think of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.arithmetic import FEW, NORM, gamma, tiny
from popqorn.bounds.stations import LinearBounds
from popqorn.relax.relaxation import Interval, Relaxation
from popqorn.tape.ops.node import LinearNode, NonlinearNode
from popqorn.tape.tape import Tape

SEVERAL = 4  # times a sum's own error: an operand counts at the centre, beside it and in its box, and errors round too


@dataclass(frozen=True)
class Errors:
    """The bounds for one tape and dtype; walks may end at some of `stations` (`stations.py`), and take products that sum up
    `multiplied` numbers (`ground.py`): these pass a relaxation and an affine node in one go, and each pays for its part.
    """

    tape: Tape
    dtype: torch.dtype
    stations: int = 0
    multiplied: int = 0

    def of(self, node: LinearNode, operands: Sequence[Interval], carried: Sequence[Tensor]) -> Tensor:
        """The error of a linear node, from the boxes of its operands and what they carry."""
        count = node.width + sum(operand.lower.shape[-1] for operand in operands) + self.tape.most_pieces + self.multiplied + FEW
        share = SEVERAL * gamma(count, self.dtype)
        weighed = [share * operand.magnitude + error for operand, error in zip(operands, carried, strict=True)]
        constant, total = node.absolute(*weighed)
        lost = tiny(self.dtype) * count * sum(operand.magnitude.sum(-1, keepdim=True) + 1 for operand in operands)
        return total + share * constant + lost

    def of_input(self, box: Interval) -> Tensor:
        """The error of a frame: of the norms and dot products that regions take of the rows there."""
        return SEVERAL * gamma(self._at_frames, self.dtype) * box.magnitude + FEW * tiny(self.dtype)

    @property
    def _at_frames(self) -> int:
        """How many operations the rows of a frame go through: pieces are summed, regions take norms."""
        return self.tape.features + self.tape.frames + self.tape.most_pieces + self.stations + NORM

    def of_station(self, station: LinearBounds, frames: Interval) -> tuple[Tensor, Tensor]:
        """What walks lose that end at a station, per entry, and by underflow.

        Rows `A` become `A forms`, off by `gamma |A| |forms|`, before they meet inputs less their centre: at most twice as large
        as the inputs themselves.
        """
        forms, constants = station.magnitudes
        sizes = 2 * frames.magnitude[:, list(station.frames)].flatten(1)
        count = station.forms.shape[1] + self._at_frames + FEW
        met = (forms @ sizes.unsqueeze(-1)).squeeze(-1) + constants
        underflow = 2 * tiny(self.dtype) * self.tape.most_terms * (1 + sizes.sum(-1))
        return SEVERAL * gamma(count, self.dtype) * met + FEW * tiny(self.dtype), underflow

    def of_value(self, box: Interval) -> Tensor:
        """The error of collecting rows at a node and multiplying them by a value in its box."""
        count = box.lower.shape[-1] + self.tape.most_pieces + FEW
        return SEVERAL * gamma(count, self.dtype) * box.magnitude + FEW * tiny(self.dtype)

    def of_relaxation(
        self,
        node: NonlinearNode,
        relaxation: Relaxation,
        operands: Sequence[Interval],
        carried: Sequence[Tensor],
        known: Sequence[bool],
    ) -> tuple[Tensor, Tensor]:
        """How far the relaxation of a nonlinear node must move outwards, and how far its box: for what its operands carry.

        The value of a known operand is off by its error; the relaxation was made at the value itself.
        """
        width, lower, upper = node.width, relaxation.lower, relaxation.upper
        offset = torch.maximum(lower.offset.abs(), upper.offset.abs())
        lost = SEVERAL * gamma(width + self.multiplied + FEW, self.dtype) * offset + tiny(self.dtype) * width
        outside = torch.zeros_like(offset)
        few = gamma(FEW, self.dtype)
        for place, (operand, error) in enumerate(zip(operands, carried, strict=True)):
            slope = torch.maximum(lower.slopes[place].abs(), upper.slopes[place].abs())
            if known[place]:
                outside = outside + node.steepest(place, *operands) * error
            lost = lost + slope * (few * operand.magnitude + error)
        return lost + outside, outside

    def underflow(self, box: Interval) -> Tensor:
        """What rows at a node may lose by underflow, whatever their size: `[batch]`."""
        return tiny(self.dtype) * (self.tape.most_terms + self.multiplied) * (1 + box.magnitude.sum(-1))
