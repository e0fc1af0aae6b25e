"""Long tapes: where backward walks end early, at nodes whose bounds are known as linear functions of the inputs.

A walk to the first frame costs as many steps as there are frames, and there is one from every frame. On long tapes some nodes
are *stations*: when their turn comes, they are walked all the way back, and what arrives at the frames is kept,

    low (x - center) + below  <=  node(x)  <=  high (x - center) + above        for all allowed x.

A later walk whose row `r` arrives at a station goes on as `max(r, 0) low + min(r, 0) high`: one product instead of many steps.
Any choice of stations is sound. The nearer the station, the more is lost, since `low` and `high` belong to single entries, not to
the row that arrives: so a walk ends only after some steps, and sequences that are not long have no stations at all.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.tape.ops.linear import Constant, Input
from popqorn.tape.ops.node import Choice
from popqorn.tape.tape import Tape

LONG = 32  # frames; up to here all walks go to the inputs
SPACING = 10  # frames between stations: fewer cost more walks to the inputs, more cost longer walks to the stations
APART = 8  # frames that a walk passes at least: keeps about 0.96 of the radius at 100 frames
FAR = 30  # frames that the walk of a station itself passes: what is lost there is lost for all that end there


@dataclass(frozen=True)
class LinearBounds:
    """`rows @ node >= forms (x - center) + constants` for all allowed inputs `x`, with the features of `frames` one after the
    other; for a station, the rows are those of the identity and of its negative.
    """

    frames: tuple[int, ...]
    forms: Float[Tensor, "batch rows inputs"]
    constants: Float[Tensor, "batch rows"]

    @staticmethod
    def joined(parts: Sequence[Sequence["LinearBounds"]]) -> "LinearBounds":
        """Of all blocks of samples, each in pieces of rows: all of them reach the same frames."""
        forms = torch.cat([torch.cat([piece.forms for piece in block], dim=1) for block in parts])
        constants = torch.cat([torch.cat([piece.constants for piece in block], dim=1) for block in parts])
        return LinearBounds(parts[0][0].frames, forms, constants)

    def lowered(self, by: Float[Tensor, "#batch width"]) -> "LinearBounds":
        """Less what either side of a station's entries may have lost."""
        return LinearBounds(self.frames, self.forms, self.constants - torch.cat([by, by], dim=-1))

    @property
    def magnitudes(self) -> tuple[Tensor, Tensor]:
        """The larger of both sides of a station's forms and constants."""
        forms, constants = self.forms.abs(), self.constants.abs()
        width = forms.shape[1] // 2
        return torch.maximum(forms[:, :width], forms[:, width:]), torch.maximum(constants[:, :width], constants[:, width:])


@dataclass(frozen=True, eq=False)
class Plan:
    """The stations of a tape, and how many nonlinearities a walk passes at least before it ends at one: that of a station
    itself `far`, any other `apart`.
    """

    tape: Tape
    stations: frozenset[int] = frozenset()
    apart: int = 0
    far: int = 0
    _ends: dict[int, frozenset[int]] = field(default_factory=dict, init=False, repr=False)

    def ends(self, start: int) -> frozenset[int]:
        """The stations at which walks from `start` end."""
        if not self.stations:
            return frozenset()
        if start not in self._ends:
            apart = self.far if start in self.stations else self.apart
            self._ends[start] = _backwards(self.tape, start, self.stations, apart)[0]
        return self._ends[start]


@lru_cache(maxsize=8)  # a search asks for the same tape again and again
def plan_of(tape: Tape, *, long: int = LONG, spacing: int = SPACING, apart: int = APART, far: int = FAR) -> Plan:
    """Wherever a recurrent network is narrowest: what is used after a level of the tape and computed shortly before it.

    A level is an operation on the longest way from the inputs; a vanilla cell takes two, LSTM and GRU three of them.
    """
    if tape.frames <= long or max(level := _levels(tape)) <= 2 * long:
        return Plan(tape)
    deepest = max(level)
    spacing = spacing * -(-deepest // tape.frames)
    live = _live(tape, level, spacing)
    width = {at: sum(tape.nodes[index].width for index in nodes) for at, nodes in live.items()}
    stations: set[int] = set()
    for start in range(spacing, deepest, spacing):
        window = [at for at in range(start, start + spacing) if at in live]
        stations.update(live[min(window, key=width.__getitem__)] if window else ())
    _, distance = _backwards(tape, len(tape.nodes) - 1, frozenset(), 0)
    furthest = max((steps for index, steps in distance.items() if isinstance(tape.nodes[index], Input)), default=0)
    per_frame = max(1, furthest // tape.frames)
    return Plan(tape, frozenset(stations), apart * per_frame, far * per_frame)


def _levels(tape: Tape) -> list[int]:
    """The number of operations on the longest way from the inputs to each node; choices of entries and sums do not count."""
    found: list[int] = []
    for node in tape.nodes:
        below = max((found[source] for source in node.sources), default=0)
        found.append(below if isinstance(node, Choice | Input | Constant) else below + 1)
    return found


def _live(tape: Tape, level: Sequence[int], recent: int) -> dict[int, list[int]]:
    """The nodes up to each level that are used beyond it, without those that lie `recent` levels back or more."""
    last = list(level)
    for index, node in enumerate(tape.nodes):
        for source in node.sources:
            last[source] = max(last[source], level[index])
    live: dict[int, list[int]] = {}
    for index, node in enumerate(tape.nodes):
        if node.sources:
            for at in range(level[index], min(last[index], level[index] + recent)):
                live.setdefault(at, []).append(index)
    return live


def _backwards(tape: Tape, start: int, stations: frozenset[int], apart: int) -> tuple[frozenset[int], dict[int, int]]:
    """Where a walk from `start` meets stations at a distance of `apart` or more, and the distance of all nodes it visits.

    The distance is the least number of nonlinearities in between.
    """
    ends, distance, waiting = set(), {start: 0}, [-start]
    while waiting:
        index = -heapq.heappop(waiting)
        if index in stations and distance[index] >= apart:
            ends.add(index)
            continue
        sources, nonlinear = tape.steps[index]
        further = distance[index] + nonlinear
        for source in sources:
            if source not in distance:
                heapq.heappush(waiting, -source)
                distance[source] = further
            elif further < distance[source]:
                distance[source] = further
    return frozenset(ends), distance
