"""The margins at the centre and how far it is to first order until they are gone: no proof, but the scale of every search."""

import math

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.regions.region import AllowedSet
from popqorn.specs.spec import Margins
from popqorn.tape.tape import Tape


def first_order(
    tape: Tape, allowed: AllowedSet, margins: Margins
) -> tuple[Float[Tensor, "batch rows"], Float[Tensor, "batch rows"]]:
    """The margins at the centre, and the size at which each is used up to first order; inf where it never is."""
    batch, count, _ = margins.rows.shape
    with torch.enable_grad():
        inputs = allowed.center.detach().repeat_interleave(count, dim=0).requires_grad_()
        outputs = tape(inputs)
        values = (outputs * margins.rows.flatten(0, 1)).sum(-1)
        (gradient,) = torch.autograd.grad(values.sum(), inputs)
    values = values.detach().unflatten(0, (batch, count)) + margins.offset
    distance = values / allowed.rates(gradient.unflatten(0, (batch, count))).sum(-1)
    return values, torch.where(distance > 0, distance, math.inf)
