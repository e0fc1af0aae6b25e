"""What an operation of a tape is: one record that evaluates, boxes and relaxes itself.

A node names its operands by their position on the tape; values are vectors, `[batch, width]` (readers keep the shapes, and write
movement of data as a choice of entries). A new operation is one class here or beside: a `LinearNode` needs no more than
`evaluate`, as its walk is its vector-Jacobian product and its box follows from the Jacobian's signs; a `NonlinearNode` adds its
`image` and its `planes`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.arithmetic import rounding
from popqorn.relax.quadratic import Tangent
from popqorn.relax.relaxation import Interval, Linear, Relaxation


class Node(ABC):
    """One operation."""

    linear: ClassVar[bool]

    if TYPE_CHECKING:  # fields or properties of the records

        @property
        def sources(self) -> tuple[int, ...]: ...

        @property
        def width(self) -> int: ...

    @abstractmethod
    def evaluate(self, *operands: Tensor) -> Tensor:
        """The value, `[batch, width]`, of operands `[batch, their width]` (or `[1, ...]` for what is the same in all samples)."""

    @abstractmethod
    def image(self, *operands: Interval) -> Interval:
        """A box that holds the value whenever the operands are in their boxes."""


class LinearNode(Node):
    """`evaluate(x) = constant + J x`."""

    linear = True

    def push(self, *operands: Tensor) -> Tensor:
        """`J x`: the value without its constant."""
        return self.evaluate(*operands) - self.evaluate(*(torch.zeros_like(operand[:1]) for operand in operands))

    def image(self, *operands: Interval) -> Interval:
        """The ends that the signs of the Jacobian ask for."""
        constant, jacobians = self._jacobians(operands[0].lower, [operand.lower.shape[-1] for operand in operands])
        return weighted(constant, jacobians, operands)

    def absolute(self, *values: Tensor) -> tuple[Tensor, Tensor]:
        """`|constant|`, and `|J| values` for values that are not negative: how errors pass."""
        constant, jacobians = self._jacobians(values[0], [value.shape[-1] for value in values])
        return constant.abs(), weighed([jacobian.abs() for jacobian in jacobians], values)

    def _jacobians(self, like: Tensor, widths: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        identity = torch.eye(self.width, dtype=like.dtype, device=like.device).unsqueeze(0)
        constant, jacobians = pull_back(self, identity, widths)
        return constant, [jacobian[0] for jacobian in jacobians]


class Choice(LinearNode):
    """A linear node without a constant whose Jacobian holds no negative numbers."""

    def push(self, *operands: Tensor) -> Tensor:
        return self.evaluate(*operands)

    def image(self, *operands: Interval) -> Interval:
        """Order is kept entry by entry: ends go to ends."""
        lower, upper = ([getattr(operand, side) for operand in operands] for side in ("lower", "upper"))
        return Interval(self.evaluate(*lower), self.evaluate(*upper))

    def absolute(self, *values: Tensor) -> tuple[Tensor, Tensor]:
        value = self.evaluate(*values)
        return torch.zeros_like(value[..., :1]), value


class NonlinearNode(Node):
    """An operation that walks pass by its relaxation: the tightest (`planes`), or one of the paper's weaker ones."""

    linear = False

    @abstractmethod
    def planes(self, *operands: Interval) -> Relaxation:
        """Linear functions below and above the value over the boxes of the operands."""

    def lines(self, *operands: Interval) -> Relaxation:
        """In one variable, where the operation has more; the same as `planes` by default."""
        return self.planes(*operands)

    def constants(self, *operands: Interval) -> Relaxation:
        """The least and the greatest value."""
        values = self.image(*operands)
        flat = tuple(torch.zeros_like(values.lower) for _ in operands)
        return Relaxation(Linear(flat, values.lower), Linear(flat, values.upper))

    def fan(self, planes: Relaxation, *operands: Interval) -> list[Relaxation]:
        """Other relaxations beside the `planes`, each better somewhere else; none by default."""
        return []

    def tangent(self, at: tuple[Tensor, ...], *operands: Interval) -> Tangent | None:
        """The tangent at operands `at`, with how far the value lies from it over the boxes; None if nothing is known of that."""
        return None

    def secant(self, *operands: Interval) -> tuple[Tensor, ...]:
        """Slopes beside which the value stays close, over the boxes: by default halfway between those of its planes."""
        found = self.planes(*operands)
        return tuple((low + high) / 2 for low, high in zip(found.lower.slopes, found.upper.slopes, strict=True))

    def beside(self, slopes: tuple[Tensor, ...], *operands: Interval) -> Interval:
        """A box of `value - slopes . operands` over the boxes, for any slopes: by default that of its planes."""
        found = self.planes(*operands)
        sides = []
        for plane, side in ((found.lower, 1.0), (found.upper, -1.0)):
            total, size = side * plane.offset, plane.offset.abs()
            for own, slope, box in zip(plane.slopes, slopes, operands, strict=True):
                tilt = side * (own - slope)
                total = total + torch.minimum(tilt * box.lower, tilt * box.upper)
                size = size + (own.abs() + slope.abs()) * box.magnitude
            sides.append(side * (total - rounding(size)))
        return Interval(sides[0], sides[1])

    def steepest(self, place: int, *operands: Interval) -> Tensor:
        """How fast the value changes with the operand at `place`, at most; asked only of nodes with several operands."""
        raise NotImplementedError


def weighted(constant: Tensor, weights: Sequence[Tensor], operands: Sequence[Interval]) -> Interval:
    """A box of `constant + sum_i weights_i x_i`.

    Each end on its own: a middle and a half width would lose the shorter side of a box beside a much longer one.
    """
    lower = upper = constant
    for operand, weight in zip(operands, weights, strict=True):
        rising, falling = weight.clamp(min=0).mT, weight.clamp(max=0).mT
        lower = lower + operand.lower @ rising + operand.upper @ falling
        upper = upper + operand.upper @ rising + operand.lower @ falling
    return Interval(lower, upper)


def weighed(weights: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """`sum_i weights_i values_i`."""
    total = values[0] @ weights[0].mT
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + value @ weight.mT
    return total


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
