"""torch's arithmetic and activations."""

import math
from typing import Any

import torch
from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.operators.table import RULES, as_tensor, known_tensor, rule
from popqorn.readers.symbols import Symbol, SymbolWriter, Value
from popqorn.readers.taught import taught
from popqorn.relax import activations
from popqorn.relax.activations import RELU


@rule("add", "__add__")
def add(sheet: SymbolWriter, x: Any, y: Any, alpha: float = 1) -> Value:
    return sheet.add(as_tensor(x), sheet.multiply(as_tensor(y), as_tensor(alpha)) if alpha != 1 else as_tensor(y))


@rule("sub", "subtract")
def _subtract(sheet: SymbolWriter, x: Any, y: Any, alpha: float = 1) -> Value:
    return sheet.subtract(as_tensor(x), sheet.multiply(as_tensor(y), as_tensor(alpha)) if alpha != 1 else as_tensor(y))


@rule("rsub")
def _subtracted(sheet: SymbolWriter, x: Any, y: Any, alpha: float = 1) -> Value:
    if isinstance(x, Symbol) and not isinstance(y, Symbol) and alpha == 1:
        return sheet.scale(x, -1.0, known_tensor(y))
    return _subtract(sheet, y, x, alpha)


@rule("mul", "multiply")
def multiply(sheet: SymbolWriter, x: Any, y: Any) -> Value:
    return sheet.multiply(as_tensor(x), as_tensor(y))


