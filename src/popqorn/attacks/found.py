"""What attacks share: the smallest success so far, the slope of a margin, and how a success is checked."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Bool, Float, Int
from popqorn.readers.network import Reading
from popqorn.task import Task

LOWEST = -1  # an aim: whichever margin is the lowest
ROUNDING = 32  # times the model's own unit of rounding: a margin this negative is negative in any order of summation
PUSHES = (0.0, *(1e-9 * 4.0**power for power in range(14)))


@dataclass
class Found:
    """The smallest successful input of every sample so far, and the size of the set that holds it (inf: none)."""

    radius: Float[Tensor, " batch"]
    points: Float[Tensor, "batch frames features"]

    @staticmethod
    def nothing(task: Task) -> "Found":
        center = task.allowed.center
        return Found(center.new_full((len(center),), math.inf), center.clone())

    def offer(self, task: Task, index: Tensor, points: Tensor, success: Bool[Tensor, " batch"]) -> None:
        """Keep the points of samples `index` that succeed and are nearer than what is known."""
        size = task.allowed.select(index).size_of(points)
        better = success & (size < self.radius[index])
        self.radius[index] = torch.where(better, size, self.radius[index])
        self.points[index] = torch.where(better[:, None, None], points, self.points[index])


@torch.no_grad()
def lowest_margin(
    task: Task, points: Float[Tensor, "batch frames features"], equal: frozenset[int] = frozenset()
) -> Float[Tensor, " batch"]:
    return task.values(points, equal).amin(-1)


def slope(
    task: Task, points: Float[Tensor, "batch frames features"], aim: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch frames features"]]:
    """The lowest margin at `points`, and the gradient of the margin aimed at (row `aim`, or the lowest)."""
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        margins = task.values(points)
        aimed = torch.where(aim == LOWEST, margins.amin(-1), margins.gather(1, aim.clamp(min=0).unsqueeze(1)).squeeze(1))
        (gradient,) = torch.autograd.grad(aimed.sum(), points)
    return margins.detach().amin(-1), gradient


def pull_in(task: Task, points: Float[Tensor, "batch frames features"], steps: int = 24) -> Tensor:
    """Bring successful points back along the line to the input, by bisection, as far as they keep succeeding."""
    center, move = task.allowed.center, points - task.allowed.center
    low, high = points.new_zeros(len(points)), points.new_ones(len(points))
    for _ in range(steps):
        middle = (low + high) / 2
        success = lowest_margin(task, center + middle[:, None, None] * move) < 0
        low, high = torch.where(success, low, middle), torch.where(success, middle, high)
    return center + high[:, None, None] * move


def checked(reading: Reading, task: Task, found: Found) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch frames features"]]:
    """Radii and inputs that stand: the model itself, in its own precision, must agree that a margin is negative.

    It must be so by more than rounding, which differs with the size of a batch. Points that end nearer to the boundary are pushed
    over it, ever less gently, inside what is allowed; words cannot be pushed.
    """
    allowed, points = task.allowed, found.points
    stands = torch.zeros_like(found.radius, dtype=torch.bool)
    noise = ROUNDING * torch.finfo(reading.dtype).eps
    for push in PUSHES if allowed.choices is None else (0.0,):
        pushed = points
        if push:
            pushed = allowed.center + (1 + push) * (points - allowed.center)
            pushed = allowed.at(allowed.size_of(pushed)).nearest(pushed)
        outputs = reading.own(pushed).to(task.margins.rows)
        clear = task.margins.of(outputs).amin(-1) < -noise * outputs.abs().amax(-1).clamp(min=1)
        now = ~stands & found.radius.isfinite() & clear & (lowest_margin(task, pushed) < 0)
        points = torch.where(now[:, None, None], pushed, points)
        stands = stands | now
    points = torch.where(stands[:, None, None], points, allowed.center)
    return torch.where(stands, allowed.size_of(points), math.inf), points
