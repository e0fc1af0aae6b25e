"""A tape with every nonlinearity replaced by its relaxation over one region, and the bounds that follow."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.bounds.backward import walk_back
from popqorn.bounds.concretise import Moving, frame_box
from popqorn.bounds.interval import propagate
from popqorn.memory import walk_bytes
from popqorn.program import Input, Node, Scale, Slice, Tape
from popqorn.region import Region
from popqorn.relax.methods import Method
from popqorn.relax.relaxation import Box, Relaxation


@dataclass(frozen=True)
class RelaxedTape:
    """What `relax` found, valid everywhere in `region`: a box for every node, the value of every node that does not move, a
    relaxation for every other nonlinear one.
    """

    tape: Tape
    region: Region
    boxes: tuple[Box, ...]
    relaxations: Mapping[int, Relaxation]
    known: Mapping[int, Tensor]
    chunk_rows: int | None = None

    def least(self, rows: Float[Tensor, "#batch rows outputs"]) -> Float[Tensor, "batch rows"]:
        """A lower bound of `rows @ output` over the region."""
        with torch.inference_mode():
            bound = _least(self.tape, self.region, len(self.tape.nodes) - 1, rows, self.relaxations, self.known, self.chunk_rows)
        return bound.expand(self.region.center.shape[0], -1).clone()  # an ordinary tensor again


@torch.inference_mode()  # thousands of small operations: a tenth of their time is autograd's bookkeeping
def relax(tape: Tape, region: Region, method: Method, chunk_rows: int | None = None) -> RelaxedTape:
    """Bound and relax the tape node by node, first to last.

    What depends on still frames alone is evaluated. Every other nonlinearity needs boxes of its operands first: those come from
    interval arithmetic, intersected (if the method walks back) with the bounds of a backward walk through everything relaxed
    so far.
    """
    wanted = _operands_to_bound(tape, method) if method.walk_back else frozenset()
    boxes: list[Box] = []
    relaxations: dict[int, Relaxation] = {}
    known: dict[int, Tensor] = {}
    for index, node in enumerate(tape.nodes):
        if _is_known(node, known, region):
            operands_known = [known[source] for source in node.sources]
            known[index] = region.center[:, node.frame] if isinstance(node, Input) else node.evaluate(*operands_known)
            boxes.append(Box(known[index], known[index]))
            continue
        operands = [boxes[source] for source in node.sources]
        box = frame_box(region, node.frame) if isinstance(node, Input) else propagate(node, *operands)
        if method.is_nonlinear(node):
            relaxations[index] = method.relax(node, *operands)
        if index in wanted:
            box = box.intersect(_walked_box(tape, region, index, relaxations, known, chunk_rows))
        boxes.append(box)
    return RelaxedTape(tape, region, tuple(boxes), relaxations, known, chunk_rows)


def _is_known(node: Node, known: Mapping[int, Tensor], region: Region) -> bool:
    if isinstance(node, Input):
        return node.frame in region.still
    return all(source in known for source in node.sources)


def _operands_to_bound(tape: Tape, method: Method) -> frozenset[int]:
    """The nodes whose boxes decide a relaxation; a slice or a multiple of a node has the box of that node."""
    wanted = set()
    for node in tape.nodes:
        if method.is_nonlinear(node):
            for source in node.sources:
                while isinstance(tape.nodes[source], Slice | Scale):
                    source = tape.nodes[source].sources[0]
                if tape.nodes[source].sources:
                    wanted.add(source)
    return frozenset(wanted)


def _walked_box(
    tape: Tape,
    region: Region,
    index: int,
    relaxations: Mapping[int, Relaxation],
    known: Mapping[int, Tensor],
    chunk_rows: int | None,
) -> Box:
    size = tape.nodes[index].size
    identity = torch.eye(size, dtype=region.center.dtype, device=region.center.device)
    rows = torch.cat([identity, -identity]).unsqueeze(0)
    bound = _least(tape, region, index, rows, relaxations, known, chunk_rows)
    return Box(bound[:, :size], -bound[:, size:])


def _least(
    tape: Tape,
    region: Region,
    index: int,
    rows: Tensor,
    relaxations: Mapping[int, Relaxation],
    known: Mapping[int, Tensor],
    chunk_rows: int | None,
) -> Tensor:
    """A lower bound of `rows @ node[index]` over the region, at most `chunk_rows` rows (counted over the batch) at a time."""
    limit = chunk_rows or _rows_per_walk(tape, region.center)
    count = rows.shape[1]
    samples_each = max(1, limit // count)
    bounds = []
    for start in range(0, region.center.shape[0], samples_each):
        samples = slice(start, start + samples_each)
        part = region.select(samples)
        some = rows if rows.shape[0] == 1 else rows[samples]
        walked = [
            walk_back(tape, index, piece, relaxations, known, samples, Moving(part))
            for piece in some.split(max(1, limit // part.center.shape[0]), dim=1)
        ]
        bounds.append(torch.cat([bound.expand(part.center.shape[0], -1) for bound in walked], dim=1))
    return torch.cat(bounds)


def _rows_per_walk(tape: Tape, like: Tensor) -> int:
    widest = max(node.size for node in tape.nodes)
    return max(64, walk_bytes(like.device) // (widest * like.element_size()))
