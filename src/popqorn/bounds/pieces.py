"""Walks through a tape that is relaxed as far as they go, cut into pieces of samples and rows that fit the processor's cache."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.bounds.chunks import walk_pieces
from popqorn.bounds.ground import Ground
from popqorn.bounds.stations import LinearBounds, Plan
from popqorn.bounds.walk import walk_back, walk_linear
from popqorn.regions.region import AllowedSet
from popqorn.relax.relaxation import Interval, Relaxation
from popqorn.tape.tape import Tape

Rows = Callable[[slice, slice], Tensor]
"""The rows of some samples and a piece of all rows, `[samples or 1, rows, width]`: held at once, there may be too many."""


@dataclass(frozen=True)
class Walks:
    """Backward walks from any node. `stations` grows: the linear bounds of the plan's stations that have been bounded so far."""

    tape: Tape
    allowed: AllowedSet
    relaxations: Mapping[int, Relaxation]
    known: Mapping[int, Tensor]
    plan: Plan
    chunk_rows: int | None = None
    stations: dict[int, LinearBounds] = field(default_factory=dict)
    _grounds: dict[tuple[int, int], Ground] = field(default_factory=dict, init=False, repr=False)

    def lower(
        self, index: int, count: int, some: Rows, boxes: tuple[Interval, ...] | None = None, *, cut: bool = False
    ) -> Float[Tensor, "batch rows"]:
        """A lower bound of `count` rows @ node[index] for every allowed input; a `cut` one ends at stations."""
        ends = self._ends(index) if cut else None
        bounds = []
        for samples, pieces in self._pieces(count):
            ground = self._ground(samples)
            walked = [walk_back(ground, index, some(samples, piece), boxes, ends) for piece in pieces]
            bounds.append(torch.cat([bound.expand(len(ground.allowed.center), -1) for bound in walked], dim=1))
        return torch.cat(bounds)

    def box(self, index: int, less: Float[Tensor, "#batch width"]) -> Interval:
        """The box of a node by two walks per entry, less what they may have lost; of a station, its linear bounds are kept."""
        width = self.tape.nodes[index].width
        some = partial(_either_side, width, self.allowed.center)
        if index in self.plan.stations:
            bound, linear = self._linear(index, 2 * width, some)
            self.stations[index] = linear.lowered(less)
        else:
            bound = self.lower(index, 2 * width, some, cut=True)
        return Interval(bound[:, :width], -bound[:, width:]).widened(less)

    def _linear(self, index: int, count: int, some: Rows) -> tuple[Tensor, LinearBounds]:
        ends = self._ends(index)
        bounds: list[Tensor] = []
        linear: list[list[LinearBounds]] = []
        for samples, pieces in self._pieces(count):
            ground = self._ground(samples)
            walked = [walk_linear(ground, index, some(samples, piece), ends) for piece in pieces]
            bounds.append(torch.cat([bound for bound, _ in walked], dim=1))
            linear.append([forms for _, forms in walked])
        return torch.cat(bounds), LinearBounds.joined(linear)

    def _ends(self, index: int) -> dict[int, LinearBounds]:
        return {end: self.stations[end] for end in self.plan.ends(index) if end in self.stations}

    def _ground(self, samples: slice) -> Ground:
        """That of some samples, the same for all walks."""
        key = samples.start, samples.stop
        if key not in self._grounds:
            own = self.allowed.select(samples)
            self._grounds[key] = Ground(self.tape, self.relaxations, self.known, own, samples, self._whole)
        return self._grounds[key]

    @cached_property
    def _whole(self) -> Ground | None:
        """That of all samples, where walks end at stations: these are many."""
        return Ground(self.tape, self.relaxations, self.known, self.allowed) if self.plan.stations else None

    def _pieces(self, count: int) -> list[tuple[slice, list[slice]]]:
        return list(walk_pieces(self.tape, len(self.allowed.center), count, self.chunk_rows, self.allowed.center))


def _either_side(width: int, like: Tensor, samples: slice, piece: slice) -> Tensor:
    """Rows of the identity and of its negative."""
    numbers = torch.arange(*piece.indices(2 * width), device=like.device)
    rows = like.new_zeros(1, len(numbers), width)
    sign = torch.where(numbers < width, 1.0, -1.0).to(rows)
    rows[0].scatter_(1, (numbers % width).unsqueeze(1), sign.unsqueeze(1))
    return rows
