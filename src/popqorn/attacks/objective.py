"""What attacks lower: margins as a function of the perturbation, with gradients through the tape.

The tape is plain tensor operations, so gradients need neither training mode nor cuDNN's backward pass. Perturbations `u` are in
units of the region: the input is `center + share * u`, and the region of size eps is `||u_k||_p <= eps` in every frame.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Bool, Float, Int
from popqorn.attacks import balls
from popqorn.bounds.concretise import length
from popqorn.problem import Problem

LEAST = -1  # an aim: whichever margin is the least


@dataclass(frozen=True)
class Objective:
    """The margins `rows @ logits` of every sample; an attack succeeds where one of them is negative."""

    problem: Problem
    rows: Float[Tensor, "batch margins classes"]

    @property
    def center(self) -> Float[Tensor, "batch frames features"]:
        return self.problem.inputs

    @property
    def share(self) -> Float[Tensor, "#batch frames _"]:
        return self.problem.share

    @property
    def norm(self) -> float:
        return self.problem.norm

    def select(self, index: Tensor) -> "Objective":
        """Some of the samples, in any order and any number of times."""
        return Objective(self.problem.select(index), self.rows[index])

    def repeat(self, times: int) -> "Objective":
        """All samples, `times` over."""
        return self.select(torch.arange(len(self.center), device=self.center.device).repeat(times))

    def inputs(self, u: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        return self.center + self.share * u

    def margins(self, u: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch margins"]:
        """Differentiable in `u`."""
        return (self.rows @ self.problem.tape(self.inputs(u)).unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def least(self, u: Float[Tensor, "batch frames features"]) -> Float[Tensor, " batch"]:
        return self.margins(u).amin(-1)

    def slope(
        self, u: Float[Tensor, "batch frames features"], aim: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch frames features"]]:
        """The least margin at `u`, and the gradient of the margin aimed at (row `aim`, or the least)."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            margins = self.margins(u)
            aimed = torch.where(aim == LEAST, margins.amin(-1), margins.gather(1, aim.clamp(min=0).unsqueeze(1)).squeeze(1))
            (gradient,) = torch.autograd.grad(aimed.sum(), u)
        return margins.detach().amin(-1), gradient

    def draw(self, generator: torch.Generator) -> Float[Tensor, "batch frames features"]:
        """A perturbation of size at most 1 for every sample, uniform in every frame's ball; none where nothing moves."""
        return balls.sample(tuple(self.center.shape), self.norm, generator, self.center, self.share > 0)

    def size(self, u: Float[Tensor, "batch frames features"]) -> Float[Tensor, " batch"]:
        """The least eps whose region holds `u`; what cannot move (share 0) does not count."""
        return length(u * (self.share > 0), self.norm).amax(-1)


@dataclass
class Found:
    """The smallest successful perturbation of every sample so far, and its size (inf: none)."""

    radius: Float[Tensor, " batch"]
    u: Float[Tensor, "batch frames features"]

    @staticmethod
    def nothing(objective: Objective) -> "Found":
        center = objective.center
        return Found(center.new_full((len(center),), torch.inf), torch.zeros_like(center))

    def offer(self, objective: Objective, index: Tensor, u: Tensor, success: Bool[Tensor, " batch"]) -> None:
        """Keep the perturbations `u` of samples `index` that succeed and are smaller than what is known."""
        size = objective.select(index).size(u)
        better = success & (size < self.radius[index])
        self.radius[index] = torch.where(better, size, self.radius[index])
        self.u[index] = torch.where(better[:, None, None], u, self.u[index])


def pull_in(objective: Objective, u: Float[Tensor, "batch frames features"], steps: int = 24) -> Tensor:
    """Shorten successful perturbations along the line to the input, by bisection, as far as they keep succeeding."""
    low, high = u.new_zeros(len(u)), u.new_ones(len(u))
    for _ in range(steps):
        middle = (low + high) / 2
        success = objective.least(middle[:, None, None] * u) < 0
        low, high = torch.where(success, low, middle), torch.where(success, middle, high)
    return high[:, None, None] * u
