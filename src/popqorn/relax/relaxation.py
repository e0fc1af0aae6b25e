"""What a relaxation is: linear functions below and above a nonlinearity over a domain."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    """`lower <= x <= upper`, entry by entry: the domain of a relaxation."""

    lower: Tensor
    upper: Tensor

    def intersect(self, other: "Interval") -> "Interval":
        """The box of what is in both; where rounding makes the two disagree, the hull of the sliver between them."""
        lower, upper = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)
        return Interval(torch.minimum(lower, upper), torch.maximum(lower, upper))

    @cached_property
    def magnitude(self) -> Tensor:
        """The greatest `|x|`."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def widened(self, by: Tensor) -> "Interval":
        """With both ends moved outwards."""
        return Interval(self.lower - by, self.upper + by)

    def __neg__(self) -> "Interval":
        return Interval(-self.upper, -self.lower)


@dataclass(frozen=True)
class Linear:
    """`sum_i slopes[i] * operand_i + offset`, entry by entry."""

    slopes: tuple[Tensor, ...]
    offset: Tensor

    def __call__(self, *operands: Tensor) -> Tensor:
        total = self.offset
        for slope, operand in zip(self.slopes, operands, strict=True):
            total = total + slope * operand
        return total


@dataclass(frozen=True)
class Relaxation:
    """`lower(x) <= f(x) <= upper(x)` for every `x` of the domain it was made for."""

    lower: Linear
    upper: Linear

    @cached_property
    def middle(self) -> Linear:
        """The mean of both."""
        return _combined(self, lambda low, high: (low + high) / 2)

    @cached_property
    def half(self) -> Linear:
        """Half of what the lower one has more (it has less, mostly)."""
        return _combined(self, lambda low, high: (low - high) / 2)

    def widened(self, by: Tensor) -> "Relaxation":
        """With both functions moved outwards."""
        return Relaxation(Linear(self.lower.slopes, self.lower.offset - by), Linear(self.upper.slopes, self.upper.offset + by))


def _combined(relaxation: Relaxation, combine: Callable[[Tensor, Tensor], Tensor]) -> Linear:
    lower, upper = relaxation.lower, relaxation.upper
    return Linear(tuple(map(combine, lower.slopes, upper.slopes)), combine(lower.offset, upper.offset))
