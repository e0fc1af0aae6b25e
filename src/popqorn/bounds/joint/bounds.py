"""Joint bounds of one node after the other: boxes of all operands, and ranges of what is not linear in them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from popqorn.arithmetic import FEW, gamma, sum_below
from popqorn.bounds.ground import Ground
from popqorn.bounds.joint.choice import Choice, Passage, choose
from popqorn.bounds.joint.fan import either, fanned, in_rows, of_row, worst_values
from popqorn.bounds.joint.forms import bent
from popqorn.bounds.joint.greatest import Memory, greatest
from popqorn.bounds.joint.linear import Layout, Linearised
from popqorn.bounds.joint.trained import Rows, Strain, trained
from popqorn.bounds.joint.transfer import Known
from popqorn.bounds.walk import Form, walk_forms
from popqorn.regions.region import AllowedSet
from popqorn.relax.quadratic import Tangent, plane_tangent
from popqorn.relax.relaxation import Interval, Relaxation
from popqorn.tape.ops.node import LinearNode, NonlinearNode
from popqorn.tape.ops.nonlinear import Gate
from popqorn.tape.tape import Tape

INFLATION = (1.6,)  # of boxes, up to which inner rows pass by tangents
FAN_INFLATION = (1.3, 2.2)  # the same where rows choose their planes
LAST_INFLATION = (1.3, 1.6, 2.2)  # the last rows try several
FAN = 2  # the effort from which on rows choose their planes
ROUNDS = 12  # of training, at most
TRAINED = 3  # and from which on the slopes of the last rows are trained


@dataclass
class Joint:
    """What is known so far of every node, around the middle of the allowed set.

    `off[n]` is a range of `e = delta - J d`, what is not linear in a node's displacement. `prove` has eigenvalues proven; without
    it they are estimates in single precision, and so are all bounds. `memory` carries what helps from one call to the next. From
    an `effort` of 2 on, `fans[n]` are several relaxations of a node, of which every row takes its own (`fan.py`); from 3 on, the
    last rows' slopes are trained for some `seconds` (`trained.py`).
    """

    tape: Tape
    allowed: AllowedSet
    prove: bool
    memory: Memory
    linear: Linearised
    shift: Tensor
    effort: int = 1
    seconds: float = 0.0
    fans: dict[int, list[Relaxation]] = field(default_factory=dict)
    widens: dict[int, Callable[[Relaxation], Relaxation]] = field(default_factory=dict)
    off: dict[int, Interval] = field(default_factory=dict)
    boxes: dict[int, Interval] = field(default_factory=dict)
    widths: dict[int, Tensor] = field(default_factory=dict)
    tangents: dict[int, Tangent] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)

    @staticmethod
    def around(tape: Tape, allowed: AllowedSet, *, prove: bool, memory: Memory, effort: int = 1, seconds: float = 0.0) -> "Joint":
        point, radius = allowed.units()
        radius = radius * (1 + FEW * torch.finfo(radius.dtype).eps)
        linear = Linearised(Layout.of(tape, allowed), point, radius)
        return Joint(tape, allowed, prove, memory, linear, point - allowed.center, effort, seconds)

    # ---- one node after the other ----------------------------------------------------------------------------------------

    def relaxed(
        self,
        index: int,
        node: NonlinearNode,
        operands: Sequence[Interval],
        planes: Relaxation,
        widen: Callable[[Relaxation], Relaxation],
        outside: Tensor,
    ) -> None:
        """Fit the quadratics of a nonlinear node that moves, and weigh its tangent against its planes.

        `outside` is how far its value may be off because operands that do not move are known to rounding only.
        """
        at = tuple(self.linear.values[source] for source in node.sources)
        ends = [(box.lower.expand_as(point), box.upper.expand_as(point)) for box, point in zip(operands, at, strict=True)]
        operands = [Interval(*each) for each in ends]
        tangent = node.tangent(at, *operands)
        if tangent is None:
            tangent = plane_tangent(node.evaluate(*at), planes, tuple(operands), at)
        tangent = replace(tangent, both=replace(tangent.both, slack=tangent.both.slack + outside))
        self.tangents[index] = tangent
        self.linear.slopes[index] = tangent.slopes
        if self.effort >= FAN:
            self.widens[index] = widen
            self.fans[index] = [planes, *(widen(each) for each in node.fan(planes, *operands))]
        if tangent.below is not None:
            widths = [self.widths.get(source, torch.zeros_like(value)) for source, value in zip(node.sources, at, strict=True)]
            off = [self.off[source] for source in node.sources]
            self.choices[index] = choose(planes, tangent, at, operands, widths, off, widen)

    def stands(self, index: int, value: Tensor, error: Tensor) -> None:
        """A node that does not move, and how far its exact value may be from the computed one."""
        self.linear.stands(index, value, error)
        value, error = self.linear.values[index], self.linear.sizes[index][:, 2]
        self.boxes[index] = Interval(value, value)
        self.off[index] = Interval(-error, error)

    def follow(self, index: int, box: Interval) -> None:
        """What follows for a node from its operands: its columns, its first-order width, the range of what is not linear."""
        self.boxes[index] = box
        self.linear.follow(index)
        reach = self.allowed.reach(self.linear.jacobian[index].unflatten(1, (-1, self.tape.features)))
        self.widths[index] = reach * (1 + gamma(self.linear.layout.inputs + FEW, reach.dtype)) + self.linear.unsure(index)
        self.off[index] = self._passed_on(index).intersect(self._beside(index, box))

    def _passed_on(self, index: int) -> Interval:
        """The range of `e` that the operands' ranges, and the error of the node itself, make."""
        node, value = self.tape.nodes[index], self.linear.values[index]
        ranges = [self.off[source] for source in node.sources]
        if not ranges:
            zero = torch.zeros_like(value)
            return Interval(zero, zero)
        if isinstance(node, LinearNode):
            found, zero = node.image(*ranges), node.evaluate(*(torch.zeros_like(each.lower) for each in ranges))
            found = Interval(found.lower - zero, found.upper - zero)
            size = zero.abs() + node.absolute(*(each.magnitude for each in ranges))[1]
        else:
            tangent = self.tangents[index]
            far = [self._far(source) for source in node.sources]
            lower = upper = torch.zeros_like(value)
            for slope, each in zip(tangent.slopes, ranges, strict=True):
                ends = slope * each.lower, slope * each.upper
                lower, upper = lower + torch.minimum(*ends), upper + torch.maximum(*ends)
            found = Interval(lower, upper).widened(tangent.both(*far))
            size = found.magnitude
        count = node.width + sum(each.lower.shape[-1] for each in ranges) + FEW
        return found.widened(4 * gamma(count, value.dtype) * size + self.linear.unsure(index))

    def _beside(self, index: int, box: Interval) -> Interval:
        """The range of `e` that a box leaves."""
        value, width = self.linear.values[index], self.widths[index]
        less = gamma(FEW, value.dtype) * (value.abs() + width + box.magnitude)
        return Interval(box.lower - value - width, box.upper - value + width).widened(less)

    def _far(self, source: int) -> Tensor:
        """How far a node may be from its reference value."""
        value, box = self.linear.values[source], self.boxes[source]
        return torch.maximum(value - box.lower, box.upper - value).clamp(min=0) * (1 + FEW * torch.finfo(value.dtype).eps)

    # ---- rows ------------------------------------------------------------------------------------------------------------

    def walked_box(
        self, index: int, relaxations: Mapping[int, Relaxation], known: Mapping[int, Tensor], error: Tensor
    ) -> Interval:
        """The box of a node, by rows of the identity and its negative; narrows the range of what is not linear as well."""
        width, value = self.tape.nodes[index].width, self.linear.values[index]
        eye = torch.eye(width, dtype=value.dtype, device=value.device)
        inflations = INFLATION if self.effort < FAN else FAN_INFLATION
        bound, off = self._lower(index, torch.cat([eye, -eye]).unsqueeze(0), relaxations, known, inflations)
        lost = error + gamma(FEW, value.dtype) * value.abs()
        self.off[index] = self.off[index].intersect(Interval(off[:, :width] - value - lost, value.neg() - off[:, width:] + lost))
        ranges, reach = self.off[index], self.widths[index]
        joint = Interval(value + ranges.lower - reach, value + ranges.upper + reach).widened(lost)
        return Interval(bound[:, :width], -bound[:, width:]).widened(error).intersect(joint)

    def narrowed(self, index: int, box: Interval) -> None:
        """Take note of a better box."""
        self.boxes[index] = box
        self.off[index] = self.off[index].intersect(self._beside(index, box))

    def lower(self, rows: Tensor, relaxations: Mapping[int, Relaxation], known: Mapping[int, Tensor]) -> Tensor:
        """Lower bounds of rows of the output."""
        top = len(self.tape.nodes) - 1
        bound, _ = self._lower(top, rows, relaxations, known, LAST_INFLATION)
        if self.effort < TRAINED or not self.fans:
            return bound
        ways = [None, *self._ways(top, LAST_INFLATION)]
        found = [self._one_way(top, rows, relaxations, known, way)[0].amin(-1).mean() for way in ways]
        best = ways[int(torch.stack(found).argmax())]
        return torch.fmax(bound, self._trained(top, rows, relaxations, known, best))

    def _lower(
        self,
        index: int,
        rows: Tensor,
        relaxations: Mapping[int, Relaxation],
        known: Mapping[int, Tensor],
        inflations: Sequence[float],
    ) -> tuple[Tensor, Tensor]:
        """Lower bounds of `rows @ node`, and of that less its first-order part `rows @ J d`, over all allowed inputs."""
        bound, off = self._one_way(index, rows, relaxations, known, None)
        for most in self._ways(index, inflations):
            found = self._one_way(index, rows, relaxations, known, most)
            bound, off = (torch.fmax(old, new) for old, new in zip((bound, off), found, strict=True))
        return bound, off

    def _ways(self, index: int, inflations: Sequence[float]) -> list[float]:
        """Of several limits of tangents, those that make a difference before a node."""
        before = [choice for n, choice in self.choices.items() if n <= index]
        ways: list[float] = []
        tried: list[Tensor] = []
        for most in inflations if before else ():
            curved = torch.stack([choice.inflation <= most for choice in before])
            if bool(curved.any()) and not any(torch.equal(curved, other) for other in tried):
                tried.append(curved)
                ways.append(most)
        return ways

    def _one_way(
        self,
        index: int,
        rows: Tensor,
        relaxations: Mapping[int, Relaxation],
        known: Mapping[int, Tensor],
        most: float | None,
    ) -> tuple[Tensor, Tensor]:
        """The same by one choice of planes (alone, if `most` is None) and tangents."""
        passages, mixed = self._passed(index, relaxations, most)
        form = walk_forms(Ground(self.tape, mixed, known, self.allowed), index, rows)
        if self.effort >= FAN and form.frames:
            mixed = {**mixed, **self._fanned(form, rows.shape[1], passages)}
            form = walk_forms(Ground(self.tape, mixed, known, self.allowed), index, rows)
        return self._concluded(index, rows, form, passages, most)

    def _passed(
        self, index: int, relaxations: Mapping[int, Relaxation], most: float | None
    ) -> tuple[dict[int, Passage], dict[int, Relaxation]]:
        """How one way passes the nodes up to one: where tangents are, and all relaxations."""
        passages = {} if most is None else {n: choice.passage(most) for n, choice in self.choices.items() if n <= index}
        return passages, {**relaxations, **{n: passage.relaxation for n, passage in passages.items()}}

    def _quadratic(self, index: int, form: Form, passages: Mapping[int, Passage], way: float, *, prove: bool) -> Tensor | None:
        """The greatest value of what tangents leave to pay; None if there are none."""
        met = {n: rows_there.expand(len(self.shift), -1, -1) for n, rows_there in form.met.items() if n in passages}
        curved = {n: bent(rows_there, passages[n].below, passages[n].above) for n, rows_there in met.items()}
        if not curved:
            return None
        known_of = Known(self.linear, self.allowed, self.tangents, self.off)
        return greatest(known_of, index, curved, self.memory, way, prove=prove)

    def _concluded(
        self, index: int, rows: Tensor, form: Form, passages: Mapping[int, Passage], most: float | None
    ) -> tuple[Tensor, Tensor]:
        """What a walk's end proves of its rows, and of these less their first-order part."""
        frames, batch = list(self.linear.layout.frames), len(self.shift)
        terms = [term.expand(batch, rows.shape[1]) for term in form.terms]
        paid = None if most is None else self._quadratic(index, form, passages, most, prove=self.prove)
        if paid is not None:
            terms.append(-paid)
        if not form.frames:
            bound = sum_below(terms)
            return bound, bound
        least = self.allowed.least({frame: self.allowed.part(frame, part) for frame, part in form.frames.items()})
        zero = rows.new_zeros(1, rows.shape[1], self.tape.features)
        whole = torch.stack([form.frames.get(frame, zero).expand(batch, -1, -1) for frame in frames], dim=2)
        scaled, centered = whole * self.linear.radius[:, frames].unsqueeze(1), whole * self.shift[:, frames].unsqueeze(1)
        first = rows @ self.linear.jacobian[index].mT
        rest = scaled - first.unflatten(-1, (len(frames), -1))
        size = (scaled.abs() + centered.abs() + rest.abs()).sum((-1, -2))
        lost = gamma(rows.shape[-1] + rest.shape[-1] * rest.shape[-2] + FEW, rest.dtype) * size
        off = sum_below([*terms, centered.sum((-1, -2)), -self.allowed.reach(rest.unsqueeze(-1)).squeeze(-1), -4 * lost])
        unsure = (rows.abs() @ self.linear.unsure(index).unsqueeze(-1)).squeeze(-1)
        return sum_below([*terms, least]), off - unsure

    def _fanned(self, form: Form, rows: int, passages: Mapping[int, Passage]) -> dict[int, Relaxation]:
        """Relaxations of their own for all rows of a walk, at the nodes it met."""
        at = worst_values(self.tape, self.allowed, form.frames, rows, (self.linear.point, self.linear.radius))
        return {
            n: fanned(self.fans[n], [at[source] for source in self.tape.nodes[n].sources], passages.get(n))
            for n in form.met
            if n in self.fans
        }

    # ---- trained slopes --------------------------------------------------------------------------------------------------

    def _trained(
        self,
        index: int,
        rows: Tensor,
        relaxations: Mapping[int, Relaxation],
        known: Mapping[int, Tensor],
        most: float | None,
    ) -> Tensor:
        """Lower bounds of rows through planes whose slopes are trained on them, by one way to use tangents."""
        ended = time.monotonic() + self.seconds
        passages, mixed = self._passed(index, relaxations, most)
        form = walk_forms(Ground(self.tape, mixed, known, self.allowed), index, rows)
        bound = self._concluded(index, rows, form, passages, most)[0]
        own = self._fanned(form, rows.shape[1], passages) if form.frames else {}
        strains: list[Strain] = []
        for _ in range(ROUNDS if any(isinstance(self.tape.nodes[n], Gate) for n in own) else 0):
            form = walk_forms(Ground(self.tape, {**mixed, **own}, known, self.allowed), index, rows)
            bound = torch.fmax(bound, self._concluded(index, rows, form, passages, most)[0])
            left = ended - time.monotonic()
            if left <= 0:
                break
            strains.extend(self._strained(index, form, passages, most))
            units = self.linear.point, self.linear.radius
            given = Rows(self.tape, index, rows, mixed, known, self.allowed, units, self.boxes, passages, strains)
            for n, rested in trained(given, own, left).items():
                sides = rested.relaxation.lower, rested.relaxation.upper
                alone = [Relaxation(*(of_row(side, row) for side in sides)) for row in range(rows.shape[1])]
                own[n] = either(in_rows([self.widens[n](each) for each in alone]), passages.get(n))
        return bound

    def _strained(self, index: int, form: Form, passages: Mapping[int, Passage], most: float | None) -> list[Strain]:
        """Displacements where what tangents leave to pay is about greatest; none without tangents."""
        paid = None if most is None else self._quadratic(index, form, passages, most, prove=False)
        if paid is None:
            return []
        guess = next(past.guess for (top, _, way), past in self.memory.items() if (top, way) == (index, most))
        along = (guess.vectors / guess.weights.sqrt()).to(paid)
        left = {n: bent(form.met[n], passage.below, passage.above) for n, passage in passages.items() if n in form.met}
        moved = {}
        for n in left:
            columns = [(self.linear.jacobian.get(source), self.tape.nodes[source].width) for source in self.tape.nodes[n].sources]
            moved[n] = tuple(
                along.new_zeros(*along.shape[:2], width) if own is None else along @ own[:, : along.shape[-1]]
                for own, width in columns
            )
        ratio = paid / Strain(moved, torch.ones_like(paid)).of(left)
        return [Strain(moved, torch.where(ratio.isfinite() & (ratio > 0), ratio, 1.0))]
