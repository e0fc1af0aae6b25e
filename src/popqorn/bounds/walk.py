"""The backward walk: a lower bound of linear rows of one node as a linear function of the inputs.

Rows are `[batch or 1, rows, width]`. A linear operation pulls them back to its operands (its vector-Jacobian product); a
nonlinearity replaces its entry by the lower relaxation where the coefficient is positive and by the upper one where it is
negative. Upper bounds are lower bounds of the negated rows.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.arithmetic import sum_below
from popqorn.bounds.ground import Ground, Replaced
from popqorn.bounds.stations import LinearBounds
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.linear import Affine, Concat, Input, Scale, Slice, Sum
from popqorn.tape.ops.node import Node, pull_back


@dataclass
class _Gathered:
    """The coefficients of a node that is used in slices: each slice's are written to their place, so that nothing is copied."""

    rows: Tensor
    places: set[tuple[int, int]] = field(default_factory=set)

    def overlaps(self, place: tuple[int, int]) -> bool:
        """Whether `place` shares entries with another one without being the same."""
        return any(place != other and place[0] < other[1] and other[0] < place[1] for other in self.places)

    def add_product(self, place: tuple[int, int], rows: Tensor, magnitude: Tensor, middle: Tensor, half: Tensor) -> None:
        """Add `rows * middle + magnitude * half` to the coefficients at `place`."""
        view = self.rows[..., slice(*place)]
        if place in self.places:
            view.addcmul_(rows, middle)
        else:
            torch.mul(rows, middle, out=view)
            self.places.add(place)
        view.addcmul_(magnitude, half)

    def finish(self) -> Tensor:
        """All coefficients; slices nobody has written to have none."""
        end = 0
        for start, stop in [*sorted(self.places), (self.rows.shape[-1],) * 2]:
            self.rows[..., end:start] = 0
            end = stop
        return self.rows


@dataclass(frozen=True)
class Form:
    """`rows @ node >= sum of terms + sum over frames of rows_k (x_k - center_k)`: a walk's end, before the inputs are chosen.

    `met` holds the rows that arrived at every nonlinear node.
    """

    terms: list[Tensor]
    frames: Mapping[int, Tensor]
    met: Mapping[int, Tensor]


@dataclass
class _Walk:
    """Rows that still wait at nodes further up, piece by piece; the constant terms collected so far, and what has reached frames.

    `boxes` and `ends` are of the whole batch that was relaxed. With `boxes`, the walk ends at the nonlinear nodes it meets first:
    they are taken at the ends of their boxes. At the stations of `ends`, it ends at their linear bounds. With `keep`, all that
    arrives at frames stays as it is.
    """

    ground: Ground
    boxes: Sequence[Interval] | None = None
    met: dict[int, Tensor] | None = None
    ends: Mapping[int, LinearBounds] = field(default_factory=dict)
    keep: bool = False
    parts: dict[int, Tensor] = field(default_factory=dict)
    whole: list[tuple[tuple[int, ...], Tensor]] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    waiting: dict[int, list[tuple[int, Tensor]]] = field(default_factory=dict)
    gathered: dict[int, _Gathered] = field(default_factory=dict)
    passed: dict[int, dict[Replaced, tuple[Tensor, Tensor]]] = field(default_factory=dict)
    terms: list[Tensor] = field(default_factory=list)

    def send_product(self, node: int, rows: Tensor, magnitude: Tensor, middle: Tensor, half: Tensor) -> None:
        """Add `rows * middle + magnitude * half` to the coefficients of `node`."""
        target = self.ground.tape.nodes[node]
        whole = target.sources[0] if isinstance(target, Slice) else node
        learning = rows.requires_grad or middle.requires_grad  # gradients do not pass what is written in place
        apart = learning or node in self.ends or whole in self.ground.known or isinstance(self.ground.tape.nodes[whole], Input)
        if apart or not isinstance(target, Slice):
            self.send(node, (rows * middle).addcmul_(magnitude, half))
            return
        place = target.start, target.stop
        if whole not in self.gathered:
            self.expect(whole)
            shape = max(rows.shape[0], middle.shape[0]), rows.shape[1], self.ground.tape.nodes[whole].width
            self.gathered[whole] = _Gathered(rows.new_empty(shape))
        if self.gathered[whole].overlaps(place):
            self.send(whole, (rows * middle).addcmul_(magnitude, half), target.start)
        else:
            self.gathered[whole].add_product(place, rows, magnitude, middle, half)

    def expect(self, node: int) -> None:
        """Something is about to be sent to `node`: it gets its turn."""
        if node not in self.waiting and node not in self.gathered and node not in self.passed:
            heapq.heappush(self.queue, -node)

    def collect(self, node: int) -> Tensor:
        """All that was sent to `node`, at its full width."""
        pieces = self.waiting.pop(node, [])
        if node in self.gathered:
            pieces.append((0, self.gathered.pop(node).finish()))
        return assembled(pieces, self.ground.tape.nodes[node].width)

    def send(self, node: int, rows: Tensor, start: int = 0, *, centered: bool = False) -> None:
        """Add `rows` to the coefficients of entries `start, start+1, ...` of `node`.

        A known node is a constant term and is done with. What a frame contributes at its centre is added here, unless the sender
        has done so (`centered`).
        """
        if node in self.ground.known:
            self.terms.append(_applied(rows, self.ground.value(node)[:, start : start + rows.shape[-1]]))
            return
        self.expect(node)
        self.waiting.setdefault(node, []).append((start, rows))
        target = self.ground.tape.nodes[node]
        if not centered and isinstance(target, Input):
            center = self.ground.allowed.center[:, target.frame, start : start + rows.shape[-1]]
            self.terms.append(_applied(rows, center))


