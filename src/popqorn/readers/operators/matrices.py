"""Matrix products, convolutions, attention."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.operators.arithmetic import add, multiply
from popqorn.readers.operators.pooling import masked_fill, pad_with
from popqorn.readers.operators.table import rule
from popqorn.readers.symbols import Symbol, SymbolWriter, Value


@rule("linear")
def _linear(sheet: SymbolWriter, x: Value, weight: Value, bias: Any = None) -> Value:
    if isinstance(x, Symbol) and isinstance(weight, Tensor) and not isinstance(bias, Symbol):
        return sheet.linear(x, weight, bias)
    product = sheet.product(x, weight.mT if isinstance(weight, Tensor) else weight.moved(lambda entries: entries.mT))
    return product if bias is None else sheet.add(product, bias)


@rule("matmul", "mm", "bmm", "mv", "dot")
def _product(sheet: SymbolWriter, x: Value, y: Value) -> Value:
    return sheet.product(x, y)


@rule("addmm", "addmv", "baddbmm")
def _added_product(sheet: SymbolWriter, bias: Value, x: Value, y: Value, beta: float = 1, alpha: float = 1) -> Value:
    return add(sheet, multiply(sheet, bias, beta) if beta != 1 else bias, sheet.product(x, y), alpha)


@rule("bilinear")
def _bilinear(sheet: SymbolWriter, x: Value, y: Value, weight: Tensor, bias: Any = None) -> Value:
    """`sum over i, j of x_i weight_kij y_j + bias_k`."""
    of_x = sheet.symbol(sheet.product(x, weight.permute(1, 0, 2).flatten(1))).moved(
        lambda entries: entries.unflatten(-1, (len(weight), -1))
    )
    of_y = y.moved(lambda entries: entries.unsqueeze(-2)) if isinstance(y, Symbol) else y.unsqueeze(-2)
    product = sheet.multiply(of_x, of_y)
    assert isinstance(product, Symbol)
    total = sheet.total(product, [-1])
    return total if bias is None else sheet.add(total, bias)


@rule("einsum")
def _einsum(sheet: SymbolWriter, equation: str, operands: Sequence[Value], **_: Any) -> Value:
    if len(operands) > 2 or "." in equation:
        raise LookupError(f"einsum {equation!r}; at most two operands without '...' can be read")
    inputs, _arrow, output = equation.replace(" ", "").partition("->")
    if len(operands) == 1:
        inputs, operands = inputs + ",", [*operands, torch.ones((), dtype=torch.float64)]
    first, second = inputs.split(",")
    if not output or any(len(set(each)) < len(each) for each in (first, second)):
        raise LookupError(f"einsum {equation!r}; name the axes of the output, each operand's once")
    inner = [axis for axis in dict.fromkeys(first + second) if axis not in output]
    names = "".join(inner) + output
    x, y = (sheet.symbol(_aligned(operand, axes, names)) for operand, axes in zip(operands, (first, second), strict=True))
    known = [isinstance(operand, Tensor) for operand in operands]
    factors: list[Value] = [x, y]
    for place, operand in enumerate(operands):
        if known[place]:
            factors[place] = _aligned_tensor(operand, (first, second)[place], names)  # type: ignore[arg-type]
    product = sheet.multiply(*factors)
    assert isinstance(product, Symbol)
    return sheet.total(product, range(len(inner))) if inner else product


def _aligned(value: Value, axes: str, names: str) -> Value:
    if isinstance(value, Tensor):
        return _aligned_tensor(value, axes, names)
    return value.moved(lambda entries: _aligned_tensor(entries, axes, names))


def _aligned_tensor(value: Tensor, axes: str, names: str) -> Tensor:
    order = [axes.index(name) for name in names if name in axes]
    shaped = value.permute(order)
    for place, name in enumerate(names):
        if name not in axes:
            shaped = shaped.unsqueeze(place)
    return shaped


@rule("conv1d", "conv2d", "conv3d")
def _convolution(
    sheet: SymbolWriter,
    x: Symbol,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1,),
    padding: Any = (0,),
    dilation: Any = (1,),
    groups: int = 1,
) -> Symbol:
    axes = weight.dim() - 2
    dilation = list(dilation) * axes if len(dilation) == 1 else list(dilation)
    if padding == "valid":
        padding = (0,)
    if padding == "same":
        around = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        edges = [edge for total in reversed(around) for edge in (total // 2, total - total // 2)]
        x, padding = pad_with(sheet, x, edges), (0,)
    return layers.convolution(sheet, x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


@rule("convolution")
def _any_convolution(
    sheet: SymbolWriter,
    x: Symbol,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    more: Any,
    groups: int,
) -> Symbol:
    return layers.convolution(
        sheet,
        x,
        weight,
        bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        output_padding=more,
    )


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(
    sheet: SymbolWriter,
    x: Symbol,
    weight: Tensor,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    output_padding: Any = (0,),
    groups: int = 1,
    dilation: Any = (1,),
) -> Symbol:
    return _any_convolution(sheet, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


@rule("scaled_dot_product_attention")
def _attention(
    sheet: SymbolWriter,
    query: Value,
    key: Value,
    value: Value,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Value:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    turned = key.moved(lambda entries: entries.mT) if isinstance(key, Symbol) else key.mT
    scores = sheet.multiply(sheet.product(query, turned), torch.tensor(factor, dtype=torch.float64))
    assert isinstance(scores, Symbol)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        scores = masked_fill(sheet, scores, ~mask, -math.inf)
    elif mask is not None:
        hidden = (mask == -math.inf) if isinstance(mask, Tensor) else None
        added = sheet.add(scores, mask.masked_fill(hidden, 0.0) if hidden is not None else mask)
        assert isinstance(added, Symbol)
        scores = added if hidden is None else masked_fill(sheet, added, hidden, -math.inf)
    return sheet.product(layers.softmax(sheet, scores, -1), value)
