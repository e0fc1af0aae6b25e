"""The geometry of l_p balls along the last axis: norms, nearest points, steepest directions, uniform samples."""

import math

import numpy as np
import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.arithmetic import tiny


def dual(norm: float) -> float:
    """`q` with `1/p + 1/q = 1`."""
    if math.isinf(norm):
        return 1.0
    return math.inf if norm == 1 else norm / (norm - 1)


def length(vectors: Float[Tensor, "*shape features"], order: float) -> Float[Tensor, "*shape"]:
    """The l_order norm along the last axis."""
    norm: Tensor
    if order in (1.0, 2.0, math.inf):
        norm = torch.linalg.vector_norm(vectors, ord=order, dim=-1)
        return norm
    # |x|^q underflows for large q, which would make the norm, and with it the adversary, vanish: scale by the largest entry.
    largest = vectors.abs().amax(-1, keepdim=True).clamp(min=tiny(vectors.dtype))
    scaled = vectors / largest
    norm = largest.squeeze(-1) * torch.linalg.vector_norm(scaled, ord=order, dim=-1)
    return norm


def length_above(vectors: Float[Tensor, "*shape features"], order: float) -> Float[Tensor, "*shape"]:
    """The norm, and what may be lost of it where its entries, or their squares, are too small to be numbers."""
    count, least = vectors.shape[-1], tiny(vectors.dtype)
    return length(vectors, order) + ((4 * count * least) ** 0.5 if order == 2 else 4 * count * least)


def project(points: Float[Tensor, "*shape features"], norm: float, radius: Tensor) -> Float[Tensor, "*shape features"]:
    """The nearest points of the balls of the given radii: exact for p = 1, 2, inf; for other p scaled back to the ball."""
    if math.isinf(norm):
        return points.clamp(-radius.unsqueeze(-1), radius.unsqueeze(-1))
    if norm == 1:
        return _onto_cross_polytope(points, radius)
    beyond = length(points, norm)
    return points * (radius / torch.maximum(beyond, radius).clamp(min=tiny(points.dtype))).unsqueeze(-1)


def _onto_cross_polytope(points: Tensor, radius: Tensor) -> Tensor:
    """Shrink all magnitudes by one threshold, found by sorting, so that they sum to the radius (Duchi et al. 2008)."""
    magnitude = points.abs()
    falling = magnitude.sort(dim=-1, descending=True).values
    count = torch.arange(1, points.shape[-1] + 1, dtype=points.dtype, device=points.device)
    thresholds = (falling.cumsum(-1) - radius.unsqueeze(-1)) / count
    kept = (falling > thresholds).sum(-1, keepdim=True).clamp(min=1)
    threshold = thresholds.gather(-1, kept - 1).clamp(min=0)
    return points.sign() * (magnitude - threshold).clamp(min=0)


def steepest(gradient: Float[Tensor, "*shape features"], norm: float) -> Float[Tensor, "*shape features"]:
    """The point of the unit ball where `gradient @ point` is greatest (Hoelder's equality); 0 where the gradient is."""
    if math.isinf(norm):
        return gradient.sign()
    if norm == 1:
        best = gradient.abs().argmax(-1, keepdim=True)
        return torch.zeros_like(gradient).scatter(-1, best, gradient.gather(-1, best).sign())
    least = tiny(gradient.dtype)
    magnitude = gradient.abs() / gradient.abs().amax(-1, keepdim=True).clamp(min=least)
    point = gradient.sign() * magnitude.pow(1 / (norm - 1))
    return point / length(point, norm).clamp(min=least).unsqueeze(-1)


def sample(shape: tuple[int, ...], norm: float, generator: torch.Generator, like: Tensor, moves: Tensor | None = None) -> Tensor:
    """Points uniform in the unit ball of the entries that move (`moves`, a mask that broadcasts to `shape`; by default all).

    For p < inf: entries `t` of density `exp(-|t|^p)`, divided by `(sum |t|^p + E)^(1/p)`, `E` exponential (Barthe et al. 2005).
    """
    if math.isinf(norm):
        cube = 2 * torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device) - 1
        return cube if moves is None else cube * moves
    t = _entries(shape, norm, generator, like)
    t = t if moves is None else t * moves
    spare = torch.empty(*shape[:-1], 1, dtype=like.dtype, device=like.device).exponential_(generator=generator).pow(1 / norm)
    return t / length(torch.cat([t, spare], dim=-1), norm).unsqueeze(-1)


def _entries(shape: tuple[int, ...], norm: float, generator: torch.Generator, like: Tensor) -> Tensor:
    """Numbers of density proportional to `exp(-|t|^p)`."""
    if norm == 2:
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device) / math.sqrt(2)
    # |t|^p is Gamma(1/p), that is Gamma(1 + 1/p) U^p with U uniform: no power of a small number underflows.
    even = 2 * torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device) - 1
    if norm == 1:
        pair = torch.empty(2, *shape, dtype=like.dtype, device=like.device).exponential_(generator=generator)
        return even * pair.sum(0)
    seed = int(torch.randint(2**31, (1,), generator=generator, device=like.device))
    gamma = torch.from_numpy(np.random.default_rng(seed).standard_gamma(1 + 1 / norm, shape)).to(like)
    return even * gamma.pow(1 / norm)
