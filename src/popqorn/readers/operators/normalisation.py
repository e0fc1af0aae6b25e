"""Normalisation layers."""

from collections.abc import Sequence
from typing import Any

import torch

from popqorn.readers import layers
from popqorn.readers.operators.table import rule
from popqorn.readers.symbols import Symbol, SymbolWriter


@rule("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm")
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
        raise LookupError("batch_norm by the statistics of the batch; track running statistics and call eval()")
    return layers.batch_norm(sheet, x, weight, bias, mean, variance, eps)


@rule("layer_norm")
def _layer_norm(
    sheet: SymbolWriter, x: Symbol, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Symbol:
    return layers.layer_norm(sheet, x, len(shape), weight, bias, layers.Moments(eps))


@rule("rms_norm")
def _rms_norm(sheet: SymbolWriter, x: Symbol, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Symbol:
    eps = torch.finfo(torch.float32).eps if eps is None else eps
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
