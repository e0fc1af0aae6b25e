"""Boxes and relaxations of all inner nodes, first to last, and the bounds of the output that follow."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.bounds.boxes import propagate
from popqorn.bounds.chunks import walk_pieces
from popqorn.bounds.walk import walk_back
from popqorn.regions.region import AllowedSet
from popqorn.relax.methods import Method
from popqorn.relax.relaxation import Interval, Relaxation
from popqorn.tape.ops import Input, Node, Scale, Slice
from popqorn.tape.tape import Tape


@dataclass(frozen=True)
class RelaxedTape:
    """What `relax` found, valid for every allowed input: a box for every node, the value of every node that does not move, a
    relaxation for every other nonlinear one.
    """

    tape: Tape
    allowed: AllowedSet
    method: Method
    boxes: tuple[Interval, ...]
    relaxations: Mapping[int, Relaxation]
    known: Mapping[int, Tensor]
    chunk_rows: int | None = None

    def lower(self, rows: Float[Tensor, "#batch rows outputs"]) -> Float[Tensor, "batch rows"]:
        """A lower bound of `rows @ output`: the best of a walk to the inputs and of one that ends at the last boxes."""
        with torch.inference_mode():
            bound = self._walked(rows, self.boxes)
            if self.method.walk_back:
                bound = torch.maximum(bound, self._walked(rows, None))
        return bound.clone()  # an ordinary tensor again

    def _walked(self, rows: Tensor, boxes: tuple[Interval, ...] | None) -> Tensor:
        last = len(self.tape.nodes) - 1
        return _walked(self.tape, self.allowed, last, rows, self.relaxations, self.known, self.chunk_rows, boxes)


@torch.inference_mode()  # thousands of small operations: a tenth of their time is autograd's bookkeeping
def relax(tape: Tape, allowed: AllowedSet, method: Method, chunk_rows: int | None = None) -> RelaxedTape:
    """Bound and relax the tape node by node, first to last.

    What depends on still frames alone is evaluated. Every other nonlinearity needs boxes of its operands first: those come from
    interval arithmetic, intersected (if the method walks back) with the bounds of a backward walk through everything relaxed
    so far.
    """
    wanted = operands_to_bound(tape) if method.walk_back else frozenset()
    frames = allowed.box()
    boxes: list[Interval] = []
    relaxations: dict[int, Relaxation] = {}
    known: dict[int, Tensor] = {}
    for index, node in enumerate(tape.nodes):
        if _is_known(node, known, allowed):
            operands_known = [known[source] for source in node.sources]
            known[index] = allowed.center[:, node.frame] if isinstance(node, Input) else node.evaluate(*operands_known)
            boxes.append(Interval(known[index], known[index]))
            continue
        operands = [boxes[source] for source in node.sources]
        if isinstance(node, Input):
            box = Interval(frames.lower[:, node.frame], frames.upper[:, node.frame])
        else:
            box = propagate(node, *operands)
        if not node.linear:
            relaxations[index] = method.relax(node, *operands)
        if index in wanted:
            box = box.intersect(_walked_box(tape, allowed, index, relaxations, known, chunk_rows))
        boxes.append(box)
    return RelaxedTape(tape, allowed, method, tuple(boxes), relaxations, known, chunk_rows)


def _is_known(node: Node, known: Mapping[int, Tensor], allowed: AllowedSet) -> bool:
    if isinstance(node, Input):
        return node.frame in allowed.still
    return all(source in known for source in node.sources)


def operands_to_bound(tape: Tape) -> frozenset[int]:
    """The nodes whose boxes decide a relaxation; the box of a slice or a multiple follows from that of the whole."""
    wanted = set()
    for node in tape.nodes:
        if not node.linear:
            for source in node.sources:
                while isinstance(tape.nodes[source], Slice | Scale):
                    source = tape.nodes[source].sources[0]
                if tape.nodes[source].sources:
                    wanted.add(source)
    return frozenset(wanted)


def _walked_box(
    tape: Tape,
    allowed: AllowedSet,
    index: int,
    relaxations: Mapping[int, Relaxation],
    known: Mapping[int, Tensor],
    chunk_rows: int | None,
) -> Interval:
    width = tape.nodes[index].width
    identity = torch.eye(width, dtype=allowed.center.dtype, device=allowed.center.device)
    rows = torch.cat([identity, -identity]).unsqueeze(0)
    bound = _walked(tape, allowed, index, rows, relaxations, known, chunk_rows)
    return Interval(bound[:, :width], -bound[:, width:])


def _walked(
    tape: Tape,
    allowed: AllowedSet,
    index: int,
    rows: Tensor,
    relaxations: Mapping[int, Relaxation],
    known: Mapping[int, Tensor],
    chunk_rows: int | None,
    boxes: tuple[Interval, ...] | None = None,
) -> Tensor:
    """A lower bound of `rows @ node[index]` for every allowed input, in as many pieces as the chunks say."""
    bounds = []
    for samples, pieces in walk_pieces(tape, len(allowed.center), rows.shape[1], chunk_rows, allowed.center):
        own = allowed.select(samples)
        some = rows if rows.shape[0] == 1 else rows[samples]
        walked = [walk_back(tape, index, some[:, piece], relaxations, known, samples, own, boxes) for piece in pieces]
        bounds.append(torch.cat([bound.expand(len(own.center), -1) for bound in walked], dim=1))
    return torch.cat(bounds)
