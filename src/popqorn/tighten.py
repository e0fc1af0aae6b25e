"""The search with joint bounds: on from where planes came to an end, by estimates, and one proof where these come to theirs.

A proof costs several times what an estimate does, and estimates promise hardly more than is proven. Margins fall ever faster, so
that one try says roughly, and two say well, where they are gone. Bounds are not monotone in the size: what is proven stands
on its own, and never below what planes prove.
"""

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from popqorn.bounds.joint.greatest import Memory, Past
from popqorn.found import SearchResult
from popqorn.progress import Watch
from popqorn.relax.methods import LIMITED
from popqorn.task import Task

GAIN = 0.14  # of effort 1 over planes, for every doubling of the frames: where the first estimate is made
GAINS = {2: 1.015, 3: 1.005}  # over the effort before
MOST_PROOFS = 6  # at ever larger sizes, while there is time
PARTS = 8  # in which training has its time: estimates and proofs
MOST_ESTIMATES = 12
SPARE = 0.003  # per frame, of what the margin loses beyond first order: what estimates leave over, as proofs say a little less
MOST_DOUBTS = 8  # estimates after which failures are final
POWER = 4.0  # of the size: how the loss of a margin grows where it is gone
STEP = 1.6  # at most, from one try to the next
MOST_POWER = 25.0  # what falls faster was judged too early, or by another choice of tangents: it is tried once more
SHRUNK = (0.998, 0.99, 0.98, 0.95, 0.9)  # of a size that estimates promised: where its proof is tried


@dataclass(frozen=True)
class _Bracket:
    """Per sample: `low` is promised and `high` is not, with the least margins there (NaN: unknown, or not tried)."""

    low: Tensor
    high: Tensor
    margin_low: Tensor
    margin_high: Tensor

    def after(self, index: Tensor, eps: Tensor, margin: Tensor) -> "_Bracket":
        good = margin > 0
        up, down = index[good & (eps > self.low[index])], index[~good & (eps < self.high[index])]
        placed, found = torch.full_like(self.low, torch.nan), torch.full_like(self.low, torch.nan)
        placed[index], found[index] = eps, margin
        return _Bracket(
            self.low.index_copy(0, up, placed[up]),
            self.high.index_copy(0, down, placed[down]),
            self.margin_low.index_copy(0, up, found[up]),
            self.margin_high.index_copy(0, down, found[down]),
        )

    def root(self, margin: Tensor) -> Tensor:
        """Where all of the `margin` at the input is lost.

        The loss is nearly a power of the size: that of both ends, or a typical one through one end.
        """
        losses = (margin - self.margin_low).log(), (margin - self.margin_high).log()
        power = (losses[1] - losses[0]) / (self.high / self.low).log()
        both = self.low * ((margin.log() - losses[0]) / power).exp()
        ends = [
            eps * ((margin.log() - loss) / POWER).exp().clamp(1 / STEP, STEP)
            for eps, loss in zip((self.low, self.high), losses, strict=True)
        ]
        alone = torch.where(self.high.isfinite() & ~self.margin_high.isnan(), ends[1], ends[0])
        return torch.where(both.isfinite() & (power > 0), both, alone)

    def doubted(self, margin: Tensor) -> "_Bracket":
        """Without failures too close to a success that left much of the `margin` over."""
        fall = ((margin - self.margin_high) / (margin - self.margin_low)).log() / (self.high / self.low).log()
        again = fall > MOST_POWER  # false for NaN
        return replace(
            self, high=self.high.masked_fill(again, torch.inf), margin_high=self.margin_high.masked_fill(again, torch.nan)
        )


def tightened(task: Task, plain: SearchResult, tolerance: float, watch: Watch) -> SearchResult:
    """Search on from what planes prove (`plain`), where they prove anything and do not prove everything.

    Every effort goes on from where the one before came to its end: it never ends below it.
    """
    sought = plain.ended & (plain.eps > 0) & plain.failed.isfinite() & ~plain.open
    found = plain
    memories: list[Memory] = [{} for _ in range(len(task))]
    with watch.stoppable():
        for effort in range(1, task.method.effort + 1):
            timed = effort >= LIMITED
            ended = time.monotonic() + (task.seconds * int(sought.sum()) if timed else math.inf)
            estimates = Estimates(task.at_effort(effort, task.seconds / PARTS if timed else None), memories)
            open_still = sought
            for _ in range(MOST_PROOFS if timed else 1):
                if watch.stopped or not bool(open_still.any()) or time.monotonic() > ended:
                    break
                before = found.eps
                gain = GAINS.get(effort, 1 + GAIN * task.allowed.depth.clamp(min=2).log2())
                bracket, tries = _promised(estimates, found, open_still, tolerance, watch, gain * found.eps, ended)
                found = replace(found, evaluations=found.evaluations + tries)
                found = _proven(estimates, found, open_still, bracket, watch, ended)
                open_still = open_still & (found.eps > before)
    if watch.stopped:
        found = replace(found, ended=found.ended & ~sought)
    watch.advance(len(task))
    return found


