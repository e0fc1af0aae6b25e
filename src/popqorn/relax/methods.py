"""The table of methods: which relaxation every nonlinearity gets, and whether inner bounds are walked back to the input."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from popqorn.reading import read_choice, read_seconds
from popqorn.relax.relaxation import Interval, Relaxation


@dataclass(frozen=True)
class Method:
    """One way to bound a tape: `relax(node, *boxes of its operands)`.

    `walk_back` is false for plain intervals: inner bounds then come from a forward pass alone. `joint` bounds count how operands
    move together, beside all that (`bounds/joint`), with more or less `effort`. Searches that `split` go on from there, cell by
    cell (`bounds/split`). `seconds` is how long one sample may take, where a search ends with the time it is given.
    """

    name: str
    relax: Callable[..., Relaxation]
    walk_back: bool = True
    joint: bool = False
    split: bool = False
    effort: int = 1
    seconds: float | None = None


def read_method(method: Any, effort: Any = None, seconds: Any = None, *, frames: bool = False) -> Method:
    """A method by its name; searches of single `frames` are split by any of them, if there is time."""
    chosen = METHODS[read_choice("method", method, METHODS)]
    if effort is not None:
        if not chosen.joint:
            raise ValueError(f"effort is given, but method is {chosen.name!r}; it is for method='tight', leave it out")
        if isinstance(effort, bool) or not isinstance(effort, int | np.integer) or effort not in EFFORTS:
            raise ValueError(f"effort is {effort!r}; pass 1 (joint bounds), 2 (planes chosen row by row) or 3 (slopes trained)")
        chosen = replace(chosen, effort=int(effort))
    if seconds is None:
        return chosen
    if not frames and not chosen.split and chosen.effort < LIMITED:
        raise ValueError(
            f"seconds is given, but method is {chosen.name!r}, which ends by itself; "
            "it is for method='split', and for method='tight' with effort=3"
        )
    return replace(chosen, seconds=read_seconds(seconds), split=chosen.split or (frames and chosen.effort < LIMITED))


def _planes(node: Any, *operands: Interval) -> Relaxation:
    relaxation: Relaxation = node.planes(*operands)
    return relaxation


def _lines(node: Any, *operands: Interval) -> Relaxation:
    relaxation: Relaxation = node.lines(*operands)
    return relaxation


def _constants(node: Any, *operands: Interval) -> Relaxation:
    relaxation: Relaxation = node.constants(*operands)
    return relaxation


EFFORTS = (1, 2, 3)
LIMITED = 3  # the effort from which on time is the limit

METHODS = {
    method.name: method
    for method in (
        Method("planes", _planes),
        Method("tight", _planes, joint=True),
        Method("split", _planes, split=True),
        Method("lines", _lines),
        Method("constants", _constants),
        Method("interval", _constants, walk_back=False),
    )
}
