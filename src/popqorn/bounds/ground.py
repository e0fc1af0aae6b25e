"""What backward walks go through: a tape that is relaxed as far as they go, and what is the same for all walks.

A sum of relaxed nodes turns rows `r` that arrive at it into `r m + |r| h` at each operand, `m` and `h` the mean and half the
difference of its lower and upper slope. Where that operand is (a slice of) an affine node with weights `W`, the next step is

    (r m + |r| h) W  =  [r, |r|] [diag(m) W; diag(h) W],

and the matrix on the right is the same for all walks: one product, in which the operands' own rows never appear.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.regions.region import AllowedSet
from popqorn.relax.relaxation import Relaxation
from popqorn.tape.ops.linear import Affine, Input, Slice, side_by_side
from popqorn.tape.tape import Tape

KEPT = 96  # products: those of more steps than a walk takes, of every sample
EVEN = 8  # matrix products are faster where their columns are a multiple of this


Sides = tuple[Tensor, Tensor]
"""The mean of a lower and an upper coefficient, and half their difference; `[batch, 1, width]`, or `[batch, rows, width]` where
every row has coefficients of its own."""


class Replaced(NamedTuple):
    """A sum of relaxed `nodes` whose rows enter a product for these `operands` of theirs; with its `offset`, where no other
    product of the walk has it.
    """

    nodes: tuple[int, ...]
    operands: tuple[int, ...]
    offset: bool


@dataclass(frozen=True)
class Ground:
    """What walks go through: a tape that is relaxed as far as they go.

    `relaxations` and `known` (the values of nodes that do not move: walks end there) are of the whole batch; `samples` says which
    of it `allowed` and the walks are for. What is the same for all walks is computed once. Walks over a part of a `whole` take
    products, that are kept there.
    """

    tape: Tape
    relaxations: Mapping[int, Relaxation]
    known: Mapping[int, Tensor]
    allowed: AllowedSet
    samples: slice = field(default_factory=lambda: slice(None))
    whole: "Ground | None" = None
    _replaced: dict[tuple[int, ...], tuple[dict[int, Sides], Sides]] = field(default_factory=dict, init=False, repr=False)
    _moving: dict[Affine, tuple[Tensor, Tensor, list[tuple[int, int]]]] = field(default_factory=dict, init=False, repr=False)
    _behind: dict[int, int | None] = field(default_factory=dict, init=False, repr=False)
    _products: dict[tuple[int, tuple[Replaced, ...]], Tensor] = field(default_factory=dict, init=False, repr=False)

    def value(self, node: int) -> Tensor:
        """The value of a known node, `[batch or 1, width]`."""
        return self.own(self.known[node])

    def own(self, tensor: Tensor) -> Tensor:
        """The walks' samples of a tensor `[batch or 1, ...]`."""
        return tensor[self.samples] if tensor.shape[0] > 1 else tensor

    def replaced(self, indices: tuple[int, ...]) -> tuple[dict[int, Sides], Sides]:
        """A sum of nonlinear nodes, relaxed: the slopes of all their operands, and the offset."""
        if indices not in self._replaced:
            slopes: dict[int, Sides] = {}
            offset: Sides | None = None
            for index in indices:
                middle, half = self.relaxations[index].middle, self.relaxations[index].half
                for source, *both in zip(self.tape.nodes[index].sources, middle.slopes, half.slopes, strict=True):
                    slopes[source] = self._added(slopes.get(source), *both)
                offset = self._added(offset, middle.offset, half.offset)
            assert offset is not None
            self._replaced[indices] = slopes, offset
        return self._replaced[indices]

    def moving(self, node: Affine) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """What an affine node is where nothing moves, `[batch or 1, width, 1]` (frames at their centre), and the weights of the
        operands that move side by side, with the number and width of each.
        """
        if node not in self._moving:
            fixed = node.bias.unsqueeze(0)
            found: list[tuple[int, Tensor]] = []
            for source, weight in zip(node.sources, node.weights, strict=True):
                operand = self.tape.nodes[source]
                if source in self.known:
                    fixed = fixed + self.value(source) @ weight.mT
                    continue
                if isinstance(operand, Input):
                    fixed = fixed + self.allowed.center[:, operand.frame] @ weight.mT
                found.append((source, weight))
            stacked = node.stacked if len(found) == len(node.weights) else side_by_side([weight for _, weight in found])
            self._moving[node] = fixed.unsqueeze(-1), stacked, [(source, weight.shape[1]) for source, weight in found]
        return self._moving[node]

    def behind(self, operand: int) -> int | None:
        """The affine node that `operand` is, or is a slice of, if that one moves and walks take products."""
        if self.whole is None:
            return None
        if operand not in self._behind:
            node = self.tape.nodes[operand]
            source = node.sources[0] if isinstance(node, Slice) else operand
            passed = isinstance(self.tape.nodes[source], Affine) and source not in self.known
            self._behind[operand] = source if passed else None
        return self._behind[operand]

    def product(self, index: int, sums: tuple[Replaced, ...]) -> Float[Tensor, "batch entries columns"]:
        """What rows and their magnitudes `[r, |r|]` at each of these sums, side by side, are multiplied by to pass them and the
        affine node at `index`. The columns are those of its operands that move, one for the constant terms, and some that are 0.
        """
        assert self.whole is not None
        kept, key = self.whole._products, (index, sums)
        if key not in kept:
            kept[key] = self.whole._multiplied(index, sums)
            if len(kept) > KEPT:
                del kept[next(iter(kept))]
        return self.own(kept[key])

    def _multiplied(self, index: int, sums: tuple[Replaced, ...]) -> Tensor:
        node = self.tape.nodes[index]
        assert isinstance(node, Affine)
        fixed, stacked, _ = self.moving(node)
        count = stacked.shape[1]
        weights = torch.cat([stacked.expand(len(fixed), -1, -1), fixed], dim=-1)
        weights = torch.nn.functional.pad(weights, (0, -(count + 1) % EVEN))
        parts: list[Tensor] = []
        for each in sums:
            slopes, offset = self.replaced(each.nodes)
            for side in range(2):
                part = sum(slopes[operand][side].mT * self._entries(weights, operand) for operand in each.operands)
                assert isinstance(part, Tensor)
                if each.offset:
                    part[..., count] += offset[side].squeeze(-2)
                parts.append(part)
        batch = max(part.shape[0] for part in parts)
        return torch.cat([part.expand(batch, -1, -1) for part in parts], dim=-2)

    def _entries(self, weights: Tensor, operand: int) -> Tensor:
        """The rows of an affine node's weights that belong to `operand`: to itself, or to its entries that this one has."""
        node = self.tape.nodes[operand]
        return weights[:, node.start : node.stop] if isinstance(node, Slice) else weights

    def _added(self, before: Sides | None, middle: Tensor, half: Tensor) -> Sides:
        middle, half = (part if part.dim() == 3 else part.unsqueeze(-2) for part in (self.own(middle), self.own(half)))
        return (middle, half) if before is None else (before[0] + middle, before[1] + half)
