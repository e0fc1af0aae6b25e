"""Projected gradient descent inside a search over sizes."""

import math

import torch
from torch import Tensor

from popqorn._typing import Float, Int
from popqorn.attacks.fgsm import FAR
from popqorn.attacks.found import LOWEST, Found, lowest_margin, pull_in, slope
from popqorn.attacks.scan import few_move, scan
from popqorn.task import Task

STEPS = 40
ROUNDS = 16
TOLERANCE = 0.005
FIRST_ROUND = 1.3  # times the first-order radius


def pgd(task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator) -> None:
    """A search over sizes; where few features move, a scan comes first."""
    if few_move(task):
        scan(task, found, linear, restarts, generator)
    over_sizes(task, found, linear, restarts, generator)


def over_sizes(task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator) -> None:
    """Every sample has its own bracket of sizes, narrowed from what is found; finished ones leave the batch."""
    nearest = linear.amin(-1)
    furthest = torch.minimum(FAR * nearest, task.allowed.greatest)
    aims = _aims(linear, restarts)
    failed = torch.zeros_like(nearest)
    for turn in range(ROUNDS):
        active = ((found.radius > (1 + TOLERANCE) * failed) & (failed < furthest)).nonzero().squeeze(1)
        if not len(active):
            break
        part, radius, lost = task.select(active), found.radius[active], failed[active]
        closer = torch.maximum((lost * radius).sqrt(), 0.85 * radius)
        further = torch.where(lost > 0, 2 * lost, FIRST_ROUND * nearest[active])
        eps = torch.minimum(torch.where(radius.isinf(), further, closer), task.allowed.greatest[active])
        center = part.allowed.center
        known = center + (found.points[active] - center) * (eps / radius)[:, None, None]
        again = torch.arange(len(active), device=active.device).repeat(restarts)
        trials = part.select(again)
        start = trials.allowed.at(eps[again]).random(generator)
        for restart, points in enumerate(start.split(len(active))):
            kind = (restart + turn) % 3  # from a random point; from the best known, scaled to the set; from the input
            if kind == 1:
                points.copy_(torch.where(radius.isinf()[:, None, None], points, known))
            elif kind == 2:
                points.copy_(center)
        points, lowest = descend(trials, start, eps[again], aims[:, active].flatten())
        success = _offer_each(task, found, active, points, lowest < 0)
        failed[active] = torch.where(success, lost, eps)


def descend(
    task: Task,
    points: Float[Tensor, "batch frames features"],
    eps: Float[Tensor, " batch"],
    aim: Int[Tensor, " batch"],
    steps: int = STEPS,
) -> tuple[Float[Tensor, "batch frames features"], Float[Tensor, " batch"]]:
    """Projected gradient descent inside the set of size `eps`, with a falling step: the lowest iterate and its margin."""
    allowed = task.allowed.at(eps)
    best, lowest = points, points.new_full((len(points),), math.inf)
    for step in range(steps):
        margin, gradient = slope(task, points, aim)
        best, lowest = torch.where((margin < lowest)[:, None, None], points, best), torch.minimum(margin, lowest)
        stride = 2 * eps * (1 - step / steps) ** 2
        points = allowed.nearest(points + stride[:, None, None] * allowed.steepest(gradient))
    margin = lowest_margin(task, points)
    return torch.where((margin < lowest)[:, None, None], points, best), torch.minimum(margin, lowest)


def polish(task: Task, found: Found) -> None:
    """Pull every success in along the line to the input."""
    index = found.radius.isfinite().nonzero().squeeze(1)
    if len(index):
        part = task.select(index)
        points = pull_in(part, found.points[index])
        found.offer(task, index, points, lowest_margin(part, points) < 0)


def _offer_each(task: Task, found: Found, index: Tensor, points: Tensor, hit: Tensor) -> Tensor:
    """Offer every restart's point, pulled in where it succeeds (`points` and `hit` hold the restarts one after the other).

    Returns which of the samples `index` any restart succeeded on.
    """
    again = index.repeat(len(points) // len(index))
    if bool(hit.any()):
        points = points.clone()
        points[hit] = pull_in(task.select(again[hit]), points[hit])
        for attempt, succeeded in zip(points.split(len(index)), hit.split(len(index)), strict=True):
            found.offer(task, index, attempt, succeeded)
    return hit.view(-1, len(index)).any(0)


def _aims(linear: Float[Tensor, "batch rows"], restarts: int) -> Int[Tensor, "restarts batch"]:
    """Which margin each restart lowers: whichever is lowest; then the nearest by first order, the second nearest, ..."""
    order = linear.argsort(-1)
    count = order.shape[1]
    return torch.stack([torch.full_like(order[:, 0], LOWEST), *(order[:, restart % count] for restart in range(restarts - 1))])
