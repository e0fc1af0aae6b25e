"""Matrices, convolution, pooling, normalisation."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.onnx.table import Missing, Operation, known, known_or_none, number, rule, symbol
from popqorn.readers.operators.table import RULES as TORCH
from popqorn.readers.symbols import Symbol, SymbolWriter, Value

MOST_PRODUCTS = 10_000_000  # of entries that both move, in one product of matrices

# ---- matrices ----------------------------------------------------------------------------------------------------------------


@rule("MatMul")
def _product(sheet: SymbolWriter, _: Operation, x: Value, y: Value) -> Value:
    if isinstance(x, Symbol) and isinstance(y, Symbol) and x.entries.numel() * y.shape[-1] > MOST_PRODUCTS:
        raise LookupError(f"MatMul of two operands that both move and are large, {tuple(x.shape)} and {tuple(y.shape)}")
    return sheet.product(x, y)


@rule("Gemm")
def _gemm(sheet: SymbolWriter, node: Operation, x: Value, y: Value, bias: Value | None = None) -> Value:
    """`alpha x y + beta bias`, with either matrix transposed if so told."""
    x, y = (_transposed(value) if node.get(name, 0) else value for value, name in ((x, "transA"), (y, "transB")))
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if bias is not None and beta != 1:
        bias = sheet.multiply(bias, number(beta))
    plain = isinstance(bias, Tensor) and bias.numel() in (1, bias.shape[-1] if bias.dim() else 1)
    if isinstance(x, Symbol) and isinstance(y, Tensor) and (bias is None or plain):
        weight = y.mT if alpha == 1 else alpha * y.mT
        return sheet.linear(x, weight, None if bias is None else known(bias, "biases").reshape(-1).expand(len(weight)))
    found = sheet.product(x, y)
    found = found if alpha == 1 else sheet.multiply(found, number(alpha))
    return found if bias is None else sheet.add(found, bias)


def _transposed(value: Value) -> Value:
    return value.mT if isinstance(value, Tensor) else value.moved(lambda entries: entries.mT)


@rule("Einsum")
def _einsum(sheet: SymbolWriter, node: Operation, *operands: Value) -> Any:
    return TORCH["einsum"](sheet, node.get("equation"), operands)


# ---- convolution and pooling -------------------------------------------------------------------------------------------------


def _padding(node: Operation, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """What is put before and after every axis; `reach` is how many entries a window spans."""
    automatic = node.get("auto_pad", "NOTSET")
    if automatic == "NOTSET":
        pads = node.get("pads") or [0] * (2 * len(sizes))
        return list(zip(pads[: len(sizes)], pads[len(sizes) :], strict=True))
    if automatic == "VALID":
        return [(0, 0)] * len(sizes)
    found = []
    for size, span, stride in zip(sizes, reach, strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + span - size)
        less, more = total // 2, total - total // 2
        found.append((less, more) if automatic == "SAME_UPPER" else (more, less))
    return found


def _reach(sizes: Sequence[int], dilations: Sequence[int]) -> list[int]:
    return [dilation * (size - 1) + 1 for size, dilation in zip(sizes, dilations, strict=True)]


@rule("Conv")
def _convolution(sheet: SymbolWriter, node: Operation, x: Value, weight: Value, bias: Value | None = None) -> Symbol:
    weight, offset = known(weight, "weights of Conv"), known_or_none(bias, "biases of Conv")
    axes = weight.dim() - 2
    x, strides, dilations = symbol(x), node.get("strides") or [1] * axes, node.get("dilations") or [1] * axes
    pads = _padding(node, x.shape[2:], _reach(weight.shape[2:], dilations), strides)
    even = all(before == after for before, after in pads)
    if not even:
        x = symbol(TORCH["constant_pad_nd"](sheet, x, [edge for pair in reversed(pads) for edge in pair]))
    padding = [before if even else 0 for before, _ in pads]
    return layers.convolution(
        sheet, x, weight, offset, stride=strides, padding=padding, dilation=dilations, groups=node.get("group", 1)
    )


@rule("ConvTranspose")
def _transposed_convolution(sheet: SymbolWriter, node: Operation, x: Value, weight: Value, bias: Value | None = None) -> Symbol:
    weight, offset = known(weight, "weights of ConvTranspose"), known_or_none(bias, "biases of ConvTranspose")
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.get("output_shape"):
        raise LookupError("ConvTranspose with auto_pad or output_shape (pads can be read)")
    axes = weight.dim() - 2
    pads = _padding(node, [0] * axes, [0] * axes, [1] * axes)
    whole = layers.convolution(
        sheet,
        symbol(x),
        weight,
        offset,
        stride=node.get("strides") or [1] * axes,
        padding=[0] * axes,
        dilation=node.get("dilations") or [1] * axes,
        groups=node.get("group", 1),
        transposed=True,
        output_padding=node.get("output_padding") or [0] * axes,
    )
    for place, (before, after) in enumerate(pads, start=2):
        whole = Symbol(whole.entries.narrow(place, before, whole.shape[place] - before - after))
    return whole


@rule("MaxPool")
def _max_pool(sheet: SymbolWriter, node: Operation, x: Symbol) -> tuple[Symbol, Missing]:
    return layers.max_pool(sheet, _windows(node, x)[0]), Missing("the indices of MaxPool")


@rule("AveragePool")
def _average_pool(sheet: SymbolWriter, node: Operation, x: Symbol) -> Symbol:
    seen, beyond = _windows(node, x)
    count_edges = bool(node.get("count_include_pad", 0))
    if count_edges and beyond:
        raise LookupError("AveragePool with ceil_mode and count_include_pad")
    return layers.average_pool(sheet, seen, count_edges=count_edges)


def _windows(node: Operation, x: Symbol) -> tuple[Tensor, bool]:
    """What every window of a pooling sees, and whether the last ones stand out further than the padding."""
    sizes = node.get("kernel_shape")
    strides, dilations = node.get("strides") or [1] * len(sizes), node.get("dilations") or [1] * len(sizes)
    reach = _reach(sizes, dilations)
    pads, beyond = _padding(node, x.shape[2:], reach, strides), False
    if node.get("ceil_mode", 0):
        for axis, (before, after) in enumerate(pads):
            length = x.shape[2 + axis] + before + after
            steps = -(-(length - reach[axis]) // strides[axis])
            if steps * strides[axis] >= x.shape[2 + axis] + before:  # a window that begins behind the last entry is left out
                steps -= 1
            more = max(0, steps * strides[axis] + reach[axis] - length)
            pads[axis] = (before, after + more)
            beyond = beyond or more > 0
    return layers.windows(x, sizes, strides, pads, dilations), beyond


@rule("GlobalAveragePool")
def _global_average(sheet: SymbolWriter, _: Operation, x: Symbol) -> Symbol:
    return sheet.mean(x, range(2, len(x.shape)), keep=True)


@rule("GlobalMaxPool")
def _global_maximum(sheet: SymbolWriter, _: Operation, x: Symbol) -> Symbol:
    return layers.greatest(sheet, x, range(2, len(x.shape)), keep=True)


# ---- normalisation -----------------------------------------------------------------------------------------------------------


@rule("BatchNormalization")
def _batch_norm(
    sheet: SymbolWriter, node: Operation, x: Symbol, scale: Value, bias: Value, mean: Value, variance: Value
) -> Symbol:
    if node.get("training_mode", 0):
        raise LookupError("BatchNormalization in training mode (export the model in eval mode)")
    scale, bias, mean, variance = (known(each, "numbers of BatchNormalization") for each in (scale, bias, mean, variance))
    return layers.batch_norm(sheet, x, scale, bias, mean, variance, node.get("epsilon", 1e-5))


@rule("LayerNormalization")
def _layer_norm(sheet: SymbolWriter, node: Operation, x: Symbol, scale: Value, bias: Value | None = None) -> Any:
    axes = len(x.shape) - node.get("axis", -1) % len(x.shape)
    numbers = known(scale, "scales of LayerNormalization"), known_or_none(bias, "biases of LayerNormalization")
    found = layers.layer_norm(sheet, x, axes, *numbers, layers.Moments(node.get("epsilon", 1e-5)))
    return found, Missing("the mean of LayerNormalization"), Missing("the deviation of LayerNormalization")


@rule("RMSNormalization")
def _rms_norm(sheet: SymbolWriter, node: Operation, x: Symbol, scale: Value) -> Symbol:
    axes = len(x.shape) - node.get("axis", -1) % len(x.shape)
    moments = layers.Moments(node.get("epsilon", 1e-5), centered=False)
    return layers.layer_norm(sheet, x, axes, known(scale, "scales of RMSNormalization"), None, moments)


@rule("InstanceNormalization")
def _instance_norm(sheet: SymbolWriter, node: Operation, x: Symbol, scale: Value, bias: Value) -> Symbol:
    scale, bias = (known(each, "numbers of InstanceNormalization") for each in (scale, bias))
    return layers.group_norm(sheet, x, x.shape[1], scale, bias, node.get("epsilon", 1e-5))


@rule("GroupNormalization")
def _group_norm(sheet: SymbolWriter, node: Operation, x: Symbol, scale: Value, bias: Value) -> Symbol:
    groups = node.get("num_groups")
    scale, bias = (known(each, "numbers of GroupNormalization") for each in (scale, bias))
    return layers.group_norm(sheet, x, groups, scale, bias, node.get("epsilon", 1e-5))
