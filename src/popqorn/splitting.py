"""The search by splitting, where few features move: cells of the inputs, the nearest first, until time is up (`branches.py`).

The certified size is valid whenever one stops, and there is no search over sizes. Once it is as large as the nearest
counterexample, the search has found the truth.
"""

import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import large
from popqorn.attacks.found import Found
from popqorn.attacks.scan import FEW as MOST_FEATURES
from popqorn.attacks.scan import coarse_scan
from popqorn.bounds.split.cells import Space
from popqorn.branches import COVER, Branches, ByForms, ByPlanes
from popqorn.found import SearchResult
from popqorn.progress import Watch
from popqorn.task import Task

SECONDS = 10.0  # per sample, unless told otherwise
FIRST_ROOT = 1.5  # times what is proven already: the first root, where no counterexample is known
FIRST_GOAL = 1.2  # times the same: what planes are to prove first
FORMS_ALONE = 2  # features: where more move, planes are tried as well
TRIALS = (0.1, 0.3)  # of the seconds, for forms and for planes, before one of them has the rest


def can_split(task: Task) -> Bool[Tensor, " batch"]:
    """Which samples have so few moving features that splitting gets anywhere."""
    if task.allowed.whole or not task.allowed.separable:
        return torch.zeros_like(task.margins.holds)
    counts = [len(Space.of(task.allowed.select(slice(number, number + 1))).places) for number in range(len(task))]
    return torch.tensor([count <= MOST_FEATURES for count in counts], device=task.margins.holds.device)


def split(
    task: Task,
    plain: SearchResult,
    sought: Bool[Tensor, " batch"],
    tolerance: float,
    watch: Watch,
    most: Float[Tensor, " batch"] | None = None,
    *,
    decide: bool = False,
) -> SearchResult:
    """Search on from what is proven (`plain`) for the samples `sought`, one by one, each for the seconds that the method says.

    Sizes beyond `most` are of no interest; to `decide` whether all up to there is proven, one counterexample is enough.
    """
    task = task.centered()
    found, broken, points = plain, torch.full_like(plain.eps, math.inf), task.allowed.center.clone()
    done = plain.ended & ~sought
    limit = task.allowed.greatest if most is None else torch.minimum(task.allowed.greatest, most)
    limit = limit.clamp(max=large(limit.dtype) / 16)  # beyond, norms overflow
    seconds = SECONDS if task.method.seconds is None else task.method.seconds
    for number in range(len(task)):
        if watch.stopped:
            break
        one = _alone(task, number)
        if bool(sought[number] & (plain.eps[number] < limit[number])) and len(Space.of(one.allowed).places):
            ways: list[Branches] = []
            with watch.stoppable():
                ways = _ways(one, float(plain.eps[number]), float(limit[number]), tolerance, decide=decide)
                _race(ways, seconds)
            for way in ways:
                if way.broken < broken[number]:
                    broken[number], points[number] = way.broken, way.point
                found = _with(found, number, way)
        done[number] = done[number] | (not watch.stopped)
        watch.advance(1)
    return replace(found, broken=broken, points=points, ended=plain.ended & done)


def _alone(task: Task, number: int) -> Task:
    """The task of one sample, which knows the frames that stand still in this one."""
    one = task.select(torch.tensor([number], device=task.allowed.eps.device))
    return replace(one, allowed=one.allowed.only(one.allowed.moves))


def _with(found: SearchResult, number: int, search: Branches) -> SearchResult:
    """With what splitting proved of one sample, if that is more."""
    eps, failed, margins, count = (part.clone() for part in (found.eps, found.failed, found.margins, found.evaluations))
    count[number] += search.evaluations
    if search.proven > float(eps[number]):
        eps[number], margins[number] = search.proven, search.margins
        unbroken = math.isinf(search.broken) or search.broken > search.limit
        endless = search.endless and not len(search.cells) and unbroken
        failed[number] = math.inf if endless else min(search.nearest, search.broken)
    return replace(found, eps=eps, failed=failed, margins=margins, evaluations=count)


def _ways(task: Task, known: float, limit: float, tolerance: float, *, decide: bool) -> list[Branches]:
    """The searches that are tried for one sample."""
    space, found = Space.of(task.allowed), Found.nothing(task)
    _, linear = task.first_order()
    linear = torch.where(linear.isfinite(), linear, task.allowed.greatest.unsqueeze(1).clamp(max=1.0))
    coarse_scan(task, found, linear, torch.Generator(found.radius.device).manual_seed(0))
    broken = float(found.radius)
    first = FIRST_ROOT * known if known > 0 else float(linear.min())
    size = min(broken if math.isfinite(broken) else first, COVER * limit)
    ways: list[Branches] = [ByForms(task, space, limit, tolerance, decide, size, found.points[0], broken)]
    if len(space.places) > FORMS_ALONE:
        goal = limit if decide else min(FIRST_GOAL / FIRST_ROOT * first, limit)
        ways.append(ByPlanes(task, space, limit, tolerance, decide, goal, found.points[0], broken))
    return ways


def _race(ways: list[Branches], seconds: float) -> None:
    """Search one way after the other, for a share of the seconds each, and on the way that is ahead for the rest."""
    deadline = time.perf_counter() + seconds
    for way, share in zip(ways, TRIALS, strict=False):
        way.run(min(deadline, time.perf_counter() + share * seconds))
        if way.settled:
            return
        for other in ways:
            other.learn(way)
    max(ways, key=lambda way: way.proven).run(deadline)
