"""The fan: several planes below (and above) a gate, each highest over another part of its box.

The plane of least volume is the highest at the centre of the box; rows whose worst input lies elsewhere are served better by
others. For **any** slopes `a v + b z + c` with `c = min over the box of f - a v - b z` lies below the gate (`minimum.py`), so
candidates are free: planes of the quarters around four anchors, tangents there, and what lies halfway to the plane of the whole
box. Around each anchor the highest is kept.
"""

import torch
from torch import Tensor

from popqorn.relax.gates import GateKind
from popqorn.relax.minimum import GateBox, gradient, offset
from popqorn.relax.planes import envelope_slopes
from popqorn.relax.relaxation import Interval, Linear, Relaxation

ANCHOR = 0.75  # where planes are to be highest: this far from the centre, both ways
SHARE = 0.6  # of the half widths: how far the part of the box around an anchor reaches
SIDES = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0))


def gate_fan(kind: GateKind, v: Interval, z: Interval, planes: Relaxation) -> list[Relaxation]:
    """Four more relaxations of a gate beside its `planes`, one per anchor."""
    ends = torch.broadcast_tensors(v.lower, v.upper, z.lower, z.upper)
    shape = ends[0].shape
    v_lower, v_upper, z_lower, z_upper = (end.flatten() for end in ends)
    below = _highest(kind, Interval(v_lower, v_upper), Interval(z_lower, z_upper), planes.lower)
    mirrored = Linear((-planes.upper.slopes[0], planes.upper.slopes[1]), -planes.upper.offset)  # f(v, -z) = -f(v, z)
    above = _highest(kind, Interval(v_lower, v_upper), Interval(-z_upper, -z_lower), mirrored)
    found = []
    for (a, b, c), (up_a, up_b, up_c) in zip(below, above, strict=True):
        lower = Linear((a.reshape(shape), b.reshape(shape)), c.reshape(shape))
        upper = Linear((-up_a.reshape(shape), up_b.reshape(shape)), -up_c.reshape(shape))
        found.append(Relaxation(lower, upper))
    return found


def _highest(kind: GateKind, v: Interval, z: Interval, plane: Linear) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Slopes and offsets of planes below the gate, the highest at each anchor among all candidates."""
    box = GateBox.of(kind, v, z)
    middle_v, middle_z = box.center
    half_v, half_z = (v.upper - v.lower) / 2, (z.upper - z.lower) / 2
    whole = tuple(slope.flatten() for slope in plane.slopes)
    candidates = [whole]
    anchors = []
    for side_v, side_z in SIDES:
        at_v, at_z = middle_v + side_v * ANCHOR * half_v, middle_z + side_z * ANCHOR * half_z
        part_v = Interval(torch.maximum(at_v - SHARE * half_v, v.lower), torch.minimum(at_v + SHARE * half_v, v.upper))
        part_z = Interval(torch.maximum(at_z - SHARE * half_z, z.lower), torch.minimum(at_z + SHARE * half_z, z.upper))
        slopes = envelope_slopes(GateBox.of(kind, part_v, part_z), steps=0)[:2]
        for each in (slopes, gradient(kind, at_v, at_z)):
            candidates.append(each)
            candidates.append(tuple((new + old) / 2 for new, old in zip(each, whole, strict=True)))
        anchors.append((at_v, at_z))
    a, b = (torch.stack([each[place] for each in candidates]) for place in range(2))
    c = torch.stack([offset(box, *each) for each in zip(a, b, strict=True)])
    found = []
    for at_v, at_z in anchors:
        height = (a * at_v + b * at_z + c).nan_to_num(nan=-torch.inf)
        best = height.argmax(0, keepdim=True)
        found.append((a.gather(0, best)[0], b.gather(0, best)[0], c.gather(0, best)[0]))
    return found