def walk_back(
    ground: Ground,
    position: int,
    rows: Float[Tensor, "#batch rows width"],
    boxes: Sequence[Interval] | None = None,
    ends: Mapping[int, LinearBounds] | None = None,
) -> Float[Tensor, "#batch rows"]:
    """A lower bound of `rows @ node[position]`.

    The least value of the linear forms that arrive at the frames, and the constant terms of the relaxations, make the bound:
    less the rounding of their sum, but not that of the rows themselves (`errors.py`). With `boxes` the walk ends at the first
    nonlinear nodes; at the stations of `ends` it ends at their linear bounds.
    """
    walk = _run(_Walk(ground, boxes, ends=ends or {}), position, rows)
    if walk.whole:
        walk.parts.update(ground.allowed.parts(*_side_by_side(walk.whole, ground.tape.features)))
    if walk.parts:
        walk.terms.append(ground.allowed.least(walk.parts))
    return sum_below(walk.terms)


def walk_linear(
    ground: Ground, position: int, rows: Float[Tensor, "#batch rows width"], ends: Mapping[int, LinearBounds] | None = None
) -> tuple[Float[Tensor, "batch rows"], LinearBounds]:
    """The same, and beside it the linear bounds whose least value it is."""
    walk = _run(_Walk(ground, ends=ends or {}, keep=True), position, rows)
    allowed = ground.allowed
    shape = len(allowed.center), rows.shape[1]
    constants = sum_below(walk.terms).expand(shape)
    if not walk.whole:
        return constants, LinearBounds((), constants.new_zeros(*shape, 0), constants)
    frames, forms = _side_by_side(walk.whole, ground.tape.features)
    least = allowed.least(allowed.parts(frames, forms))
    return sum_below([*walk.terms, least]).expand(shape), LinearBounds(frames, forms.flatten(2).expand(*shape, -1), constants)


def walk_forms(ground: Ground, position: int, rows: Float[Tensor, "#batch rows width"]) -> Form:
    """The same with the rows kept that arrive at the frames and at the nonlinear nodes."""
    met: dict[int, Tensor] = {}
    walk = _run(_Walk(ground, met=met), position, rows)
    return Form(walk.terms, walk.parts, met)


