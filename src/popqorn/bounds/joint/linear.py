"""The network to first order: `delta = J d + Phi eps`, exactly.

Around reference values, a linear operation passes displacements on, and a nonlinear one is `slopes . delta` plus an error of its
own. `J` says how every value moves with the inputs (in units of the region's radius), `Phi` how with every error: their columns
are pushed forward along the tape, `[batch, columns, width]`. Errors of nonlinear nodes that only one sum uses are injected
there, together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from popqorn.arithmetic import FEW, gamma
from popqorn.regions.region import AllowedSet
from popqorn.tape.ops.linear import Input
from popqorn.tape.ops.node import LinearNode, Node
from popqorn.tape.tape import Tape


@dataclass(frozen=True)
class Layout:
    """Where the columns of `J` and `Phi` are: fixed by the tape and by the frames that move.

    `frames` move, in order; `stages[n]` is how many of them have been read when node `n` is computed (0: it does not move);
    `injected[n]` is where the error of nonlinear node `n` enters, `places` which columns of `Phi` belong to such a node.
    """

    tape: Tape
    frames: tuple[int, ...]
    stages: tuple[int, ...]
    injected: Mapping[int, int]
    places: Mapping[int, slice]

    @staticmethod
    def of(tape: Tape, allowed: AllowedSet) -> "Layout":
        frames = tuple(frame for frame in range(tape.frames) if frame not in allowed.still)
        stages: list[int] = []
        for node in tape.nodes:
            if isinstance(node, Input):
                stages.append(frames.index(node.frame) + 1 if node.frame in frames else 0)
            else:
                stages.append(max((stages[source] for source in node.sources), default=0))
        injected = {n: tape.summed.get(n, n) for n, node in enumerate(tape.nodes) if not node.linear and stages[n]}
        places, count = {}, 0
        for position in sorted(set(injected.values())):
            places[position] = slice(count, count + tape.nodes[position].width)
            count += tape.nodes[position].width
        return Layout(tape, frames, tuple(stages), injected, places)

    @cached_property
    def bends(self) -> tuple[bool, ...]:
        """Whether a node depends on a nonlinear one that moves (or is one)."""
        found: list[bool] = []
        for position, node in enumerate(self.tape.nodes):
            own = not node.linear and self.stages[position] > 0
            found.append(own or any(found[source] for source in node.sources))
        return tuple(found)

    @property
    def inputs(self) -> int:
        """How many columns `J` has."""
        return len(self.frames) * self.tape.features

    @property
    def errors(self) -> int:
        """How many columns `Phi` has."""
        return max((place.stop for place in self.places.values()), default=0)

    def columns(self, stage: int) -> int:
        """How many columns of `J` a node of this stage can depend on."""
        return stage * self.tape.features

    def ancestors(self, top: int) -> list[int]:
        """The moving nodes that node `top` depends on, itself among them: by stages, in the tape's order within each."""
        needed = {top}
        for position in range(top, -1, -1):
            if position in needed:
                needed.update(source for source in self.tape.nodes[position].sources if self.stages[source])
        return sorted(needed, key=lambda position: (self.stages[position], position))


