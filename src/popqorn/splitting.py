"""The search by splitting, where few features move: cells of the inputs, the nearest first, until time is up.

The certified size is the distance of the nearest cell that is not proven: valid whenever one stops, and no search over sizes.
Cells whose middle breaks what must hold give counterexamples; once the nearest unproven cell is as far as the nearest of these,
the search has found the truth.
"""

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import large, rounding
from popqorn.attacks.found import Found, lowest_margin, pull_in
from popqorn.attacks.scan import FEW as MOST_FEATURES
from popqorn.attacks.scan import coarse_scan
from popqorn.bounds.split.cells import Cells, Space, axes_of
from popqorn.bounds.split.forms import lower_bounds
from popqorn.found import SearchResult
from popqorn.progress import Watch
from popqorn.task import Task

SECONDS = 10.0  # per sample, unless told otherwise
MOST_GROUPS = 64  # cells that are cut up and bounded at once
TABLE_BYTES = 2**26  # of the tables of columns of such a batch
GROWTH = 2.0  # of the root, where everything inside it is proven
FIRST_ROOT = 1.5  # times what is proven already: the first root, where no counterexample is known
COVER = 1.01  # times the limit: a root of that size leaves nothing out
UNBOUNDED = 1e6  # times the first root: what is proven up to there has no end worth looking for
PULLED = 4  # counterexamples of a batch that are pulled in


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
        one = task.select(torch.tensor([number], device=broken.device))
        if bool(sought[number] & (plain.eps[number] < limit[number])) and len(Space.of(one.allowed).places):
            search = None
            with watch.stoppable():
                deadline = time.perf_counter() + seconds
                search = _Search.of(one, float(plain.eps[number]), float(limit[number]), tolerance, decide=decide)
                search.run(deadline)
            if search is not None:
                broken[number], points[number] = search.broken, search.point
                found = _with(found, number, search)
        done[number] = done[number] | (not watch.stopped)
        watch.advance(1)
    return replace(found, broken=broken, points=points, ended=plain.ended & done)


def _with(found: SearchResult, number: int, search: "_Search") -> SearchResult:
    """With what splitting proved of one sample, if that is more."""
    eps, failed, margins, count = (part.clone() for part in (found.eps, found.failed, found.margins, found.evaluations))
    count[number] += search.evaluations
    if search.proven > float(eps[number]):
        eps[number], margins[number] = search.proven, search.margins
        failed[number] = math.inf if search.endless and not len(search.cells) else search.nearest
    return replace(found, eps=eps, failed=failed, margins=margins, evaluations=count)


