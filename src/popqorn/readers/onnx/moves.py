"""Operators that only move entries about: ONNX's own reference, applied to the entries' numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn.readers.onnx.file import required
from popqorn.readers.onnx.folding import Array, evaluated
from popqorn.readers.onnx.table import MOVES
from popqorn.readers.symbols import Symbol, SymbolWriter

ABSENT = -1  # the number of no entry


def moved(sheet: SymbolWriter, node: Any, operands: Sequence[Any], version: int) -> list[Symbol]:
    """Entries go where the operator puts them; known tensors beside them become constants of the tape first."""
    places = MOVES[node.op_type]
    given = list(operands)
    for place, operand in enumerate(operands):
        if operand is not None and (places is None or place in places):
            given[place] = _numbers(sheet, operand).numpy()
        elif isinstance(operand, Symbol) and not (node.op_type == "Pad" and place == 2):
            raise LookupError(f"{node.op_type} at places that depend on the inputs")
    if any(each.name == "reduction" and each.s not in (b"", b"none") for each in node.attribute):
        raise LookupError(f"{node.op_type} with a reduction")
    if node.op_type == "Trilu":
        return [_triangle(sheet, node, given, version)]
    if node.op_type == "Pad":
        return [_padded(sheet, node, given, version)]
    return [Symbol(torch.from_numpy(np.array(each))) for each in evaluated(node, given, version)]


def _numbers(sheet: SymbolWriter, value: Symbol | Array) -> Tensor:
    return sheet.symbol(value if isinstance(value, Symbol) else torch.from_numpy(value)).entries


def _triangle(sheet: SymbolWriter, node: Any, given: Sequence[Any], version: int) -> Symbol:
    """One triangle of a matrix; the rest is zero."""
    (kept,) = evaluated(node, [np.ones(given[0].shape, dtype=np.int64), *given[1:]], version)
    zero = sheet.symbol(torch.zeros(1)).entries
    return Symbol(torch.where(torch.from_numpy(kept != 0), torch.from_numpy(given[0]), zero))


def _padded(sheet: SymbolWriter, node: Any, given: Sequence[Any], version: int) -> Symbol:
    """The edges are marked by the number of no entry first, which the value they are filled with then replaces."""
    helper = required("onnx").helper
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    entries, *rest = given
    value: Any = np.asarray(attributes.get("value", 0.0), dtype=np.float64)  # an attribute before version 11
    names, operands = list(node.input[:1]), [entries]
    if version < 11:
        attributes["value"] = float(ABSENT)
    else:
        pads, filler, axes = [*rest, None, None, None][:3]
        value = value if filler is None else filler
        names += ["pads", "filler", *(["axes"] if axes is not None else [])]
        operands += [pads, np.asarray(ABSENT), *([axes] if axes is not None else [])]
    marking = helper.make_node("Pad", names, ["padded"], **attributes)
    found = torch.from_numpy(np.array(evaluated(marking, operands, version)[0]))
    return Symbol(torch.where(found == ABSENT, _numbers(sheet, value).reshape(()), found))
