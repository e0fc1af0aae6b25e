"""The largest eps whose margins are all proven positive: one bracket per sample, all samples at once.

The margin's bound falls slowly at first and then faster and faster, as wider boxes make looser relaxations. In logarithms that
fall is nearly straight: with `m` the margin at the centre and `linear` the eps at which its first-order part is used up,
`log(loss(eps) / m) = log(eps / linear) + eps * r(eps)` with a slowly varying rate `r`. We draw `r` as a parabola through the last
three tries, solve for `loss = m`, and test just below or just above the solution, so that the bracket closes from both sides.
Where the bounds have saturated (twice the eps, hardly a greater loss) the model says nothing and we halve eps. Bisection takes
over wherever the bracket does not shrink.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Float, Int

MAX_EVALUATIONS = 60
FIRST_STEP = 0.8  # times linear / depth: near the root for trained networks of 4 to 14 frames
GROWTH = 4.0
RETREAT = 0.5
SATURATED = 0.5  # a power of eps: the loss of an unsaturated bound grows at least like eps itself
UNBOUNDED = 1e6

Evaluate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class SearchResult:
    """Per sample: the largest eps proven, the least eps that failed (inf if none did), the margins proven, and the cost."""

    eps: Float[Tensor, " batch"]
    failed: Float[Tensor, " batch"]
    margins: Float[Tensor, "batch rows"]
    evaluations: Int[Tensor, " batch"]


@dataclass
class _State:
    """Per sample: `low` is proven, `high` is not (inf: none tried); the last three eps tried and `r` there (NaN: unknown)."""

    low: Tensor
    high: Tensor
    tried: Tensor  # [3, batch], the latest first
    rate: Tensor
    streak: Tensor  # how many times in a row the bracket moved on the same side

    @staticmethod
    def start(like: Tensor) -> "_State":
        unknown = like.new_full((3, len(like)), math.nan)
        zero = torch.zeros_like(like)
        return _State(zero.clone(), zero + math.inf, unknown, unknown.clone(), zero.clone())

    def select(self, index: Tensor) -> "_State":
        return _State(**{name: tensor[..., index] for name, tensor in vars(self).items()})

    def record(self, index: Tensor, eps: Tensor, rate: Tensor, success: Tensor) -> None:
        """Take in what was found at `eps` for the samples `index`."""
        repeated = self.tried[0, index] == torch.where(success, self.low[index], self.high[index])
        self.streak[index] = torch.where(repeated, self.streak[index] + 1, 0.0)
        self.low[index] = torch.where(success, eps, self.low[index])
        self.high[index] = torch.where(success, self.high[index], eps)
        self.tried[:, index] = torch.stack([eps, *self.tried[:2, index]])
        self.rate[:, index] = torch.stack([torch.where(rate.isfinite(), rate, math.nan), *self.rate[:2, index]])


def largest_eps(
    evaluate: Evaluate,
    margins: Float[Tensor, "batch rows"],
    rates: Float[Tensor, "batch rows"],
    tolerance: float,
    depth: Float[Tensor, " batch"],
) -> SearchResult:
    """Search every sample for the largest eps with all margins proven positive, to a relative width of `tolerance`.

    `evaluate(samples, eps)` returns proven margins `[len(samples), rows]`. `margins` are those at eps = 0 and `rates` how fast
    they fall there to first order; a sample whose margins are not all positive gets eps 0 and costs nothing. `depth` is
    the number of frames a perturbation passes through: the more they are, the sooner bounds grow loose, and the smaller an eps
    the search starts with.
    """
    critical = (margins / rates).argmin(-1, keepdim=True)
    scale = margins.gather(1, critical).squeeze(1)
    linear = scale / rates.gather(1, critical).squeeze(1)
    linear = torch.where(linear.isfinite() & (linear > 0), linear, 1.0)
    state = _State.start(linear)
    proven = margins.clone()
    evaluations = torch.zeros(linear.shape, dtype=torch.long, device=linear.device)
    active = (margins > 0).all(-1).nonzero().squeeze(1)
    eps = FIRST_STEP * (linear / depth)[active]

    for turn in range(MAX_EVALUATIONS):
        if not len(active):
            break
        found = evaluate(active, eps)
        evaluations[active] += 1
        worst = found.amin(-1)
        success = worst > 0  # false for NaN: an overflow proves nothing
        loss = (scale[active] - worst) / scale[active]
        state.record(active, eps, (torch.log(loss) - torch.log(eps / linear[active])) / eps, success)
        proven[active[success]] = found[success]
        low, high = state.low[active], state.high[active]
        done = (high.isfinite() & (high - low <= tolerance * high)) | (low >= UNBOUNDED * linear[active])
        active = active[~done]
        eps = _next_eps(state.select(active), linear[active], tolerance, turn)
    return SearchResult(state.low, state.high, proven, evaluations)


def _next_eps(state: _State, linear: Tensor, tolerance: float, turn: int) -> Tensor:
    """Where to look next: beside the interpolated root, or halfway where interpolation has nothing to go on."""
    low, high = state.low, state.high
    top = torch.where(high.isinf(), torch.where(low > 0, GROWTH ** (1 + turn / 2) * low, linear), high)
    root = _interpolated_root(state, linear, low, top)
    # Beside the root, on the side where the bracket is still open; further out if the last tries fell on the same side.
    beside = (tolerance / 3 * GROWTH ** (state.streak - 2).clamp(min=0)).clamp(max=0.5)
    aim = torch.where(low > root * (1 - 2 * beside), root * (1 + beside), root * (1 - beside))
    halfway = torch.where(low > 0, (low * top).sqrt(), RETREAT * top)
    trusted = (aim > low) & (aim < high) & ~_saturated(state, linear)
    bisect = turn >= 8 and turn % 3 == 2
    return torch.where(trusted & (not bisect), aim, torch.where(high.isinf(), top, halfway))


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
    curves: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda eps: at_first + (eps - first) * (incline + (eps - second) * bend),
        lambda eps: at_first + (eps - first) * incline,
        lambda eps: at_first,
    )
    root = torch.full_like(low, math.nan)
    for curve in curves:
        root = torch.where(root.isnan(), _root(curve, linear, low, top), root)
    return root


def _root(rate: Callable[[Tensor], Tensor], linear: Tensor, low: Tensor, top: Tensor) -> Tensor:
    """The root of `log(eps / linear) + eps rate(eps)` between `low` and `top`; NaN where the two do not bracket one."""

    def excess(eps: Tensor) -> Tensor:
        return torch.log(eps / linear) + eps * rate(eps)

    brackets = ((low == 0) | (excess(low) < 0)) & (excess(top) > 0)
    left, right = low, top
    for _ in range(48):
        middle = (left + right) / 2
        beyond = excess(middle) > 0
        left, right = torch.where(beyond, left, middle), torch.where(beyond, middle, right)
    return torch.where(brackets, (left + right) / 2, math.nan)