@rule("div", "divide", "true_divide")
def _divide(sheet: SymbolWriter, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise LookupError(f"div with rounding_mode={rounding_mode!r}")
    return layers.divide(sheet, as_tensor(x), as_tensor(y))


@rule("neg", "negative")
def _negate(sheet: SymbolWriter, x: Symbol) -> Value:
    return sheet.negate(x)


@rule("reciprocal")
def _reciprocal(sheet: SymbolWriter, x: Symbol) -> Value:
    return layers.divide(sheet, torch.ones((), dtype=torch.float64), x)


@rule("pow")
def _power(sheet: SymbolWriter, x: Any, exponent: Any) -> Value:
    if isinstance(exponent, Symbol):
        base = known_tensor(x)
        if not (base > 0).all():
            raise LookupError("pow with a base that is not positive and an exponent that moves")
        return sheet.unary(sheet.scale(exponent, base.log()), activations.EXP)
    if isinstance(exponent, Tensor):
        if exponent.numel() != 1:
            raise LookupError("pow with several exponents")
        exponent = float(exponent)
    if exponent == -1:
        return _reciprocal(sheet, x)
    return sheet.unary(x, activations.power(float(exponent)))


@rule("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(sheet: SymbolWriter, x: Symbol, min: Any = None, max: Any = None) -> Value:  # noqa: A002
    if any(isinstance(end, Symbol | Tensor) for end in (min, max)):
        above = x if min is None else sheet.maximum(x, as_tensor(min))
        return above if max is None else sheet.minimum(above, as_tensor(max))
    low, high = (-math.inf if min is None else float(min)), (math.inf if max is None else float(max))
    return sheet.unary(x, activations.hardtanh(low, high))


RULES["clamp_max"] = lambda sheet, x, high: _clamp(sheet, x, None, high)


@rule("maximum", "fmax")
def _maximum(sheet: SymbolWriter, x: Value, y: Value) -> Value:
    return sheet.maximum(x, y)


@rule("minimum", "fmin")
def _minimum(sheet: SymbolWriter, x: Value, y: Value) -> Value:
    return sheet.minimum(x, y)


@rule("addcmul")
def _add_product(sheet: SymbolWriter, x: Value, y: Value, z: Value, value: float = 1) -> Value:
    return add(sheet, x, sheet.multiply(y, z), value)


@rule("lerp")
def _lerp(sheet: SymbolWriter, x: Value, y: Value, weight: Any) -> Value:
    return sheet.add(x, sheet.multiply(as_tensor(weight), sheet.subtract(y, x)))


@rule("taught")
def _taught(sheet: SymbolWriter, x: Symbol, number: int) -> Value:
    return sheet.unary(x, taught(number))


@rule("elu")
def _elu(sheet: SymbolWriter, x: Symbol, alpha: float = 1.0, scale: float = 1.0, inside: float = 1.0) -> Value:
    return layers.activated(sheet, x, activations.elu(alpha), factor=scale, inside=inside)


@rule("selu")
def _selu(sheet: SymbolWriter, x: Symbol) -> Value:
    return layers.activated(sheet, x, activations.elu(1.6732632423543772), factor=1.0507009873554805)


@rule("celu")
def _celu(sheet: SymbolWriter, x: Symbol, alpha: float = 1.0) -> Value:
    return layers.activated(sheet, x, activations.elu(1.0), factor=alpha, inside=1 / alpha)


@rule("log_sigmoid")
def _log_sigmoid(sheet: SymbolWriter, x: Symbol) -> Value:
    return layers.activated(sheet, x, activations.softplus(1.0, 30.0), factor=-1.0, inside=-1.0)


@rule("log1p")
def _log_of_more(sheet: SymbolWriter, x: Symbol) -> Value:
    return sheet.unary(sheet.scale(x, 1.0, 1.0), activations.LOG)


@rule("log2")
def _binary_log(sheet: SymbolWriter, x: Symbol) -> Value:
    return layers.activated(sheet, x, activations.LOG, factor=1 / math.log(2))


@rule("log10")
def _decimal_log(sheet: SymbolWriter, x: Symbol) -> Value:
    return layers.activated(sheet, x, activations.LOG, factor=1 / math.log(10))


@rule("exp2")
def _binary_exp(sheet: SymbolWriter, x: Symbol) -> Value:
    return layers.activated(sheet, x, activations.EXP, inside=math.log(2))


@rule("glu")
def _gated(sheet: SymbolWriter, x: Symbol, dim: int = -1) -> Value:
    value, gate = (Symbol(half) for half in x.entries.chunk(2, dim))
    return sheet.multiply(sheet.unary(gate, activations.SIGMOID), value)


@rule("expm1")
def _exp_less_one(sheet: SymbolWriter, x: Symbol) -> Value:
    return sheet.add(sheet.unary(x, activations.EXP), torch.tensor(-1.0, dtype=torch.float64))


@rule("prelu", "_prelu_kernel")
def _prelu(sheet: SymbolWriter, x: Symbol, weight: Tensor) -> Value:
    slope = weight.reshape(1, -1, *[1] * (x.entries.dim() - 2)) if weight.numel() > 1 else weight.reshape(())
    if weight.numel() == 1:
        return sheet.unary(x, activations.leaky_relu(float(weight)))
    below = sheet.unary(sheet.scale(x, -1.0), RELU)
    return sheet.subtract(sheet.unary(x, RELU), sheet.multiply(below, slope))


@rule("rrelu")
def _random_relu(
    sheet: SymbolWriter, x: Symbol, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Value:
    if training:
        raise LookupError("rrelu in training mode, which is random; call the functional form with training=self.training")
    return sheet.unary(x, activations.leaky_relu((lower + upper) / 2))


@rule("erfc")
def _rest_of_erf(sheet: SymbolWriter, x: Symbol) -> Value:
    return sheet.scale(sheet.symbol(sheet.unary(x, activations.ERF)), -1.0, 1.0)


@rule("item", "_local_scalar_dense")
def _number(sheet: SymbolWriter, x: Symbol) -> Value:
    raise LookupError("a plain number (item, tolist, float) taken from a tensor that depends on the inputs; keep it a tensor")


@rule("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def _dropout(sheet: SymbolWriter, x: Symbol, p: float, train: bool = False) -> Any:
    if train:
        raise LookupError("dropout in training mode, which is random; call the functional form with training=self.training")
    return x


@rule("to", "_to_copy", "type_as", "float", "double", "half", "to_dense")
def _to(sheet: SymbolWriter, x: Value, *arguments: Any, **options: Any) -> Value:
    for given in (*arguments, *options.values()):
        if isinstance(given, torch.dtype) and not given.is_floating_point:
            raise LookupError(f"a cast to {given} of something that depends on the inputs: its result jumps")
    return x.double() if isinstance(x, Tensor) else x
