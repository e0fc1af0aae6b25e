"""How wide the boxes are that relaxations rest on: what a bound loses is of second order in these.

The gap of a plane over a box of its operands grows with the square of the box's widths, and boxes grow from frame to frame by
these gaps. So the sum of the squared widths of all operands, by interval arithmetic along the tape, says how much a certificate
will lose before any relaxation is fitted; and it has gradients.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.linear import Affine, Input
from popqorn.tape.tape import Tape


def squared_widths(tape: Tape, box: Interval) -> Float[Tensor, " batch"]:
    """The sum of the squared widths of all operands of nonlinear nodes, over a box of inputs `[batch, frames, features]`."""
    boxes = boxes_along(tape, box)
    operands = {source for node in tape.nodes if not node.linear for source in node.sources}
    total = box.lower.new_zeros(len(box.lower))
    for position in sorted(operands):
        total = total + (boxes[position].upper - boxes[position].lower).square().sum(-1)
    return total


def boxes_along(tape: Tape, box: Interval) -> list[Interval]:
    """The box of every node, by interval arithmetic; with gradients, and not rounded outwards: no proof."""
    boxes: list[Interval] = []
    for node in tape.nodes:
        if isinstance(node, Input):
            boxes.append(Interval(box.lower[:, node.frame], box.upper[:, node.frame]))
        elif not node.sources:
            boxes.append(Interval(node.evaluate(), node.evaluate()))
        else:
            sources = [boxes[source] for source in node.sources]
            boxes.append(_affine(node, sources) if isinstance(node, Affine) else node.image(*sources))
    return boxes


def _affine(node: Affine, operands: Sequence[Interval]) -> Interval:
    """By middle and half width: half as many products as end by end, which a bound would need."""
    middle, half = node.bias, torch.zeros_like(node.bias)
    for operand, weight in zip(operands, node.weights, strict=True):
        middle = middle + (operand.lower + operand.upper) / 2 @ weight.mT
        half = half + (operand.upper - operand.lower) / 2 @ weight.abs().mT
    return Interval(middle - half, middle + half)
