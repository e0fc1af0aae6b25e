"""The activations in exact arithmetic, for arguments of any size, and where boxes of them may lie."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import torch
from torch import Tensor

from boxes import LIMIT
from popqorn.relax import activations
from popqorn.relax.activations import Activation
from popqorn.relax.relaxation import Interval

mpmath.mp.dps = 60
FAR = 1e5  # beyond, exp and erf are taken at their limits

Place = Callable[[Tensor, float], Tensor]
"""Moves numbers of `[-LIMIT, LIMIT]`, in order, to where a function is defined; `exp` of the second argument is no number."""


@dataclass(frozen=True)
class Exact:
    """An activation, the function that it computes, and where it is defined and finite."""

    activation: Activation
    function: Callable[[Any], Any]
    place: Place = lambda t, reach: t

    def boxes(self, box: Interval, dtype: torch.dtype) -> Interval:
        """Boxes around zero as boxes of the domain."""
        reach = math.log(torch.finfo(dtype).max)
        return Interval(*(self.place(end, reach).to(dtype) for end in (box.lower, box.upper)))


def exp(x: Any) -> Any:
    if abs(x) < FAR:
        return mpmath.exp(x)
    return mpmath.inf if x > 0 else mpmath.mpf(0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + exp(-x))


def softplus(x: Any) -> Any:
    return mpmath.log1p(exp(x)) if x < FAR else x


def erf(x: Any) -> Any:
    return mpmath.erf(x) if abs(x) < FAR else mpmath.sign(x)


def gelu(x: Any) -> Any:
    if abs(x) < FAR:
        return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2
    return x if x > 0 else mpmath.mpf(0)


def tanh_gelu(x: Any) -> Any:
    return x * sigmoid(2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))


def clipped(x: Any) -> Any:
    """`(x + 3) / 6` between 0 and 1."""
    return min(max(x + 3, mpmath.mpf(0)), mpmath.mpf(6)) / 6


def power(exponent: float) -> Exact:
    number = int(exponent) if exponent == round(exponent) else mpmath.mpf(exponent)

    def positive(t: Tensor, reach: float) -> Tensor:
        return torch.exp(t * (0.9 * reach / LIMIT / (1 + abs(exponent))))

    everywhere = exponent > 0 and exponent == round(exponent)
    record = activations.power(exponent)
    return Exact(record, lambda x: x**number, (lambda t, reach: t) if everywhere else positive)


def _apart(t: Tensor, reach: float) -> Tensor:
    """Every other number positive, the others negative."""
    sign = torch.where(torch.arange(len(t)) % 2 == 0, 1.0, -1.0).to(t)
    return sign * torch.exp(sign * t * (0.4 * reach / LIMIT))


EXACT = [
    Exact(activations.TANH, mpmath.tanh),
    Exact(activations.SIGMOID, sigmoid),
    Exact(activations.ARCTAN, mpmath.atan),
    Exact(activations.SOFTSIGN, lambda x: x / (1 + abs(x))),
    Exact(activations.RELU, lambda x: max(x, mpmath.mpf(0))),
    Exact(activations.SILU, lambda x: x * sigmoid(x)),
    Exact(activations.GELU, gelu),
    Exact(activations.TANH_GELU, tanh_gelu),
    Exact(activations.leaky_relu(0.01), lambda x: x if x > 0 else mpmath.mpf(0.01) * x),
    Exact(activations.hardtanh(-0.3, 2.1), lambda x: min(max(x, mpmath.mpf(-0.3)), mpmath.mpf(2.1))),
    Exact(activations.elu(0.7), lambda x: x if x > 0 else mpmath.mpf(0.7) * mpmath.expm1(max(x, -FAR))),
    Exact(activations.softplus(3.0, 60.0), lambda x: softplus(3 * x) / 3),
    Exact(activations.ERF, erf),
    Exact(activations.EXP, exp, lambda t, reach: t * (0.9 * reach / LIMIT)),
    Exact(activations.LOG, mpmath.log, lambda t, reach: torch.exp(t * (0.9 * reach / LIMIT))),
    Exact(activations.SQUARE, lambda x: x * x),
    Exact(activations.ABS, abs),
    Exact(activations.SIN, mpmath.sin),
    Exact(activations.COS, mpmath.cos),
    Exact(activations.MISH, lambda x: x * mpmath.tanh(softplus(x))),
    Exact(activations.HARDSWISH, lambda x: x * clipped(x)),
    Exact(activations.HARDSIGMOID, clipped),
    Exact(activations.NEGATED_RECIPROCAL, lambda x: -1 / x, _apart),
    Exact(activations.negated_share(0.0), lambda x: -1 / max(x, mpmath.mpf(1))),
    Exact(activations.exp_up_to(20.0), lambda x: mpmath.exp(min(x, mpmath.mpf(20)))),
    *map(power, (0.5, -0.5, 1.5, 3.0, 4.0, 5.0, -1.0, -2.0, 3.3, -0.7, 0.1)),
]
