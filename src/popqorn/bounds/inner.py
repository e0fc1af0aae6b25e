"""Boxes and relaxations of all inner nodes, first to last, and the bounds of the output that follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.arithmetic import settled
from popqorn.bounds.errors import Errors
from popqorn.bounds.joint.bounds import Joint
from popqorn.bounds.pieces import Walks
from popqorn.bounds.stations import Plan, plan_of
from popqorn.regions.region import AllowedSet
from popqorn.relax.methods import METHODS, Method
from popqorn.relax.relaxation import Interval, Relaxation
from popqorn.tape.ops.linear import Concat, Gather, Input, Scale, Slice
from popqorn.tape.ops.node import LinearNode, Node, NonlinearNode
from popqorn.tape.tape import Tape


@dataclass(frozen=True)
class Run:
    """The network at the centres of the sets: every node's computed value, and how far the exact one may be from it."""

    values: tuple[Tensor, ...]
    errors: tuple[Tensor, ...]

    def select(self, index: Tensor) -> "Run":
        """The runs of some samples."""
        return Run(tuple(value[index] for value in self.values), tuple(error[index] for error in self.errors))

    @staticmethod
    def joined(parts: "Sequence[Run]") -> "Run":
        """The runs of all blocks."""
        values, errors = zip(*(part.values for part in parts), strict=True), zip(*(part.errors for part in parts), strict=True)
        return Run(tuple(map(torch.cat, values)), tuple(map(torch.cat, errors)))


@dataclass(frozen=True)
class RelaxedTape:
    """What `relax` found, valid for every allowed input: a box for every node, the value of every node that does not move, a
    relaxation for every other nonlinear one; and the errors of walks from every node (`errors.py`), `lost` by underflow.
    """

    tape: Tape
    allowed: AllowedSet
    method: Method
    boxes: tuple[Interval, ...]
    relaxations: Mapping[int, Relaxation]
    known: Mapping[int, Tensor]
    errors: tuple[Tensor, ...]
    lost: Float[Tensor, "#batch"]
    chunk_rows: int | None = None
    joint: Joint | None = None

    def lower(self, rows: Float[Tensor, "#batch rows outputs"]) -> Float[Tensor, "batch rows"]:
        """A lower bound of `rows @ output`: the best of a walk to the inputs and of one that ends at the last boxes."""
        with torch.inference_mode():
            bound = self._walked(rows, self.boxes)
            if self.method.walk_back:
                bound = torch.maximum(bound, self._walked(rows, None))
            if self.joint is not None:
                bound = torch.fmax(bound, self.joint.lower(rows, self.relaxations, self.known))
            error = self.errors[-1] + Errors(self.tape, bound.dtype).of_value(self.boxes[-1])
            bound = bound - (rows.abs() @ error.unsqueeze(-1)).squeeze(-1) - self.lost.unsqueeze(-1)
        return bound.clone()  # an ordinary tensor again

    def _walked(self, rows: Tensor, boxes: tuple[Interval, ...] | None) -> Tensor:
        last = len(self.tape.nodes) - 1

        def some(samples: slice, piece: slice) -> Tensor:
            return rows[:, piece] if rows.shape[0] == 1 else rows[samples, piece]

        walks = Walks(self.tape, self.allowed, self.relaxations, self.known, Plan(self.tape), self.chunk_rows)
        return walks.lower(last, rows.shape[1], some, boxes)


@torch.inference_mode()  # thousands of small operations: a tenth of their time is autograd's bookkeeping
def relax(
    tape: Tape,
    allowed: AllowedSet,
    method: Method,
    chunk_rows: int | None = None,
    center: Run | None = None,
    wide: float = 0.0,
    joint: Joint | None = None,
    plan: Plan | None = None,
) -> RelaxedTape:
    """Bound and relax the tape node by node, first to last.

    What depends on still frames alone is evaluated, or taken from the run at the `center` (whose errors are smaller than those
    of intervals, frame after frame). Every other nonlinearity needs boxes of its operands first: those come from interval
    arithmetic, intersected (if the method walks back) with the bounds of a backward walk through everything relaxed so far;
    no walk is made for boxes that are at most `wide`. Walks of long tapes end at the stations of a `plan`, the tape's own if none
    is given. A `joint` one takes part in all of it; a proving one, if the method says so and none is given.
    """
    if method.joint and joint is None:
        joint = Joint.around(tape, allowed, prove=True, memory={}, effort=method.effort)
    plan = (plan or plan_of(tape)) if method.walk_back and joint is None else Plan(tape)
    wanted = operands_to_bound(tape) | plan.stations if method.walk_back else frozenset()
    frames = allowed.box()
    rounding = Errors(tape, allowed.center.dtype, len(plan.stations), tape.most_multiplied if plan.stations else 0)
    boxes: list[Interval] = []
    errors: list[Tensor] = []
    relaxations: dict[int, Relaxation] = {}
    known: dict[int, Tensor] = {}
    lost = allowed.eps.new_zeros(1)
    walks = Walks(tape, allowed, relaxations, known, plan, chunk_rows)
    for index, node in enumerate(tape.nodes):
        operands, carried = [boxes[source] for source in node.sources], [errors[source] for source in node.sources]
        if _is_known(node, known, allowed):
            known[index], error = _evaluated(rounding, node, operands, carried, allowed, center, index)
            box = Interval(known[index], known[index])
        elif isinstance(node, Input):
            box = Interval(frames.lower[:, node.frame], frames.upper[:, node.frame])
            error = rounding.of_input(box)
            box = box.widened(error)
        elif isinstance(node, LinearNode):
            error = rounding.of(node, operands, carried)
            box = node.image(*operands).widened(error)
        else:
            assert isinstance(node, NonlinearNode)
            box = node.image(*operands)
            relaxation = method.relax(node, *operands)
            still = [source in known for source in node.sources]
            outwards, outside = rounding.of_relaxation(node, relaxation, operands, carried, still)
            if plan.stations:  # slopes meet weights before they meet rows, and what is then too small meets all of these
                outwards = outwards + lost.unsqueeze(-1)
            relaxations[index] = relaxation.widened(outwards)
            box = box.widened(outside)
            if joint is not None:
                widen = partial(_widened, rounding, node, operands, carried, still)
                joint.relaxed(index, node, operands, relaxations[index], widen, outside)
            error = rounding.of_value(box)
        lost = lost + rounding.underflow(box)
        if joint is not None and index in known:
            joint.stands(index, known[index], error)
        elif joint is not None:
            joint.follow(index, box)
        narrow = wide and index not in plan.stations and bool((box.upper - box.lower).max() <= wide)
        if index in wanted and index not in known and not narrow:
            box, more, underflow = _narrowed(box, index, error + lost.unsqueeze(-1), walks, rounding, joint)
            error, lost = error + more, lost + underflow
        boxes.append(box)
        errors.append(error)
    return RelaxedTape(tape, allowed, method, tuple(boxes), relaxations, known, tuple(errors), lost, chunk_rows, joint)


