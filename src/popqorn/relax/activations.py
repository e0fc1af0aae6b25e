"""Unary functions of a network, each with the one fact about its shape from which sound lines follow.

A new activation is one record. Four shapes cover what occurs in practice:

- `Sigmoidal`: nondecreasing, convex up to a knot and concave after it (tanh; a convex function has its knot at +inf);
- `Convex`, falling up to a point and rising after it (the square, exp; a `Concave` one is its mirror image);
- `PiecewiseLinear`: linear between given kinks (ReLU, hardtanh);
- `Smooth`: anything whose second derivative can be bounded on an interval (SiLU, GELU, your own).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sigmoidal:
    """Nondecreasing; convex on `(-inf, knot]`, concave on `[knot, inf)`. `derivative` may be any subgradient at a kink.

    `touch(u)`, if known, is where the line through `(u, f(u))`, `u > knot`, touches the convex part; without it that point is
    bracketed, which takes longer. It is for functions symmetric about their knot.
    """

    derivative: Function
    knot: float
    touch: Function | None = None


@dataclass(frozen=True)
class Convex:
    """Convex; nonincreasing up to `lowest` and nondecreasing after it. `derivative` may be any subgradient at a kink."""

    derivative: Function
    lowest: float


@dataclass(frozen=True)
class Concave:
    """Concave; nondecreasing up to `highest` and nonincreasing after it."""

    derivative: Function
    highest: float


@dataclass(frozen=True)
class PiecewiseLinear:
    """Continuous, and linear between neighbouring `kinks`."""

    kinks: tuple[float, ...]


@dataclass(frozen=True)
class Smooth:
    """`curvature(lower, upper)` is at least `|f''|` everywhere on `[lower, upper]`, elementwise.

    Kinks are allowed: one where the slope jumps by `j` counts as `2 j / (upper - lower)`.
    """

    curvature: Callable[[Tensor, Tensor], Tensor]


Shape = Sigmoidal | Convex | Concave | PiecewiseLinear | Smooth


@dataclass(frozen=True)
class Activation:
    """A unary function, what is known of its shape, and `slack`: how far `function` as computed may lie from that shape.

    A function that is not defined everywhere says on which intervals it is: nothing is proven over others.

    >>> square = Activation("square", torch.square, Convex(lambda x: 2 * x, lowest=0.0))
    """

    name: str
    function: Function
    shape: Shape
    slack: float = 0.0
    defined: Callable[[Tensor, Tensor], Tensor] | None = None


def tanh_touch(upper: Tensor) -> Tensor:
    """`d < 0` whose tangent to tanh passes through `(upper, tanh upper)`; 0 where `upper <= 0`.

    Two Newton steps from a start that is never further off than 0.1 % (four constants, fitted).
    """
    right = upper.clamp(min=0)
    near = right.clamp(max=1e8)  # beyond, the quotient is constant; its square must not overflow
    bent = (1 + near * (0.67844 + 0.41145 * near)) / (1 + near * (0.18868 + 0.20295 * near))
    touch = torch.log1p(right * bent) / -2
    target = torch.tanh(right)
    for _ in range(2):
        value = torch.tanh(touch)
        slope = 1 - value.square()
        rise = -2 * value * slope * (right - touch)
        step = (value + slope * (right - touch) - target) / rise.masked_fill(rise <= 0, math.inf)
        touch = torch.minimum(torch.maximum(touch - step, -right / 2), -torch.zeros_like(touch))
    return touch


def _sech_squared(x: Tensor) -> Tensor:
    return 1 - torch.tanh(x).square()


def _logistic_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)


def _distance_to_zero(lower: Tensor, upper: Tensor) -> Tensor:
    """The least `|x|` on `[lower, upper]`."""
    return torch.maximum(lower, -upper).clamp(min=0)


def _silu_curvature(lower: Tensor, upper: Tensor) -> Tensor:
    # f'' = s(1-s)(2 + x(1-2s)): at most 1/2 (at 0), and at most (2+|x|)exp(-|x|), which falls with |x|.
    x = _distance_to_zero(lower, upper)
    return ((2 + x) * torch.exp(-x)).clamp(max=0.5)


def _gelu_curvature(lower: Tensor, upper: Tensor) -> Tensor:
    # f'' = phi(x)(2 - x^2), at most phi(x)(2 + x^2), whose derivative -x^3 phi(x) is negative for x > 0.
    x = _distance_to_zero(lower, upper)
    return (2 + x.square()) * torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


def _tanh_gelu_curvature(lower: Tensor, upper: Tensor) -> Tensor:
    # f = x(1 + tanh p)/2 with p = k(x + c x^3): |f''| <= sech(p)^2 (p' + x p''/2 + x p'^2) and sech(p)^2 <= 4 exp(-2p).
    # That bound falls for x >= 3 (5/x < 2p'); below 3, |f''| < 1 (its maximum is f''(0) = 0.798).
    k, c = math.sqrt(2 / math.pi), 0.044715
    x = _distance_to_zero(lower, upper)
    first, second = k * (1 + 3 * c * x.square()), 6 * k * c * x
    tail = 4 * torch.exp(-2 * k * (x + c * x**3)) * (first + x * second / 2 + x * first.square())
    return torch.where(x < 3, torch.ones_like(x), tail)


def _mish_curvature(lower: Tensor, upper: Tensor) -> Tensor:
    # |f''| is at most 0.64 (at 0) and, measured with a tenth to spare, at most 1.1 (2 + |x|) exp(-|x|), which falls with |x|.
    x = _distance_to_zero(lower, upper)
    return (1.1 * (2 + x) * torch.exp(-x)).clamp(max=0.7)


def _hardswish_curvature(lower: Tensor, upper: Tensor) -> Tensor:
    # x (x + 3) / 6 on [-3, 3]: f'' = 1/3 there, and the slope jumps by 1/2 at both ends.
    inside = ((lower < 3) & (upper > -3)).to(lower.dtype) / 3
    kinks = sum(((lower <= kink) & (upper >= kink)).to(lower.dtype) for kink in (-3.0, 3.0))
    width = upper - lower
    return inside + kinks / torch.where(width > 0, width, 1.0)


def _positive(lower: Tensor, upper: Tensor) -> Tensor:
    return lower > 0


TANH = Activation("tanh", torch.tanh, Sigmoidal(_sech_squared, 0.0, tanh_touch))
SIGMOID = Activation("sigmoid", torch.sigmoid, Sigmoidal(_logistic_slope, 0.0, lambda x: 2 * tanh_touch(x / 2)))
ARCTAN = Activation("arctan", torch.atan, Sigmoidal(lambda x: 1 / (1 + x.square()), 0.0))
SOFTSIGN = Activation("softsign", torch.nn.functional.softsign, Sigmoidal(lambda x: (1 + x.abs()).pow(-2), 0.0))
RELU = Activation("relu", torch.relu, PiecewiseLinear((0.0,)))
IDENTITY = Activation("identity", lambda x: x, PiecewiseLinear(()))
SILU = Activation("silu", torch.nn.functional.silu, Smooth(_silu_curvature))
GELU = Activation("gelu", torch.nn.functional.gelu, Smooth(_gelu_curvature))
ERF = Activation("erf", torch.erf, Sigmoidal(lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x.square()), 0.0))
EXP = Activation("exp", torch.exp, Convex(torch.exp, -math.inf))
LOG = Activation("log", torch.log, Concave(torch.reciprocal, math.inf), defined=_positive)
SQUARE = Activation("square", torch.square, Convex(lambda x: 2 * x, 0.0))
ABS = Activation("abs", torch.abs, PiecewiseLinear((0.0,)))
SIN = Activation("sin", torch.sin, Smooth(lambda lower, upper: torch.ones_like(lower)))
COS = Activation("cos", torch.cos, Smooth(lambda lower, upper: torch.ones_like(lower)))
MISH = Activation("mish", torch.nn.functional.mish, Smooth(_mish_curvature))
HARDSWISH = Activation("hardswish", torch.nn.functional.hardswish, Smooth(_hardswish_curvature))
HARDSIGMOID = Activation("hardsigmoid", torch.nn.functional.hardsigmoid, PiecewiseLinear((-3.0, 3.0)))
NEGATED_RECIPROCAL = Activation(
    "-1/x",
    lambda x: -torch.reciprocal(x),
    Sigmoidal(lambda x: 1 / x.square(), 0.0),
    defined=lambda lower, upper: (lower > 0) | (upper < 0),
)
TANH_GELU = Activation("gelu(tanh)", lambda x: torch.nn.functional.gelu(x, approximate="tanh"), Smooth(_tanh_gelu_curvature))


def exp_up_to(most: float) -> Activation:
    """`exp(x)`, but `exp(most)` for all larger `x`: a number that still can be computed with."""
    return Activation(
        f"exp up to {most:g}",
        lambda x: torch.exp(x.clamp(max=most)),
        Sigmoidal(lambda x: torch.where(x > most, 0.0, torch.exp(x.clamp(max=most))), most),
    )


def negated_share(slack: float) -> Activation:
    """`-1 / x` of an `x` that is never below 1, whatever its box says."""
    return Activation(
        "-1/max(x,1)",
        lambda x: -torch.reciprocal(x.clamp(min=1.0)),
        Sigmoidal(lambda x: torch.where(x < 1, 0.0, 1 / x.clamp(min=1.0).square()), 1.0),
        slack=slack,
    )


def leaky_relu(negative_slope: float) -> Activation:
    """`x` for `x > 0`, else `negative_slope * x`."""
    return Activation(
        f"leaky_relu({negative_slope:g})",
        lambda x: torch.nn.functional.leaky_relu(x, negative_slope),
        PiecewiseLinear((0.0,)),
    )


def hardtanh(low: float = -1.0, high: float = 1.0) -> Activation:
    """`x` clipped to `[low, high]`."""
    return Activation(f"hardtanh({low:g},{high:g})", lambda x: x.clamp(low, high), PiecewiseLinear((low, high)))


def elu(alpha: float) -> Activation:
    """`x` for `x > 0`, else `alpha * (exp(x) - 1)`; convex as a whole if `alpha <= 1`, else only up to 0."""
    if alpha < 0:
        raise ValueError(f"alpha of ELU is {alpha:g}; only alpha >= 0 is nondecreasing, which the bounds rely on")
    return Activation(
        f"elu({alpha:g})",
        lambda x: torch.nn.functional.elu(x, alpha),
        Sigmoidal(lambda x: torch.where(x > 0, 1.0, alpha * torch.exp(x.clamp(max=0))), math.inf if alpha <= 1 else 0.0),
    )


def softplus(beta: float = 1.0, threshold: float = 20.0) -> Activation:
    """`log(1 + exp(beta x)) / beta`. torch returns `x` itself above `threshold / beta`: a small jump, covered by `slack`.

    So is what rounding `beta x` makes of an exp that is tiny: more than a few units in its last place, but less than exp(-28).
    """
    if beta <= 0:
        raise ValueError(f"beta of Softplus is {beta:g}; it must be positive")
    return Activation(
        f"softplus({beta:g})",
        lambda x: torch.nn.functional.softplus(x, beta, threshold),
        Sigmoidal(lambda x: torch.sigmoid(beta * x), math.inf),
        slack=math.log1p(math.exp(-min(threshold, 28.0))) / beta,
    )


def power(exponent: float) -> Activation:
    """`x ** exponent`; where the exponent is no whole number from 0 on, of positive `x` only."""
    name = f"power({exponent:g})"

    # In double precision: torch rounds an exponent to the dtype of `x`, and powers of large numbers feel it.
    def function(x: Tensor) -> Tensor:
        return x.double().pow(exponent).to(x.dtype)

    def derivative(x: Tensor) -> Tensor:
        return (exponent * x.double().pow(exponent - 1)).to(x.dtype)

    if exponent == 2:
        return SQUARE
    if exponent in (0, 1):
        return Activation(name, function, PiecewiseLinear(()))
    if exponent > 0 and exponent == round(exponent):
        if exponent % 2 == 0:
            return Activation(name, function, Convex(derivative, 0.0))
        bend = exponent * (exponent - 1)
        return Activation(
            name, function, Smooth(lambda lower, upper: bend * torch.maximum(lower.abs(), upper.abs()).pow(exponent - 2))
        )
    if 0 < exponent < 1:
        return Activation(name, function, Concave(derivative, math.inf), defined=_positive)
    return Activation(name, function, Convex(derivative, -math.inf if exponent > 0 else math.inf), defined=_positive)
