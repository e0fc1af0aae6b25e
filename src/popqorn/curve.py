"""`curve`: certified accuracy over sizes, with the accuracy under attack beside it."""

import math
import time
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import in_full_precision
from popqorn.attacks.run import attack
from popqorn.certificate import Curve
from popqorn.found import SearchResult
from popqorn.progress import Watch
from popqorn.radii import splitting
from popqorn.readers.models import Model
from popqorn.reading import read_tensor
from popqorn.relax.methods import read_method
from popqorn.splitting import split
from popqorn.status import Status
from popqorn.task import Question, Task, read_region, read_spec

CLOSE = 1e-3  # how near a counterexample must be for splitting to end


@in_full_precision
def curve(
    model: Model,
    inputs: Any,
    eps: Any,
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
    attacked: bool | str | None = False,
    seed: int = 0,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> Curve:
    """Certified accuracy over the sizes `eps`, in one call; with `attacked`, the accuracy under attack beside it.

    What is proven for a set is proven for all smaller ones, so every sample is bisected over the sizes. `attacked` is True, or
    the name of an attack's method. The other arguments are those of `certify`.

    >>> print(curve(model, digits, eps=[0.005, 0.01, 0.02], labels=labels, attacked=True))
    """
    started = time.perf_counter()
    how = read_method(method, effort, seconds)
    chosen, claim = read_region(region, norm, frames, scale), read_spec(spec, labels, targets)
    question = Question.read(
        model, inputs, lengths=lengths, region=chosen, spec=claim, method=how, chunk_rows=chunk_rows, dtype=dtype
    )
    given = _read_sizes(eps, question)
    order = given.argsort()
    watch = Watch(progress, "curve", question.batch * (2 if how.split else 1))
    found = [_bisected(task, given[order], watch) for task in question.tasks]
    holds = question.together([_holding(task) for task in question.tasks])
    proven = question.together([count for count, _ in found]).unsqueeze(1) > order.argsort()
    ended = question.together([end for _, end in found])
    unbroken = None
    if attacked and watch.stopped:
        ended = torch.zeros_like(ended)
    elif attacked:
        kind = None if attacked is True else attacked
        reached = attack(
            model, inputs, region=chosen, spec=claim, lengths=lengths, method=kind, seed=seed, dtype=dtype, progress=progress
        )
        ended = ended & torch.tensor([status is not Status.STOPPED for status in reached.status], device=ended.device)
        unbroken = None if reached.stopped else holds.unsqueeze(1) & (reached.radius.unsqueeze(1) > given)
    return Curve(
        eps=given,
        certified=proven.double().mean(0),
        attacked=None if unbroken is None else unbroken.double().mean(0),
        accuracy=float(holds.double().mean()),
        proven=proven,
        unbroken=unbroken,
        status=_statuses(question, holds, ended, proven),
        seconds=time.perf_counter() - started,
        settings=question.settings,
    )


def _statuses(
    question: Question, holds: Bool[Tensor, " batch"], ended: Bool[Tensor, " batch"], proven: Bool[Tensor, "batch sizes"]
) -> tuple[Status, ...]:
    """Whether each sample is proven at some size, at all or at none."""
    sizes = proven.shape[1]

    def of(right: bool, end: bool, count: int, refusal: Status) -> Status:
        if not right:
            return refusal
        if not end:
            return Status.STOPPED
        if not count:
            return Status.NOT_CERTIFIED
        return Status.UNBOUNDED if count == sizes else Status.CERTIFIED

    refusals = question.in_order([task.margins.refusals() for task in question.tasks])
    return tuple(map(of, holds.tolist(), ended.tolist(), proven.sum(-1).tolist(), refusals))


def _holding(task: Task) -> Tensor:
    """Whether the claim holds at the input itself."""
    return task.margins.holds & (task.values(task.allowed.center) > 0).all(-1)


def _read_sizes(eps: Any, question: Question) -> Float[Tensor, " sizes"]:
    tensor = read_tensor(eps, "eps").to(question.groups[0].values)
    if tensor.dim() != 1 or not len(tensor):
        raise ValueError(f"eps has shape {tuple(tensor.shape)}; pass a list of sizes, such as eps=[0.01, 0.02]")
    for size in tensor.tolist():
        question.sizes(size)
    return tensor


def _bisected(task: Task, sizes: Float[Tensor, " sizes"], watch: Watch) -> tuple[Tensor, Tensor]:
    """How many of the rising `sizes` are proven for every sample, and whether that is known to the end."""
    task = task.prepared()
    proven = torch.zeros(len(task), dtype=torch.long, device=sizes.device)
    failed = torch.full_like(proven, len(sizes) + 1)
    failed[~_holding(task)] = 1
    watch.advance(int((failed - proven <= 1).sum()))
    with watch.stoppable():
        while len(active := (failed - proven > 1).nonzero().squeeze(1)) and not watch.stopped:
            middle = (proven[active] + failed[active]) // 2
            bound = torch.cat([task.select(active[part]).prove(sizes[middle[part] - 1]) for part in task.select(active).blocks()])
            success = (bound > 0).all(-1)
            now, never = torch.where(success, middle, proven[active]), torch.where(success, failed[active], middle)
            proven, failed = proven.index_copy(0, active, now), failed.index_copy(0, active, never)
            watch.advance(int((never - now <= 1).sum()))
    ended = failed - proven <= 1
    if splitting(task) and not watch.stopped:
        proven = torch.maximum(proven, _split(task, sizes, proven, watch))
    return proven, ended


def _split(task: Task, sizes: Float[Tensor, " sizes"], proven: Tensor, watch: Watch) -> Tensor:
    """How many sizes are proven by splitting, where others are not."""
    smallest = torch.cat([torch.zeros_like(sizes[:1]), sizes])[proven]
    nothing = torch.full_like(task.margins.offset, math.nan)
    before = SearchResult(smallest, smallest, nothing, proven, ended := torch.ones_like(task.margins.holds), ended)
    found = split(task, before, _holding(task) & (proven < len(sizes)), CLOSE, watch, sizes[-1].expand_as(smallest))
    return (torch.minimum(sizes, task.allowed.greatest.unsqueeze(-1)) <= found.eps.unsqueeze(-1)).sum(-1)
