"""ONNX's operators: what each does to symbols. A new operator is one line of a table here, or one function with `rule`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from popqorn.readers.symbols import Symbol, Value


@dataclass(frozen=True)
class Operation:
    """A node without its operands."""

    kind: str
    version: int
    outputs: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)


Rule = Callable[..., Any]
"""`rule(sheet, operation, *operands)`: tensors that are known, symbols for those that depend on the inputs, None for those left
out. Returns a value, or a tuple of them; LookupError for what cannot be read, with the reason.
"""

RULES: dict[str, Rule] = {}

# Operators that only move entries about: ONNX's own, applied to the entries' numbers. Which operands hold entries; all others
# say where to. None stands for all of them.
MOVES: dict[str, tuple[int, ...] | None] = {
    "Compress": (0,),
    "Concat": None,
    "DepthToSpace": (0,),
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "Pad": (0,),
    "Reshape": (0,),
    "ReverseSequence": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Slice": (0,),
    "SpaceToDepth": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Trilu": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}

R = TypeVar("R", bound=Rule)


def rule(*names: str) -> Callable[[R], R]:
    """Enter a function as the rule of operators."""

    def enter(function: R) -> R:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


@dataclass(frozen=True)
class Missing:
    """An output that no tape can have; what is asked of it is refused."""

    what: str


def known(value: Any, what: str) -> Tensor:
    """An operand that must not depend on the inputs."""
    if not isinstance(value, Tensor):
        raise LookupError(f"{what} that depend on the inputs")
    return value


def known_or_none(value: Any, what: str) -> Tensor | None:
    return None if value is None else known(value, what)


def symbol(value: Value) -> Symbol:
    assert isinstance(value, Symbol)
    return value


def number(value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)
