"""The public functions that prove: certify, sensitivity, verify, bounds. Thin: read the arguments, call one stage each."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import in_full_precision
from popqorn.attacks.found import Found, checked
from popqorn.certificate import Bounds, Certificate, Sensitivity, Verification
from popqorn.found import SearchResult
from popqorn.progress import Watch
from popqorn.radii import Radii, each, frame_by_frame, radii, splitting
from popqorn.readers.models import Model
from popqorn.readers.network import Reading
from popqorn.reading import read_tolerance
from popqorn.relax.methods import read_method
from popqorn.splitting import split
from popqorn.status import Status
from popqorn.task import Question, Task, read_region, read_spec


@in_full_precision
def certify(
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
    method: str = "planes",
    effort: int | None = None,
    seconds: float | None = None,
    tolerance: float = 1e-3,
    per_target: bool = False,
    per_step: bool = False,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> Certificate:
    """The largest perturbation of `inputs` for which what must hold is proven: by default, that the decisions of `model` stay.

    - `inputs`: `[batch, frames, features]`, a list of sequences of any lengths, or a `PackedSequence`; with `lengths` (one per
      sample) a padded tensor. Padding never moves and never counts.
    - `region`: what may happen to them: `popqorn.Ball` (the default, p = inf), `Box`, `Words`. `norm`, `frames` and `scale` are
      short forms: `norm=2` is `region=Ball(2)`.
    - `spec`: what must hold: `popqorn.Decision` (the default), `Tolerance`, `Property`; `labels` and `targets` are short forms of
      a `Decision`.
    - `method`: `"planes"`; `"tight"` (larger radii for much more time); `"split"` (nearly exact where at most 6 features move,
      `seconds` for each sample, 10 by default); the paper's `"lines"` and `"constants"`; `"interval"`.
    - `effort`, for `"tight"`: 1 (joint bounds), 2 (with planes chosen row by row), 3 (with slopes trained until `seconds` have
      passed for each sample).
    - `tolerance`: relative width to which the radius is searched.
    - `per_target`: also find the radius of every margin alone (`Certificate.target_radius`); `per_step`: of every step's decision
      alone, for outputs `[batch, steps, classes]` (`Certificate.step_radius`).
    - `chunk_rows`: how many rows (over the batch) a backward walk may hold at once; None to have it chosen.
    - `progress`: True for a line on standard error, or a function of what is done and the total. A call that is stopped (Ctrl-C)
      returns what is done.

    >>> certificate = certify(model, digits, norm=2)
    >>> certificate.radius, certificate.status
    """
    started = time.perf_counter()
    question = Question.read(
        model,
        inputs,
        lengths=lengths,
        region=read_region(region, norm, frames, scale),
        spec=read_spec(spec, labels, targets),
        method=read_method(method, effort, seconds),
        chunk_rows=chunk_rows,
        dtype=dtype,
    )
    tolerance = read_tolerance(tolerance)
    watch = Watch(progress, "certify", _searches(question.tasks, per_target, per_step))
    tasks = [task.prepared() for task in question.tasks]
    found = [radii(*asked, tolerance, watch) for asked in zip(tasks, question.readings, strict=True)]
    by_target = [each(task, None, tolerance, watch) for task in tasks] if per_target else None
    by_step = [each(task, task.margins.steps, tolerance, watch) for task in tasks] if per_step else None
    more = [part for part in (by_target, by_step) if part is not None]
    return Certificate(
        radius=question.together([result.found.eps for result in found]),
        status=question.in_order([_unfinished(result.status, *rest) for result, *rest in zip(found, *more, strict=True)]),
        margins=question.tables([result.found.margins for result in found]),
        evaluations=question.together([result.found.evaluations for result in found]),
        **_shown(question, found),
        **question.decisions(),
        difference=question.difference,
        target_radius=None if by_target is None else question.tables(by_target),
        step_radius=None if by_step is None else question.together(by_step),
        seconds=time.perf_counter() - started,
        settings={**question.settings, "tolerance": tolerance},
    )


@in_full_precision
def sensitivity(
    model: Model,
    inputs: Any,
    *,
    region: Any = None,
    spec: Any = None,
    labels: Any = None,
    targets: Any = None,
    norm: float | None = None,
    scale: Any = None,
    lengths: Any = None,
    method: str = "planes",
    effort: int | None = None,
    seconds: float | None = None,
    tolerance: float = 1e-2,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> Sensitivity:
    """The certified radius of every frame when it alone may move: small values mark the frames that decide.

    Arguments are those of `certify`; the norm is 2 by default, as in the paper. Misclassified samples have radius 0 throughout.
    With `seconds`, the search goes on by splitting for so long for every frame (of at most 6 features); the larger radius counts.
    With `effort=3` they are for training, and nothing is split.

    >>> sensitivity(model, digits).radius  # [batch, frames]
    """
    started = time.perf_counter()
    question = Question.read(
        model,
        inputs,
        lengths=lengths,
        region=read_region(region, norm, None, scale, default_norm=2.0),
        spec=read_spec(spec, labels, targets),
        method=read_method(method, effort, seconds, frames=True),
        chunk_rows=chunk_rows,
        dtype=dtype,
    )
    tolerance = read_tolerance(tolerance)
    frames = sum(len(task) * task.tape.frames for task in question.tasks)
    watch = Watch(progress, "sensitivity", _searched(question.tasks, frames))
    found = [frame_by_frame(*asked, tolerance, watch) for asked in zip(question.tasks, question.readings, strict=True)]
    refuted = [each.refuted for each in found if each.refuted is not None]
    points = [each.points for each in found if each.points is not None]
    return Sensitivity(
        radius=question.together([each.radius for each in found]),
        status=question.in_order([each.status for each in found]),
        refuted=question.together(refuted) if refuted else None,
        counterexamples=question.together(points) if points else None,
        words=question.words,
        **question.decisions(),
        difference=question.difference,
        seconds=time.perf_counter() - started,
        settings={**question.settings, "tolerance": tolerance},
    )


@in_full_precision
def verify(
    model: Model,
    inputs: Any,
    eps: Any = None,
    *,
    region: Any = None,
    spec: Any = None,
    labels: Any = None,
    targets: Any = None,
    norm: float | None = None,
    frames: Any = None,
    scale: Any = None,
    lengths: Any = None,
    method: str = "planes",
    effort: int | None = None,
    seconds: float | None = None,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> Verification:
    """Whether what must hold is proven at size `eps` of the region (a number, or one per sample), and by what margins.

    `Box` and `Words` have a size of their own and need no eps. The other arguments are those of `certify`.

    >>> verify(model, digits, 0.01).certified.double().mean()  # certified accuracy at 0.01
    """
    started = time.perf_counter()
    question = Question.read(
        model,
        inputs,
        lengths=lengths,
        region=read_region(region, norm, frames, scale),
        spec=read_spec(spec, labels, targets),
        method=read_method(method, effort, seconds),
        chunk_rows=chunk_rows,
        dtype=dtype,
        eps=eps,
    )
    sizes = question.sizes(eps)
    watch = Watch(progress, "verify", question.batch * (1 + question.tasks[0].method.split))
    asked = zip(question.tasks, question.readings, sizes, strict=True)
    found = [_verified(task, reading, size, watch) for task, reading, size in asked]
    status = question.in_order([one.status for one in found])
    return Verification(
        certified=torch.tensor([each is Status.CERTIFIED for each in status], device=question.groups[0].values.device),
        status=status,
        margins=question.tables([one.found.margins for one in found]),
        eps=question.together(sizes),
        **_shown(question, found),
        **question.decisions(),
        difference=question.difference,
        seconds=time.perf_counter() - started,
        settings=question.settings,
    )


@in_full_precision
def bounds(
    model: Model,
    inputs: Any,
    eps: Any = None,
    *,
    region: Any = None,
    norm: float | None = None,
    frames: Any = None,
    scale: Any = None,
    lengths: Any = None,
    method: str = "planes",
    effort: int | None = None,
    seconds: float | None = None,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> Bounds:
    """A lower and an upper bound of every output for all inputs that the region allows at size `eps` (see `verify`).

    >>> lower, upper = bounds(model, digits, 0.01)
    """
    started = time.perf_counter()
    if method == "split":
        raise ValueError("method is 'split', which proves what must hold, not bounds; use 'planes' or 'tight', or popqorn.verify")
    question = Question.read(
        model,
        inputs,
        lengths=lengths,
        region=read_region(region, norm, frames, scale),
        spec=None,
        method=read_method(method, effort, seconds),
        chunk_rows=chunk_rows,
        dtype=dtype,
        eps=eps,
    )
    watch = Watch(progress, "bounds", question.batch)
    found = [_proven(task, size, watch) for task, size in zip(question.tasks, question.sizes(eps), strict=True)]
    # What was stopped before it was bounded may be anything, and so may what the model computes if it is not its tape.
    differs = question.together([task.margins.refused for task in question.tasks])
    sides = question.tables([bound.nan_to_num(-math.inf, math.inf, -math.inf) for bound, _ in found])
    lower, negated = sides.masked_fill(differs.reshape(-1, *([1] * (sides.dim() - 1))), -math.inf).unbind(1)
    return Bounds(
        lower=lower,
        upper=-negated,
        status=question.in_order([_told(done, task) for (_, done), task in zip(found, question.tasks, strict=True)]),
        difference=question.difference,
        seconds=time.perf_counter() - started,
        settings=question.settings,
    )


# ---- certify -------------------------------------------------------------------------------------------------------------


def _searches(tasks: Sequence[Task], per_target: bool, per_step: bool) -> int:
    """How many searches there are; refuses steps where there are none."""
    if per_step and any(len(task.tape.shape) == 1 for task in tasks):
        raise ValueError(
            "per_step is asked for, but the model has one output for the whole sequence; "
            "use SequenceClassifier(pooling=None), or leave it out"
        )
    if per_step and any(task.margins.labels is None for task in tasks):
        raise ValueError("per_step is asked for, but spec is no Decision at every step; leave it out")
    each = [len(task) * (1 + per_target * task.margins.rows.shape[1] + per_step * task.margins.steps) for task in tasks]
    return _searched(tasks, sum(each))


def _searched(tasks: Sequence[Task], count: int) -> int:
    """What is split, or searched with joint bounds, is searched before, too."""
    return count * (1 + tasks[0].method.split + tasks[0].method.joint)


def _unfinished(status: Sequence[Status], *more: Float[Tensor, "batch groups"]) -> list[Status]:
    """A sample is not done while any of its further radii is missing."""
    missing = torch.stack([radii.isnan().any(-1) for radii in more]).any(0).tolist() if more else [False] * len(status)
    right = (Status.MISCLASSIFIED, Status.VIOLATED, Status.DIFFERS)
    pairs = zip(status, missing, strict=True)
    return [Status.STOPPED if lacks and each not in right else each for each, lacks in pairs]


def _shown(question: Question, found: Sequence[Radii]) -> dict[str, Tensor | None]:
    """The nearest counterexamples, where they were looked for, in the order of the inputs."""
    sizes = [each.refuted for each in found if each.refuted is not None]
    points = [each.points for each in found if each.points is not None]
    if not sizes:
        return {"refuted": None, "counterexamples": None}
    return {"refuted": question.together(sizes), "counterexamples": question.shaped(points)}


# ---- verify and bounds ------------------------------------------------------------------------------------------------


def _proven(task: Task, eps: Float[Tensor, " batch"], watch: Watch) -> tuple[Float[Tensor, "batch rows"], Bool[Tensor, " batch"]]:
    """Lower bounds of the margins at one size, and which of them are there; NaN for what the user stopped."""
    task = task.prepared()
    found = task.margins.offset.new_full(task.margins.offset.shape, math.nan)
    done = torch.zeros_like(task.margins.holds)
    for index in task.blocks():
        if watch.stopped:
            break
        with watch.stoppable():
            found[index] = task.select(index).prove(eps[index])
            done[index] = True
            watch.advance(len(index))
    return found, done


def _verified(task: Task, reading: Reading, eps: Float[Tensor, " batch"], watch: Watch) -> Radii:
    """What is proven at one size; by splitting, if the method says so, where planes do not suffice."""
    goes_on = splitting(task)
    bound, done = _proven(task, eps, watch)
    size = torch.where((bound > 0).all(-1), eps, 0.0)
    found = SearchResult(size, size, bound, torch.ones_like(done, dtype=torch.long), ~done, done)
    if not goes_on:
        return Radii(found, _verdicts(bound, done, task), None, None)
    found = split(task, found, done & task.margins.holds & (size < eps), 0.0, watch, eps, decide=True)
    assert found.broken is not None
    assert found.points is not None
    refuted, points = checked(reading, task, Found(found.broken, found.points))
    reached = found.eps >= torch.minimum(eps, task.allowed.greatest)
    found = replace(found, margins=torch.where((reached | ~done).unsqueeze(-1), found.margins, bound))
    verdicts = _verdicts(found.margins, found.ended, task)
    broken = (~reached & (refuted <= eps)).tolist()
    pairs = zip(verdicts, broken, strict=True)
    status = [Status.BROKEN if beaten and each is Status.NOT_CERTIFIED else each for each, beaten in pairs]
    return Radii(found, status, refuted, points)


def _verdicts(bound: Tensor, done: Tensor, task: Task) -> list[Status]:
    def of(right: bool, done: bool, positive: bool, refusal: Status) -> Status:
        if not right:
            return refusal
        if not done:
            return Status.STOPPED
        return Status.CERTIFIED if positive else Status.NOT_CERTIFIED

    positive = (bound > 0).all(-1)
    return list(map(of, task.margins.holds.tolist(), done.tolist(), positive.tolist(), task.margins.refusals()))


def _told(done: Tensor, task: Task) -> list[Status]:
    named = zip(done.tolist(), task.margins.refused.tolist(), strict=True)
    return [Status.DIFFERS if differs else Status.CERTIFIED if ended else Status.STOPPED for ended, differs in named]
