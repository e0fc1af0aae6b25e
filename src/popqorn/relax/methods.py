"""The table of methods: which relaxation each nonlinearity gets, and whether inner bounds are walked back to the input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from popqorn.reading import read_choice
from popqorn.relax.lines import lines
from popqorn.relax.maximum import maximum_constants, maximum_planes
from popqorn.relax.planes import planes
from popqorn.relax.relaxation import Interval, Linear, Relaxation
from popqorn.relax.weak import gate_constants, gate_lines, unary_constants
from popqorn.tape.ops import Gate, Maximum, Unary

Relax = Callable[..., Relaxation]


@dataclass(frozen=True)
class Method:
    """One way to bound a tape. `walk_back` is false for plain intervals: inner bounds then come from a forward pass alone."""

    name: str
    rules: dict[type, Relax]
    walk_back: bool = True

    def relax(self, node: Any, *operands: Interval) -> Relaxation:
        """The relaxation of a nonlinear node over the boxes of its operands."""
        return self.rules[type(node)](node, *operands)


def read_method(method: Any) -> Method:
    return METHODS[read_choice("method", method, METHODS)]


def _rules(unary: Relax, gate: Relax, maximum: Relax) -> dict[type, Relax]:
    def of_gate(node: Gate, v: Interval, z: Interval) -> Relaxation:
        return _turned(gate(node.kind, -v, z)) if node.closing else gate(node.kind, v, z)

    return {
        Unary: lambda node, box: unary(node.activation, box),
        Gate: of_gate,
        Maximum: lambda node, *boxes: maximum(*boxes),
    }


def _turned(relaxation: Relaxation) -> Relaxation:
    """A relaxation in `(-v, z)` as one in `(v, z)`."""
    sides = (Linear((-plane.slopes[0], plane.slopes[1]), plane.offset) for plane in (relaxation.lower, relaxation.upper))
    return Relaxation(*sides)


METHODS = {
    method.name: method
    for method in (
        Method("planes", _rules(lines, planes, maximum_planes)),
        Method("lines", _rules(lines, gate_lines, maximum_planes)),
        Method("constants", _rules(unary_constants, gate_constants, maximum_constants)),
        Method("interval", _rules(unary_constants, gate_constants, maximum_constants), walk_back=False),
    )
}
