"""Normalisation layers."""

from collections.abc import Sequence
from typing import Any, NoReturn

from popqorn.readers import layers
from popqorn.readers.operators.table import rule
from popqorn.readers.symbols import Symbol, SymbolWriter


@rule("batch_norm")
def _batch_norm(
    sheet: SymbolWriter,
    x: Symbol,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Symbol:
    if training or mean is None:
        _by_the_batch(sheet)
    return layers.batch_norm(sheet, x, weight, bias, mean, variance, eps)


@rule("_native_batch_norm_legit_no_training")
def _evaluated_batch_norm(
    sheet: SymbolWriter, x: Symbol, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> tuple[Symbol, None, None]:
    return layers.batch_norm(sheet, x, weight, bias, mean, variance, eps), None, None


@rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
def _by_the_batch(sheet: SymbolWriter, *_: Any) -> NoReturn:
    raise LookupError("batch_norm by the statistics of the batch; let it track running statistics (track_running_stats=True)")


@rule("layer_norm")
def _layer_norm(
    sheet: SymbolWriter, x: Symbol, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Symbol:
    return layers.layer_norm(sheet, x, len(shape), weight, bias, layers.Moments(eps))


@rule("rms_norm")
def _rms_norm(sheet: SymbolWriter, x: Symbol, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Symbol:
    if eps is None:
        raise LookupError("rms_norm without eps; say which, as the default is another for every dtype")
    return layers.layer_norm(sheet, x, len(shape), weight, None, layers.Moments(eps, centered=False))


@rule("group_norm")
def _group_norm(
    sheet: SymbolWriter, x: Symbol, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Symbol:
    return layers.group_norm(sheet, x, groups, weight, bias, eps)


@rule("instance_norm")
def _instance_norm(
    sheet: SymbolWriter,
    x: Symbol,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    own: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Symbol:
    if not own:
        return layers.batch_norm(sheet, x, weight, bias, mean, variance, eps)
    return layers.group_norm(sheet, x, x.shape[1], weight, bias, eps)
