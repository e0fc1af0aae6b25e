"""From linear forms to numbers: norms, and what linear forms do over a region."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.region import Region
from popqorn.relax.relaxation import Box


def reach(region: Region, frame: int, coefficients: Float[Tensor, "#batch rows features"]) -> Float[Tensor, "#batch rows"]:
    """How far `coefficients @ x_frame` moves per unit of eps: the dual norm `||A share||_q` (Hoelder, attained)."""
    share = region.share[:, frame].unsqueeze(-2)
    if share.shape[-1] == 1:  # one share for the whole frame comes out of the norm: a pass over the coefficients less
        return length(coefficients, region.dual_norm) * share.squeeze(-1)
    return length(coefficients * share, region.dual_norm)


def length(vectors: Float[Tensor, "*shape features"], order: float) -> Float[Tensor, "*shape"]:
    """The l_order norm along the last axis."""
    norm: Tensor
    if order in (1.0, 2.0, math.inf):
        norm = torch.linalg.vector_norm(vectors, ord=order, dim=-1)
        return norm
    # |x|^q underflows for large q, which would make the norm, and with it the adversary, vanish: scale by the largest entry.
    largest = vectors.abs().amax(-1, keepdim=True)
    scaled = vectors / largest.clamp(min=torch.finfo(vectors.dtype).tiny)
    norm = largest.squeeze(-1) * torch.linalg.vector_norm(scaled, ord=order, dim=-1)
    return norm


@dataclass(frozen=True)
class Moving:
    """The frames of a region as a backward walk sees them."""

    region: Region

    def center(self, frame: int) -> Float[Tensor, "batch features"]:
        return self.region.center[:, frame]

    def reach(self, frame: int, coefficients: Float[Tensor, "#batch rows features"]) -> Float[Tensor, "batch rows"]:
        """The most by which `coefficients @ x_frame` falls below its value at the centre: `eps ||A share||_q`."""
        return self.region.eps.unsqueeze(-1) * reach(self.region, frame, coefficients)


def frame_box(region: Region, frame: int) -> Box:
    """The smallest box around frame `frame`; no feature moves further than `eps` times its share, whatever the norm."""
    center = region.center[:, frame]
    widest = region.eps.unsqueeze(-1) * region.share[:, frame]
    return Box(center - widest, center + widest)
