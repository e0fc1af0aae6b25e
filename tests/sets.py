"""Allowed sets without a model around them."""

import torch
from torch import Tensor

from popqorn import Ball
from popqorn.regions.region import AllowedSet, Region
from popqorn.sequences import Sequences


def around(inputs: Tensor, eps: float | Tensor, region: Region | None = None) -> AllowedSet:
    """The sets of size `eps` around inputs `[batch, frames, features]`; by default l_2 balls."""
    everyone = torch.arange(len(inputs))
    allowed = (region or Ball(2)).around(Sequences(inputs, everyone, len(inputs), inputs.shape[1]))
    return allowed.at(torch.as_tensor(eps, dtype=inputs.dtype).expand(len(inputs)))
