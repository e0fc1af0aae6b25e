"""torch's operators: what each does to symbols. A new operator is one line of a table below, or one function."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.symbols import Symbol, SymbolWriter, Value
from popqorn.relax import activations
from popqorn.relax.activations import Activation

Rule = Callable[..., Any]
"""`rule(sheet, *arguments)`: the operator's arguments, with symbols for the tensors that depend on the inputs."""

RULES: dict[str, Rule] = {}

# Operators that only move the entries of one tensor about: torch's own, applied to the entries' numbers.
MOVES = frozenset(
    [
        "alias",
        "chunk",
        "clone",
        "contiguous",
        "detach",
        "diagonal",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "gather",
        "index",
        "index_select",
        "lift_fresh_copy",
        "movedim",
        "narrow",
        "permute",
        "pixel_shuffle",
        "repeat",
        "repeat_interleave",
        "reshape",
        "reshape_as",
        "roll",
        "rot90",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "t",
        "tensor_split",
        "tile",
        "transpose",
        "unbind",
        "unflatten",
        "unfold",
        "unsafe_chunk",
        "unsafe_split",
        "unsqueeze",
        "view",
        "view_as",
        "_unsafe_view",
    ]
)
# Operators that put the entries of several tensors (or numbers) together.
JOINS = frozenset(["cat", "concat", "concatenate", "hstack", "select_scatter", "slice_scatter", "stack", "vstack", "where"])

ACTIVATIONS: dict[str, Activation | Callable[..., Activation]] = {
    "relu": activations.RELU,
    "relu6": activations.hardtanh(0.0, 6.0),
    "tanh": activations.TANH,
    "sigmoid": activations.SIGMOID,
    "silu": activations.SILU,
    "mish": activations.MISH,
    "erf": activations.ERF,
    "exp": activations.EXP,
    "log": activations.LOG,
    "square": activations.SQUARE,
    "abs": activations.ABS,
    "sin": activations.SIN,
    "cos": activations.COS,
    "atan": activations.ARCTAN,
    "hardswish": activations.HARDSWISH,
    "hardsigmoid": activations.HARDSIGMOID,
    "sqrt": activations.power(0.5),
    "rsqrt": activations.power(-0.5),
    "gelu": lambda approximate="none": activations.TANH_GELU if approximate == "tanh" else activations.GELU,
    "leaky_relu": lambda slope=0.01: activations.leaky_relu(slope),
    "softplus": lambda beta=1.0, threshold=20.0: activations.softplus(beta, threshold),
    "hardtanh": lambda low=-1.0, high=1.0: activations.hardtanh(low, high),
}


R = TypeVar("R", bound=Rule)


def rule(*names: str) -> Callable[[R], R]:
    """Enter a function as the rule of operators, by their names without overloads."""

    def enter(function: R) -> R:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def apply(sheet: SymbolWriter, name: str, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """What an operator gives: computed if everything is known, written otherwise; LookupError for one that has no rule."""
    if not any(isinstance(leaf, Symbol) for leaf in _leaves([*arguments, *options.values()])):
        return _known(function, arguments, options)
    if name in MOVES:
        return _moved(name, function, arguments, options)
    if name in JOINS:
        return _joined(sheet, name, function, arguments, options)
    if name in ACTIVATIONS:
        return layers.activated(sheet, arguments[0], _activation(name, arguments[1:], options))
    if name not in RULES:
        raise LookupError(name)
    return RULES[name](sheet, *arguments, **options)


def names() -> list[str]:
    """All operators that can be read."""
    return sorted({*MOVES, *JOINS, *ACTIVATIONS, *RULES})


def _activation(name: str, arguments: Sequence[Any], options: dict[str, Any]) -> Activation:
    activation = ACTIVATIONS[name]
    return activation if isinstance(activation, Activation) else activation(*arguments, **options)


def _known(function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """What follows from weights alone, in double precision."""
    options = {key: value for key, value in options.items() if key not in ("device", "pin_memory")}
    found = function(*arguments, **options)
    return _each_leaf(found, lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf)


def _moved(name: str, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """Numbers of entries go where the entries go."""
    operand, *rest = arguments
    if name in ("expand_as", "reshape_as", "view_as"):
        rest = [torch.empty(rest[0].shape)]
    if not isinstance(operand, Symbol) or any(isinstance(leaf, Symbol) for leaf in _leaves([*rest, *options.values()])):
        raise LookupError(f"{name} at places that depend on the inputs")
    if name in ("clone", "contiguous", "detach", "alias", "lift_fresh_copy"):
        return operand
    return _symbols(function(operand.entries, *rest, **options))


def _joined(
    sheet: SymbolWriter, name: str, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Known tensors and numbers beside symbols become constants of the tape first."""
    if name == "where":
        condition, *sides = arguments
        if isinstance(condition, Symbol):
            raise LookupError("where with a condition that depends on the inputs")
        first, second = (sheet.symbol(as_tensor(side)).entries for side in sides)
        return Symbol(torch.where(condition, first, second))
    if name.endswith("_scatter"):
        whole, part = (sheet.symbol(as_tensor(each)).entries for each in arguments[:2])
        return _symbols(function(whole, part, *arguments[2:], **options))
    operands, *rest = arguments
    return _symbols(function([sheet.symbol(each).entries for each in operands], *rest, **options))


def _symbols(found: Any) -> Any:
    return _each_leaf(found, lambda leaf: Symbol(leaf) if isinstance(leaf, Tensor) else leaf)


def name_of(function: Any) -> str:
    """An operator's name without its overload: `aten.add.Tensor` is `add`."""
    packet = getattr(function, "overloadpacket", None)
    return str(getattr(function, "__name__", function)) if packet is None else str(packet).rsplit(".", 1)[-1]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _each_leaf(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_each_leaf(item, change) for item in value)
    return change(value)


def as_tensor(value: Any) -> Value:
    """A number as a tensor; tensors and symbols as they are."""
    return value if isinstance(value, Symbol | Tensor) else torch.tensor(float(value), dtype=torch.float64)


def known_tensor(value: Any) -> Tensor:
    found = as_tensor(value)
    assert isinstance(found, Tensor)
    return found


class _NoIndex:
    """Where a maximum is: not continuous, so that nothing may depend on it."""


NO_INDEX = _NoIndex()


def axes_of(dim: Any) -> list[int]:
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