@dataclass
class _Search:
    """One sample. `cells` are not proven, at `distance`; all allowed inputs of a size up to `beyond` are in the root, in cells
    that are proven (with at least `margins`) or in these.
    """

    task: Task
    space: Space
    known: float
    limit: float
    tolerance: float
    decide: bool
    size: float
    cells: Cells
    distance: Float[Tensor, " cells"]
    beyond: float
    margins: Float[Tensor, " rows"]
    point: Float[Tensor, "frames features"]
    broken: float = math.inf
    evaluations: int = 0
    groups: int = 1
    first: float = 1.0

    @staticmethod
    def of(task: Task, known: float, limit: float, tolerance: float, *, decide: bool) -> "_Search":
        space, found = Space.of(task.allowed), Found.nothing(task)
        _, linear = task.first_order()
        linear = torch.where(linear.isfinite(), linear, task.allowed.greatest.unsqueeze(1).clamp(max=1.0))
        coarse_scan(task, found, linear, torch.Generator(found.radius.device).manual_seed(0))
        broken = float(found.radius)
        first = FIRST_ROOT * known if known > 0 else float(linear.min())
        size = min(broken if math.isfinite(broken) else first, COVER * limit)
        root = space.root(size)
        return _Search(
            task,
            space,
            known,
            limit,
            tolerance,
            decide,
            size,
            root,
            space.distance(root.lower, root.upper),
            space.beyond(root),
            torch.full_like(task.margins.offset[0], math.inf),
            found.points[0],
            broken,
            groups=_groups_at_once(task),
            first=size,
        )

    @property
    def nearest(self) -> float:
        """The distance of the nearest input that is not known to be safe."""
        return min([self.beyond, *self.distance.min(dim=0, keepdim=True).values.tolist()]) if len(self.cells) else self.beyond

    @property
    def finished(self) -> bool:
        """Whether everything up to the limit is proven."""
        return self.nearest > self.limit

    @property
    def proven(self) -> float:
        """A size whose set holds no cell that is not proven."""
        return min(self.nearest * (1 - 1e-12), self.limit, self.broken)

    @property
    def endless(self) -> bool:
        """Whether no end is worth looking for."""
        return self.finished or self.size >= UNBOUNDED * self.first

    @property
    def settled(self) -> bool:
        """Whether more time would change nothing."""
        broken = self.broken <= self.limit if self.decide else self.nearest >= (1 - self.tolerance) * self.broken
        return broken or (self.endless and not len(self.cells))

    def run(self, deadline: float) -> None:
        """Bound cells, the nearest first, until the truth is found or time is up."""
        while time.perf_counter() < deadline and not self.settled:
            if not len(self.cells) or float(self.distance.min()) >= self.beyond:
                self._grow()
            else:
                self._step()

    def _grow(self) -> None:
        """A larger root, if all of this one is proven up to its own size."""
        inner, size = self.space.root(self.size), min(GROWTH * self.size, COVER * self.limit)
        outer = self.space.root(size)
        more = self.space.around(inner, outer)
        self.size, self.beyond = size, self.space.beyond(outer)
        self._keep(Cells.joined([self.cells, more]), torch.cat([self.distance, self.space.distance(more.lower, more.upper)]))

    def _keep(self, cells: Cells, distance: Tensor) -> None:
        """What lies further than a counterexample, or than anyone asks about, is of no interest."""
        near = ~((distance >= self.broken) | (distance > self.limit))  # NaN is kept
        self.cells, self.distance = cells.select(near), distance[near]

    def _step(self) -> None:
        """Cut up the nearest cells, bound their parts and keep those that are not proven."""
        task, space = self.task, self.space
        order = self.distance.argsort()
        taken, left = order[: self.groups], order[self.groups :]
        lower, upper = self.cells.select(taken).cut()
        assert task.center is not None
        with torch.inference_mode():
            bounded = lower_bounds(task.tape, space, task.center, task.margins.rows[0], lower, upper)
            offset = task.margins.offset[0]
            margins = bounded.lower + offset - rounding(bounded.lower, offset)
        margins, share = margins.clone(), bounded.share.clone()
        self.evaluations += lower.shape[0] * lower.shape[1]
        good = (margins > 0).all(-1)  # false for NaN
        if bool(good.any()):
            self.margins = torch.minimum(self.margins, margins[good].amin(0))
        parts = Cells(lower[~good], upper[~good], axes_of(share.unsqueeze(1).expand(-1, 4, -1)[~good]))
        self._look((lower[~good] + upper[~good]) / 2)
        distance = torch.cat([self.distance[left], space.distance(parts.lower, parts.upper)])
        self._keep(Cells.joined([self.cells.select(left), parts]), distance)

    def _look(self, middles: Float[Tensor, "cells features"]) -> None:
        """Try the middles of cells that are not proven: those that break what must hold, the nearest first, are pulled in."""
        if not len(middles):
            return
        index = torch.zeros(len(middles), dtype=torch.long, device=middles.device)
        points = self.space.points(middles)
        sizes = self.space.sizes(middles)
        hits = (lowest_margin(self.task.select(index), points) < 0) & (sizes < self.broken)
        for hit in hits.nonzero().squeeze(1)[sizes[hits].argsort()][:PULLED].tolist():
            pulled = pull_in(self.task, points[hit : hit + 1])
            size = float(self.task.allowed.size_of(pulled))
            if size < self.broken and bool(lowest_margin(self.task, pulled) < 0):
                self.broken, self.point = size, pulled[0]


def _groups_at_once(task: Task) -> int:
    """How many tables of columns fit."""
    nodes = task.tape.nodes
    symbols = sum(node.width for node in nodes if not node.linear)
    widest = max(node.width for node in nodes)
    each = 3 * symbols * widest * 4  # bytes of single precision
    return max(1, min(MOST_GROUPS, TABLE_BYTES // max(1, each)))
