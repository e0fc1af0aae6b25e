"""The public functions: certify, sensitivity, bounds, verify."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from popqorn import checks
from popqorn._typing import Bool, Float
from popqorn.bounds.first_order import first_order
from popqorn.certificate import Certificate, Status
from popqorn.problem import Problem
from popqorn.search import SearchResult, largest_eps
from popqorn.spec import Margins

ENTRIES_TOGETHER = 8


class LogitBounds(NamedTuple):
    """`lower <= logit <= upper` for every input of the region (the paper's gamma)."""

    lower: Float[Tensor, "batch classes"]
    upper: Float[Tensor, "batch classes"]


class Verification(NamedTuple):
    """`margins[b, j]`: a proven lower bound of `logit[label] - logit[j]` (inf where none was asked for); are all positive?"""

    margins: Float[Tensor, "batch classes"]
    certified: Bool[Tensor, " batch"]


@torch.inference_mode(False)
def certify(
    model: nn.Module,
    inputs: Any,
    *,
    labels: Any = None,
    targets: Any = None,
    norm: float = math.inf,
    frames: Any = None,
    scale: Any = None,
    method: str = "planes",
    tolerance: float = 1e-3,
    per_target: bool = False,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Certificate:
    """The largest perturbation of `inputs` that provably leaves the decisions of `model` unchanged.

    Every frame `x_k` may move to any `x` with `||x - x_k||_norm <= radius`.

    - `inputs`: `[batch, frames, features]`.
    - `labels`: one class per sample; by default the model's own decisions.
    - `targets`: one class per sample that must not overtake the label; None for all other classes.
    - `norm`: any number >= 1, or inf.
    - `frames`: which frames may move: indices, or a boolean mask `[frames]` or `[batch, frames]`; None for all.
    - `scale`: each frame's (`[frames]`) or feature's (`[frames, features]`) own share of the radius.
    - `method`: `"planes"` (the tightest), the paper's `"lines"` and `"constants"`, or `"interval"`.
    - `tolerance`: relative width to which the radius is searched.
    - `per_target`: also find the radius against every class alone (`Certificate.target_radius`).
    - `chunk_rows`: how many rows (over the batch) a backward walk may hold at once; None to have it chosen.

    >>> certificate = certify(model, digits, norm=2)
    >>> certificate.radius, certificate.status
    """
    started = time.perf_counter()
    problem = Problem.read(model, inputs, norm, frames, scale, method=method, chunk_rows=chunk_rows, dtype=dtype)
    tolerance = checks.check_tolerance(tolerance)
    margins, correct = problem.margins(labels, targets)
    result = _search(problem, margins, correct, tolerance)
    target_radius = _target_radius(problem, margins, correct, tolerance) if per_target else None
    return Certificate(
        radius=result.eps,
        status=_status(result, correct),
        margins=_by_class(result.margins, margins),
        evaluations=result.evaluations,
        labels=margins.labels,
        targets=None if targets is None else margins.targets[:, 0],
        target_radius=target_radius,
        seconds=time.perf_counter() - started,
        settings=problem.settings(
            method=problem.method.name,
            tolerance=tolerance,
            targeted=targets is not None,
            frames="all" if frames is None else "chosen",
            scale="one" if scale is None else "given",
        ),
    )


@torch.inference_mode(False)
def sensitivity(
    model: nn.Module,
    inputs: Any,
    *,
    labels: Any = None,
    targets: Any = None,
    norm: float = 2,
    scale: Any = None,
    method: str = "planes",
    tolerance: float = 1e-3,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "batch frames"]:
    """The certified radius of every frame when it alone may move: small values mark the frames that decide.

    Arguments are those of `certify`. Misclassified samples have radius 0 throughout.
    """
    problem = Problem.read(model, inputs, norm, None, scale, method=method, chunk_rows=chunk_rows, dtype=dtype)
    tolerance = checks.check_tolerance(tolerance)
    margins, correct = problem.margins(labels, targets)
    batch, frames, _ = problem.inputs.shape
    radii = problem.inputs.new_zeros(batch, frames)
    # What lies before the first frame of a group is a constant: small groups are cheap, but too few entries at once are slow.
    for group in torch.arange(frames, device=radii.device).split(-(-ENTRIES_TOGETHER // batch)):
        sample = torch.arange(batch, device=radii.device).repeat(len(group))
        each = problem.select(sample).alone(group.repeat_interleave(batch))
        radii[:, group] = _search(each, margins.select(sample), correct[sample], tolerance).eps.unflatten(0, (-1, batch)).T
    return radii


@torch.inference_mode(False)
def bounds(
    model: nn.Module,
    inputs: Any,
    eps: Any,
    *,
    norm: float = math.inf,
    frames: Any = None,
    scale: Any = None,
    method: str = "planes",
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> LogitBounds:
    """A lower and an upper bound of every logit while each frame moves by at most `eps` (a number, or one per sample)."""
    problem = Problem.read(model, inputs, norm, frames, scale, method=method, chunk_rows=chunk_rows, dtype=dtype)
    eps = checks.check_eps(eps, len(problem.inputs), problem.inputs)
    identity = torch.eye(problem.tape.outputs, dtype=dtype, device=problem.inputs.device)
    rows = torch.cat([identity, -identity]).unsqueeze(0)
    found = _in_blocks(problem, rows.shape[1], lambda part, index: part.relaxed(eps[index]).least(rows))
    lower, upper = found.chunk(2, dim=1)
    return LogitBounds(lower, -upper)


@torch.inference_mode(False)
def verify(
    model: nn.Module,
    inputs: Any,
    eps: Any,
    *,
    labels: Any = None,
    targets: Any = None,
    norm: float = math.inf,
    frames: Any = None,
    scale: Any = None,
    method: str = "planes",
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Verification:
    """The margins proven while each frame moves by at most `eps` (a number, or one per sample), and whether they certify."""
    problem = Problem.read(model, inputs, norm, frames, scale, method=method, chunk_rows=chunk_rows, dtype=dtype)
    eps = checks.check_eps(eps, len(problem.inputs), problem.inputs)
    margins, correct = problem.margins(labels, targets)
    rows = margins.rows(dtype)
    found = _in_blocks(problem, rows.shape[1], lambda part, index: part.relaxed(eps[index]).least(rows[index]))
    return Verification(_by_class(found, margins), correct & (found > 0).all(-1))


# ---- from tensors to results -------------------------------------------------------------------------------------------------


def _in_blocks(problem: Problem, rows: int, bound: Callable[[Problem, Tensor], Tensor]) -> Tensor:
    return torch.cat([bound(problem.select(index), index) for index in problem.blocks(rows)])


def _search(problem: Problem, margins: Margins, correct: Tensor, tolerance: float) -> SearchResult:
    rows = margins.rows(problem.inputs.dtype)
    parts = []
    for index in problem.blocks(rows.shape[1]):
        part, part_rows = problem.select(index), rows[index]
        values, rates = first_order(part.tape, part.region(part.inputs.new_zeros(len(index))), part_rows)
        values = torch.where(correct[index].unsqueeze(1), values, -values.abs())
        parts.append(
            largest_eps(
                lambda entries, eps, part=part, rows=part_rows: part.select(entries).relaxed(eps).least(rows[entries]),  # type: ignore[misc]
                values,
                rates,
                tolerance,
                part.depth.expand(len(index)),
            )
        )
    return SearchResult(
        torch.cat([part.eps for part in parts]),
        torch.cat([part.failed for part in parts]),
        torch.cat([part.margins for part in parts]),
        torch.cat([part.evaluations for part in parts]),
    )


def _target_radius(problem: Problem, margins: Margins, correct: Tensor, tolerance: float) -> Tensor:
    """One search per sample and target."""
    batch, count = margins.targets.shape
    sample = torch.arange(batch, device=margins.labels.device).repeat_interleave(count)
    each = Margins(margins.labels[sample], margins.targets.reshape(-1, 1), margins.classes)
    result = _search(problem.select(sample), each, correct[sample], tolerance)
    return _by_class(result.eps.reshape(batch, count), margins)


def _by_class(values: Tensor, margins: Margins) -> Tensor:
    """Per-row values `[batch, rows]` at their classes `[batch, classes]`; inf where there is no row."""
    table = values.new_full((len(values), margins.classes), math.inf)
    return table.scatter(1, margins.targets, values)


def _status(result: SearchResult, correct: Tensor) -> tuple[Status, ...]:
    def of(right: bool, radius: float, failed: float) -> Status:
        if not right:
            return Status.MISCLASSIFIED
        if radius == 0:
            return Status.NOT_CERTIFIED
        return Status.UNBOUNDED if math.isinf(failed) else Status.CERTIFIED

    return tuple(map(of, correct.tolist(), result.eps.tolist(), result.failed.tolist()))
