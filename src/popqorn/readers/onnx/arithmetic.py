"""Arithmetic, activations, sums and maxima."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from popqorn.readers import layers
from popqorn.readers import operators as of_torch
from popqorn.readers.onnx.table import RULES, Missing, Operation, known, number, rule, symbol
from popqorn.readers.operators.table import RULES as TORCH
from popqorn.readers.symbols import Symbol, SymbolWriter, Value
from popqorn.relax import activations
from popqorn.relax.activations import Activation

assert of_torch.names()  # its rules have been entered

FLOATING = (1, 10, 11, 16)  # ONNX's numbers of FLOAT, FLOAT16, DOUBLE, BFLOAT16

# ---- activations -------------------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[Operation], Activation]] = {
    "Abs": lambda _: activations.ABS,
    "Atan": lambda _: activations.ARCTAN,
    "Cos": lambda _: activations.COS,
    "Elu": lambda node: activations.elu(node.get("alpha", 1.0)),
    "Erf": lambda _: activations.ERF,
    "Exp": lambda _: activations.EXP,
    "Gelu": lambda node: activations.TANH_GELU if node.get("approximate") == "tanh" else activations.GELU,
    "HardSwish": lambda _: activations.HARDSWISH,
    "LeakyRelu": lambda node: activations.leaky_relu(node.get("alpha", 0.01)),
    "Log": lambda _: activations.LOG,
    "Mish": lambda _: activations.MISH,
    "Relu": lambda _: activations.RELU,
    "Sigmoid": lambda _: activations.SIGMOID,
    "Sin": lambda _: activations.SIN,
    "Softplus": lambda _: activations.softplus(1.0, 30.0),
    "Softsign": lambda _: activations.SOFTSIGN,
    "Sqrt": lambda _: activations.power(0.5),
    "Tanh": lambda _: activations.TANH,
}


def _unary(sheet: SymbolWriter, node: Operation, x: Symbol) -> Value:
    return sheet.unary(x, ACTIVATIONS[node.kind](node))


RULES.update(dict.fromkeys(ACTIVATIONS, _unary))


@rule("HardSigmoid")
def _hard_sigmoid(sheet: SymbolWriter, node: Operation, x: Symbol) -> Value:
    within = sheet.scale(x, node.get("alpha", 0.2), node.get("beta", 0.5))
    return sheet.unary(within, activations.hardtanh(0.0, 1.0))


@rule("Selu")
def _selu(sheet: SymbolWriter, node: Operation, x: Symbol) -> Value:
    alpha, gamma = node.get("alpha", 1.67326319217681884765625), node.get("gamma", 1.05070102214813232421875)
    return layers.activated(sheet, x, activations.elu(alpha), factor=gamma)


@rule("Celu")
def _celu(sheet: SymbolWriter, node: Operation, x: Symbol) -> Value:
    alpha = node.get("alpha", 1.0)
    return layers.activated(sheet, x, activations.elu(1.0), factor=alpha, inside=1 / alpha)


@rule("Swish")
def _swish(sheet: SymbolWriter, node: Operation, x: Symbol) -> Value:
    alpha = node.get("alpha", 1.0)
    return layers.activated(sheet, x, activations.SILU, factor=1 / alpha, inside=alpha)


@rule("PRelu")
def _prelu(sheet: SymbolWriter, _: Operation, x: Value, slope: Value) -> Value:
    below = sheet.unary(sheet.negate(x), activations.RELU)
    return sheet.subtract(sheet.unary(x, activations.RELU), sheet.multiply(below, known(slope, "slopes of PRelu")))


@rule("Clip")
def _clip(sheet: SymbolWriter, node: Operation, x: Symbol, low: Any = None, high: Any = None) -> Value:
    ends = [
        float(known(end, "limits of Clip")) if end is not None else node.get(name, default)
        for end, name, default in ((low, "min", -math.inf), (high, "max", math.inf))
    ]
    return sheet.unary(x, activations.hardtanh(*ends))


# ---- entry by entry ----------------------------------------------------------------------------------------------------------


@rule("Add")
def _add(sheet: SymbolWriter, _: Operation, x: Value, y: Value) -> Value:
    mask = next((each for each in (x, y) if isinstance(each, Tensor) and bool((each == -math.inf).any())), None)
    if mask is None:
        return sheet.add(x, y)
    # what a mask of -inf hides is a constant, so that nothing has to be bounded there
    hidden = mask == -math.inf
    shown = mask.masked_fill(hidden, 0.0)
    added = symbol(sheet.add(shown if x is mask else x, shown if y is mask else y))
    return TORCH["masked_fill"](sheet, added, hidden.expand(added.shape), -math.inf)  # type: ignore[no-any-return]


@rule("Sub")
def _subtract(sheet: SymbolWriter, _: Operation, x: Value, y: Value) -> Value:
    if isinstance(x, Tensor) and isinstance(y, Symbol):
        return sheet.scale(y, -1.0, x)
    return sheet.subtract(x, y)


@rule("Mul")
def _multiply(sheet: SymbolWriter, _: Operation, x: Value, y: Value) -> Value:
    return sheet.multiply(x, y)


@rule("Div")
def _divide(sheet: SymbolWriter, _: Operation, x: Value, y: Value) -> Value:
    return layers.divide(sheet, x, y)


@rule("Neg")
def _negate(sheet: SymbolWriter, _: Operation, x: Value) -> Value:
    return sheet.negate(x)


@rule("Reciprocal")
def _reciprocal(sheet: SymbolWriter, _: Operation, x: Value) -> Value:
    return layers.divide(sheet, number(1.0), x)


@rule("Pow")
def _power(sheet: SymbolWriter, _: Operation, x: Value, exponent: Value) -> Any:
    return TORCH["pow"](sheet, x, exponent)


@rule("Sum")
def _sum(sheet: SymbolWriter, _: Operation, *operands: Value) -> Value:
    return reduce(sheet.add, operands)


@rule("Mean")
def _mean(sheet: SymbolWriter, _: Operation, *operands: Value) -> Value:
    return sheet.multiply(reduce(sheet.add, operands), number(1 / len(operands)))


@rule("Max")
def _maximum(sheet: SymbolWriter, _: Operation, *operands: Value) -> Value:
    return sheet.maximum(*operands)


@rule("Min")
def _minimum(sheet: SymbolWriter, _: Operation, *operands: Value) -> Value:
    return sheet.minimum(*operands)


@rule("Cast")
def _cast(_: SymbolWriter, node: Operation, x: Symbol) -> Symbol:
    if node.get("to") not in FLOATING:
        raise LookupError("Cast to whole numbers (which is not continuous)")
    return x


@rule("CastLike")
def _cast_like(_: SymbolWriter, __: Operation, x: Symbol, like: Value) -> Symbol:
    if isinstance(like, Tensor) and not like.is_floating_point():
        raise LookupError("CastLike to whole numbers (which is not continuous)")
    return x


@rule("Dropout")
def _dropout(_: SymbolWriter, __: Operation, x: Symbol, ratio: Any = None, training: Any = None) -> tuple[Symbol, Missing]:
    if training is not None and bool(known(training, "modes of Dropout")):
        raise LookupError("Dropout in training mode, which is random (export the model in eval mode)")
    return x, Missing("the mask of Dropout")


# ---- over axes ---------------------------------------------------------------------------------------------------------------


def _reduction(found: Callable[[SymbolWriter, Symbol, list[int], bool], Value]) -> Callable[..., Value]:
    """A reduction, whose axes are an attribute or, in later versions, an operand."""

    def read(sheet: SymbolWriter, node: Operation, x: Symbol, axes: Any = None) -> Value:
        given = node.get("axes") if axes is None else known(axes, f"axes of {node.kind}").tolist()
        if not given and node.get("noop_with_empty_axes", 0):
            # no axis is reduced, but what a reduction does to every entry is done: over a new axis, each entry is on its own
            return found(sheet, x.moved(lambda entries: entries.unsqueeze(-1)), [len(x.shape)], False)
        return found(sheet, x, list(given or range(len(x.shape))), bool(node.get("keepdims", 1)))

    return read


def _of_entries(activation: Activation) -> Callable[[SymbolWriter, Symbol, list[int], bool], Symbol]:
    """The sum of a function of the entries."""
    return lambda sheet, x, axes, keep: sheet.total(symbol(sheet.unary(x, activation)), axes, keep)


def _least(sheet: SymbolWriter, x: Symbol, axes: list[int], keep: bool) -> Value:
    return sheet.negate(layers.greatest(sheet, sheet.scale(x, -1.0), axes, keep))


def _length(sheet: SymbolWriter, x: Symbol, axes: list[int], keep: bool) -> Value:
    return sheet.unary(_of_entries(activations.SQUARE)(sheet, x, axes, keep), activations.power(0.5))


def _logarithm(sheet: SymbolWriter, x: Symbol, axes: list[int], keep: bool) -> Value:
    return sheet.unary(sheet.total(x, axes, keep), activations.LOG)


RULES["ReduceSum"] = _reduction(SymbolWriter.total)
RULES["ReduceMean"] = _reduction(SymbolWriter.mean)
RULES["ReduceMax"] = _reduction(layers.greatest)
RULES["ReduceMin"] = _reduction(_least)
RULES["ReduceSumSquare"] = _reduction(_of_entries(activations.SQUARE))
RULES["ReduceL1"] = _reduction(_of_entries(activations.ABS))
RULES["ReduceL2"] = _reduction(_length)
RULES["ReduceLogSum"] = _reduction(_logarithm)
RULES["ReduceLogSumExp"] = _reduction(layers.log_sum_exp)


@rule("CumSum")
def _running_total(sheet: SymbolWriter, node: Operation, x: Symbol, axis: Value) -> Value:
    place = int(known(axis, "axes of CumSum")) % len(x.shape)
    backward = bool(node.get("reverse", 0))
    turned = x.moved(lambda entries: entries.flip(place)) if backward else x
    sums = sheet.running_total(turned, place)
    if node.get("exclusive", 0):
        none = sheet.symbol(torch.zeros_like(x.entries.narrow(place, 0, 1), dtype=torch.float64)).entries
        sums = sums.moved(lambda entries: torch.cat([none, entries.narrow(place, 0, entries.shape[place] - 1)], dim=place))
    return sums.moved(lambda entries: entries.flip(place)) if backward else sums


def softmax_axis(node: Operation, shape: tuple[int, ...]) -> int | None:
    """The one axis of a softmax; None for one of an old version, over several axes."""
    axis = int(node.get("axis", -1 if node.version >= 13 else 1))
    axis = axis % len(shape) if shape else 0
    return None if node.version < 13 and math.prod(shape[axis + 1 :]) > 1 else axis


@rule("Softmax", "LogSoftmax")
def _softmax(sheet: SymbolWriter, node: Operation, x: Symbol) -> Symbol:
    compute = layers.softmax if node.kind == "Softmax" else layers.log_softmax
    axis = softmax_axis(node, tuple(x.shape))
    if axis is not None:
        return compute(sheet, x, axis)
    kept = x.shape[: node.get("axis", 1) % len(x.shape)]
    found = compute(sheet, x.moved(lambda entries: entries.reshape(*kept, -1)), -1)
    return found.moved(lambda entries: entries.reshape(x.shape))
