"""Forward interval arithmetic: from the boxes of a node's operands to a box of its value."""

from collections.abc import Callable

import torch

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
    """The value at the middles, give or take what each operand's half width makes of the absolute Jacobian."""
    identity = torch.eye(node.width, dtype=operands[0].lower.dtype, device=operands[0].lower.device).unsqueeze(0)
    constant, jacobians = pull_back(node, identity, [operand.lower.shape[-1] for operand in operands])
    middle, half = constant, torch.zeros_like(constant)
    for operand, jacobian in zip(operands, jacobians, strict=True):
        middle = middle + (operand.lower + operand.upper) / 2 @ jacobian[0].mT
        half = half + (operand.upper - operand.lower) / 2 @ jacobian[0].abs().mT
    return Interval(middle - half, middle + half)


def _affine(node: Affine, *operands: Interval) -> Interval:
    middle, half = node.bias.unsqueeze(0), torch.zeros_like(node.bias).unsqueeze(0)
    for operand, weight in zip(operands, node.weights, strict=True):
        middle = middle + (operand.lower + operand.upper) / 2 @ weight.mT
        half = half + (operand.upper - operand.lower) / 2 @ weight.abs().mT
    return Interval(middle - half, middle + half)


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
