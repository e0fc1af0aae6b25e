"""The largest eps whose margins are all proven positive: one bracket per sample, all samples at once.

The margin's bound falls slowly at first and then faster and faster, as wider boxes make looser relaxations. In logarithms that
fall is nearly straight: with `m` the margin at the centre and `linear` the eps at which its first-order part is used up,
`log(loss(eps) / m) = log(eps / linear) + eps * r(eps)` with a slowly varying rate `r`. We interpolate `r` through the ends of the
bracket, solve for `loss = m`, and test just below or just above the solution, so that the bracket closes from both sides.
Bisection takes over where that does not shrink it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Float, Int

MAX_EVALUATIONS = 60
FIRST_STEP = 0.25
GROWTH = 4.0
UNBOUNDED = 1e9

Evaluate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class SearchResult:
    """Per sample: the largest eps proven, the least eps that failed (inf if none did), the margins proven, and the cost."""

    eps: Float[Tensor, " batch"]
    failed: Float[Tensor, " batch"]
    margins: Float[Tensor, "batch rows"]
    evaluations: Int[Tensor, " batch"]


@dataclass
class _Bracket:
    """`low` is proven, `high` is not (inf: none tried); `low_rate` and `high_rate` are `r` there (NaN: unknown)."""

    low: Tensor
    high: Tensor
    low_rate: Tensor
    high_rate: Tensor

    def select(self, index: Tensor) -> "_Bracket":
        return _Bracket(self.low[index], self.high[index], self.low_rate[index], self.high_rate[index])


def largest_eps(
    evaluate: Evaluate,
    margins: Float[Tensor, "batch rows"],
    rates: Float[Tensor, "batch rows"],
    tolerance: float,
) -> SearchResult:
    """Search every sample for the largest eps with all margins proven positive, to a relative width of `tolerance`.

    `evaluate(samples, eps)` returns proven margins `[len(samples), rows]`. `margins` are those at eps = 0 and `rates` how fast
    they fall there to first order; a sample whose margins are not all positive gets eps 0 and costs nothing.
    """
    linear = (margins / rates).amin(-1)
    scale = torch.gather(margins, 1, (margins / rates).argmin(-1, keepdim=True)).squeeze(1)
    linear = torch.where(linear.isfinite() & (linear > 0), linear, 1.0)
    unknown = torch.full_like(linear, math.nan)
    bracket = _Bracket(torch.zeros_like(linear), torch.full_like(linear, math.inf), unknown.clone(), unknown.clone())
    proven = margins.clone()
    evaluations = torch.zeros(linear.shape, dtype=torch.long, device=linear.device)
    active = (margins > 0).all(-1).nonzero().squeeze(1)
    eps = FIRST_STEP * linear[active]

    for turn in range(MAX_EVALUATIONS):
        if not len(active):
            break
        found = evaluate(active, eps)
        evaluations[active] += 1
        worst = found.amin(-1)
        success = worst > 0  # false for NaN: an overflow proves nothing
        rate = (torch.log((scale[active] - worst) / scale[active]) - torch.log(eps / linear[active])) / eps
        _record(bracket, active, eps, rate, success)
        proven[active[success]] = found[success]
        low, high = bracket.low[active], bracket.high[active]
        done = (high - low <= tolerance * high) | (low >= UNBOUNDED * linear[active])
        active = active[~done]
        eps = _next_eps(bracket.select(active), linear[active], tolerance, turn)
    return SearchResult(bracket.low, bracket.high, proven, evaluations)


def _record(bracket: _Bracket, active: Tensor, eps: Tensor, rate: Tensor, success: Tensor) -> None:
    rate = torch.where(rate.isfinite(), rate, math.nan)
    good, bad = active[success], active[~success]
    bracket.low[good], bracket.low_rate[good] = eps[success], rate[success]
    bracket.high[bad], bracket.high_rate[bad] = eps[~success], rate[~success]


def _next_eps(bracket: _Bracket, linear: Tensor, tolerance: float, turn: int) -> Tensor:
    """Where to look next: beside the interpolated root, or halfway where interpolation has nothing to go on."""
    low, high = bracket.low, bracket.high
    top = torch.where(high.isinf(), torch.where(low > 0, GROWTH * low, linear), high)
    root = _interpolated_root(bracket, linear, top)
    closing = tolerance / 3
    # If the proven end is already next to the root, test above it to close the bracket; else test below.
    aim = torch.where(low > root * (1 - 2 * closing), root * (1 + closing), root * (1 - closing))
    halfway = torch.where(low > 0, (low * top).sqrt(), top / GROWTH)
    inside = (aim > low) & (aim < high)
    stuck = turn >= 8 and turn % 2 == 0
    return torch.where(inside & (not stuck), aim, torch.where(high.isinf(), top, halfway))


def _interpolated_root(bracket: _Bracket, linear: Tensor, top: Tensor) -> Tensor:
    """The root of `log(eps / linear) + eps r(eps)` in `(low, top]`, `r` linear through what is known; NaN if nothing is."""
    low_rate = torch.where(bracket.low_rate.isnan(), bracket.high_rate, bracket.low_rate)
    high_rate = torch.where(bracket.high_rate.isnan(), bracket.low_rate, bracket.high_rate)
    width = torch.where(bracket.high.isinf(), 1.0, bracket.high - bracket.low)
    incline = torch.where(bracket.high.isinf(), 0.0, (high_rate - low_rate) / width)
    left, right = bracket.low.clone(), top
    for _ in range(48):
        middle = (left + right) / 2
        rate = low_rate + incline * (middle - bracket.low)
        beyond = torch.log(middle / linear) + middle * rate > 0
        left, right = torch.where(beyond, left, middle), torch.where(beyond, middle, right)
    return torch.where(low_rate.isnan(), math.nan, (left + right) / 2)
