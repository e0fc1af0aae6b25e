"""The largest eps whose margins are all proven positive: one bracket per sample, all samples at once.

The margin's bound falls slowly at first and then faster and faster, as wider boxes make looser relaxations. In logarithms that
fall is nearly straight: with `m` the margin at the centre and `linear` the eps at which its first-order part is used up,
`log(loss(eps) / m) = log(eps / linear) + eps * r(eps)` with a slowly varying rate `r`. We draw `r` as a parabola through the last
three tries, solve for `loss = m`, and test just below or just above the solution, so that the bracket closes from both sides.
Where the bounds have saturated (twice the eps, hardly a greater loss) the model says nothing and we halve eps. Bisection takes
over wherever the bracket does not shrink.

Sets that grow by whole numbers (words) are searched by bisection.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.found import SearchResult
from popqorn.progress import Watch
from popqorn.relax.methods import METHODS
from popqorn.task import Task
from popqorn.tighten import tightened

MAX_EVALUATIONS = 60  # ten times what a search takes; one that needs more says so
FIRST_STEP = 0.8  # times linear / depth: near the root for trained networks of 4 to 14 frames
GROWTH = 4.0  # while nothing has failed, sizes grow by this factor and faster
RETREAT = 0.5  # while nothing is proven, they halve
CAUTION = 1.12  # beside a size that is probably near, they grow and shrink by a factor of at most this, and faster
STEEP = 8.0  # times the tolerance: so near to the end of what can be proven, bounds fall all at once, and halving is quickest
SATURATED = 0.5  # a power of eps: the loss of an unsaturated bound grows at least like eps itself
UNBOUNDED = 1e6  # times linear: what is proven up to there has no end worth looking for


@dataclass(frozen=True)
class Guess:
    """Where searches may begin: sizes (NaN: nobody knows), and by which factor these are probably wrong at most."""

    size: Float[Tensor, " batch"]
    factor: Float[Tensor, " batch"]

    @staticmethod
    def none(like: Float[Tensor, " batch"]) -> "Guess":
        return Guess(torch.full_like(like, math.nan), torch.full_like(like, CAUTION))

    def select(self, index: Tensor) -> "Guess":
        return Guess(self.size[index], self.factor[index])

    @property
    def near(self) -> Bool[Tensor, " batch"]:
        """Which of them say anything."""
        return self.size.isfinite() & (self.size > 0)


@dataclass(frozen=True)
class _State:
    """Per sample: `low` is proven, with the margins `proven` there, `high` is not (inf: none tried); the last three eps tried and
    `r` there (NaN: unknown); `streak`, how many times in a row the bracket moved on the same side; `done`, whether it is closed.
    """

    low: Tensor
    high: Tensor
    proven: Tensor
    tried: Tensor  # [3, batch], the latest first
    rate: Tensor
    streak: Tensor
    evaluations: Tensor
    done: Tensor

    @staticmethod
    def start(margins: Tensor, active: Tensor) -> "_State":
        zero = torch.zeros_like(margins[:, 0])
        unknown = zero.new_full((3, len(zero)), math.nan)
        return _State(zero, zero + math.inf, margins, unknown, unknown, zero, torch.zeros_like(zero, dtype=torch.long), ~active)

    def select(self, index: Tensor) -> "_State":
        picked = {field.name: getattr(self, field.name) for field in fields(self)}
        along = {"tried": 1, "rate": 1}
        return _State(**{name: tensor.index_select(along.get(name, 0), index) for name, tensor in picked.items()})

    def after(self, index: Tensor, eps: Tensor, found: Tensor, rate: Tensor) -> "_State":
        """With what was found at `eps` for the samples `index`: a new state, so that an interrupt never leaves half of one."""
        success = found.amin(-1) > 0  # false for NaN: an overflow proves nothing
        before = self.select(index)
        repeated = before.tried[0] == torch.where(success, before.low, before.high)
        known = torch.where(rate.isfinite(), rate, math.nan)
        changed = {
            "low": torch.where(success, eps, before.low),
            "high": torch.where(success, before.high, eps),
            "proven": torch.where(success.unsqueeze(-1), found, before.proven),
            "streak": torch.where(repeated, before.streak + 1, 0.0),
            "evaluations": before.evaluations + 1,
        }
        now = {name: getattr(self, name).index_copy(0, index, value) for name, value in changed.items()}
        now["tried"] = self.tried.index_copy(1, index, torch.stack([eps, *before.tried[:2]]))
        now["rate"] = self.rate.index_copy(1, index, torch.stack([known, *before.rate[:2]]))
        return replace(self, **now)

    def closed(self, done: Tensor) -> "_State":
        return replace(self, done=self.done | done)

    def result(self, ended: Tensor) -> SearchResult:
        return SearchResult(self.low, self.high, self.proven, self.evaluations, ~self.done & ended, ended)


def largest_size(task: Task, tolerance: float, watch: Watch, first: Guess | None = None) -> SearchResult:
    """Search every sample for the largest size with all margins proven positive, to a relative width of `tolerance`.

    A sample whose margins are not all positive at the input, or not worth proving, gets size 0 and costs nothing. The search
    begins at the sizes `first`, if these are given, and stays near them at first.
    """
    task = task.prepared()
    first = Guess.none(task.allowed.eps) if first is None else first
    return SearchResult.joined([_block(task.select(index), tolerance, watch, first.select(index)) for index in task.blocks()])


def _block(task: Task, tolerance: float, watch: Watch, first: Guess) -> SearchResult:
    """Joint bounds start from what planes prove."""
    if not task.method.joint:
        return _search(task, tolerance, watch, first)
    if task.allowed.whole:
        watch.advance(len(task))
        return _search(task, tolerance, watch, first)
    plain = _search(replace(task, method=METHODS["planes"]), tolerance, watch, first)
    return tightened(task, plain, tolerance, watch)


def _search(task: Task, tolerance: float, watch: Watch, first: Guess) -> SearchResult:
    """One block; what the user stopped before it was searched has no margins."""
    nothing = torch.full_like(task.margins.offset, math.nan)
    state = _State.start(nothing, torch.ones_like(task.margins.holds))
    with watch.stoppable():
        if not watch.stopped:
            margins, linear = task.first_order()
            state = _State.start(margins, task.margins.holds & (margins > 0).all(-1))
            state = _proven_where_still(task, state)
            watch.advance(int(state.done.sum()))
            if task.allowed.whole:
                state = _search_counts(task, state, watch)
            else:
                state = _search_sizes(task, state, linear, tolerance, watch, first)
    return state.result(state.done | (not watch.stopped))


def _proven_where_still(task: Task, state: _State) -> _State:
    """Sets of one point leave nothing to search for; that the margins are positive there is proven all the same."""
    still = task.allowed.greatest <= 0
    index = (still & ~state.done).nonzero().squeeze(1)
    if not len(index):
        return state.closed(still)
    alone = task.select(index)
    found = alone.prove(torch.zeros_like(alone.allowed.eps))
    counted = state.evaluations.index_add(0, index, torch.ones_like(index))
    return replace(state, proven=state.proven.index_copy(0, index, found), evaluations=counted).closed(still)


def _search_sizes(task: Task, state: _State, linear: Tensor, tolerance: float, watch: Watch, first: Guess) -> _State:
    critical = linear.argmin(-1, keepdim=True)
    scale = state.proven.gather(1, critical).squeeze(1)
    linear = linear.gather(1, critical).squeeze(1)
    greatest = task.allowed.greatest
    linear = torch.where(linear.isfinite(), linear, torch.where(greatest.isfinite(), greatest, 1.0))
    with watch.stoppable():
        active = (~state.done).nonzero().squeeze(1)
        # The more frames a perturbation passes through, the sooner bounds grow loose, and the smaller an eps to start with.
        begin = torch.where(first.near, first.size, FIRST_STEP * linear / task.allowed.depth)
        eps = torch.minimum(begin, greatest)[active]
        for turn in range(MAX_EVALUATIONS):
            if watch.stopped or not len(active):
                break
            found = task.select(active).prove(eps)
            loss = (scale[active] - found.amin(-1)) / scale[active]
            rate = (torch.log(loss) - torch.log(eps / linear[active])) / eps
            state = state.after(active, eps, found, rate)
            closed = state.high.isfinite() & (state.high - state.low <= tolerance * state.high)
            closed = closed | (state.low >= torch.minimum(UNBOUNDED * linear, greatest))
            finished = int((closed & ~state.done).sum())
            state = state.closed(closed)
            watch.advance(finished)
            active = (~state.done).nonzero().squeeze(1)
            eps = _next_eps(state.select(active), linear[active], first.select(active), tolerance, turn)
            eps = torch.minimum(eps, greatest[active])
    return state


def _search_counts(task: Task, state: _State, watch: Watch) -> _State:
    """Bisection over whole numbers, from 1 upwards: sets of more words hold those of fewer."""
    greatest = task.allowed.greatest
    with watch.stoppable():
        while not watch.stopped and len(active := (~state.done).nonzero().squeeze(1)):
            low, high = state.low[active], torch.minimum(state.high[active], greatest[active] + 1)
            eps = torch.where(low > 0, torch.floor((low + high) / 2), 1.0)
            state = state.after(active, eps, task.select(active).prove(eps), torch.full_like(eps, math.nan))
            closed = (state.high - state.low <= 1) | (state.low >= greatest)
            finished = int((closed & ~state.done).sum())
            state = state.closed(closed)
            watch.advance(finished)
    return state


def _next_eps(state: _State, linear: Tensor, first: Guess, tolerance: float, turn: int) -> Tensor:
    """Where to look next: beside the interpolated root, or halfway where interpolation has nothing to go on."""
    low, high, near = state.low, state.high, first.near
    growth = torch.where(near, first.factor ** min(2.0**turn, MAX_EVALUATIONS), GROWTH ** (1 + turn / 2))
    top = torch.where(high.isinf(), torch.where(low > 0, growth * low, linear), high)
    root = _interpolated_root(state, linear, low, top)
    # Beside the root, on the side where the bracket is still open; further out if the last tries fell on the same side.
    beside = (tolerance / 3 * GROWTH ** (state.streak - 2).clamp(min=0)).clamp(max=0.5)
    aim = torch.where(low > root * (1 - 2 * beside), root * (1 + beside), root * (1 - beside))
    halfway = torch.where(low > 0, (low * top).sqrt(), torch.where(near, 1 / growth, RETREAT).clamp(min=RETREAT) * top)
    trusted = (aim > low) & (aim < high) & ~_saturated(state, linear) & ~(near & (low == 0))
    bisect = (turn >= 8 and turn % 3 == 2) | (near & (high <= (1 + STEEP * tolerance) * low))
    return torch.where(trusted & ~bisect, aim, torch.where(high.isinf(), top, halfway))


def _saturated(state: _State, linear: Tensor) -> Tensor:
    """Whether the last two tries both failed and the greater of them lost hardly more."""
    excess = torch.log(state.tried[:2] / linear) + state.tried[:2] * state.rate[:2]
    shrunk = torch.log(state.tried[1] / state.tried[0])
    return (excess[0] > 0) & (shrunk > 0) & (excess[1] - excess[0] < SATURATED * shrunk)


def _interpolated_root(state: _State, linear: Tensor, low: Tensor, top: Tensor) -> Tensor:
    """Where the model loses all of the margin: `r` through the last three tries, or two, or one; NaN if none of these says."""
    (first, second, third), (at_first, at_second, at_third) = state.tried, state.rate
    incline = (at_first - at_second) / (first - second)
    bend = (incline - (at_second - at_third) / (second - third)) / (first - third)
    zero = torch.zeros_like(bend)
    inclines, bends = torch.stack([incline, incline, zero]), torch.stack([bend, zero, zero])
    origin = second.nan_to_num()  # a bend of 0 has no use for it
    bent, straight, flat = _root(lambda eps: at_first + (eps - first) * (inclines + (eps - origin) * bends), linear, low, top)
    return torch.where(bent.isnan(), torch.where(straight.isnan(), flat, straight), bent)


def _root(rate: Callable[[Tensor], Tensor], linear: Tensor, low: Tensor, top: Tensor) -> Tensor:
    """The root of `log(eps / linear) + eps rate(eps)` between `low` and `top`; NaN where the two do not bracket one."""
    brackets = ((low == 0) | (_excess(rate, linear, low) < 0)) & (_excess(rate, linear, top) > 0)
    left, right = low.expand_as(brackets), top.expand_as(brackets)
    for _ in range(48):
        middle = (left + right) / 2
        beyond = _excess(rate, linear, middle) > 0
        left, right = torch.where(beyond, left, middle), torch.where(beyond, middle, right)
    return torch.where(brackets, (left + right) / 2, math.nan)


def _excess(rate: Callable[[Tensor], Tensor], linear: Tensor, eps: Tensor) -> Tensor:
    """The logarithm of the share of the margin that the model loses at `eps`."""
    return torch.log(eps / linear) + eps * rate(eps)
