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
from popqorn.bounds.chunks import frame_groups
from popqorn.certificate import Bounds, Certificate, Sensitivity, Verification
from popqorn.found import SearchResult
from popqorn.progress import Watch
from popqorn.readers.models import Model
from popqorn.reading import read_tolerance
from popqorn.relax.methods import read_method
from popqorn.search import largest_size
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
    - `method`: `"planes"`; `"tight"` (larger radii for much more time); the paper's `"lines"` and `"constants"`; `"interval"`.
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
    found = [largest_size(task, tolerance, watch) for task in tasks]
    by_target = [_each(task, None, tolerance, watch) for task in tasks] if per_target else None
    by_step = [_each(task, task.margins.steps, tolerance, watch) for task in tasks] if per_step else None
    more = [each for each in (by_target, by_step) if each is not None]
    return Certificate(
        radius=question.together([result.eps for result in found]),
        status=question.in_order([_statuses(*one) for one in zip(found, tasks, *more, strict=True)]),
        margins=question.tables([result.margins for result in found]),
        evaluations=question.together([result.evaluations for result in found]),
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
    tolerance: float = 1e-3,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> Sensitivity:
    """The certified radius of every frame when it alone may move: small values mark the frames that decide.

    Arguments are those of `certify`; the norm is 2 by default, as in the paper. Misclassified samples have radius 0 throughout.

    >>> sensitivity(model, digits).radius  # [batch, frames]
    """
    started = time.perf_counter()
    question = Question.read(
        model,
        inputs,
        lengths=lengths,
        region=read_region(region, norm, None, scale, default_norm=2.0),
        spec=read_spec(spec, labels, targets),
        method=read_method(method, effort, seconds),
        chunk_rows=chunk_rows,
        dtype=dtype,
    )
    tolerance = read_tolerance(tolerance)
    watch = Watch(progress, "sensitivity", sum(len(task) * task.tape.frames for task in question.tasks))
    radii: list[Tensor] = []
    statuses: list[list[tuple[Status, ...]]] = []
    for task in question.tasks:
        radius, status = _frame_by_frame(task, tolerance, watch)
        radii.append(radius)
        statuses.append(status)
    return Sensitivity(
        radius=question.together(radii),
        status=question.in_order(statuses),
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
    watch = Watch(progress, "verify", question.batch)
    found = [_proven(task, size, watch) for task, size in zip(question.tasks, sizes, strict=True)]
    status = question.in_order([_verdicts(*one, task) for one, task in zip(found, question.tasks, strict=True)])
    return Verification(
        certified=torch.tensor([each is Status.CERTIFIED for each in status], device=question.groups[0].values.device),
        status=status,
        margins=question.tables([bound for bound, _ in found]),
        eps=question.together(sizes),
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


# ---- certify and sensitivity -------------------------------------------------------------------------------------------------


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
    return sum(each)


def _each(task: Task, groups: int | None, tolerance: float, watch: Watch) -> Float[Tensor, "batch groups"]:
    """The radius of every group of a sample's margins alone (None: of every margin); NaN where the user stopped its search."""
    count = task.margins.rows.shape[1] if groups is None else groups
    sample = torch.arange(len(task), device=task.margins.rows.device).repeat_interleave(count)
    alone = replace(task.select(sample), margins=task.margins.split(count))
    found = largest_size(alone, tolerance, watch)
    radii: Tensor = torch.where(found.ended, found.eps, math.nan).unflatten(0, (-1, count))
    return radii


def _frame_by_frame(task: Task, tolerance: float, watch: Watch) -> tuple[Tensor, list[tuple[Status, ...]]]:
    task, batch, frames = task.centered(), len(task), task.tape.frames
    radii: list[Tensor] = []
    statuses: list[list[Status]] = []
    for group in frame_groups(frames, batch, task.allowed.center.device):
        sample = torch.arange(batch, device=group.device).repeat(len(group))
        alone = torch.nn.functional.one_hot(group.repeat_interleave(batch), frames).bool()
        each = task.select(sample)
        each = replace(each, allowed=each.allowed.only(alone))
        found = largest_size(each, tolerance, watch)
        # A frame that cannot move does no harm at any size; one whose search was stopped is not known.
        fixed = ~each.allowed.moves.any(-1) & each.margins.holds & (found.margins > 0).all(-1)
        radius = torch.where(found.ended, torch.where(fixed, math.inf, found.eps), math.nan)
        radii.append(radius.unflatten(0, (-1, batch)).T)
        named = _statuses(found, each)
        statuses.extend(named[start : start + batch] for start in range(0, len(named), batch))
    return torch.cat(radii, dim=1), list(zip(*statuses, strict=True))


def _statuses(result: SearchResult, task: Task, *more: Float[Tensor, "batch groups"]) -> list[Status]:
    """What each radius means; a sample is not done while any of its further radii (`more`) is missing."""
    whole = task.allowed.greatest.tolist()
    ended = result.ended
    for radii in more:
        ended = ended & ~radii.isnan().any(-1)
    positive = (result.margins > 0).all(-1)
    columns = (task.margins.holds, ended, positive, result.open, result.eps, result.failed)

    def of(
        right: bool, ended: bool, positive: bool, unclosed: bool, radius: float, failed: float, greatest: float, refusal: Status
    ) -> Status:
        if not right:
            return refusal
        if not ended:
            return Status.STOPPED
        if not positive:
            return Status.NOT_CERTIFIED
        if radius >= greatest:
            return Status.UNBOUNDED
        if radius == 0:
            return Status.NOT_CERTIFIED
        if unclosed:
            return Status.OUT_OF_EVALUATIONS
        return Status.UNBOUNDED if math.isinf(failed) else Status.CERTIFIED

    return list(map(of, *(column.tolist() for column in columns), whole, task.margins.refusals()))


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