def _run(walk: _Walk, position: int, rows: Tensor) -> _Walk:
    """Nodes take their turn last to first: when it comes, all that use them have had theirs."""
    walk.send(position, rows)
    while walk.queue:
        index = -heapq.heappop(walk.queue)
        if index in walk.passed:
            _pass_product(walk, index)
        if index in walk.waiting or index in walk.gathered:
            _pass(walk, index, walk.collect(index))
    return walk


def _pass(walk: _Walk, index: int, rows: Tensor) -> None:
    """Hand the rows of a node on to its operands."""
    node = walk.ground.tape.nodes[index]
    if index in walk.ends:
        _end(walk, walk.ends[index], rows)
    elif isinstance(node, Input):
        if walk.keep or any(node.frame in frames for frames, _ in walk.whole):
            walk.whole.append(((node.frame,), rows))
        else:
            walk.parts[node.frame] = rows if walk.met is not None else walk.ground.allowed.part(node.frame, rows)
    elif not node.linear:
        _replace(walk, (index,), rows)
    else:
        _FAST.get(type(node), _linear)(walk, node, rows)


def _end(walk: _Walk, station: LinearBounds, rows: Tensor) -> None:
    """Positive coefficients of a station's entries meet their lower bounds, negative ones the upper ones."""
    both = torch.cat([rows.clamp(min=0), (-rows).clamp_(min=0)], dim=-1)
    walk.terms.append(_applied(both, walk.ground.own(station.constants)))
    if station.frames:
        walk.whole.append((station.frames, both @ walk.ground.own(station.forms)))