def _proven(
    estimates: "Estimates", found: SearchResult, sought: Tensor, bracket: _Bracket, watch: Watch, ended: float
) -> SearchResult:
    """Prove what estimates promise, or a little less: once at least, and as long as there is time."""
    for share in SHRUNK:
        index = (sought & (share * bracket.low > found.eps)).nonzero().squeeze(1)
        if watch.stopped or not len(index) or (share < SHRUNK[0] and time.monotonic() > ended):
            break
        eps = share * bracket.low[index]
        some = estimates.select(index)
        proven = some.task.joint_bounds(eps, some.memory(), prove=True)
        good = proven.amin(-1) > 0  # false for NaN
        won = index[good]
        failed = torch.where(good, bracket.high[index], eps)
        found = replace(
            found,
            eps=found.eps.index_copy(0, won, eps[good]),
            failed=found.failed.index_copy(0, index, torch.where(failed.isfinite(), failed, found.failed[index])),
            margins=found.margins.index_copy(0, won, proven[good]),
            evaluations=found.evaluations.index_add(0, index, torch.ones_like(index)),
        )
        sought = sought.index_fill(0, won, False)
    return found


def _promised(
    estimates: "Estimates", plain: SearchResult, sought: Tensor, tolerance: float, watch: Watch, first: Tensor, ended: float
) -> tuple[_Bracket, Tensor]:
    """The largest sizes that estimates promise, from the sizes `first` on, and how many each sample took.

    Half of the time until `ended` is theirs.
    """
    task, half = estimates.task, (time.monotonic() + ended) / 2
    margins, linear = task.first_order()
    margin, linear = margins.amin(-1), linear.amin(-1)
    greatest = task.allowed.greatest
    unknown = torch.full_like(plain.eps, torch.nan)
    bracket = _Bracket(plain.eps, torch.full_like(unknown, torch.inf), unknown, unknown)
    tries = torch.zeros_like(plain.evaluations)
    eps = torch.minimum(first, greatest)
    for turn in range(MOST_ESTIMATES):
        index = sought.nonzero().squeeze(1)
        if watch.stopped or not len(index) or (turn and time.monotonic() > half):
            break
        spare = SPARE * task.allowed.depth * margin * (1 - eps / linear).clamp(min=0)
        found = estimates.select(index).margins(eps[index]).amin(-1)
        bracket = bracket.after(index, eps[index], found - spare[index])
        tries = tries.index_add(0, index, torch.ones_like(index))
        bracket = bracket.doubted(margin) if turn < MOST_DOUBTS else bracket
        root = bracket.root(margin)
        # just below the root, so that one more success ends the search; above it, if that was tried
        eps = torch.where(bracket.low < root * (1 - tolerance / 2), root * (1 - tolerance / 4), root * (1 + tolerance / 2))
        closed = (bracket.high <= bracket.low * (1 + tolerance)) | (bracket.low >= greatest)
        known = ~bracket.margin_low.isnan() & bracket.high.isfinite()
        sought = sought & ~closed & ~(known & (root <= bracket.low * (1 + tolerance / 2)))
        eps = torch.minimum(torch.minimum(eps, greatest), bracket.low + 0.9 * (bracket.high - bracket.low))
        eps = torch.where(eps > bracket.low, eps, (bracket.low + torch.minimum(bracket.high, STEP * bracket.low)) / 2)
    return bracket, tries


@dataclass(frozen=True)
class Estimates:
    """A task whose margins are estimated; each sample remembers what helps the next time."""

    task: Task
    memories: list[Memory]

    def select(self, index: Tensor) -> "Estimates":
        return Estimates(self.task.select(index), [self.memories[number] for number in index.tolist()])

    def memory(self) -> Memory:
        """What all samples remember."""
        shared = set.intersection(*(set(memory) for memory in self.memories))
        return {key: Past.joined([own[key] for own in self.memories]) for key in shared}

    def margins(self, eps: Tensor) -> Tensor:
        """What a proof will probably say. Samples near sizes that they remember go together: that is cheaper for all of them."""
        near = torch.stack([self._near(own, size) for own, size in zip(self.memories, eps, strict=True)])
        found = torch.empty_like(self.task.margins.offset)
        for index in (near.nonzero().squeeze(1), (~near).nonzero().squeeze(1)):
            if len(index):
                found[index] = self.select(index)._together(eps[index])
        return found

    def _together(self, eps: Tensor) -> Tensor:
        memory = self.memory()
        found = self.task.joint_bounds(eps, memory, prove=False)
        for number, own in enumerate(self.memories):
            own.update({key: past.select(number) for key, past in memory.items()})
        return found

    @staticmethod
    def _near(memory: Memory, eps: Tensor) -> Tensor:
        near = [past.near(eps).squeeze(0) for past in memory.values()]
        return torch.stack(near).all() if near else torch.zeros_like(eps, dtype=torch.bool)
