"""Lower bounds of rows of the output over cells, by affine forms whose table neighbouring cells share.

Over a cell, every value of the network is

    value + sum_i t_i columns_i  (to within `loose`),        |t_i - middle_i| <= radius_i,

where the first `t` are the moving features, in units of the group's half widths, and every later one is the error of one
nonlinearity beside its slopes. A nonlinearity `f` with any slopes `s` is `s . operands` plus `f - s . operands`, which lies
between its least and its greatest value over the cell's box of the operands: a new `t`. A group of cells has its slopes, and so
the table of columns, in common; middles and radii are each cell's own. Boxes are `value + middle columns +- radius |columns|`.

Rounding: what a linear operation may be off by is `loose`; it passes linear operations by absolute values, and ends at the next
nonlinearity, as part of its error. So it grows no faster than errors do. Columns are held in single precision, which is twice as
fast: what they round is of the size of a cell, and shrinks with it; values are not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.arithmetic import FEW, gamma, tiny
from popqorn.bounds.inner import Run
from popqorn.bounds.split.cells import Space
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.linear import Affine, Concat, Gather, Input, Slice, Sum
from popqorn.tape.ops.node import LinearNode, Node, NonlinearNode
from popqorn.tape.tape import Tape

TABLE = torch.float32  # of the columns
LARGE = 2**16  # entries of one group's columns: from there on groups are taken one by one, to stay in the cache


@dataclass(frozen=True)
class Bounded:
    """What is known of every cell: lower bounds of the rows, and which share of their errors each feature has (per group)."""

    lower: Float[Tensor, "groups cells rows"]
    share: Float[Tensor, "groups features"]


@dataclass(frozen=True)
class _Form:
    """`columns` (`[groups, symbols so far, width]`) is None where nothing moves; `fresh` is an error that is no symbol yet."""

    value: Float[Tensor, "#groups width"]
    columns: Tensor | None
    loose: Float[Tensor, "#groups #cells width"]
    fresh: "_Range | None" = None


@dataclass(frozen=True)
class _Range:
    """`middle - radius <= t <= middle + radius`, `[groups, cells, width]`."""

    middle: Tensor
    radius: Tensor

    def plus(self, other: "_Range") -> "_Range":
        return _Range(self.middle + other.middle, self.radius + other.radius)


def lower_bounds(
    tape: Tape,
    space: Space,
    center: Run,
    rows: Float[Tensor, "rows outputs"],
    lower: Float[Tensor, "groups cells features"],
    upper: Float[Tensor, "groups cells features"],
) -> Bounded:
    """Lower bounds of `rows @ output` over every cell `lower <= x <= upper`, and where their errors come from.

    `center` is the run at the input of this one sample: what moving frames do not reach has its values.
    """
    walk = _Forward.over(tape, space, center, lower, upper)
    last_use = _last_uses(tape)
    for position, node in enumerate(tape.nodes):
        walk.forms[position] = walk.form(position, node)
        for source in {*node.sources, position}:
            if last_use[source] <= position and source != len(tape.nodes) - 1:
                walk.forget(source)
    return walk.bounded(rows)


def _last_uses(tape: Tape) -> list[int]:
    """After which position nobody asks for a node any more; slices ask for what they are slices of."""
    last = list(range(len(tape.nodes)))
    for position in range(len(tape.nodes) - 1, -1, -1):
        node = tape.nodes[position]
        asked = last[position] if isinstance(node, Slice) else position
        for source in node.sources:
            last[source] = max(last[source], asked)
    return last


@dataclass
class _Forward:
    """One pass over the tape. `middle` and `radius` (`[groups, cells, symbols]`) say where the symbols lie in every cell;
    `shares` holds, for every block of symbols, how much of them each moving feature makes (`[groups, features, block]`).
    """

    tape: Tape
    space: Space
    center: Run
    point: Float[Tensor, "groups frames entries"]
    half: Float[Tensor, "groups features"]
    ends: Float[Tensor, "groups 1 features"]
    middle: Tensor
    radius: Tensor
    forms: dict[int, _Form] = field(default_factory=dict)
    boxes: dict[int, Interval] = field(default_factory=dict)
    reached: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    shares: list[Tensor] = field(default_factory=list)

    @staticmethod
    def over(tape: Tape, space: Space, center: Run, lower: Tensor, upper: Tensor) -> "_Forward":
        least, most = lower.amin(1), upper.amax(1)
        middle = (least + most) / 2
        half = torch.maximum(most - middle, middle - least).clamp(min=tiny(middle.dtype) ** 0.25)
        low, high = ((end - middle.unsqueeze(1)) / half.unsqueeze(1) for end in (lower, upper))
        ends = torch.maximum(least.abs(), most.abs()).unsqueeze(1)
        return _Forward(tape, space, center, space.points(middle), half, ends, (low + high) / 2, (high - low) / 2)

    def forget(self, position: int) -> None:
        for table in (self.forms, self.boxes, self.reached):
            table.pop(position, None)

    # ---- one node after the other ----------------------------------------------------------------------------------------

    def form(self, position: int, node: Node) -> _Form:
        if isinstance(node, Input) and node.frame not in self.space.allowed.still:
            return self._input(node)
        operands = [self.forms[source] for source in node.sources]
        if all(operand.columns is None for operand in operands):
            return _Form(self.center.values[position], None, self.center.errors[position].unsqueeze(1))
        if not isinstance(node, LinearNode):
            assert isinstance(node, NonlinearNode)
            return self._nonlinear(position, node, operands)
        columns = _pushed(self.tape, node, operands)
        loose = node.absolute(*_flat(operand.loose for operand in operands))[1]
        loose = loose.unflatten(0, (-1, max(operand.loose.shape[1] for operand in operands)))
        if not isinstance(node, Slice | Gather | Concat):
            loose = loose + self._rounded(node)
        value = node.evaluate(*(operand.value for operand in operands))
        fresh = [operand.fresh for operand in operands if operand.fresh is not None]
        if not fresh:
            return _Form(value, columns, loose)
        total = fresh[0]
        for more in fresh[1:]:
            total = total.plus(more)
        return self._injected(_Form(value, columns, loose), total)

    def _input(self, node: Input) -> _Form:
        features, frame = self.space.allowed.center.shape[2], node.frame
        columns = self.half.new_zeros(len(self.half), len(self.space.places), features)
        for number, place in enumerate(self.space.places.tolist()):
            if place // features == frame:
                columns[:, number, place % features] = self.half[:, number]
        value = self.point[:, frame]
        # ends of cells, their middles, quotients and columns are rounded, and so are features that stand still
        furthest = torch.maximum(value.abs().unsqueeze(1), self.ends @ columns.ne(0).to(columns))
        furthest = torch.maximum(furthest, self.space.allowed.center[:, frame].abs().unsqueeze(1))  # ends are sums with it
        loose = FEW * torch.finfo(value.dtype).eps * furthest + torch.finfo(TABLE).eps * columns.sum(1, keepdim=True)
        return _Form(value, columns.to(TABLE), loose + 2 * tiny(TABLE))

    def _rounded(self, node: LinearNode) -> Tensor:
        """What a linear operation may be off by, whatever the order of its sums: `[groups or 1, 1, width]`."""
        values = [self.forms[source].value.abs().unsqueeze(1) for source in node.sources]
        moved = [self._moved(source) for source in node.sources]
        dtype = self.half.dtype
        count = node.width + sum(value.shape[-1] for value in values) + FEW
        exact, table = 2 * gamma(count, dtype), 2 * gamma(count, TABLE)
        constant, weighed = node.absolute(*_flat(exact * value + table * far for value, far in zip(values, moved, strict=True)))
        lost = tiny(dtype) * count * (1 + sum(value.sum(-1, keepdim=True) for value in values))
        found: Tensor = (weighed + exact * constant).unsqueeze(1) + lost + count * self._lost()
        return found + count * tiny(TABLE) * sum(far.sum(-1, keepdim=True) for far in moved)

    def _lost(self) -> Tensor:
        """What columns too small to be numbers may hide: `[groups, 1, 1]`."""
        return tiny(TABLE) * (1 + self._furthest().sum(-1, keepdim=True))

    def _furthest(self) -> Tensor:
        """The greatest `|t|` of all cells of a group: `[groups, 1, symbols]`."""
        return (self.middle.abs() + self.radius).amax(1, keepdim=True)

    def _nonlinear(self, position: int, node: NonlinearNode, operands: Sequence[_Form]) -> _Form:
        boxes = [self._box(source) for source in node.sources]
        hulls = [Interval(box.lower.amin(1), box.upper.amax(1)) for box in boxes]
        slopes = node.secant(*hulls)
        band = node.beside(tuple(slope.unsqueeze(1) for slope in slopes), *boxes)
        value = node.evaluate(*(operand.value for operand in operands))
        shift, size = -value, value.abs().unsqueeze(1) + band.magnitude
        radius = (band.upper - band.lower) / 2
        for slope, operand, source in zip(slopes, operands, node.sources, strict=True):
            steep = slope.abs().unsqueeze(1)
            shift = shift + slope * operand.value
            size = size + steep * operand.value.abs().unsqueeze(1)
            radius = radius + steep * (operand.loose + 2 * gamma(FEW, TABLE) * self._moved(source))
            radius = radius + FEW * tiny(TABLE) * self._moved(source)
        radius = radius + 2 * gamma(FEW, size.dtype) * size + FEW * (tiny(size.dtype) + self._lost())
        found = _Range((band.lower + band.upper) / 2 + shift.unsqueeze(1), radius)
        form = _Form(value, _weighed(slopes, operands), torch.zeros_like(value).unsqueeze(1))
        # what only a sum uses has its errors enter there, together with those of the others
        return replace(form, fresh=found) if position in self.tape.summed else self._injected(form, found)

    def _injected(self, form: _Form, error: _Range) -> _Form:
        """With an error as new symbols."""
        assert form.columns is not None
        before = self.middle.shape[-1]
        groups, cells, width = error.radius.shape
        self.middle = torch.cat([self.middle, error.middle.expand(groups, cells, width)], dim=-1)
        self.radius = torch.cat([self.radius, error.radius], dim=-1)
        moved = form.columns[:, : len(self.space.places)].square()
        self.shares.append(moved / moved.sum(1, keepdim=True).clamp(min=tiny(TABLE)))
        columns = form.columns.new_zeros(groups, before + width, width)
        columns[:, : form.columns.shape[1]] = form.columns
        columns[:, before:].diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return _Form(form.value, columns, form.loose)

    # ---- boxes -----------------------------------------------------------------------------------------------------------

    def _moved(self, position: int) -> Tensor:
        """At least `|t| |columns|` and what is loose, in all cells of a group: `[groups or 1, 1, width]`."""
        return self._reached(position)[1]

    def _reached(self, position: int) -> tuple[Tensor, Tensor]:
        """At least `radius |columns|` in every cell, `[groups or 1, cells or 1, width]`, and `_moved`."""
        if position not in self.reached:
            node, form = self.tape.nodes[position], self.forms[position]
            if isinstance(node, Slice) and node.sources[0] in self.forms:
                own, most = self._reached(node.sources[0])
                self.reached[position] = own[..., node.start : node.stop], most[..., node.start : node.stop]
            elif form.columns is None:
                self.reached[position] = torch.zeros_like(form.loose), form.loose
            else:
                count = form.columns.shape[1]
                rows = torch.cat([self.radius, self._furthest()], dim=1)[..., :count]
                found = _absolute(rows, form.columns) * (1 + 2 * gamma(count + FEW, TABLE)) + count * self._lost()
                own, most = found[:, :-1], found[:, -1:] + form.loose.amax(1, keepdim=True)
                if form.fresh is not None:
                    most = most + (form.fresh.middle.abs() + form.fresh.radius).amax(1, keepdim=True)
                self.reached[position] = own, most
        return self.reached[position]

    def _box(self, position: int) -> Interval:
        """The box of a node in every cell, `[groups, cells, width]`."""
        if position not in self.boxes:
            node, form = self.tape.nodes[position], self.forms[position]
            if isinstance(node, Slice) and node.sources[0] in self.forms:
                whole = self._box(node.sources[0])
                self.boxes[position] = Interval(*(end[..., node.start : node.stop] for end in (whole.lower, whole.upper)))
            else:
                self.boxes[position] = self._boxed(position, form)
        return self.boxes[position]

    def _boxed(self, position: int, form: _Form) -> Interval:
        middle, (half, moved) = form.value.unsqueeze(1), self._reached(position)
        half = half + form.loose + 2 * gamma(FEW, middle.dtype) * (middle.abs() + moved) + FEW * tiny(middle.dtype)
        if form.columns is not None:
            middle = middle + self._middle(form.columns)
            half = half + 2 * gamma(form.columns.shape[1] + FEW, TABLE) * moved
        shape = len(self.half), self.middle.shape[1], middle.shape[-1]
        return Interval((middle - half).expand(shape), (middle + half).expand(shape))

    def _middle(self, columns: Tensor) -> Tensor:
        """`middle columns`: `[groups, cells, width]`."""
        return (self.middle[..., : columns.shape[1]].to(TABLE) @ columns).to(self.middle)

    def bounded(self, rows: Tensor) -> Bounded:
        """The bounds of rows of the last node."""
        form, moved = self.forms[len(self.tape.nodes) - 1], self._moved(len(self.tape.nodes) - 1)
        if form.fresh is not None:
            form = self._injected(form, form.fresh)
        if form.columns is None:
            return self._unmoved(form, rows)
        columns, magnitude = form.columns @ rows.mT.to(TABLE), rows.abs().mT
        count, features = columns.shape[1], len(self.space.places)
        middle = (form.value @ rows.mT).unsqueeze(1) + self._middle(columns)
        terms = count + rows.shape[-1] + FEW
        half = _absolute(self.radius[..., :count], columns) * (1 + 2 * gamma(terms, TABLE)) + form.loose @ magnitude
        half = half + 2 * gamma(terms, TABLE) * (moved @ magnitude) + terms * (self._lost() + tiny(half.dtype))
        half = half + terms * tiny(TABLE) * moved.sum(-1, keepdim=True)
        half = half + 2 * gamma(terms, half.dtype) * (form.value.abs().unsqueeze(1) @ magnitude)
        if not self.shares:
            return Bounded(middle - half, columns.abs().amax(-1).to(half)[:, :features])
        errors = columns.abs().amax(-1)[:, features:] * self.radius.amax(1)[:, features:count]
        share = torch.cat(self.shares, dim=-1)[..., : errors.shape[-1]].to(errors) @ errors.unsqueeze(-1)
        return Bounded(middle - half, share.squeeze(-1))

    def _unmoved(self, form: _Form, rows: Tensor) -> Bounded:
        """The bounds of rows of a node that no cell moves."""
        share = 2 * gamma(rows.shape[-1] + FEW, form.value.dtype)
        half = (form.loose + share * form.value.abs().unsqueeze(1)) @ rows.abs().mT * (1 + share) + FEW * tiny(form.value.dtype)
        shape = len(self.half), self.middle.shape[1], len(rows)
        return Bounded(((form.value @ rows.mT).unsqueeze(1) - half).expand(shape), torch.zeros_like(self.half))


def _absolute(rows: Float[Tensor, "groups rows symbols"], columns: Float[Tensor, "groups symbols width"]) -> Tensor:
    """`rows |columns|`, in the precision of the columns."""
    dtype = rows.dtype
    rows = rows.to(columns.dtype)
    groups, count, width = columns.shape
    if count * width < LARGE:
        return (rows @ columns.abs()).to(dtype)
    found = columns.new_empty(groups, rows.shape[1], width)
    for own, row, out in zip(columns, rows, found, strict=True):
        torch.mm(row, own.abs(), out=out)
    return found.to(dtype)


def _flat(tensors: Iterable[Tensor]) -> list[Tensor]:
    """`[groups or 1, cells or 1, width]` as rows, all alike."""
    parts = list(tensors)
    groups, cells = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    return [part.expand(groups, cells, -1).flatten(0, 1) for part in parts]


def _weighed(slopes: Sequence[Tensor], operands: Sequence[_Form]) -> Tensor:
    """`sum slope * columns`, operands with fewer symbols counting for those they have."""
    moving = [(slope, form.columns) for slope, form in zip(slopes, operands, strict=True) if form.columns is not None]
    moving.sort(key=lambda each: -each[1].shape[1])
    total = moving[0][0].unsqueeze(1).to(TABLE) * moving[0][1]
    for slope, columns in moving[1:]:
        total[:, : columns.shape[1]].addcmul_(slope.unsqueeze(1).to(TABLE), columns)
    return total


def _pushed(tape: Tape, node: LinearNode, operands: Sequence[_Form]) -> Tensor:
    """The columns of a linear node."""
    moving = [(number, form.columns) for number, form in enumerate(operands) if form.columns is not None]
    moving.sort(key=lambda each: -each[1].shape[1])
    if isinstance(node, Affine | Sum):
        pushed = [columns @ node.weights[n].mT.to(TABLE) if isinstance(node, Affine) else columns for n, columns in moving]
        total = pushed[0].clone() if isinstance(node, Sum) else pushed[0]
        for part in pushed[1:]:
            total[:, : part.shape[1]] += part
        return total
    if isinstance(node, Slice):
        return moving[0][1][..., node.start : node.stop]
    groups, count = moving[0][1].shape[:2]
    padded = []
    for source, form in zip(node.sources, operands, strict=True):
        columns = moving[0][1].new_zeros(groups, count, tape.nodes[source].width)
        if form.columns is not None:
            columns[:, : form.columns.shape[1]] = form.columns
        padded.append(columns.flatten(0, 1).to(operands[0].value))
    found: Tensor = node.push(*padded).unflatten(0, (groups, count)).to(TABLE)
    return found
