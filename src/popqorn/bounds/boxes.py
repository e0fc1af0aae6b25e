"""Forward interval arithmetic: from the boxes of a node's operands to a box of its value."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from popqorn.relax.lines import image
from popqorn.relax.maximum import maximum_image
from popqorn.relax.relaxation import Interval
from popqorn.relax.weak import gate_image
from popqorn.tape.ops import Affine, Concat, Gate, Maximum, Node, Slice, Sum, Unary, pull_back


def propagate(node: Node, *operands: Interval) -> Interval:
    """A box that holds the node's value whenever the operands are in their boxes."""
    if type(node) not in _RULES and not node.linear:
        raise TypeError(f"{type(node).__name__} is not linear and has no rule for its box; add one to bounds/boxes.py")
    return _RULES.get(type(node), _linear)(node, *operands)


def _linear(node: Node, *operands: Interval) -> Interval:
    """The ends that the signs of the Jacobian ask for."""
    identity = torch.eye(node.width, dtype=operands[0].lower.dtype, device=operands[0].lower.device).unsqueeze(0)
    constant, jacobians = pull_back(node, identity, [operand.lower.shape[-1] for operand in operands])
    return _weighted(constant, [jacobian[0] for jacobian in jacobians], operands)


def _affine(node: Affine, *operands: Interval) -> Interval:
    return _weighted(node.bias.unsqueeze(0), node.weights, operands)


def _weighted(constant: Tensor, weights: Sequence[Tensor], operands: Sequence[Interval]) -> Interval:
    """Each end on its own: a middle and a half width would lose the shorter side of a box beside a much longer one."""
    lower = upper = constant
    for operand, weight in zip(operands, weights, strict=True):
        rising, falling = weight.clamp(min=0).mT, weight.clamp(max=0).mT
        lower = lower + operand.lower @ rising + operand.upper @ falling
        upper = upper + operand.upper @ rising + operand.lower @ falling
    return Interval(lower, upper)


def _ends(node: Node, *operands: Interval) -> Interval:
    """Operations that keep order entry by entry map ends to ends."""
    lower, upper = ([getattr(operand, side) for operand in operands] for side in ("lower", "upper"))
    return Interval(node.evaluate(*lower), node.evaluate(*upper))


_RULES: dict[type, Callable[..., Interval]] = {
    Affine: _affine,
    Sum: _ends,
    Slice: _ends,
    Concat: _ends,
    Unary: lambda node, box: image(node.activation, box),
    Gate: lambda node, v, z: gate_image(node.kind, -v if node.closing else v, z),
    Maximum: lambda node, *boxes: maximum_image(*boxes),
}
