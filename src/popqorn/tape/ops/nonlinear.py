"""Nonlinear operations: how each is relaxed is in `relax/`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.relax.activations import Activation
from popqorn.relax.band import gate_band, gate_secant
from popqorn.relax.fan import gate_fan
from popqorn.relax.gates import GateKind
from popqorn.relax.lines import image, lines
from popqorn.relax.maximum import maximum_image, maximum_planes
from popqorn.relax.planes import planes
from popqorn.relax.product import product_band, product_image, product_planes
from popqorn.relax.quadratic import Tangent, gate_tangent, product_tangent, unary_tangent
from popqorn.relax.relaxation import Interval, Linear, Relaxation
from popqorn.relax.resting import Resting, Slopes, resting
from popqorn.relax.weak import gate_image, gate_lines
from popqorn.tape.ops.node import NonlinearNode


@dataclass(frozen=True, eq=False)
class Unary(NonlinearNode):
    """An activation, entry by entry."""

    sources: tuple[int]
    activation: Activation
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.activation.function(operands[0])

    def image(self, *operands: Interval) -> Interval:
        return image(self.activation, operands[0])

    def planes(self, *operands: Interval) -> Relaxation:
        return lines(self.activation, operands[0])

    def tangent(self, at: tuple[Tensor, ...], *operands: Interval) -> Tangent | None:
        return unary_tangent(self.activation, operands[0], at[0])


@dataclass(frozen=True, eq=False)
class Gate(NonlinearNode):
    """`s(v) * z` or `s(v) * tanh(z)`, entry by entry; `sources` are `(v, z)` and `s` is the logistic sigmoid.

    A `closing` gate has `s(-v) = 1 - s(v)` in place of `s(v)`.
    """

    sources: tuple[int, int]
    kind: GateKind
    width: int
    closing: bool = False

    def evaluate(self, *operands: Tensor) -> Tensor:
        v, z = operands
        return torch.sigmoid(-v if self.closing else v) * self.kind.factor(z)

    def image(self, *operands: Interval) -> Interval:
        v, z = operands
        return gate_image(self.kind, -v if self.closing else v, z)

    def planes(self, *operands: Interval) -> Relaxation:
        v, z = operands
        return _turned(planes(self.kind, -v, z)) if self.closing else planes(self.kind, v, z)

    def fan(self, planes: Relaxation, *operands: Interval) -> list[Relaxation]:
        v, z = operands
        if not self.closing:
            return gate_fan(self.kind, v, z, planes)
        return [_turned(each) for each in gate_fan(self.kind, -v, z, _turned(planes))]

    def resting(self, lower: Slopes, upper: Slopes, *operands: Interval) -> Resting:
        """The relaxation with these slopes (`[batch, rows, width]`), and where it rests on the gate."""
        v, z = operands
        if not self.closing:
            return resting(self.kind, v, z, lower, upper)
        found = resting(self.kind, -v, z, (-lower[0], lower[1]), (-upper[0], upper[1]))
        below, above = ((-at[0], at[1]) for at in (found.below, found.above))
        return Resting(_turned(found.relaxation), below, above)

    def tangent(self, at: tuple[Tensor, ...], *operands: Interval) -> Tangent | None:
        v, z = operands
        if not self.closing:
            return gate_tangent(self.kind, v, z, (at[0], at[1]))
        return gate_tangent(self.kind, -v, z, (-at[0], at[1])).turned()

    def lines(self, *operands: Interval) -> Relaxation:
        v, z = operands
        return _turned(gate_lines(self.kind, -v, z)) if self.closing else gate_lines(self.kind, v, z)

    def secant(self, *operands: Interval) -> tuple[Tensor, ...]:
        v, z = operands
        return gate_secant(self.kind, v, z, closing=self.closing)

    def beside(self, slopes: tuple[Tensor, ...], *operands: Interval) -> Interval:
        (a, b), (v, z) = slopes, operands
        return gate_band(self.kind, -v, z, -a, b) if self.closing else gate_band(self.kind, v, z, a, b)

    def steepest(self, place: int, *operands: Interval) -> Tensor:
        """`|ds/dv t| <= |t| / 4`, `|s dt/dz| <= 1`."""
        z = operands[1].magnitude
        if place == 1:
            return torch.ones_like(z)
        return z / 4 if self.kind is GateKind.IDENTITY else torch.full_like(z, 0.25)


@dataclass(frozen=True, eq=False)
class Product(NonlinearNode):
    """The product of two operands, entry by entry."""

    sources: tuple[int, int]
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        return operands[0] * operands[1]

    def image(self, *operands: Interval) -> Interval:
        return product_image(*operands)

    def planes(self, *operands: Interval) -> Relaxation:
        return product_planes(*operands)

    def tangent(self, at: tuple[Tensor, ...], *operands: Interval) -> Tangent | None:
        return product_tangent(operands[0], operands[1], (at[0], at[1]))

    def secant(self, *operands: Interval) -> tuple[Tensor, ...]:
        x, y = ((box.lower + box.upper) / 2 for box in operands)
        return y, x

    def beside(self, slopes: tuple[Tensor, ...], *operands: Interval) -> Interval:
        return product_band(slopes, *operands)

    def steepest(self, place: int, *operands: Interval) -> Tensor:
        return operands[1 - place].magnitude


@dataclass(frozen=True, eq=False)
class Maximum(NonlinearNode):
    """The greatest of its operands, entry by entry."""

    sources: tuple[int, ...]
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        greatest = operands[0]
        for operand in operands[1:]:
            greatest = torch.maximum(greatest, operand)
        return greatest

    def image(self, *operands: Interval) -> Interval:
        return maximum_image(*operands)

    def planes(self, *operands: Interval) -> Relaxation:
        return maximum_planes(*operands)

    def steepest(self, place: int, *operands: Interval) -> Tensor:
        return torch.ones_like(operands[place].lower)


def _turned(relaxation: Relaxation) -> Relaxation:
    """A relaxation in `(-v, z)` as one in `(v, z)`."""
    sides = (Linear((-plane.slopes[0], plane.slopes[1]), plane.offset) for plane in (relaxation.lower, relaxation.upper))
    return Relaxation(*sides)
