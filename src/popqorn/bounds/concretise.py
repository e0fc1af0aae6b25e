"""From linear forms to numbers. Only this file knows norms."""

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.region import Region
from popqorn.relax.relaxation import Box


def reach(region: Region, frame: int, coefficients: Float[Tensor, "#batch rows features"]) -> Float[Tensor, "#batch rows"]:
    """How far `coefficients @ x_frame` moves per unit of eps: the dual norm `||A share||_q` (Hoelder, attained)."""
    share = region.share[:, frame].unsqueeze(-2)
    if share.shape[-1] == 1:  # one share for the whole frame comes out of the norm: a pass over the coefficients less
        return _norm(coefficients, region.dual_norm) * share.squeeze(-1)
    return _norm(coefficients * share, region.dual_norm)


def _norm(coefficients: Tensor, order: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(coefficients, ord=order, dim=-1)
    return norm


def least(region: Region, frame: int, coefficients: Float[Tensor, "#batch rows features"]) -> Float[Tensor, "batch rows"]:
    """The minimum of `coefficients @ x_frame` over the region: `A x0 - eps ||A share||_q`."""
    at_center = (coefficients @ region.center[:, frame].unsqueeze(-1)).squeeze(-1)
    return at_center - region.eps.unsqueeze(-1) * reach(region, frame, coefficients)


def frame_box(region: Region, frame: int) -> Box:
    """The smallest box around frame `frame`; no feature moves further than `eps` times its share, whatever the norm."""
    center = region.center[:, frame]
    widest = region.eps.unsqueeze(-1) * region.share[:, frame]
    return Box(center - widest, center + widest)
