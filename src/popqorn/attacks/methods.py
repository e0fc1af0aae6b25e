"""The attacks themselves. Each takes an objective and improves on what is found; all samples at once."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from popqorn._typing import Float, Int
from popqorn.attacks import balls
from popqorn.attacks.objective import LEAST, Found, Objective, pull_in

PGD_STEPS = 40
PGD_ROUNDS = 16
PGD_TOLERANCE = 0.005
FIRST_ROUND = 1.3  # times the first-order radius
CW_STEPS = 200
CW_RATE = 0.05  # Adam's, in units of the first-order radius
CW_CONSTANT = 0.01
FAR = 100.0  # times the first-order radius: further out no attack looks

Attack = Callable[[Objective, Found, Float[Tensor, "batch margins"], int, torch.Generator], None]


def fgsm(
    objective: Objective, found: Found, linear: Float[Tensor, "batch margins"], restarts: int, generator: torch.Generator
) -> None:
    """One gradient at the input, one direction; the least multiple of it that succeeds."""
    aim = linear.argmin(-1)
    _, gradient = objective.slope(torch.zeros_like(objective.center), aim)
    direction = -balls.steepest(gradient, objective.norm)
    everyone = torch.arange(len(aim), device=aim.device)
    first = torch.full_like(linear[:, 0], math.inf)
    for factor in torch.logspace(math.log10(0.1), math.log10(FAR), 40).tolist():
        reach = factor * linear.amin(-1)
        success = objective.least(reach[:, None, None] * direction) < 0
        first = torch.where(success & first.isinf(), reach, first)
    hit = first.isfinite()
    u = pull_in(objective, torch.where(hit, first, 0.0)[:, None, None] * direction)
    found.offer(objective, everyone, u, hit)


def cw(
    objective: Objective, found: Found, linear: Float[Tensor, "batch margins"], restarts: int, generator: torch.Generator
) -> None:
    """C&W-Ada: Adam on `q + (v + c) max_k ||u_k||_p`, `q` the margin that is left, `v = 1` where none is (paper, section 4)."""
    everyone = torch.arange(len(linear), device=linear.device)
    unit = linear.amin(-1)[:, None, None]
    for restart in range(restarts):
        start = 0.5 * objective.draw(generator) if restart else torch.zeros_like(objective.center)
        scaled = start.requires_grad_()
        optimizer = torch.optim.Adam([scaled], lr=CW_RATE)
        for step in range(CW_STEPS):
            with torch.enable_grad():
                u = unit * scaled
                left = objective.margins(u).amin(-1)
                size = objective.size(u)
                loss = left.clamp(min=0) + ((left < 0).to(left.dtype) + CW_CONSTANT) * size
            found.offer(objective, everyone, u.detach(), left.detach() < 0)
            optimizer.param_groups[0]["lr"] = CW_RATE * (1 - step / CW_STEPS)
            (scaled.grad,) = torch.autograd.grad(loss.sum(), scaled)
            optimizer.step()
    polish(objective, found)


def pgd(
    objective: Objective, found: Found, linear: Float[Tensor, "batch margins"], restarts: int, generator: torch.Generator
) -> None:
    """Projected gradient descent inside a search over eps: every sample has its own bracket, finished samples leave the batch."""
    nearest = linear.amin(-1)
    aims = _aims(linear, restarts)
    failed = torch.zeros_like(nearest)
    for turn in range(PGD_ROUNDS):
        active = ((found.radius > (1 + PGD_TOLERANCE) * failed) & (failed < FAR * nearest)).nonzero().squeeze(1)
        if not len(active):
            break
        part, radius, lost = objective.select(active), found.radius[active], failed[active]
        closer = torch.maximum((lost * radius).sqrt(), 0.85 * radius)
        further = torch.where(lost > 0, 2 * lost, FIRST_ROUND * nearest[active])
        eps = torch.where(radius.isinf(), further, closer)
        known = found.u[active] * (eps / radius)[:, None, None]
        trials, reach = part.repeat(restarts), eps.repeat(restarts)
        start = reach[:, None, None] * trials.draw(generator)
        for restart, points in enumerate(start.split(len(active))):
            kind = (
                restart + turn
            ) % 3  # from a random point; from the best perturbation known, scaled to the region; from the input
            if kind == 1:
                points.copy_(torch.where(radius.isinf()[:, None, None], points, known))
            elif kind == 2:
                points.zero_()
        u, least = descend(trials, start, reach, aims[:, active].flatten())
        success = _offer_each(objective, found, active, u, least < 0)
        failed[active] = torch.where(success, lost, eps)


def descend(
    objective: Objective,
    u: Float[Tensor, "batch frames features"],
    eps: Float[Tensor, " batch"],
    aim: Int[Tensor, " batch"],
    steps: int = PGD_STEPS,
) -> tuple[Float[Tensor, "batch frames features"], Float[Tensor, " batch"]]:
    """Projected gradient descent inside the region of size `eps`, with a falling step: the lowest iterate and its margin."""
    radius = eps.unsqueeze(-1)
    best, lowest = u, u.new_full((len(u),), math.inf)
    for step in range(steps):
        least, gradient = objective.slope(u, aim)
        best, lowest = torch.where((least < lowest)[:, None, None], u, best), torch.minimum(least, lowest)
        stride = 2 * eps * (1 - step / steps) ** 2
        u = balls.project(u - stride[:, None, None] * _direction(gradient, objective.norm), objective.norm, radius)
    least = objective.least(u)
    return torch.where((least < lowest)[:, None, None], u, best), torch.minimum(least, lowest)


def polish(objective: Objective, found: Found) -> None:
    """Pull every successful perturbation in along the line to the input."""
    index = found.radius.isfinite().nonzero().squeeze(1)
    if len(index):
        part = objective.select(index)
        u = pull_in(part, found.u[index])
        found.offer(objective, index, u, part.least(u) < 0)


def best(
    objective: Objective, found: Found, linear: Float[Tensor, "batch margins"], restarts: int, generator: torch.Generator
) -> None:
    """All of them, each on its own; then the search over eps once more, from the best of what they found."""
    everyone = torch.arange(len(linear), device=linear.device)
    state = generator.get_state()
    for method in (fgsm, cw, pgd):
        alone = Found.nothing(objective)
        generator.set_state(state)
        method(objective, alone, linear, restarts, generator)
        found.offer(objective, everyone, alone.u, alone.radius.isfinite())
    pgd(objective, found, linear, restarts, generator)
    polish(objective, found)


METHODS: dict[str, Attack] = {"pgd": pgd, "cw": cw, "fgsm": fgsm, "best": best}


def _offer_each(objective: Objective, found: Found, index: Tensor, u: Tensor, hit: Tensor) -> Tensor:
    """Offer every restart's perturbation, pulled in where it succeeds (`u` and `hit` hold the restarts one after the other).

    Returns which of the samples `index` any restart succeeded on.
    """
    again = index.repeat(len(u) // len(index))
    if bool(hit.any()):
        u = u.clone()
        u[hit] = pull_in(objective.select(again[hit]), u[hit])
        for attempt, succeeded in zip(u.split(len(index)), hit.split(len(index)), strict=True):
            found.offer(objective, index, attempt, succeeded)
    return hit.view(-1, len(index)).any(0)


def _aims(linear: Float[Tensor, "batch margins"], restarts: int) -> Int[Tensor, "restarts batch"]:
    """Which margin each restart lowers: whichever is least; then the nearest class by first order, the second nearest, ..."""
    order = linear.argsort(-1)
    count = order.shape[1]
    return torch.stack([torch.full_like(order[:, 0], LEAST), *(order[:, restart % count] for restart in range(restarts - 1))])


def _direction(gradient: Tensor, norm: float) -> Tensor:
    """Where a step goes: the steepest direction of the norm; for p = 1 that of the l_2 norm, as a vertex would be one feature."""
    return balls.steepest(gradient, 2.0 if norm == 1 else norm)