def _side_by_side(parts: list[tuple[tuple[int, ...], Tensor]], features: int) -> tuple[tuple[int, ...], Tensor]:
    """The sum of rows that reach some frames each, `[batch, rows, frames, features]`, and all these frames in order."""
    by_frames: dict[tuple[int, ...], Tensor] = {}
    for reached, rows in parts:
        by_frames[reached] = by_frames[reached] + rows if reached in by_frames else rows
    frames = tuple(sorted({frame for reached in by_frames for frame in reached}))
    place = {frame: number * features for number, frame in enumerate(frames)}
    pieces: list[tuple[int, Tensor]] = []
    for reached, rows in by_frames.items():
        if list(reached) == list(frames[place[reached[0]] // features :][: len(reached)]):
            pieces.append((place[reached[0]], rows))
        else:
            pieces.extend((place[frame], part) for frame, part in zip(reached, rows.split(features, -1), strict=True))
    return frames, assembled(pieces, len(frames) * features).unflatten(-1, (len(frames), features))


def assembled(pieces: list[tuple[int, Tensor]], whole: int) -> Tensor:
    """The sum of all pieces sent to a node, at its full width."""
    by_place: dict[tuple[int, int], Tensor] = {}
    for start, rows in pieces:
        place = start, rows.shape[-1]
        by_place[place] = rows if place not in by_place else by_place[place] + rows
    if len(by_place) == 1 and (0, whole) in by_place:
        return by_place[0, whole]
    batch = max(rows.shape[0] for rows in by_place.values())
    places = sorted(by_place)
    ends = [start + width for start, width in places]
    if [start for start, _ in places] == [0, *ends[:-1]] and ends[-1] == whole:
        return torch.cat([by_place[place].expand(batch, -1, -1) for place in places], dim=-1)
    total = pieces[0][1].new_zeros(batch, pieces[0][1].shape[1], whole)
    for start, width in places:
        total[..., start : start + width] += by_place[start, width]
    return total


def _applied(rows: Tensor, value: Tensor) -> Tensor:
    """`rows @ value` for values `[batch or 1, width]`."""
    return (rows @ value.unsqueeze(-1)).squeeze(-1)


# ---- linear operations -------------------------------------------------------------------------------------------------------


def _linear(walk: _Walk, node: Node, rows: Tensor) -> None:
    constant, parts = pull_back(node, rows, [walk.ground.tape.nodes[source].width for source in node.sources])
    walk.terms.append(constant)
    for source, part in zip(node.sources, parts, strict=True):
        walk.send(source, part)


def _affine(walk: _Walk, node: Affine, rows: Tensor) -> None:
    """One product for all operands that move. Frames are taken at their centre together with the bias, before the rows widen."""
    fixed, stacked, moving = walk.ground.moving(node)
    walk.terms.append((rows @ fixed).squeeze(-1))
    parts = (rows @ stacked).split([width for _, width in moving], dim=-1)
    for (source, _), part in zip(moving, parts, strict=True):
        walk.send(source, part, centered=True)


def _pass_product(walk: _Walk, index: int) -> None:
    """Relaxed nodes and the affine one behind them in one go (`ground.py`)."""
    sums = walk.passed.pop(index)
    matrix = walk.ground.product(index, tuple(sums))
    batch = max(rows.shape[0] for rows, _ in sums.values())
    sides = [side.expand(batch, -1, -1) for both in sums.values() for side in both]
    found = torch.cat(sides, dim=-1) @ matrix
    node = walk.ground.tape.nodes[index]
    assert isinstance(node, Affine)
    start = 0
    for source, width in walk.ground.moving(node)[2]:
        walk.send(source, found[..., start : start + width], centered=True)
        start += width
    walk.terms.append(found[..., start])


def _sum(walk: _Walk, node: Sum, rows: Tensor) -> None:
    """Nonlinear operands that only this sum uses are replaced together: one relaxation, one pass for all of them."""
    tape, relaxations = walk.ground.tape, walk.ground.relaxations
    relaxed = tuple(source for source in node.sources if source in relaxations and tape.users[source] == 1)
    if relaxed:
        _replace(walk, relaxed, rows)
    for source in node.sources:
        if source not in relaxed:
            walk.send(source, rows)


def _slice(walk: _Walk, node: Slice, rows: Tensor) -> None:
    walk.send(node.sources[0], rows, node.start)


def _concat(walk: _Walk, node: Concat, rows: Tensor) -> None:
    for source, part in zip(node.sources, rows.split(list(node.widths), dim=-1), strict=True):
        walk.send(source, part)


def _scale(walk: _Walk, node: Scale, rows: Tensor) -> None:
    walk.terms.append(_applied(rows, node.shift.expand(1, rows.shape[-1])))
    walk.send(node.sources[0], rows * node.factor)


# Where a profile asked for something faster than the vector-Jacobian product.
_FAST: dict[type, Callable[..., None]] = {Affine: _affine, Sum: _sum, Slice: _slice, Concat: _concat, Scale: _scale}


# ---- nonlinear ones ----------------------------------------------------------------------------------------------------------


def _replace(walk: _Walk, indices: tuple[int, ...], rows: Tensor) -> None:
    """Put the relaxations of a sum of nonlinear nodes in its place, or the ends of their boxes if the walk ends there.

    `low` for positive and `high` for negative coefficients is `middle * rows + half * |rows|`: two passes over the rows.
    """
    if walk.boxes is not None:
        for index in indices:
            ends = walk.boxes[index].lower, walk.boxes[index].upper
            low, high = (walk.ground.own(side).unsqueeze(-1) for side in ends)
            walk.terms.append((rows.clamp(min=0) @ low + rows.clamp(max=0) @ high).squeeze(-1))
        return
    if walk.met is not None:
        walk.met.update((index, rows) for index in indices)
    slopes, (middle, half) = walk.ground.replaced(indices)
    magnitude = rows.abs()
    products: dict[int, list[int]] = {}
    for source, both in slopes.items():
        affine = walk.ground.behind(source)
        if affine is None or affine in walk.ends or source in walk.ends:
            walk.send_product(source, rows, magnitude, *both)
        else:
            products.setdefault(affine, []).append(source)
    for number, (affine, operands) in enumerate(products.items()):
        walk.expect(affine)
        walk.passed.setdefault(affine, {})[Replaced(indices, tuple(operands), number == 0)] = rows, magnitude
    if products:
        return
    if middle.shape[-2] == 1:
        walk.terms.append((rows @ middle.mT + magnitude @ half.mT).squeeze(-1))
    else:
        walk.terms.append((rows * middle).addcmul_(magnitude, half).sum(-1))