@dataclass
class Linearised:
    """`J`, `Phi` and their magnitudes for all nodes so far; `slopes` of the nonlinear ones, around the `values` at a `point` and
    in units `radius`.

    `sizes[n]` (`[batch, 3, width]`) are bounds with the absolute values of all weights and slopes: of `|J| 1`, of `|Phi| 1`, and
    of how far a computed displacement may be off because `values` themselves are rounded.
    """

    layout: Layout
    point: Tensor
    radius: Tensor
    values: dict[int, Tensor] = field(default_factory=dict)
    slopes: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    jacobian: dict[int, Tensor] = field(default_factory=dict)
    errors: dict[int, Tensor] = field(default_factory=dict)
    sizes: dict[int, Tensor] = field(default_factory=dict)

    def stands(self, position: int, value: Tensor, error: Tensor) -> None:
        """A node that does not move has no columns."""
        self.values[position] = value.expand(len(self.point), -1)
        sizes = self.point.new_zeros(len(self.point), 3, value.shape[-1])
        sizes[:, 2] = error
        self.sizes[position] = sizes

    def follow(self, position: int) -> None:
        """Push the columns on to the next node that moves; a nonlinear one has its slopes already."""
        layout = self.layout
        node = layout.tape.nodes[position]
        if isinstance(node, Input):
            self._start(position, node)
            return
        self.values[position] = node.evaluate(*(self.values[source] for source in node.sources))
        self.jacobian[position] = pushed(layout.tape, node, self.slopes.get(position), self.jacobian)
        errors = pushed(layout.tape, node, self.slopes.get(position), self.errors)
        sizes = self._sizes(position, node)
        place = layout.places.get(position)
        if place is not None:
            eye = torch.eye(node.width, dtype=errors.dtype, device=errors.device)
            errors = errors.clone()
            errors[:, place] += eye
            sizes = sizes.clone()
            sizes[:, 1] += 1
        self.errors[position], self.sizes[position] = errors, sizes

    def _start(self, position: int, node: Input) -> None:
        self.values[position] = self.point[:, node.frame]
        radius = self.radius[:, node.frame]
        batch, features = radius.shape
        first = self.layout.columns(self.layout.stages[position] - 1)
        columns = radius.new_zeros(batch, self.layout.inputs, features)
        columns[:, first : first + features] = torch.diag_embed(radius)
        self.jacobian[position] = columns
        self.errors[position] = radius.new_zeros(batch, self.layout.errors, features)
        self.sizes[position] = torch.stack([radius, torch.zeros_like(radius), torch.zeros_like(radius)], dim=1)

    def _sizes(self, position: int, node: Node) -> Tensor:
        """Magnitudes pass by absolute values; the values at the reference add their own rounding."""
        value = self.values[position]
        if isinstance(node, LinearNode):
            rows = [self.sizes[source].flatten(0, 1) for source in node.sources]
            total = node.absolute(*rows)[1].unflatten(0, (len(value), 3))
            magnitudes = [self.values[source].abs() for source in node.sources]
            constant, weighed = node.absolute(*magnitudes)
            count = node.width + sum(source.shape[-1] for source in magnitudes) + FEW
            own = gamma(count, value.dtype) * (constant + weighed)
        else:
            slopes = tuple(slope.abs() for slope in self.slopes[position])
            total = pushed(self.layout.tape, node, slopes, self.sizes)
            own = gamma(4 * FEW, value.dtype) * value.abs()  # a gate is two functions deep
        found: Tensor = total.clone()
        found[:, 2] += own
        return found

    def unsure(self, position: int) -> Tensor:
        """How far `J d` as computed, and the reference value, may be off together."""
        return self.relative * self.sizes[position][:, 0] + self.sizes[position][:, 2]

    def size(self, position: int) -> Tensor:
        """At least `|J| 1`."""
        return self.sizes[position][:, 0] + self.sizes[position][:, 2]

    @cached_property
    def relative(self) -> float:
        """How far a computed column may be off, relative to its magnitude: one `gamma` for all that is summed along a path."""
        nodes = self.layout.tape.nodes
        count = sum(FEW + sum(nodes[source].width for source in node.sources) for node in nodes)
        return gamma(2 * count, self.radius.dtype)


def pushed(tape: Tape, node: Node, slopes: tuple[Tensor, ...] | None, columns: Mapping[int, Tensor]) -> Tensor:
    """Columns `[batch, columns, width]` of a node, from those of its operands; operands that do not move have none."""
    like = next(columns[source] for source in node.sources if source in columns)
    if slopes is not None:
        parts = [
            slope.unsqueeze(1) * columns[source] for slope, source in zip(slopes, node.sources, strict=True) if source in columns
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    assert isinstance(node, LinearNode)
    nothing = (like.new_zeros(*like.shape[:2], tape.nodes[source].width) for source in node.sources)
    rows = [columns.get(source, zero).flatten(0, 1) for source, zero in zip(node.sources, nothing, strict=True)]
    found: Tensor = node.push(*rows).unflatten(0, like.shape[:2])
    return found
