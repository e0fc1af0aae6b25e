"""Branches and loops whose conditions and counts are known once the shapes are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from popqorn.readers.onnx.table import Operation
from popqorn.readers.symbols import Symbol, SymbolWriter

MOST_STEPS = 100_000  # nodes that a loop of a known count runs
MOST_UNCOUNTED = 1_500  # nodes that a loop runs which ends by a condition


@dataclass(frozen=True)
class Bodies:
    """How the graphs of a node are run: `run(graph, operands)` gives the outputs, `steps` how many nodes were run so far.

    `repeat(count, graph)` enters a loop: LookupError if it is too long.
    """

    sheet: SymbolWriter
    run: Callable[[Any, Sequence[Any]], list[Any]]
    steps: Callable[[], int]
    repeat: Callable[[int, Any], None]


def controlled(bodies: Bodies, node: Operation, operands: Sequence[Any]) -> list[Any]:
    """The outputs of an If, Loop or Scan."""
    return {"If": _branch, "Loop": _loop, "Scan": _scan}[node.kind](bodies, node, operands)


def _branch(bodies: Bodies, node: Operation, operands: Sequence[Any]) -> list[Any]:
    if isinstance(operands[0], Symbol):
        raise LookupError("If with a condition that depends on the inputs")
    return bodies.run(node.get("then_branch" if bool(np.all(operands[0])) else "else_branch"), [])


def _loop(bodies: Bodies, node: Operation, operands: Sequence[Any]) -> list[Any]:
    body = node.get("body")
    limit, condition, *carried = [*operands, None][: max(2, len(operands))]
    if isinstance(limit, Symbol) or isinstance(condition, Symbol):
        raise LookupError("Loop with a count or condition that depends on the inputs")
    count = None if limit is None else int(limit)
    going = condition is None or bool(np.all(condition))
    if going and _goes_on(body):
        if count is None:
            raise LookupError("Loop without an end")
        bodies.repeat(count, body)
    per_trip: list[list[Any]] = [[] for _ in body.output[1 + len(carried) :]]
    trip, begun = 0, bodies.steps()
    while going and (count is None or trip < count):
        again, *found = bodies.run(body, [np.asarray(trip, dtype=np.int64), np.asarray(True), *carried])
        if isinstance(again, Symbol):
            raise LookupError("Loop with a condition that depends on the inputs")
        carried = found[: len(carried)]
        for column, value in zip(per_trip, found[len(carried) :], strict=True):
            column.append(value)
        going, trip = bool(np.all(again)), trip + 1
        if not _goes_on(body) and bodies.steps() - begun > MOST_UNCOUNTED:
            raise LookupError(f"Loop that runs more than {MOST_UNCOUNTED:,} nodes before its condition ends it")
    return [*carried, *(_stacked(bodies.sheet, column, 0) for column in per_trip)]


def _goes_on(body: Any) -> bool:
    """Whether the condition a loop computes for its next trip is always true, or what it was given."""
    makers = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name in makers and makers[name].op_type == "Constant":
        (attribute,) = makers[name].attribute
        return bool(attribute.t.raw_data != b"\0" and list(attribute.t.int32_data) != [0])
    return bool(name == body.input[1].name)


def _scan(bodies: Bodies, node: Operation, operands: Sequence[Any]) -> list[Any]:
    if node.version < 9:
        raise LookupError("Scan of version 8 (export with version 9 or later)")
    body, scanned = node.get("body"), node.get("num_scan_inputs")
    states, over = list(operands[: len(operands) - scanned]), operands[len(operands) - scanned :]
    axes = node.get("scan_input_axes") or [0] * scanned
    turned = node.get("scan_input_directions") or [0] * scanned
    count = over[0].shape[axes[0]]
    bodies.repeat(count, body)
    per_trip: list[list[Any]] = [[] for _ in body.output[len(states) :]]
    for trip in range(count):
        slices = [
            _slice(value, axis, count - 1 - trip if back else trip) for value, axis, back in zip(over, axes, turned, strict=True)
        ]
        found = bodies.run(body, [*states, *slices])
        states = found[: len(states)]
        for column, value in zip(per_trip, found[len(states) :], strict=True):
            column.append(value)
    out_axes = node.get("scan_output_axes") or [0] * len(per_trip)
    out_turned = node.get("scan_output_directions") or [0] * len(per_trip)
    ordered = [column[::-1] if back else column for column, back in zip(per_trip, out_turned, strict=True)]
    return [*states, *(_stacked(bodies.sheet, column, axis) for column, axis in zip(ordered, out_axes, strict=True))]


def _slice(value: Any, axis: int, place: int) -> Any:
    return value.moved(lambda entries: entries.select(axis, place)) if isinstance(value, Symbol) else value.take(place, axis=axis)


def _stacked(sheet: SymbolWriter, values: Sequence[Any], axis: int) -> Any:
    """The values of all trips as one."""
    if not values:
        raise ValueError("a loop of no trips, with outputs of every trip")
    if not any(isinstance(value, Symbol) for value in values):
        return np.stack(values, axis=axis)
    symbols = [value if isinstance(value, Symbol) else sheet.symbol(torch.from_numpy(value)) for value in values]
    return Symbol(torch.stack([value.entries for value in symbols], dim=axis))
