"""Branch and bound over the cells of the features that move: the nearest first, valid whenever one stops.

Of every cell that is not proven altogether, `safe` says up to which size what is allowed in it is proven: at first the distance
of the cell itself. The least of these, over all cells, is a certified size. Cells whose middle breaks what must hold give
counterexamples.

`ByForms` bounds thousands of cells in a second, and needs small ones; `ByPlanes` bounds dozens, by the walks of the default
method, and needs few. Where two features move the first is ahead, where six do mostly the second (the number of cells grows with
the power of the features): `splitting.py` tries both.
"""

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import large, rounding
from popqorn.attacks.found import lowest_margin, pull_in
from popqorn.bounds.split.cells import Cells, Space, axes_of
from popqorn.bounds.split.forms import lower_bounds
from popqorn.relax.methods import METHODS
from popqorn.task import Task

MOST_GROUPS = 64  # cells that are cut up and bounded at once
TABLE_BYTES = 2**26  # of the tables of columns of such a batch
GROWTH = 2.0  # of the root, where everything inside it is proven
COVER = 1.01  # times the limit: a root of that size leaves nothing out
UNBOUNDED = 1e6  # times the first root: what is proven up to there has no end worth looking for
PULLED = 4  # counterexamples of a batch that are pulled in
RAISE = 1.1  # of the size that planes are asked to prove in every cell, once they have
PROOFS = 32  # cells that are proven by planes at once


