"""Linear operations. Walks pass them by their vector-Jacobian product; a profile asked for something faster for some of them
(`bounds/walk.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.node import Choice, LinearNode, weighed, weighted
from popqorn.tape.ops.sums import convolved, convolved_transposed


@dataclass(frozen=True, eq=False)
class Input(LinearNode):
    """Frame `frame` of the input sequence."""

    frame: int
    width: int
    sources: tuple[int, ...] = ()

    def evaluate(self, *operands: Tensor) -> Tensor:
        raise TypeError("an Input has no value of its own; Tape.values supplies it")


@dataclass(frozen=True, eq=False)
class Constant(LinearNode):
    """A fixed vector, such as an initial state."""

    value: Tensor
    sources: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        return self.value.shape[-1]

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.value.unsqueeze(0)


def side_by_side(weights: Sequence[Tensor]) -> Tensor:
    """Matrices of the same height, one beside the other; held by columns, so that rows times them are faster."""
    return torch.cat([weight.mT for weight in weights]).mT


@dataclass(frozen=True, eq=False)
class Affine(LinearNode):
    """`sum_i weights[i] @ operand_i + bias`."""

    sources: tuple[int, ...]
    weights: tuple[Tensor, ...]
    bias: Tensor

    @property
    def width(self) -> int:
        return self.bias.shape[0]

    @cached_property
    def stacked(self) -> Tensor:
        """All weights side by side, `[width, sum of the operands' widths]`."""
        with torch.inference_mode(False):  # it is kept, and may meet gradients later
            return side_by_side(self.weights)

    @cached_property
    def magnitudes(self) -> tuple[Tensor, ...]:
        """The absolute values of the weights."""
        return tuple(weight.abs() for weight in self.weights)

    def evaluate(self, *operands: Tensor) -> Tensor:
        total = self.bias.unsqueeze(0)
        for operand, weight in zip(operands, self.weights, strict=True):
            total = total + operand @ weight.mT
        return total

    def push(self, *operands: Tensor) -> Tensor:
        return weighed(self.weights, operands)

    def image(self, *operands: Interval) -> Interval:
        return weighted(self.bias.unsqueeze(0), self.weights, operands)

    def absolute(self, *values: Tensor) -> tuple[Tensor, Tensor]:
        return self.bias.abs(), weighed(self.magnitudes, values)


@dataclass(frozen=True, eq=False)
class Scale(LinearNode):
    """`factor * operand + shift`, entry by entry; both are `[width]`, or `[1]` for all entries alike."""

    sources: tuple[int]
    factor: Tensor
    shift: Tensor
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.factor * operands[0] + self.shift

    def push(self, *operands: Tensor) -> Tensor:
        return self.factor * operands[0]

    def image(self, *operands: Interval) -> Interval:
        ends = self.evaluate(operands[0].lower), self.evaluate(operands[0].upper)
        rising = self.factor >= 0
        return Interval(torch.where(rising, *ends), torch.where(rising, ends[1], ends[0]))

    def absolute(self, *values: Tensor) -> tuple[Tensor, Tensor]:
        return self.shift.abs(), self.factor.abs() * values[0]


@dataclass(frozen=True, eq=False)
class Sum(Choice):
    """The sum of its operands."""

    sources: tuple[int, ...]
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        total = operands[0]
        for operand in operands[1:]:
            total = total + operand
        return total


@dataclass(frozen=True, eq=False)
class Total(Choice):
    """The sums of every `count` entries that stand next to each other."""

    sources: tuple[int]
    count: int
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        total: Tensor = operands[0].unflatten(-1, (self.width, self.count)).sum(-1)
        return total


@dataclass(frozen=True, eq=False)
class Slice(Choice):
    """Entries `start:stop` of its operand."""

    sources: tuple[int]
    start: int
    stop: int

    @property
    def width(self) -> int:
        return self.stop - self.start

    def evaluate(self, *operands: Tensor) -> Tensor:
        return operands[0][..., self.start : self.stop]


@dataclass(frozen=True, eq=False)
class Gather(Choice):
    """Entries `index` of its operand, in any order and any number of times."""

    sources: tuple[int]
    index: Tensor

    @property
    def width(self) -> int:
        return len(self.index)

    def evaluate(self, *operands: Tensor) -> Tensor:
        return operands[0][..., self.index]


@dataclass(frozen=True, eq=False)
class Concat(Choice):
    """Its operands one after the other."""

    sources: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.widths)

    def evaluate(self, *operands: Tensor) -> Tensor:
        batch = max(operand.shape[0] for operand in operands)
        return torch.cat([operand.expand(batch, -1) for operand in operands], dim=-1)


@dataclass(frozen=True, eq=False)
class Convolution(LinearNode):
    """torch's convolution of an operand of shape `shape` (channels first) in one, two or three dimensions."""

    sources: tuple[int]
    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = (0,)

    @cached_property
    def width(self) -> int:
        empty = torch.empty(1, math.prod(self.shape), dtype=self.weight.dtype, device="meta")
        return self._convolved(empty, self.weight.to("meta"), None).shape[-1]

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self._convolved(operands[0], self.weight, self.bias)

    def push(self, *operands: Tensor) -> Tensor:
        return self._convolved(operands[0], self.weight, None)

    def image(self, *operands: Interval) -> Interval:
        (box,) = operands
        rising, falling = self.weight.clamp(min=0), self.weight.clamp(max=0)
        lower = self._convolved(box.lower, rising, self.bias) + self._convolved(box.upper, falling, None)
        return Interval(lower, self._convolved(box.upper, rising, self.bias) + self._convolved(box.lower, falling, None))

    def absolute(self, *values: Tensor) -> tuple[Tensor, Tensor]:
        total = self._convolved(values[0], self.weight.abs(), None)
        if self.bias is None:
            return torch.zeros_like(total[..., :1]), total
        return self.bias.abs().repeat_interleave(self.width // len(self.bias)), total

    def _convolved(self, operand: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shaped = operand.unflatten(-1, self.shape)
        where = self.stride, self.padding, self.dilation, self.groups
        if self.transposed:
            found = convolved_transposed(shaped, weight, *where, self.output_padding)
        else:
            found = convolved(shaped, weight, *where)
        return found.flatten(1) if bias is None else (found.flatten(2) + bias.unsqueeze(-1)).flatten(1)
