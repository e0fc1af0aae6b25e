"""Sequences of tensors, which exporters make of Python's lists: here they are lists."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn.readers.onnx.table import Operation, known, rule
from popqorn.readers.symbols import Symbol, SymbolWriter, Value


@rule("SequenceEmpty")
def _empty(_: SymbolWriter, __: Operation) -> list[Value]:
    return []


@rule("SequenceConstruct")
def _construct(_: SymbolWriter, __: Operation, *operands: Value) -> list[Value]:
    return list(operands)


@rule("SequenceInsert")
def _insert(_: SymbolWriter, __: Operation, sequence: list[Value], value: Value, place: Any = None) -> list[Value]:
    longer = list(sequence)
    longer.insert(len(longer) if place is None else int(known(place, "places of SequenceInsert")), value)
    return longer


@rule("SequenceErase")
def _erase(_: SymbolWriter, __: Operation, sequence: list[Value], place: Any = None) -> list[Value]:
    shorter = list(sequence)
    del shorter[-1 if place is None else int(known(place, "places of SequenceErase"))]
    return shorter


@rule("SequenceAt")
def _at(_: SymbolWriter, __: Operation, sequence: list[Value], place: Value) -> Value:
    return sequence[int(known(place, "places of SequenceAt"))]


@rule("SequenceLength")
def _length(_: SymbolWriter, __: Operation, sequence: list[Value]) -> Any:
    return np.asarray(len(sequence), dtype=np.int64)


@rule("SplitToSequence")
def _split(sheet: SymbolWriter, node: Operation, x: Value, sizes: Any = None) -> list[Value]:
    axis = node.get("axis", 0) % len(x.shape)
    told = None if sizes is None else known(sizes, "sizes of SplitToSequence")
    entries = sheet.symbol(x).entries
    if told is None:
        parts = entries.split(1, dim=axis)
        return [Symbol(part if node.get("keepdims", 1) else part.squeeze(axis)) for part in parts]
    return [Symbol(part) for part in entries.split(int(told) if told.dim() == 0 else told.tolist(), dim=axis)]


@rule("ConcatFromSequence")
def _join(sheet: SymbolWriter, node: Operation, sequence: list[Value]) -> Value:
    join = torch.stack if node.get("new_axis", 0) else torch.cat
    if all(isinstance(value, Tensor) for value in sequence):
        return join(sequence, dim=node.get("axis"))  # type: ignore[arg-type]
    return Symbol(join([sheet.symbol(value).entries for value in sequence], dim=node.get("axis")))
