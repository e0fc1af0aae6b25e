"""The paper's weaker relaxation of a gate (appendix B.1), kept to show what planes are worth."""

import torch
from torch import Tensor

from popqorn.arithmetic import lost, rounding
from popqorn.relax.activations import SIGMOID
from popqorn.relax.gates import GateKind
from popqorn.relax.lines import lines
from popqorn.relax.relaxation import Interval, Linear, Relaxation


def gate_image(kind: GateKind, v: Interval, z: Interval) -> Interval:
    """The least and greatest value of a gate on a box: each sits at an end of `z`, and of `v` by the sign of the factor there."""
    low, high = torch.sigmoid(v.lower), torch.sigmoid(v.upper)
    least, greatest = kind.factor(z.lower), kind.factor(z.upper)
    lower = torch.where(least >= 0, low, high) * least
    upper = torch.where(greatest >= 0, high, low) * greatest
    # a closed gate may be open by less than the least number, and what it multiplies large
    return Interval(lower - rounding(lower) - lost(least), upper + rounding(upper) + lost(greatest))


def gate_lines(kind: GateKind, v: Interval, z: Interval) -> Relaxation:
    """A gate as a line in `v` alone: the other factor sits at its extreme `t`, and `t s(v)` between `t` times lines of `s`."""
    sigmoid = lines(SIGMOID, v)
    lower = _times(kind.factor(z.lower), sigmoid.lower, sigmoid.upper)
    upper = _times(kind.factor(z.upper), sigmoid.upper, sigmoid.lower)
    return Relaxation(
        Linear(lower.slopes, lower.offset - rounding(lower.slopes[0] * v.magnitude, lower.offset)),
        Linear(upper.slopes, upper.offset + rounding(upper.slopes[0] * v.magnitude, upper.offset)),
    )


def _times(t: Tensor, for_positive: Linear, for_negative: Linear) -> Linear:
    """`t` times one line of the sigmoid if `t >= 0`, times the other if not; constant in `z`."""
    slope = torch.where(t >= 0, for_positive.slopes[0], for_negative.slopes[0])
    offset = torch.where(t >= 0, for_positive.offset, for_negative.offset)
    return Linear((t * slope, torch.zeros_like(t)), t * offset)
