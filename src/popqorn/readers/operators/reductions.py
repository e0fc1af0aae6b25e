"""Sums, means, maxima, softmax."""

import math
from typing import Any

from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.operators.table import NO_INDEX, axes_of, rule
from popqorn.readers.symbols import Symbol, SymbolWriter, Value
from popqorn.relax import activations


@rule("sum")
def _sum(sheet: SymbolWriter, x: Symbol, dim: Any = None, keepdim: bool = False, **_: Any) -> Symbol:
    return sheet.total(x, axes_of(dim), keepdim)


@rule("mean")
def _mean(sheet: SymbolWriter, x: Symbol, dim: Any = None, keepdim: bool = False, **_: Any) -> Symbol:
    return sheet.mean(x, axes_of(dim), keepdim)


@rule("cumsum")
def _running_total(sheet: SymbolWriter, x: Symbol, dim: int, **_: Any) -> Symbol:
    return sheet.running_total(x, dim)


@rule("amax")
def _amax(sheet: SymbolWriter, x: Symbol, dim: Any = (), keepdim: bool = False) -> Symbol:
    return layers.greatest(sheet, x, axes_of(dim), keepdim)


@rule("amin")
def _amin(sheet: SymbolWriter, x: Symbol, dim: Any = (), keepdim: bool = False) -> Value:
    return sheet.negate(layers.greatest(sheet, sheet.scale(x, -1.0), axes_of(dim), keepdim))


@rule("max")
def _max(sheet: SymbolWriter, x: Symbol, other: Any = None, keepdim: bool = False) -> Any:
    if other is None:
        return layers.greatest(sheet, x, [], False)
    if isinstance(other, Symbol | Tensor):
        return sheet.maximum(x, other)
    return layers.greatest(sheet, x, [other], keepdim), NO_INDEX


@rule("min")
def _min(sheet: SymbolWriter, x: Symbol, other: Any = None, keepdim: bool = False) -> Any:
    if isinstance(other, Symbol | Tensor):
        return sheet.minimum(x, other)
    lowest = sheet.negate(layers.greatest(sheet, sheet.scale(x, -1.0), [] if other is None else [other], keepdim))
    return lowest if other is None else (lowest, NO_INDEX)


@rule("var")
def _variance(
    sheet: SymbolWriter, x: Symbol, dim: Any = None, unbiased: Any = True, keepdim: bool = False, **options: Any
) -> Value:
    correction = options.get("correction", 1 if unbiased is True else 0)
    axes = axes_of(dim)
    centered = sheet.subtract(x, sheet.mean(x, axes, keep=True))
    squares = sheet.unary(centered, activations.SQUARE)
    assert isinstance(squares, Symbol)
    whole = sheet.total(squares, axes, keepdim)
    return sheet.scale(whole, 1 / (x.entries.numel() / whole.entries.numel() - (1 if correction is None else correction)))


@rule("var_mean")
def _variance_and_mean(sheet: SymbolWriter, x: Symbol, dim: Any = None, *arguments: Any, **options: Any) -> tuple[Value, Value]:
    keep = options.get("keepdim", False) or True in arguments[1:]
    return _variance(sheet, x, dim, *arguments, **options), sheet.mean(x, axes_of(dim), keep)


@rule("std")
def _deviation(sheet: SymbolWriter, *arguments: Any, **options: Any) -> Value:
    return sheet.unary(_variance(sheet, *arguments, **options), activations.power(0.5))


@rule("linalg_vector_norm", "norm")
def _norm(sheet: SymbolWriter, x: Symbol, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:  # noqa: A002
    if ord not in (1, 2, math.inf):
        raise LookupError(f"a norm of order {ord}")
    entries = sheet.unary(x, activations.SQUARE if ord == 2 else activations.ABS)
    assert isinstance(entries, Symbol)
    if ord == math.inf:
        return layers.greatest(sheet, entries, axes_of(dim), keepdim)
    whole = sheet.total(entries, axes_of(dim), keepdim)
    return whole if ord == 1 else sheet.unary(whole, activations.power(0.5))


@rule("softmax", "_softmax")
def _softmax(sheet: SymbolWriter, x: Symbol, dim: int, *_: Any, **__: Any) -> Symbol:
    return layers.softmax(sheet, x, dim)


@rule("log_softmax", "_log_softmax")
def _log_softmax(sheet: SymbolWriter, x: Symbol, dim: int, *_: Any, **__: Any) -> Symbol:
    return layers.log_softmax(sheet, x, dim)


@rule("logsumexp")
def _log_sum_exp(sheet: SymbolWriter, x: Symbol, dim: Any, keepdim: bool = False) -> Symbol:
    return layers.log_sum_exp(sheet, x, axes_of(dim), keepdim)
