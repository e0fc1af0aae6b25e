"""The table of methods: which relaxation every nonlinearity gets, and whether inner bounds are walked back to the input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from popqorn.reading import read_choice
from popqorn.relax.relaxation import Interval, Relaxation


@dataclass(frozen=True)
class Method:
    """One way to bound a tape: `relax(node, *boxes of its operands)`.

    `walk_back` is false for plain intervals: inner bounds then come from a forward pass alone. `joint` bounds count how operands
    move together, beside all that (`bounds/joint`).
    """

    name: str
    relax: Callable[..., Relaxation]
    walk_back: bool = True
    joint: bool = False


def read_method(method: Any) -> Method:
    return METHODS[read_choice("method", method, METHODS)]


def _planes(node: Any, *operands: Interval) -> Relaxation:
    relaxation: Relaxation = node.planes(*operands)
    return relaxation


def _lines(node: Any, *operands: Interval) -> Relaxation:
    relaxation: Relaxation = node.lines(*operands)
    return relaxation


def _constants(node: Any, *operands: Interval) -> Relaxation:
    relaxation: Relaxation = node.constants(*operands)
    return relaxation


METHODS = {
    method.name: method
    for method in (
        Method("planes", _planes),
        Method("tight", _planes, joint=True),
        Method("lines", _lines),
        Method("constants", _constants),
        Method("interval", _constants, walk_back=False),
    )
}
