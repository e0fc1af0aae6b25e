"""A graph run with symbols in the place of what moves: known values are computed at once, all else is written on the tape."""

import math
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn.readers.onnx.arithmetic import FLOATING, softmax_axis
from popqorn.readers.onnx.control import MOST_STEPS, Bodies, controlled
from popqorn.readers.onnx.file import required
from popqorn.readers.onnx.folding import as_known, entries_of, evaluated
from popqorn.readers.onnx.moves import moved
from popqorn.readers.onnx.operators import CONTROL, NAMES, SEQUENCES, SIZES
from popqorn.readers.onnx.structure import Program, needed
from popqorn.readers.onnx.table import MOVES, RULES, Missing, Operation
from popqorn.readers.symbols import Symbol, SymbolWriter

LEFT_OFF = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}
MOST_TOTAL = 30_000_000  # numbers that values add up to, beside a few copies of the weights
MOST_KNOWN = 10_000_000  # numbers of a value that is larger than all it is computed from
MOST_MOVING = 1_000_000  # numbers of a value that depends on the inputs

Values = MutableMapping[str, Any]
"""Symbols, numpy arrays where they are known, lists of either."""


def written(sheet: SymbolWriter, program: Program, given: Mapping[str, Any], *, decides: bool) -> tuple[Symbol, str | None]:
    """Write a program onto a tape. Returns its output, and the softmax over the last axis that was left off."""
    run = _Interpreter(sheet, program)
    values: Values = {**weights_of(program.graph), **given}
    output = program.output.name
    last = _softmax_at(program.graph, output) if decides else None
    if last is not None:
        before = run.value(last.input[0], values)
        shape = tuple(before.shape)
        if isinstance(before, Symbol) and softmax_axis(_operation(last, program.version), shape) == len(shape) - 1:
            return before, LEFT_OFF[last.op_type]
    found = run.value(output, values)
    if isinstance(found, Missing):
        raise TypeError(f"output: {output!r} is {found.what}, which no tape can have; choose another output")
    if not isinstance(found, Symbol):
        raise ValueError(
            f"path: {program.file}: the output {output!r} does not depend on the inputs; there is nothing to certify"
        )
    return found, None


def weights_of(graph: Any) -> dict[str, Any]:
    """The known tensors a graph begins with."""
    to_array = required("onnx").numpy_helper.to_array
    return {tensor.name: as_known(to_array(tensor)) for tensor in graph.initializer}


def _softmax_at(graph: Any, output: str) -> Any:
    """The node of the softmax an output is, perhaps behind copies; None if it is none."""
    makers = {name: node for node in graph.node for name in node.output}
    name, node = output, makers.get(output)
    while node is not None and _is_a_copy(node, name):
        name, node = node.input[0], makers.get(node.input[0])
    return node if node is not None and node.op_type in LEFT_OFF and not node.domain else None


def _is_a_copy(node: Any, output: str) -> bool:
    """Whether an output of a node is its first operand."""
    if node.op_type == "Dropout":  # its mask is another output; with a third operand, it may be in training mode
        return bool(output == node.output[0] and len(node.input) < 3)
    return node.op_type == "Identity" or _is_floating_cast(node)


def _is_floating_cast(node: Any) -> bool:
    return node.op_type == "Cast" and all(each.i in FLOATING for each in node.attribute if each.name == "to")


def _operation(node: Any, version: int) -> Operation:
    read = required("onnx").helper.get_attribute_value
    return Operation(node.op_type, version, len(node.output), {each.name: _plain(read(each)) for each in node.attribute})


