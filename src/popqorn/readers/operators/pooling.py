"""Pooling, padding, masks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.operators.table import NO_INDEX, RULES, Rule, as_tensor, rule
from popqorn.readers.symbols import Symbol, SymbolWriter


def _windows(x: Symbol, axes: int, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Tensor:
    if ceil_mode:
        raise LookupError("pooling with ceil_mode=True")
    full = [list(each) * axes if len(each) == 1 else list(each) for each in (size, stride or size, padding, dilation)]
    return layers.windows(x, full[0], full[1], [(edge, edge) for edge in full[2]], full[3])


def _max_pool(axes: int, indices: bool) -> Rule:
    def pool(
        sheet: SymbolWriter,
        x: Symbol,
        size: Any,
        stride: Any = (),
        padding: Any = (0,),
        dilation: Any = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        found = layers.max_pool(sheet, _windows(x, axes, size, stride, padding, dilation, ceil_mode))
        return (found, NO_INDEX) if indices else found

    return pool


def _average_pool(axes: int) -> Rule:
    def pool(
        sheet: SymbolWriter,
        x: Symbol,
        size: Any,
        stride: Any = (),
        padding: Any = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Symbol:
        if divisor_override is not None:
            raise LookupError("average pooling with divisor_override")
        return layers.average_pool(
            sheet, _windows(x, axes, size, stride, padding, (1,), ceil_mode), count_edges=count_include_pad
        )

    return pool


for _axis_count in (1, 2, 3):
    RULES[f"max_pool{_axis_count}d"] = _max_pool(_axis_count, False)
    RULES[f"max_pool{_axis_count}d_with_indices"] = _max_pool(_axis_count, True)
    RULES[f"avg_pool{_axis_count}d"] = _average_pool(_axis_count)
    RULES[f"adaptive_avg_pool{_axis_count}d"] = lambda sheet, x, size: layers.adaptive_average(sheet, x, size)
    RULES[f"adaptive_max_pool{_axis_count}d"] = lambda sheet, x, size: (layers.adaptive_maximum(sheet, x, size), NO_INDEX)


@rule("constant_pad_nd")
def pad_with(sheet: SymbolWriter, x: Symbol, pad: Sequence[int], value: float = 0.0) -> Symbol:
    edge = int(sheet.symbol(as_tensor(value)).entries)
    return x.moved(lambda entries: torch.nn.functional.pad(entries, list(pad), value=edge))


@rule("pad", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def _pad_by(sheet: SymbolWriter, x: Symbol, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Symbol:
    if mode == "constant":
        return pad_with(sheet, x, pad, 0.0 if value is None else value)
    # numbers of entries are exact in double precision, for which torch has every kind of padding
    return x.moved(lambda entries: torch.nn.functional.pad(entries.double(), list(pad), mode=mode).long())


for _axis_count in (1, 2):
    RULES[f"reflection_pad{_axis_count}d"] = lambda sheet, x, pad: _pad_by(sheet, x, pad, "reflect")
    RULES[f"replication_pad{_axis_count}d"] = lambda sheet, x, pad: _pad_by(sheet, x, pad, "replicate")


@rule("masked_fill")
def masked_fill(sheet: SymbolWriter, x: Symbol, mask: Any, value: Any) -> Symbol:
    if isinstance(mask, Symbol):
        raise LookupError("masked_fill with a mask that depends on the inputs")
    filler = sheet.symbol(as_tensor(value)).entries
    return x.moved(lambda entries: torch.where(mask, filler.reshape(()), entries))
