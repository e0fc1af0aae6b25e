"""FGSM: one gradient at the input, one direction."""

import math

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.attacks.found import Found, lowest_margin, pull_in, slope
from popqorn.task import Task

NEAR = 0.1  # times the first-order radius
FAR = 100.0  # times the first-order radius: further out no attack looks
SIZES = 40


def fgsm(task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator) -> None:
    """Where the gradient at the input points to, at ever larger sizes; the first that succeeds, pulled in."""
    aim, nearest = linear.argmin(-1), linear.amin(-1)
    _, gradient = slope(task, task.allowed.center, aim)
    first, points = torch.full_like(nearest, math.inf), task.allowed.center
    for step in range(SIZES):
        size = torch.minimum(NEAR * (FAR / NEAR) ** (step / (SIZES - 1)) * nearest, task.allowed.greatest)
        reached = task.allowed.at(size).lowest(gradient)
        new = first.isinf() & (lowest_margin(task, reached) < 0)
        first, points = torch.where(new, size, first), torch.where(new[:, None, None], reached, points)
    everyone = torch.arange(len(aim), device=aim.device)
    found.offer(task, everyone, pull_in(task, points), first.isfinite())
