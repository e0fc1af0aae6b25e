"""The margins at the centre and how fast they can fall there: no proof, but the scale on which a search for eps starts."""

import math

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.bounds.concretise import reach
from popqorn.program import Tape
from popqorn.region import Region


def first_order(
    tape: Tape, region: Region, rows: Float[Tensor, "batch rows outputs"]
) -> tuple[Float[Tensor, "batch rows"], Float[Tensor, "batch rows"]]:
    """`rows @ output` at the centre, and the rate at which the region's worst direction lowers it for small eps."""
    batch, count, _ = rows.shape
    with torch.enable_grad():
        inputs = region.center.detach().repeat_interleave(count, dim=0).requires_grad_()
        values = (tape(inputs) * rows.flatten(0, 1)).sum(-1)
        (gradient,) = torch.autograd.grad(values.sum(), inputs)
    gradient = gradient.unflatten(0, (batch, count))
    rate = torch.stack([reach(region, frame, gradient[:, :, frame]) for frame in range(tape.frames)]).sum(0)
    return values.detach().unflatten(0, (batch, count)), rate.expand(batch, -1)


def distances(margins: Float[Tensor, "batch rows"], rates: Float[Tensor, "batch rows"]) -> Float[Tensor, "batch rows"]:
    """The eps at which each margin is used up to first order; inf where its gradient vanishes, 1 where all do."""
    linear = margins / rates
    linear = torch.where(linear > 0, linear, math.inf)
    return torch.where(linear.isinf().all(-1, keepdim=True), 1.0, linear)
