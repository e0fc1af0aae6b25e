"""How wide the boxes are that relaxations rest on: what a bound loses is of second order in these.

The gap of a plane over a box of its operands grows with the square of the box's widths, and boxes grow from frame to frame by
these gaps. So the sum of the squared widths of all operands, by interval arithmetic along the tape, says how much a certificate
will lose before any relaxation is fitted; and it has gradients.

A step of training takes these boxes anew, and most of its time is the number of operations, not their size. So both ends of a
box are one tensor `[2, batch, width]`, the lower first.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.linear import Affine, Input, Slice, Sum
from popqorn.tape.ops.node import Node
from popqorn.tape.ops.nonlinear import Gate
from popqorn.tape.tape import Tape

Ends = Float[Tensor, "2 #batch width"]


def squared_widths(tape: Tape, box: Interval) -> Float[Tensor, " batch"]:
    """The sum of the squared widths of all operands of nonlinear nodes, over a box of inputs `[batch, frames, features]`."""
    ends = ends_along(tape, box)
    operands = {source for node in tape.nodes if not node.linear for source in node.sources}
    total = box.lower.new_zeros(len(box.lower))
    for position in sorted(operands):
        lower, upper = ends[position].unbind()
        total = total + (upper - lower).square().sum(-1)
    return total


def ends_along(tape: Tape, box: Interval) -> list[Ends]:
    """The box of every node, by interval arithmetic; with gradients, and not rounded outwards: no proof."""
    inputs = torch.stack([box.lower, box.upper])
    ends: list[Ends] = []
    for node in tape.nodes:
        if isinstance(node, Input):
            ends.append(inputs[:, :, node.frame])
        elif not node.sources:
            ends.append(node.evaluate().expand(2, -1, -1))
        else:
            ends.append(_image(node, [ends[source] for source in node.sources]))
    return ends


def _image(node: Node, operands: Sequence[Ends]) -> Ends:
    """What a node makes of its operands' boxes."""
    if isinstance(node, Affine):
        return _affine(node, operands)
    if isinstance(node, Gate):
        return _gate(node, *operands)
    if isinstance(node, Slice | Sum):
        return node.evaluate(*operands)
    found = node.image(*(Interval(*operand.unbind()) for operand in operands))
    return torch.stack(torch.broadcast_tensors(found.lower, found.upper))


def _affine(node: Affine, operands: Sequence[Ends]) -> Ends:
    """By middle and half width: half as many products as end by end, which a bound would need."""
    middle, half = node.bias, torch.zeros_like(node.bias)
    for operand, weight in zip(operands, node.weights, strict=True):
        lower, upper = operand.unbind()
        middle = middle + (lower + upper) / 2 @ weight.mT
        half = half + (upper - lower) / 2 @ weight.abs().mT
    return torch.stack([middle - half, middle + half])


def _gate(node: Gate, v: Ends, z: Ends) -> Ends:
    """`s(v)` is positive: where the factor's end is negative, the other end of `s(v)` goes with it."""
    opened, factor = torch.sigmoid(-v.flip(0) if node.closing else v), node.kind.factor(z)
    return torch.where(factor >= 0, opened, opened.flip(0)) * factor
