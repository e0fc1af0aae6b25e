"""Forward interval arithmetic: one rule per operation, from the boxes of its operands to a box of its value."""

from collections.abc import Callable

import torch

from popqorn.program import Affine, Concat, Constant, Gate, Node, Scale, Slice, Sum, Unary
from popqorn.relax.lines import image
from popqorn.relax.relaxation import Box
from popqorn.relax.weak import gate_image


def propagate(node: Node, *operands: Box) -> Box:
    """A box that holds the node's value whenever the operands are in their boxes."""
    return _RULES[type(node)](node, *operands)


def _constant(node: Constant) -> Box:
    value = node.evaluate()
    return Box(value, value)


def _affine(node: Affine, *operands: Box) -> Box:
    middle, reach = node.bias.unsqueeze(0), torch.zeros_like(node.bias).unsqueeze(0)
    for operand, weight in zip(operands, node.weights, strict=True):
        middle = middle + (operand.lower + operand.upper) / 2 @ weight.mT
        reach = reach + (operand.upper - operand.lower) / 2 @ weight.abs().mT
    return Box(middle - reach, middle + reach)


def _scale(node: Scale, operand: Box) -> Box:
    scaled = Box(abs(node.factor) * operand.lower, abs(node.factor) * operand.upper)
    return scaled if node.factor >= 0 else -scaled


def _ends(node: Node, *operands: Box) -> Box:
    """Operations that keep order entry by entry map ends to ends."""
    return Box(node.evaluate(*(operand.lower for operand in operands)), node.evaluate(*(operand.upper for operand in operands)))


_RULES: dict[type, Callable[..., Box]] = {
    Constant: _constant,
    Affine: _affine,
    Scale: _scale,
    Sum: _ends,
    Slice: _ends,
    Concat: _ends,
    Unary: lambda node, box: image(node.activation, box),
    Gate: lambda node, v, z: gate_image(node.kind, -v if node.closing else v, z),
}