@dataclass
class Branches:
    """One sample: all allowed inputs lie in `cells`, in cells that are proven (with at least `margins`), or beyond `beyond`."""

    task: Task
    space: Space
    limit: float
    tolerance: float
    decide: bool
    size: float  # up to which it looks at first
    point: Float[Tensor, "frames features"]
    broken: float = math.inf

    def __post_init__(self) -> None:
        self.first, self.evaluations = self.size, 0
        self.margins = torch.full_like(self.task.margins.offset[0], math.inf)
        self.groups = _groups_at_once(self.task)
        self.cells, self.beyond = self._root()

    def _root(self) -> tuple[Cells, float]:
        """Cells that hold all allowed inputs nearer than the second."""
        raise NotImplementedError

    def step(self) -> None:
        """Raise the sizes up to which the nearest cells are proven, or cut them up."""
        raise NotImplementedError

    @property
    def nearest(self) -> float:
        """The size up to which all is proven: the least of all cells'."""
        return min([self.beyond, *self.cells.safe.min(dim=0, keepdim=True).values.tolist()]) if len(self.cells) else self.beyond

    @property
    def finished(self) -> bool:
        """Whether everything up to the limit is proven."""
        return self.nearest > self.limit

    @property
    def proven(self) -> float:
        """A size whose set holds no input that is not proven."""
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
            self.step()

    def learn(self, other: "Branches") -> None:
        """The counterexample of another search, if it is nearer."""
        if other.broken < self.broken:
            self.broken, self.point = other.broken, other.point
            self._keep(self.cells)

    def _keep(self, cells: Cells) -> None:
        """What is safe up to a counterexample, or to all that anyone asks about, is of no more interest."""
        self.cells = cells.select(~((cells.safe >= self.broken) | (cells.safe > self.limit)))  # NaN is kept

    def _bounded(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Which cells (`[groups, 4, features]`) forms prove, and the axes along which to cut those that they do not."""
        assert self.task.center is not None
        with torch.inference_mode():
            bounded = lower_bounds(self.task.tape, self.space, self.task.center, self.task.margins.rows[0], lower, upper)
            offset = self.task.margins.offset[0]
            margins = bounded.lower + offset - rounding(bounded.lower, offset)
        self.evaluations += lower.shape[0] * lower.shape[1]
        return self._noted(margins.clone()), axes_of(bounded.share.clone()).unsqueeze(1).expand(-1, lower.shape[1], -1)

    def _noted(self, margins: Float[Tensor, "*cells rows"]) -> Bool[Tensor, "*cells"]:
        """Which cells these lower bounds prove; the least of their margins count."""
        good = (margins > 0).all(-1)  # false for NaN
        if bool(good.any()):
            self.margins = torch.minimum(self.margins, margins[good].amin(0))
        return good

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


class ByForms(Branches):
    """Cells of a root of `size`, by forms: the nearest are cut up, and their parts are proven altogether or not at all."""

    def _root(self) -> tuple[Cells, float]:
        root = self.space.root(self.size)
        return root, self.space.beyond(root)

    def step(self) -> None:
        if not len(self.cells) or float(self.cells.safe.min()) >= self.beyond:
            self._grow()
            return
        order = self.cells.safe.argsort()
        taken, left = self.cells.select(order[: self.groups]), self.cells.select(order[self.groups :])
        lower, upper = taken.cut()
        good, axes = self._bounded(lower, upper)
        self._look((lower[~good] + upper[~good]) / 2)
        self._keep(Cells.joined([left, self.space.cells(lower[~good], upper[~good], axes[~good])]))

    def _grow(self) -> None:
        """A larger root, if all of this one is proven up to its own size."""
        inner, self.size = self.space.root(self.size), min(GROWTH * self.size, COVER * self.limit)
        outer = self.space.root(self.size)
        self.beyond = self.space.beyond(outer)
        self._keep(Cells.joined([self.cells, self.space.around(inner, outer)]))


class ByPlanes(Branches):
    """Cells of everything, all of which are to be proven up to `size`: by planes over what is allowed in them at that size, or
    cut up if that has `failed`. Once they are, it is raised.
    """

    def _root(self) -> tuple[Cells, float]:
        self.raised = RAISE
        return self.space.root(large(self.task.allowed.eps.dtype) / 16), math.inf

    def step(self) -> None:
        goal = min(self.size, self.broken, self.limit)
        below = self.cells.safe < goal
        failed = below & (self.cells.failed <= goal)
        if not bool(below.any()) and self.endless:
            self.beyond, self.cells = goal, self.cells.select(below)
        elif not bool(below.any()):
            self.size, self.raised = self.size * self.raised, self.raised if len(self.cells) > 1 else min(self.raised**2, GROWTH)
        elif bool(failed.any()):
            self._cut(failed, goal)
        else:
            self._raise(below, goal)

    def _reached(self, goal: float) -> float:
        """What is proven up to the limit is proven altogether."""
        return math.inf if goal >= self.limit else goal

    def _nearest(self, some: Bool[Tensor, " cells"], most: int) -> tuple[Tensor, Tensor]:
        """The nearest of some cells, and all the others."""
        order = torch.where(some, self.cells.safe, math.inf).argsort()
        count = min(most, int(some.sum()))
        return order[:count], order[count:]

    def _raise(self, below: Bool[Tensor, " cells"], goal: float) -> None:
        """Prove cells up to the goal."""
        taken, left = self._nearest(below, PROOFS)
        cells = self.cells.select(taken)
        task = replace(self.task.select(torch.zeros_like(taken)), allowed=self.space.sets(cells, goal), method=METHODS["planes"])
        good = self._noted(torch.cat([task.select(block).prove(task.allowed.eps[block]) for block in task.blocks()]))
        self.evaluations += len(taken)
        self.raised = RAISE if bool(good.logical_not().any()) else self.raised
        cells = replace(
            cells, safe=torch.where(good, self._reached(goal), cells.safe), failed=torch.where(good, cells.failed, goal)
        )
        self._keep(Cells.joined([self.cells.select(left), cells]))

    def _cut(self, failed: Bool[Tensor, " cells"], goal: float) -> None:
        """Cut cells in the middle of what is allowed in them at the goal; parts that forms prove are safe up to there."""
        taken, left = self._nearest(failed, max(1, min(self.groups, PROOFS // 4)))
        cells = self.cells.select(taken)
        near = replace(cells, **self.space.cut_off(cells, goal))
        wide = near.upper - near.lower
        axes = torch.where(wide.gather(1, near.axes) > 0, near.axes, wide.argmax(1, keepdim=True))
        lower, upper = replace(near, axes=axes).cut()
        good, axes = self._bounded(lower, upper)
        self._look(((lower + upper) / 2)[~good])
        lower = torch.where(lower == near.lower.unsqueeze(1), cells.lower.unsqueeze(1), lower)
        upper = torch.where(upper == near.upper.unsqueeze(1), cells.upper.unsqueeze(1), upper)
        safe = torch.where(good, self._reached(goal), cells.safe.unsqueeze(1))
        parts = self.space.cells(*(end.flatten(0, 1) for end in (lower, upper, axes, safe)))
        self._keep(Cells.joined([self.cells.select(left), parts]))


def _groups_at_once(task: Task) -> int:
    """How many tables of columns fit."""
    nodes = task.tape.nodes
    symbols = sum(node.width for node in nodes if not node.linear)
    widest = max(node.width for node in nodes)
    each = 3 * symbols * widest * 4  # bytes of single precision
    return max(1, min(MOST_GROUPS, TABLE_BYTES // max(1, each)))