def _narrowed(
    box: Interval, index: int, less: Tensor, walks: Walks, rounding: Errors, joint: Joint | None
) -> tuple[Interval, Tensor, Tensor]:
    """What walks leave of a node's box, and what others lose that end there: per entry, and by underflow."""
    nothing = torch.zeros_like(less[..., :1])
    if joint is not None:
        box = box.intersect(joint.walked_box(index, walks.relaxations, walks.known, less))
        joint.narrowed(index, box)
        return box, nothing, nothing[:, 0]
    box = box.intersect(walks.box(index, less))
    if index not in walks.stations:
        return box, nothing, nothing[:, 0]
    return box, *rounding.of_station(walks.stations[index], walks.allowed.box())


def _widened(
    rounding: Errors,
    node: NonlinearNode,
    operands: Sequence[Interval],
    carried: Sequence[Tensor],
    still: Sequence[bool],
    relaxation: Relaxation,
) -> Relaxation:
    return relaxation.widened(rounding.of_relaxation(node, relaxation, operands, carried, still)[0])


@torch.no_grad()
def run(tape: Tape, allowed: AllowedSet, chunk_rows: int | None = None) -> Run:
    """The network at the centres, with proven errors: those of a set without any size."""
    alone = replace(allowed, eps=torch.zeros_like(allowed.eps), still=frozenset())
    wide = settled(alone.center.dtype, long=bool(plan_of(tape).stations))
    relaxed = relax(tape, alone, METHODS["planes"], chunk_rows, wide=wide)
    values = tuple(value.expand(len(allowed.center), -1) for value in tape.values(allowed.center))
    errors = []
    for index, (box, value) in enumerate(zip(relaxed.boxes, values, strict=True)):
        error = torch.maximum(box.upper - value, value - box.lower)
        if index in relaxed.known:  # what follows from constants alone has no box around its value
            error = error + relaxed.errors[index]
        errors.append(error.expand_as(value))
    return Run(values, tuple(errors))


def _evaluated(
    rounding: Errors,
    node: Node,
    operands: Sequence[Interval],
    carried: Sequence[Tensor],
    allowed: AllowedSet,
    center: Run | None,
    index: int,
) -> tuple[Tensor, Tensor]:
    """The value of a node that does not move, and its error: that of its own evaluation, and of multiplying rows by it."""
    if isinstance(node, Input):
        value = allowed.center[:, node.frame]
        return value, rounding.of_input(Interval(value, value))
    if center is not None:
        value, error = center.values[index], center.errors[index]
    else:
        value = node.evaluate(*(operand.lower for operand in operands))
        error = torch.zeros_like(value)
        if operands:
            around = node.image(*(operand.widened(error) for operand, error in zip(operands, carried, strict=True)))
            error = torch.maximum(around.upper - value, value - around.lower)
        if operands and isinstance(node, LinearNode):
            error = error + rounding.of(node, operands, carried)
    return value, error + rounding.of_value(Interval(value, value))


def _is_known(node: Node, known: Mapping[int, Tensor], allowed: AllowedSet) -> bool:
    if isinstance(node, Input):
        return node.frame in allowed.still
    return all(source in known for source in node.sources)


def operands_to_bound(tape: Tape) -> frozenset[int]:
    """The nodes whose boxes decide a relaxation; the box of a choice of entries or a multiple follows from that of the whole."""
    wanted = set()
    for node in tape.nodes:
        if not node.linear:
            waiting = list(node.sources)
            while waiting:
                source = waiting.pop()
                if isinstance(tape.nodes[source], Slice | Gather | Concat | Scale):
                    waiting.extend(tape.nodes[source].sources)
                elif tape.nodes[source].sources:
                    wanted.add(source)
    return frozenset(wanted)
