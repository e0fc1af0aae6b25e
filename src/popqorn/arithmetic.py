"""Rounding: how far computed numbers may lie from exact ones. All constants of that kind are in this file.

With `u` the unit roundoff, a sum of `n` products is off by at most `gamma_n = n u / (1 - n u)` times the sum of their
magnitudes, in any order of summation, with or without fused multiply-add (Higham, Accuracy and Stability, 3.1). torch's
elementary functions are off by at most `ELEMENTARY` units in the last place: measured against mpmath over the whole range, with
a margin (`tests/test_arithmetic.py`). Results below the least normal number may be flushed to zero: each operation may be off by
`tiny` besides.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

ELEMENTARY = 4  # units in the last place of tanh, sigmoid, exp, expm1, log, log1p, sqrt, atan, erf, pow, sin, cos
FEW = 16  # operations: what an entry goes through beside the sums, several times over
AGREEMENT = 16  # units in the last place that a model's own outputs may be off by, per frame
NORM = 64  # operations: the powers and the root of an l_p norm, and what regions do with it


def in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """A public function: ordinary tensors, and no automatic casts to less precision, whatever surrounds the call."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
            if not torch.is_autocast_enabled("cuda"):
                return function(*arguments, **options)
            with torch.autocast("cuda", enabled=False):
                return function(*arguments, **options)

    return call


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff: the relative error of one operation."""
    return torch.finfo(dtype).eps / 2


def gamma(count: int, dtype: torch.dtype) -> float:
    """The relative error of a sum of `count` products; inf where so many prove nothing."""
    share = count * unit(dtype)
    return share / (1 - share) if share < 0.5 else float("inf")


def tiny(dtype: torch.dtype) -> float:
    """The least normal number: what an operation may be off by where its result is smaller."""
    return torch.finfo(dtype).tiny


def large(dtype: torch.dtype) -> float:
    """Beyond this, products may overflow."""
    return float(torch.finfo(dtype).max ** 0.5)


def narrow(dtype: torch.dtype) -> float:
    """The width below which a chord says less of a slope than the derivative: its rounding is of the order of the curvature."""
    return float(torch.finfo(dtype).eps ** 0.5)


def settled(dtype: torch.dtype, *, long: bool = False) -> float:
    """The width up to which the box of a value that does not move needs no walk: some digits short of full precision.

    After a long sequence, walks are no more exact than the smaller width: they would be made for every frame, and gain nothing.
    """
    return float(torch.finfo(dtype).eps ** (0.55 if long else 0.7))


def agreement(frames: int, dtype: torch.dtype) -> float:
    """How far outputs that a model computes in its own `dtype` may be from those of its tape, relative to the largest of them.

    More than rounding does to trained networks, less than what matters: a hook, a layer left out.
    """
    return min(0.1, max(1e-9, AGREEMENT * (frames + 4) * torch.finfo(dtype).eps))


def rounding(*terms: Tensor) -> Tensor:
    """More than the rounding error of evaluating a sum of these terms, each a few elementary functions deep."""
    total = terms[0].abs()
    for term in terms[1:]:
        total = total + term.abs()
    return 4 * ELEMENTARY * unit(total.dtype) * total + FEW * tiny(total.dtype)


def lost(factor: Tensor) -> Tensor:
    """What a factor makes of a number that was too small to be one."""
    return FEW * tiny(factor.dtype) * factor.abs()


def sum_below(terms: Sequence[Tensor]) -> Tensor:
    """A lower bound of the exact sum of the terms."""
    total, size = terms[0], terms[0].abs()
    for term in terms[1:]:
        total, size = total + term, size + term.abs()
    return total - gamma(len(terms) + FEW, total.dtype) * size