def _plain(value: Any) -> Any:
    """An attribute's text as text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [_plain(each) for each in value] if isinstance(value, list) else value


class RefusedError(TypeError):
    """A node that cannot be read."""


class _Interpreter:
    """Runs the nodes of a program."""

    def __init__(self, sheet: SymbolWriter, program: Program) -> None:
        self.sheet = sheet
        self.program = program
        self._steps = 0
        self._repeats = 1  # how often the loops around run a node
        self._entries = 0
        self._most = MOST_TOTAL + 4 * sum(math.prod(tensor.dims) for tensor in program.graph.initializer)

    def value(self, name: str, values: Values) -> Any:
        """The value of a name; all that leads to it is entered among the values."""
        self._run(needed(self.program.graph.node, [name], values), values)
        return values[name]

    def _run(self, nodes: Sequence[Any], values: Values) -> None:
        for node in nodes:
            operands = [values[name] if name else None for name in node.input]
            try:
                found = self._outputs(node, operands, values)
            except RefusedError:
                raise  # of a graph within
            except Exception as error:  # whatever the reference or a rule finds wrong with its operands
                raise self._refusal(node, _reason(node, error)) from error
            values.update((name, value) for name, value in zip(node.output, found, strict=False) if name)

    def _refusal(self, node: Any, what: str) -> RefusedError:
        place = node.name or next(iter(node.output), "")
        return RefusedError(
            f"path: {self.program.file}: cannot read {what}, at the node {place!r}; popqorn.supported_operations() lists what "
            "can be read"
        )

    def _outputs(self, node: Any, operands: Sequence[Any], values: Values) -> Sequence[Any]:
        """What one node computes."""
        kind, version = node.op_type, self.program.version
        self._steps += 1
        absent = next((each for each in operands if isinstance(each, Missing)), None)
        if absent is not None:
            raise LookupError(f"{kind} of {absent.what}")
        if node.domain or kind not in NAMES:
            raise LookupError(kind)
        if kind in CONTROL:
            outer = self._repeats
            found = controlled(self._bodies(values), _operation(node, version), operands)
            self._repeats = outer
            return found
        if kind in SEQUENCES:
            return self._ruled(node, operands)
        self._check_size(node, operands)
        if kind in SIZES:  # nothing but the shape counts
            operands = [np.empty(tuple(operands[0].shape), dtype=bool)]
        if not any(isinstance(operand, Symbol) for operand in operands):
            return [None if each is None else as_known(each) for each in evaluated(node, operands, version)]
        return moved(self.sheet, node, operands, version) if kind in MOVES else self._ruled(node, operands)

    def _check_size(self, node: Any, operands: Sequence[Any]) -> None:
        shapes = [None if operand is None else tuple(operand.shape) for operand in operands]
        known = [operand if isinstance(operand, np.ndarray) else None for operand in operands]
        moves = any(isinstance(operand, Symbol) for operand in operands)
        most = MOST_MOVING if moves else MOST_KNOWN
        self._entries += entries_of(node, shapes, known, self.program.version, most)
        if self._entries > self._most:
            raise LookupError(f"values of more than {self._most:,} numbers")

    def _ruled(self, node: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if node.op_type not in RULES:
            raise LookupError(f"{node.op_type} of what depends on the inputs")
        found = RULES[node.op_type](self.sheet, _operation(node, self.program.version), *map(_to_torch, operands))
        return [_from_torch(each) for each in (found if isinstance(found, tuple) else (found,))]

    # ---- graphs within -------------------------------------------------------------------------------------------------------

    def _bodies(self, values: Values) -> Bodies:
        def run(graph: Any, operands: Sequence[Any]) -> list[Any]:
            inner: Values = ChainMap(
                {**weights_of(graph), **{place.name: each for place, each in zip(graph.input, operands, strict=True)}}, values
            )
            ends = [value.name for value in graph.output]
            self._run(needed(graph.node, ends), inner)
            return [inner[name] for name in ends]

        def repeat(count: int, graph: Any) -> None:
            self._repeats *= max(1, count)
            if self._repeats * max(1, len(graph.node)) > MOST_STEPS:
                raise LookupError(f"a loop of {self._repeats:,} trips in all; {MOST_STEPS:,} nodes are run at most")

        return Bodies(self.sheet, run, lambda: self._steps, repeat)


def _reason(node: Any, error: Exception) -> str:
    """What of a node cannot be read: what a rule says, and otherwise the node with what is wrong."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if type(error) is not LookupError:  # those of wrong indices and keys are other mistakes
        return f"{node.op_type} with these operands ({line})"
    return line if " " in line else f"the operator {node.op_type}"


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return [_to_torch(each) for each in value] if isinstance(value, list) else value


def _from_torch(value: Any) -> Any:
    if isinstance(value, Tensor):
        return as_known(value.numpy())
    return [_from_torch(each) for each in value] if isinstance(value, list) else value
