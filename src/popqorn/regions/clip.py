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

import math

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.regions.geometry import dual, length

STEPS = 8


def greatest_fall(
    beta: Float[Tensor, "*batch rows features"], kappa: Float[Tensor, "*batch rows features"], norm: float
) -> tuple[Float[Tensor, "*batch rows"], Float[Tensor, "*batch rows features"]]:
    """An upper bound of `sum beta sigma` over `||sigma||_p <= 1`, `0 <= sigma <= kappa`, and a `sigma` near it."""
    if norm == 1:
        return _knapsack(beta, kappa)
    kappa = torch.where(beta > 0, kappa, math.inf)  # what does not matter is never cut
    budget = torch.ones_like(beta[..., :1])
    free = kappa > 0
    lam = length(torch.where(free, beta, 0.0), dual(norm)).unsqueeze(-1)
    for _ in range(STEPS):
        cut = _wanted(beta, lam, norm) >= kappa
        left = budget - torch.where(cut, kappa, 0.0).pow(norm).sum(-1, keepdim=True)
        rest = length(torch.where(cut, 0.0, beta), dual(norm)).unsqueeze(-1)
        lower = torch.where(left > 0, rest / left.clamp(min=torch.finfo(beta.dtype).tiny).pow(1 / dual(norm)), 0.0)
        lam = torch.where((left > 0) & (lower < lam), lower, lam)
    sigma = torch.minimum(kappa, _wanted(beta, lam, norm))
    spare = 1 - sigma.pow(norm).sum(-1)
    return (beta * sigma).sum(-1) + lam.squeeze(-1) / norm * spare, sigma


def _wanted(beta: Tensor, lam: Tensor, norm: float) -> Tensor:
    """`(beta / lam)^(1/(p-1))`: how far an entry would go if the range did not cut it; inf where nothing holds it back."""
    ratio = torch.where(beta > 0, beta / lam, 0.0)
    return ratio if norm == 2 else ratio.pow(1 / (norm - 1))


def _knapsack(beta: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """p = 1: the entries that matter most are filled first, the last of them in part."""
    falling, order = beta.sort(dim=-1, descending=True)
    room = kappa.clamp(max=1).expand_as(beta).gather(-1, order)
    before = room.cumsum(-1) - room
    filled = torch.minimum(room, (1 - before).clamp(min=0))
    sigma = torch.zeros_like(beta).scatter(-1, order, filled)
    return (falling * filled).sum(-1), sigma
