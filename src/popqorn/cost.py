"""What a call will cost, before it is made: multiplications counted on the tape, seconds from a pilot of the same network."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from popqorn.arithmetic import in_full_precision
from popqorn.bounds.chunks import entry_blocks
from popqorn.bounds.inner import operands_to_bound, relax
from popqorn.bounds.stations import plan_of
from popqorn.readers.models import Model
from popqorn.reading import read_choice, read_count
from popqorn.relax.methods import read_method
from popqorn.splitting import SECONDS
from popqorn.tape.ops.linear import Affine
from popqorn.tape.tape import Tape
from popqorn.task import Question, Task, read_region, read_spec

SEARCH = 6  # evaluations of a search, in the mean
PILOT_FLOPS = 2e9


@dataclass(frozen=True)
class Cost:
    """What a call will take, to within a factor of two or three: `seconds`, `evaluations` of bounds (over all samples),
    `flops` (multiplications and additions) and `memory`, the bytes held at once.
    """

    seconds: float
    evaluations: float
    flops: float
    memory: int

    def __str__(self) -> str:
        return (
            f"about {self.seconds:.3g} s: {self.evaluations:.0f} evaluations, {self.flops / 1e9:.3g} GFLOP, "
            f"{self.memory / 2**20:.0f} MiB at once"
        )


@in_full_precision
def estimate_cost(
    model: Model,
    inputs: Any,
    *,
    call: str = "certify",
    region: Any = None,
    spec: Any = None,
    labels: Any = None,
    targets: Any = None,
    norm: float | None = None,
    frames: Any = None,
    scale: Any = None,
    lengths: Any = None,
    method: str = "planes",
    sizes: int = 10,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Cost:
    """How long `call` (`"certify"`, `"sensitivity"`, `"verify"`, `"bounds"` or `"curve"` over `sizes` sizes) will take on this
    machine.

    The other arguments are those of the call. Takes a fraction of a second itself, whatever the model.

    >>> print(estimate_cost(model, recordings, call="sensitivity", norm=2))
    """
    read_choice("call", call, _EVALUATIONS)
    read_count("sizes", sizes)
    question = Question.read(
        model,
        inputs,
        lengths=lengths,
        region=read_region(region, norm, frames, scale),
        spec=None if call == "bounds" else read_spec(spec, labels, targets),
        method=read_method(method),
        chunk_rows=chunk_rows,
        dtype=dtype,
    )
    evaluations = flops = seconds = 0.0
    memory = 0
    for task in question.tasks:
        count = len(task) * _EVALUATIONS[call](task.tape.frames, sizes)
        each = evaluation_flops(task.tape, task.margins.rows.shape[1])
        evaluations, flops = evaluations + count, flops + count * each
        seconds += count * each / _speed(task)
        if task.method.split:  # after the search by planes
            seconds += SECONDS * len(task) * (task.tape.frames if call == "sensitivity" else 1)
        memory = max(memory, _memory(task))
    return Cost(seconds, evaluations, flops, memory)


# Per sample. A frame that moves alone leaves what lies before it constant: the walks of T frames cost T/3 times as much as one.
_EVALUATIONS: dict[str, Callable[[int, int], float]] = {
    "certify": lambda frames, sizes: SEARCH,
    "sensitivity": lambda frames, sizes: SEARCH * max(1.0, frames / 3),
    "verify": lambda frames, sizes: 1,
    "bounds": lambda frames, sizes: 1,
    "curve": lambda frames, sizes: math.log2(sizes + 1),
}


def evaluation_flops(tape: Tape, rows: int) -> float:
    """Multiplications and additions of one sample's bounds at one size: all walks, through all affine operations they meet."""
    walks = [(position, 2 * tape.nodes[position].width) for position in operands_to_bound(tape)]
    return sum(_walk_flops(tape, position, count) for position, count in [*walks, (len(tape.nodes) - 1, rows)])


def _walk_flops(tape: Tape, position: int, rows: int) -> float:
    needed, total, ends = {position}, 0, plan_of(tape).ends(position)
    for index in range(position, -1, -1):
        if index in needed:
            node = tape.nodes[index]
            if index in ends:
                total += node.width * tape.frames * tape.features
                continue
            needed.update(node.sources)
            if isinstance(node, Affine):
                total += sum(weight.numel() for weight in node.weights)
    return 2.0 * rows * total


def _memory(task: Task) -> int:
    rows = task.margins.rows.shape[1]
    entries = max(len(block) for block in entry_blocks(task.tape, len(task), rows, task.allowed.center))
    values = sum(node.width for node in task.tape.nodes)
    return int(entries * values * (8 + 2 * rows) * task.allowed.center.element_size())


def _speed(task: Task) -> float:
    """FLOP per second of bounding the first part of the network, as much of it and as many samples as a pilot may take."""
    tape, flops = _beginning(task.tape)
    count = min(len(task), max(1, int(PILOT_FLOPS / flops)))
    pilot = task.select(torch.arange(count, device=task.allowed.center.device))
    _, linear = pilot.first_order()
    allowed = pilot.allowed.at(linear.amin(-1).nan_to_num(posinf=1.0) / tape.frames)
    took = []
    for _ in range(2):  # the first warms up
        started = time.perf_counter()
        relax(tape, allowed, task.method, task.chunk_rows)
        took.append(time.perf_counter() - started)
    return count * flops / min(took)


def _beginning(tape: Tape) -> tuple[Tape, float]:
    """The operations up to the last one whose bounds a pilot has time for, and what their walks take."""
    flops, end = 0.0, 0
    for position in sorted(operands_to_bound(tape)):
        more = _walk_flops(tape, position, 2 * tape.nodes[position].width)
        if end and flops + more > PILOT_FLOPS:
            break
        flops, end = flops + more, position
    end = end or len(tape.nodes) - 1
    return replace(tape, nodes=tape.nodes[: end + 1], shape=(tape.nodes[end].width,)), max(flops, 1.0)
