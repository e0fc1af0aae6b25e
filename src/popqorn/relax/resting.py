"""A plane of given slopes, as high as the gate lets it be, and where it rests.

For any slopes `a v + b z + c`, `c = min over the box of f - a v - b z`, lies below the gate. At the point `(v*, z*)` of that
minimum the envelope theorem holds: `dc / d(a, b) = -(v*, z*)`. So slopes can be trained through `c` as if the point stood still.
"""

from dataclasses import dataclass

from torch import Tensor

from popqorn.relax.gates import GateKind
from popqorn.relax.minimum import GateBox, lowest_point, offset
from popqorn.relax.relaxation import Interval, Linear, Relaxation

Slopes = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Resting:
    """A relaxation and, of both sides, the operands where it rests on the gate."""

    relaxation: Relaxation
    below: Slopes
    above: Slopes


def resting(kind: GateKind, v: Interval, z: Interval, lower: Slopes, upper: Slopes) -> Resting:
    """The relaxation of a gate with these slopes; boxes `[batch, width]`, slopes `[batch, rows, width]`."""
    low, low_at = _below(kind, v, z, lower)
    # -f(v, z) = f(v, -z): what lies above is what lies below, mirrored
    high, (high_v, high_z) = _below(kind, v, -z, (-upper[0], upper[1]))
    mirrored = Linear((-high.slopes[0], high.slopes[1]), -high.offset)
    return Resting(Relaxation(low, mirrored), low_at, (high_v, -high_z))


def _below(kind: GateKind, v: Interval, z: Interval, slopes: Slopes) -> tuple[Linear, Slopes]:
    shape = slopes[0].shape
    ends = [end.unsqueeze(1).expand(shape).flatten() for end in (v.lower, v.upper, z.lower, z.upper)]
    box = GateBox.of(kind, Interval(ends[0], ends[1]), Interval(ends[2], ends[3]))
    a, b = (slope.flatten() for slope in slopes)
    lowest = lowest_point(box, a, b)
    at = lowest.v.reshape(shape), lowest.z.reshape(shape)
    return Linear(slopes, offset(box, a, b, lowest.value).reshape(shape)), at
