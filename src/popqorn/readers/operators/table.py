"""torch's operators: what each does to symbols. A new operator is one line of a table below, or one function."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.symbols import Symbol, SymbolWriter, Value
from popqorn.relax import activations
from popqorn.relax.activations import Activation, PiecewiseLinear

Rule = Callable[..., Any]
"""`rule(sheet, *arguments)`: the operator's arguments, with symbols for the tensors that depend on the inputs."""

RULES: dict[str, Rule] = {}

# Operators that only move the entries of one tensor about: torch's own, applied to the entries' numbers.
MOVES = frozenset(
    [
        "alias",
        "broadcast_to",
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
        "hsplit",
        "index",
        "index_select",
        "lift_fresh_copy",
        "mT",
        "masked_select",
        "moveaxis",
        "movedim",
        "narrow",
        "numpy_T",
        "permute",
        "pixel_shuffle",
        "positive",
        "ravel",
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
        "swapdims",
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
        "vsplit",
        "_unsafe_index",
        "_unsafe_view",
    ]
)
# Operators that put the entries of a list of tensors together.
JOINS = frozenset(["cat", "concat", "concatenate", "hstack", "stack", "vstack"])
# Operators that choose, at known places, between the entries of two tensors (or numbers): where these stand among the arguments.
CHOICES = {
    "copy": (0, 1),
    "fill": (0, 1),
    "index_copy": (0, 3),
    "index_fill": (0, 3),
    "index_put": (0, 2),
    "masked_scatter": (0, 2),
    "scatter": (0, 3),
    "select_scatter": (0, 1),
    "slice_scatter": (0, 1),
    "where": (1, 2),
}
# Operators that ask a tensor for its shape only.
SHAPES = frozenset(
    [
        "dim",
        "empty_like",
        "full_like",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "numel",
        "ones_like",
        "size",
        "sym_numel",
        "sym_size",
        "zeros_like",
    ]
)
# Operators whose results jump: there is nothing to bound between one value and the next.
JUMPS = frozenset(
    [
        "argmax",
        "argmin",
        "argsort",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "ceil",
        "eq",
        "floor",
        "floor_divide",
        "fmod",
        "frac",
        "ge",
        "gt",
        "heaviside",
        "isnan",
        "le",
        "logical_and",
        "logical_not",
        "logical_or",
        "lt",
        "ne",
        "remainder",
        "round",
        "sign",
        "trunc",
    ]
)

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
    "softshrink": lambda edge=0.5: Activation(
        f"softshrink({edge:g})", lambda x: torch.nn.functional.softshrink(x, edge), PiecewiseLinear((-edge, edge))
    ),
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
    if torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()) and name not in RULES:
        raise LookupError(f"{function}, which is random; draw it once and keep it as a buffer")
    leaves = _leaves([*arguments, *options.values()])
    if any(leaf is NO_INDEX for leaf in leaves) and name != "getitem":
        raise LookupError(f"{function} of the place of a maximum: it jumps")
    if not any(isinstance(leaf, Symbol) for leaf in leaves):
        return _known(function, arguments, options)
    arguments, options = _in_double(arguments, options)
    if name in MOVES:
        return _moved(name, function, arguments, options)
    if name in JOINS:
        return _joined(sheet, function, arguments, options)
    if name in CHOICES:
        return _chosen(sheet, name, function, arguments, options)
    if name in SHAPES:
        return function(torch.empty(arguments[0].shape, dtype=torch.float64), *arguments[1:], **_anywhere(options))
    if name in JUMPS:
        raise LookupError(f"{function} of something that depends on the inputs: its result jumps")
    if name in ACTIVATIONS:
        return layers.activated(sheet, arguments[0], _activation(name, arguments[1:], options))
    if name not in RULES:
        raise LookupError(name)
    return RULES[name](sheet, *arguments, **options)


def names() -> list[str]:
    """All operators that can be read."""
    return sorted({*MOVES, *JOINS, *CHOICES, *SHAPES, *ACTIVATIONS, *RULES})


def _activation(name: str, arguments: Sequence[Any], options: dict[str, Any]) -> Activation:
    activation = ACTIVATIONS[name]
    return activation if isinstance(activation, Activation) else activation(*arguments, **options)


def _known(function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """What is known: in double precision where weights or constants take part, whatever it is cast to.

    What a model makes of neither (positions, the weights of an interpolation) is computed as the model does it: a place that
    follows from it must be the model's.
    """
    if any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in _leaves([*arguments, *options.values()])):
        arguments, options = _in_double(arguments, options, casts=True)
    return function(*arguments, **_anywhere(options))


def _in_double(arguments: Sequence[Any], options: dict[str, Any], *, casts: bool = False) -> tuple[Sequence[Any], dict[str, Any]]:
    """Arguments of an operator with all known numbers in double precision; `casts` to other precisions become casts to it."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.double()
        return torch.float64 if casts and isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    return _each_leaf(tuple(arguments), change), {key: _each_leaf(each, change) for key, each in options.items()}


def _anywhere(options: dict[str, Any]) -> dict[str, Any]:
    """Options without the device, as reading is done on one of its own."""
    return {key: value for key, value in options.items() if key not in ("device", "pin_memory")}


def _moved(name: str, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """Numbers of entries go where the entries go."""
    operand, *rest = arguments
    if name in ("expand_as", "reshape_as", "view_as"):
        rest = [torch.empty(rest[0].shape)]
    if not isinstance(operand, Symbol) or any(isinstance(leaf, Symbol) for leaf in _leaves([*rest, *options.values()])):
        raise LookupError(f"{function} at places that depend on the inputs")
    if name in ("clone", "contiguous", "detach", "alias", "lift_fresh_copy", "positive"):
        return operand
    if any(isinstance(leaf, torch.dtype) for leaf in rest):
        raise LookupError(f"{function} of the bits of something that depends on the inputs: its result jumps")
    # the numbers may lie in memory otherwise than the entries they stand for do
    return _symbols(function(operand.entries.contiguous(), *rest, **options))


def _joined(sheet: SymbolWriter, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """Known tensors beside symbols become constants of the tape first."""
    operands, *rest = arguments
    return _symbols(function([sheet.symbol(each).entries for each in operands], *rest, **options))


def _chosen(
    sheet: SymbolWriter, name: str, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]
) -> Any:
    """The same for operators that choose; a number is chosen by the number of its entry."""
    found: list[Any] = list(arguments)
    for place in CHOICES[name]:
        entries = sheet.symbol(as_tensor(found[place])).entries
        found[place] = entries if isinstance(found[place], Symbol | Tensor) else int(entries)
    if any(isinstance(leaf, Symbol) for leaf in _leaves([*found, *options.values()])):
        raise LookupError(f"{function} at places that depend on the inputs")
    if options.get("accumulate") or (name == "index_put" and True in arguments[3:]):
        raise LookupError(f"{function} with accumulate=True")
    if "reduce" in options:
        raise LookupError(f"{function} with reduce={options['reduce']!r}; add or multiply by tensors that are scattered first")
    return _symbols(function(*found, **options))


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
