"""The least value of a linear form over a ball cut by a range: `||d / share||_p <= eps` and `low <= d <= high`, `low <= 0 <=
high`.

In units `sigma = |d| / (eps share)` the form falls by `eps sum beta sigma` with `beta = |form| share`, under `sum sigma^p <=
1` and `sigma <= kappa`, where `kappa` is how far the range lets a feature go the way it wants to. For any multiplier `lam >= 0`,

    sum beta sigma <= sum beta s + lam/p (1 - sum s^p),    s = min(kappa, (beta / lam)^(1/(p-1))),

since `s` maximises the Lagrangian entry by entry; so every multiplier gives a valid bound, and the right one gives the least
value itself. Where `lam` is right, the entries that are not cut share what the others leave: `lam = ||beta_free||_q / (1 -
sum_cut kappa^p)^(1/q)`. Repeated, this only ever lowers `lam` and cuts more entries, and ends at the optimum (Newton's
iteration on a convex function).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.arithmetic import NORM, gamma, tiny
from popqorn.regions.geometry import dual, length

STEPS = 5
MORE_STEPS = 30  # next to p = 1 entries are cut one after the other
LARGE_POWER = 32.0


def greatest_fall(
    beta: Float[Tensor, "*batch rows features"], kappa: Float[Tensor, "*batch rows features"], norm: float
) -> tuple[Float[Tensor, "*batch rows"], Float[Tensor, "*batch rows features"]]:
    """An upper bound of `sum beta sigma` over `||sigma||_p <= 1`, `0 <= sigma <= kappa`, and a `sigma` near it.

    Rounded upwards: where the range cuts most of a ball off, the multiplier is large beside what is left.
    """
    kappa = kappa.clamp(max=1)  # the ball allows no more
    beta = torch.where(kappa > 0, beta, 0.0)  # what cannot move does not count
    if norm == 1:
        return _knapsack(beta, kappa)
    q = dual(norm)
    # An entry is cut where (beta / lam)^(1/(p-1)) >= kappa.
    threshold, kappa_power = (kappa if norm == 2 else kappa.pow(norm - 1)), _power(kappa, norm)
    norm_of_free = _norm_of_free(beta, q)
    lam = norm_of_free(torch.zeros_like(beta, dtype=torch.bool))
    for _ in range(STEPS if norm >= 1.5 else MORE_STEPS):
        cut = beta >= lam * threshold
        left = 1 - torch.where(cut, kappa_power, 0.0).sum(-1, keepdim=True)
        lower = norm_of_free(cut) / left.pow(1 / q)
        lam = torch.where((left > 0) & (lower < lam), lower, lam)
    ratio = torch.where(beta > 0, beta / lam, 0.0)
    sigma = torch.minimum(kappa, ratio if norm == 2 else ratio.pow(1 / (norm - 1)))
    taken, budget, price = (beta * sigma).sum(-1), _power(sigma, norm).sum(-1), lam.squeeze(-1) / norm
    error = gamma(beta.shape[-1] + NORM, beta.dtype) * (taken + price * (1 + budget)) + NORM * beta.shape[-1] * tiny(beta.dtype)
    return taken + price * (1 - budget) + error, sigma


def _norm_of_free(beta: Tensor, q: float) -> Callable[[Tensor], Tensor]:
    """The l_q norm of the entries that are not cut. Powers are taken once, unless the largest make the others vanish."""
    if q > LARGE_POWER:
        return lambda cut: length(beta.masked_fill(cut, 0.0), q).unsqueeze(-1)
    largest = beta.amax(-1, keepdim=True).clamp(min=tiny(beta.dtype))
    powers = _power(beta / largest, q)
    return lambda cut: largest * powers.masked_fill(cut, 0.0).sum(-1, keepdim=True).pow(1 / q)


def _power(values: Tensor, exponent: float) -> Tensor:
    return values.square() if exponent == 2 else values.pow(exponent)


def _knapsack(beta: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """p = 1: the entries that matter most are filled first, the last of them in part."""
    falling, order = beta.sort(dim=-1, descending=True)
    room = kappa.expand_as(beta).gather(-1, order)
    before = room.cumsum(-1) - room
    filled = torch.minimum(room, (1 - before).clamp(min=0))
    sigma = torch.zeros_like(beta).scatter(-1, order, filled)
    # what rounding left unfilled would have fallen by no more than the first
    error = gamma(beta.shape[-1] + NORM, beta.dtype) * falling[..., 0] + NORM * beta.shape[-1] * tiny(beta.dtype)
    return (falling * filled).sum(-1) + error, sigma
