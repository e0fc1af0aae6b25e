"""`attack`: the smallest perturbation found that breaks what must hold."""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import in_full_precision
from popqorn.attacks.found import Found, checked
from popqorn.attacks.methods import Attack, read_attack
from popqorn.progress import Watch
from popqorn.readers.models import Model
from popqorn.readers.network import Reading
from popqorn.reading import read_count, read_seed
from popqorn.result import Result
from popqorn.status import Status
from popqorn.task import Question, Task, read_region, read_spec

BLOCK = 256  # samples at once; fixed, so that the same seed gives the same numbers whatever memory is free


@dataclass(frozen=True, eq=False)
class AttackResult(Result):
    """What an attack found: `certify(...).radius <= true minimum <= radius`.

    - `radius`: the least size (eps, share, number of words) at which what must hold was broken; inf if it never was, 0 if the
      input itself breaks it.
    - `status`: per sample, what that means.
    - `adversarial`: the inputs that show it (the given inputs where none was found), in their shape; of token ids, the vectors.
    - `success`: whether one was found (or the input itself will do); every one found was put through the model itself.
    - `outputs`: what the model says to `adversarial`; `decisions`: its classes, if that is what was asked.
    - `labels`, `targets`: the decision attacked, and the class that had to overtake it (None: any other).
    """

    radius: Float[Tensor, " batch"]
    status: tuple[Status, ...]
    adversarial: Float[Tensor, "batch ..."]
    success: Bool[Tensor, " batch"]
    outputs: Float[Tensor, "batch ..."]
    decisions: Tensor | None
    labels: Tensor | None
    targets: Tensor | None


@in_full_precision
def attack(
    model: Model,
    inputs: Any,
    *,
    region: Any = None,
    spec: Any = None,
    labels: Any = None,
    targets: Any = None,
    norm: float | None = None,
    frames: Any = None,
    scale: Any = None,
    lengths: Any = None,
    method: str | None = None,
    restarts: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> AttackResult:
    """Search for the smallest perturbation of `inputs` that breaks what must hold: an upper bound of the true radius.

    `region`, `spec`, their short forms and `lengths` mean what they mean to `certify`: without targets any other class counts,
    with them the target has to overtake the label.

    - `method`: `"pgd"` (projected gradient descent inside a search over sizes; the default), `"cw"` (the paper's C&W-Ada),
      `"fgsm"` (one step), `"scan"` (all directions, at ever larger distances; part of the others where at most 6 features
      move), or `"best"`: all of them, the strongest. For `Words`: `"greedy"`, `"beam"`, or `"best"` (the default).
    - `restarts`: how many starts per search; `seed`: the same seed gives the same numbers.
    - `progress`: as for `certify`.

    >>> attack(model, digits, norm=2, method="best").radius
    """
    started = time.perf_counter()
    question = Question.read(
        model,
        inputs,
        lengths=lengths,
        region=read_region(region, norm, frames, scale),
        spec=read_spec(spec, labels, targets),
        dtype=dtype,
    )
    name, chosen = read_attack(method, question.tasks[0].allowed)
    restarts = read_count("restarts", restarts)
    generator = torch.Generator(question.groups[0].values.device).manual_seed(read_seed(seed))
    watch = Watch(progress, "attack", question.batch)
    found = [
        _attacked(*asked, chosen, restarts, generator, watch) for asked in zip(question.readings, question.tasks, strict=True)
    ]
    outputs = [
        reading.own(points).unflatten(1, reading.tape.shape)
        for (_, points, _), reading in zip(found, question.readings, strict=True)
    ]
    radius, named = question.together([radius for radius, _, _ in found]), question.decisions()
    return AttackResult(
        radius=radius,
        status=question.in_order([status for _, _, status in found]),
        adversarial=question.shaped([points for _, points, _ in found]),
        success=radius.isfinite(),
        outputs=question.together(outputs),
        decisions=None if named["labels"] is None else question.together([each.argmax(-1) for each in outputs]),
        **named,
        seconds=time.perf_counter() - started,
        settings={**question.settings, "method": name, "restarts": restarts, "seed": seed},
    )


def _attacked(
    reading: Reading, task: Task, method: Attack, restarts: int, generator: torch.Generator, watch: Watch
) -> tuple[Tensor, Tensor, list[Status]]:
    """Radii, inputs and statuses for one task, in blocks; what an attack had found when the user stopped it counts."""
    unknown = task.margins.holds | task.margins.refused
    radius, points = torch.where(unknown, math.inf, 0.0).to(task.allowed.center), task.allowed.center.clone()
    done = ~task.margins.holds
    watch.advance(int(done.sum()))
    for index in task.margins.holds.nonzero().squeeze(1).split(BLOCK):
        if watch.stopped or not len(index):
            break
        part = task.select(index)
        found = Found.nothing(part)
        with watch.stoppable():
            _run(part, found, method, restarts, generator)
            done[index] = True
        radius[index], points[index] = checked(reading, part, found)
        with watch.stoppable():
            watch.advance(int(done[index].sum()))

    def status(right: bool, ended: bool, reached: float, refusal: Status) -> Status:
        if not right:
            return refusal
        if math.isfinite(reached):
            return Status.BROKEN
        return Status.UNBROKEN if ended else Status.STOPPED

    columns = (task.margins.holds.tolist(), done.tolist(), radius.tolist(), task.margins.refusals())
    return radius, points, list(map(status, *columns))


def _run(task: Task, found: Found, method: Attack, restarts: int, generator: torch.Generator) -> None:
    """One method on the samples of one block."""
    _, linear = task.first_order()
    whole = torch.where(task.allowed.greatest.isfinite(), task.allowed.greatest, 1.0).unsqueeze(1)
    linear = torch.where(linear.isinf().all(-1, keepdim=True), whole, linear)
    method(task, found, linear, restarts, generator)
