"""The operations of a tape. A node names its operands by their position on the tape; values are `[batch, width]`.

A `linear` operation needs no rule to be walked through: its walk is its vector-Jacobian product (`pull_back`). Only where a
profile asks for it is there a faster rule (`bounds/walk.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.tape.activations import Activation


class GateKind(Enum):
    """What a gate `s(v)` multiplies: `z` itself, or `tanh(z)`."""

    IDENTITY = "s(v)*z"
    TANH = "s(v)*tanh(z)"

    def factor(self, z: Tensor) -> Tensor:
        """The second factor of the gate."""
        return torch.tanh(z) if self is GateKind.TANH else z


@runtime_checkable
class Node(Protocol):
    """One operation of a tape."""

    linear: ClassVar[bool]

    @property
    def sources(self) -> tuple[int, ...]: ...
    @property
    def width(self) -> int: ...
    def evaluate(self, *operands: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Input:
    """Frame `frame` of the input sequence."""

    linear: ClassVar[bool] = True
    frame: int
    width: int
    sources: tuple[int, ...] = ()

    def evaluate(self, *operands: Tensor) -> Tensor:
        raise TypeError("an Input has no value of its own; Tape.values supplies it")


@dataclass(frozen=True, eq=False)
class Constant:
    """A fixed vector, such as an initial state."""

    linear: ClassVar[bool] = True
    value: Tensor
    sources: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        return self.value.shape[-1]

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.value.unsqueeze(0)


@dataclass(frozen=True, eq=False)
class Affine:
    """`sum_i weights[i] @ operand_i + bias`."""

    linear: ClassVar[bool] = True
    sources: tuple[int, ...]
    weights: tuple[Tensor, ...]
    bias: Tensor

    @property
    def width(self) -> int:
        return self.bias.shape[0]

    @cached_property
    def stacked(self) -> Tensor:
        """All weights side by side, `[width, sum of the operands' widths]`."""
        return torch.cat(self.weights, dim=1)

    @cached_property
    def magnitudes(self) -> tuple[Tensor, ...]:
        """The absolute values of the weights."""
        return tuple(weight.abs() for weight in self.weights)

    def evaluate(self, *operands: Tensor) -> Tensor:
        total = self.bias.unsqueeze(0)
        for operand, weight in zip(operands, self.weights, strict=True):
            total = total + operand @ weight.mT
        return total


@dataclass(frozen=True, eq=False)
class Scale:
    """`factor * operand`."""

    linear: ClassVar[bool] = True
    sources: tuple[int]
    factor: float
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.factor * operands[0]


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of its operands."""

    linear: ClassVar[bool] = True
    sources: tuple[int, ...]
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        total = operands[0]
        for operand in operands[1:]:
            total = total + operand
        return total


@dataclass(frozen=True, eq=False)
class Slice:
    """Entries `start:stop` of its operand."""

    linear: ClassVar[bool] = True
    sources: tuple[int]
    start: int
    stop: int

    @property
    def width(self) -> int:
        return self.stop - self.start

    def evaluate(self, *operands: Tensor) -> Tensor:
        return operands[0][..., self.start : self.stop]


@dataclass(frozen=True, eq=False)
class Concat:
    """Its operands one after the other."""

    linear: ClassVar[bool] = True
    sources: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.widths)

    def evaluate(self, *operands: Tensor) -> Tensor:
        batch = max(operand.shape[0] for operand in operands)
        return torch.cat([operand.expand(batch, -1) for operand in operands], dim=-1)


@dataclass(frozen=True, eq=False)
class Unary:
    """An activation, entry by entry."""

    linear: ClassVar[bool] = False
    sources: tuple[int]
    activation: Activation
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.activation.function(operands[0])


@dataclass(frozen=True, eq=False)
class Gate:
    """`s(v) * z` or `s(v) * tanh(z)`, entry by entry; `sources` are `(v, z)` and `s` is the logistic sigmoid.

    A `closing` gate has `s(-v) = 1 - s(v)` in place of `s(v)`.
    """

    linear: ClassVar[bool] = False
    sources: tuple[int, int]
    kind: GateKind
    width: int
    closing: bool = False

    def evaluate(self, *operands: Tensor) -> Tensor:
        v, z = operands
        return torch.sigmoid(-v if self.closing else v) * self.kind.factor(z)


@dataclass(frozen=True, eq=False)
class Maximum:
    """The greatest of its operands, entry by entry."""

    linear: ClassVar[bool] = False
    sources: tuple[int, ...]
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        greatest = operands[0]
        for operand in operands[1:]:
            greatest = torch.maximum(greatest, operand)
        return greatest


def pull_back(node: Node, rows: Float[Tensor, "#batch rows width"], widths: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Rows of a linear node as rows of its operands (of the given `widths`): `rows @ node(x) = constant + sum_i rows_i @ x_i`.

    The vector-Jacobian product of `evaluate` at zero, for all rows at once.
    """
    flat = rows.flatten(0, 1)
    with torch.inference_mode(False), torch.enable_grad():
        zeros = tuple(torch.zeros(len(flat), width, dtype=rows.dtype, device=rows.device, requires_grad=True) for width in widths)
        value = node.evaluate(*zeros).expand(len(flat), -1)
        parts = torch.autograd.grad(value, zeros, flat.clone(), allow_unused=True)
    at_zero = (flat * value.detach()).sum(-1).unflatten(0, rows.shape[:2])
    filled = (torch.zeros_like(zero) if part is None else part for part, zero in zip(parts, zeros, strict=True))
    return at_zero, tuple(part.detach().unflatten(0, rows.shape[:2]) for part in filled)
