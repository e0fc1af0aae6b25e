"""Directions and distances: what gradients miss where the boundary is crooked. Thorough where few features move."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.attacks.fgsm import FAR
from popqorn.attacks.found import Found, lowest_margin, pull_in
from popqorn.relax.relaxation import Interval
from popqorn.task import Task

FEW = 6  # features: up to here directions can be enumerated
CIRCLE = 90, 720  # directions of the first pass and of the second
SPHERE = 128, 1024
AT_RANDOM = 32  # of each kind, where many features move
NEAREST = 0.05  # times the first-order radius
GREAT_GROWTH, GROWTH, SMALL_GROWTH = 1.5, 1.15, 1.08  # of sizes: where many features move, in the first pass, in the second
BACK = 3.0  # how far below the first pass's success the second one starts
KEPT = 8  # successes of a size that are pulled in
ROWS = 4096  # sequences at once


def few_move(task: Task) -> bool:
    """Whether no sample has more moving features than can be scanned."""
    box = _unit_box(task)
    return int((box.upper > box.lower).flatten(1).sum(-1).max()) <= FEW


@torch.no_grad()
def scan(task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator) -> None:
    """Directions at ever larger sizes until one succeeds; where few features move, once more: closer, and in many more."""
    coarse_scan(task, found, linear, generator)
    if _any_move(task) and few_move(task):
        reached = torch.minimum(found.radius, _furthest(task, linear))
        _ascend(task, found, _moves(task, 1, generator), reached / BACK, reached, SMALL_GROWTH)


@torch.no_grad()
def coarse_scan(task: Task, found: Found, linear: Float[Tensor, "batch rows"], generator: torch.Generator) -> None:
    """The first of these passes."""
    if _any_move(task):
        growth = GROWTH if few_move(task) else GREAT_GROWTH
        _ascend(task, found, _moves(task, 0, generator), NEAREST * linear.amin(-1), _furthest(task, linear), growth)


def _any_move(task: Task) -> bool:
    """Whether anything moves that rounding does not hide."""
    box = _unit_box(task)
    return bool((box.upper > box.lower).any())


def _furthest(task: Task, linear: Tensor) -> Tensor:
    return torch.minimum(FAR * linear.amin(-1), task.allowed.greatest)


def _ascend(
    task: Task, found: Found, moves: Float[Tensor, "batch moves frames features"], first: Tensor, last: Tensor, growth: float
) -> None:
    """All moves at every size from `first` to `last`, until one succeeds."""
    size = torch.minimum(first, last)
    active = (last > 0).nonzero().squeeze(1)
    still = [frozenset(row.nonzero().squeeze(1).tolist()) for row in ~task.allowed.moves.expand(len(task), -1).cpu()]
    while len(active):
        _try(task, found, active, moves[active], size[active], still)
        ended = (found.radius <= size) | (size >= last)
        size = torch.minimum(growth * size, last)
        active = active[~ended[active]]


def _try(
    task: Task,
    found: Found,
    active: Tensor,
    moves: Float[Tensor, "active moves frames features"],
    size: Tensor,
    still: Sequence[frozenset[int]],
) -> None:
    """Every move at one size; of those that succeed, the lowest are pulled in and offered."""
    count = moves.shape[1]
    sample = active.repeat_interleave(count)
    allowed = task.allowed.select(sample).at(size.repeat_interleave(count))
    points = allowed.nearest(allowed.center + allowed.eps[:, None, None] * moves.flatten(0, 1))
    if few_move(task):  # so many moves that each sample is worth a pass of its own, in which frames that are still count once
        each = zip(active.tolist(), sample.split(count), points.split(count), strict=True)
        margins = [lowest_margin(task.select(some), part, still[number]) for number, some, part in each]
    else:
        margins = [
            lowest_margin(task.select(some), part) for some, part in zip(sample.split(ROWS), points.split(ROWS), strict=True)
        ]
    margin = torch.cat(margins).unflatten(0, (-1, count))
    lowest, chosen = margin.topk(min(KEPT, count), largest=False)
    for rank in range(lowest.shape[1]):
        hit = (lowest[:, rank] < 0).nonzero().squeeze(1)
        if not len(hit):
            break
        part, reached = task.select(active[hit]), points.unflatten(0, (-1, count))[hit, chosen[hit, rank]]
        pulled = pull_in(part, reached)
        found.offer(task, active[hit], pulled, lowest_margin(part, pulled) < 0)


def _unit_box(task: Task) -> Interval:
    """How far every feature may go at size 1."""
    return task.allowed.at(torch.ones_like(task.allowed.eps)).box()


def _moves(task: Task, turn: int, generator: torch.Generator) -> Float[Tensor, "batch moves frames features"]:
    """Moves of size 1 in the directions of a pass: in units of how far each feature may go."""
    center, box = task.allowed.center, _unit_box(task)
    moving = (box.upper > box.lower).flatten(1)
    most = int(moving.sum(-1).max())
    directions = _directions(most, turn, generator, center)
    place = moving.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
    moves = torch.zeros(len(center), len(directions), moving.shape[1], dtype=center.dtype, device=center.device)
    moves.scatter_(2, place.unsqueeze(1).expand(-1, len(directions), -1), directions.expand(len(center), -1, -1))
    reach = torch.where(
        moves.unflatten(2, center.shape[1:]) > 0, (box.upper - center).unsqueeze(1), (center - box.lower).unsqueeze(1)
    )
    moves = moves.unflatten(2, center.shape[1:]) * reach
    sample = torch.arange(len(center), device=center.device).repeat_interleave(len(directions))
    size = task.allowed.select(sample).size_of(center[sample] + moves.flatten(0, 1)).unflatten(0, moves.shape[:2])
    unit: Tensor = moves / torch.where(size > 0, size, 1.0)[..., None, None]
    return unit


def _directions(features: int, turn: int, generator: torch.Generator, like: Tensor) -> Float[Tensor, "directions features"]:
    """Both ways, a circle, or axes, corners and a quasi-random sphere; at random where there are too many features for that."""
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
    if features == 1:
        return torch.tensor([[1.0], [-1.0]], **options)
    if features == 2:
        angle = torch.arange(CIRCLE[turn], **options) * (2 * math.pi / CIRCLE[turn])
        return torch.stack([angle.cos(), angle.sin()], dim=-1)
    if features > FEW:
        drawn = torch.randn(AT_RANDOM, features, generator=generator, **options)
        return torch.cat([drawn, drawn.sign(), _quasi_random(AT_RANDOM, features, like)])
    axes = torch.eye(features, **options)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], **options)] * features)
    return torch.cat([axes, -axes, corners, _quasi_random(SPHERE[turn], features, like)])


def _quasi_random(count: int, features: int, like: Tensor) -> Tensor:
    """Directions spread evenly: multiples of powers of the root of `x^(d+1) = x + 1` (Roberts 2018), as normal numbers."""
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (features + 1))
    powers = root ** -torch.arange(1, features + 1, dtype=like.dtype, device=like.device)
    even = (0.5 + torch.arange(1, count + 1, dtype=like.dtype, device=like.device).unsqueeze(1) * powers).frac()
    return torch.erfinv((2 * even - 1).clamp(-0.999999, 0.999999))
