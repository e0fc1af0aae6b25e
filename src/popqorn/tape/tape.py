"""The tape: a network unrolled into a straight list of a handful of operations, and how one is written.

Everything else (boxes, relaxations, backward walks, attacks) goes along this list. Operands come before their users.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.relax.activations import Activation
from popqorn.relax.gates import GateKind
from popqorn.tape.ops.linear import Affine, Concat, Constant, Convolution, Gather, Input, Scale, Slice, Sum, Total
from popqorn.tape.ops.node import Node
from popqorn.tape.ops.nonlinear import Gate, Maximum, Product, Unary


@dataclass(frozen=True, eq=False)
class Tape:
    """A network for sequences of `frames` frames with `features` features; its last node is the output.

    `shape` is the output's shape per sample, such as `(classes,)`, or `(steps, classes)` for one decision per step; the value
    of the last node is the output flattened.
    """

    nodes: tuple[Node, ...]
    frames: int
    features: int
    shape: tuple[int, ...]

    @cached_property
    def users(self) -> tuple[int, ...]:
        """How many operands each node is."""
        counts = [0] * len(self.nodes)
        for node in self.nodes:
            for source in node.sources:
                counts[source] += 1
        return tuple(counts)

    @cached_property
    def steps(self) -> tuple[tuple[tuple[int, ...], bool], ...]:
        """The operands of every node, and whether it is nonlinear."""
        return tuple((node.sources, not node.linear) for node in self.nodes)

    @cached_property
    def summed(self) -> Mapping[int, int]:
        """The nodes that nothing but one sum uses, and where that sum is."""
        sums = ((index, node) for index, node in enumerate(self.nodes) if isinstance(node, Sum))
        return {source: index for index, node in sums for source in node.sources if self.users[source] == 1}

    @cached_property
    def most_pieces(self) -> int:
        """The greatest number of pieces in which a walk's rows arrive at a node: from its users and those of its slices."""
        counts = list(self.users)
        for position, node in enumerate(self.nodes):
            if isinstance(node, Slice):
                counts[node.sources[0]] += self.users[position]
        return max(counts)

    @cached_property
    def most_terms(self) -> int:
        """A bound of how many numbers are summed up in one entry of a walk's rows."""
        return 2 * self.widest + self.most_pieces

    @cached_property
    def most_multiplied(self) -> int:
        """A bound of how many numbers one entry of a product sums up that passes nonlinear nodes and the affine one behind them
        (`bounds/ground.py`): two for every entry of theirs that is an entry of it.
        """
        counts = [0] * len(self.nodes)
        for node in self.nodes:
            for source in () if node.linear else node.sources:
                operand = self.nodes[source]
                counts[operand.sources[0] if isinstance(operand, Slice) else source] += 2 * operand.width
        return max(counts)

    @cached_property
    def widest(self) -> int:
        """The greatest number of entries of a node."""
        return max(node.width for node in self.nodes)

    @property
    def outputs(self) -> int:
        """How many numbers the output has."""
        return self.nodes[-1].width

    def values(self, inputs: Float[Tensor, "batch frames features"], equal: frozenset[int] = frozenset()) -> list[Tensor]:
        """The value of every node, in order. Frames in which all samples are `equal` count once, and so does what follows from
        them alone.
        """
        values: list[Tensor] = []
        for node in self.nodes:
            if isinstance(node, Input):
                values.append(inputs[:1, node.frame] if node.frame in equal else inputs[:, node.frame])
            else:
                values.append(node.evaluate(*(values[source] for source in node.sources)))
        return values

    def __call__(
        self, inputs: Float[Tensor, "batch frames features"], equal: frozenset[int] = frozenset()
    ) -> Float[Tensor, "batch outputs"]:
        return self.values(inputs, equal)[-1].expand(inputs.shape[0], -1)


class TapeWriter:
    """Writes a tape; every method appends one operation and returns its position.

    Weights are copied to `dtype` and `device` as they come in, each once however many frames use it, so that a tape never shares
    storage with a module in training. A `live` tape is one for training: its weights are the module's own, and gradients reach
    them.
    """

    def __init__(self, frames: int, features: int, *, dtype: torch.dtype, device: torch.device, live: bool = False) -> None:
        self.frames = frames
        self.features = features
        self.dtype = dtype
        self.device = device
        self.live = live
        self._nodes: list[Node] = []
        self._inputs: dict[int, int] = {}
        self._copies: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def _append(self, node: Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def tensor(self, value: Tensor) -> Tensor:
        """`value` in the tape's dtype and on its device, the same one for the same memory; a copy, cut off from autograd, unless
        the tape is live.
        """
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device)
        if key not in self._copies:  # the original is kept, so that its memory is not given to another meanwhile
            own = value if self.live else value.detach()
            self._copies[key] = value, own.to(device=self.device, dtype=self.dtype, copy=not self.live)
        return self._copies[key][1]

    def width(self, position: int) -> int:
        """How many entries the value at `position` has."""
        return self._nodes[position].width

    def node(self, position: int) -> Node:
        """The operation at `position`."""
        return self._nodes[position]

    def chosen(self, position: int, entries: Callable[[int], Tensor]) -> Tensor:
        """Which entries a value was put together from by slices, choices and joins; `entries` numbers those of a node."""
        node = self._nodes[position]
        if not isinstance(node, Slice | Gather | Concat):
            return entries(position)
        parts = [self.chosen(source, entries) for source in node.sources]
        if isinstance(node, Slice):
            return parts[0][node.start : node.stop]
        return parts[0][node.index.cpu()] if isinstance(node, Gather) else torch.cat(parts)

    def is_zero(self, position: int) -> bool:
        """Whether the value at `position` is a constant zero, such as the usual initial state."""
        node = self._nodes[position]
        return isinstance(node, Constant) and not bool(node.value.any())

    def input(self, frame: int) -> int:
        """The one node of a frame: what the whole network makes of it arrives there together."""
        if frame not in self._inputs:
            self._inputs[frame] = self._append(Input(frame, self.features))
        return self._inputs[frame]

    def constant(self, value: Tensor) -> int:
        return self._append(Constant(self.tensor(value)))

    def affine(self, terms: Sequence[tuple[int, Tensor]], bias: Tensor | None = None) -> int:
        """`sum of weight @ operand + bias` over `terms` of `(operand, weight)`; operands that are always zero are left out."""
        terms = [term for term in terms if not self.is_zero(term[0])] or terms
        weights = tuple(self.tensor(weight) for _, weight in terms)
        zero = torch.zeros(weights[0].shape[0], dtype=self.dtype, device=self.device)
        return self._append(Affine(tuple(source for source, _ in terms), weights, zero if bias is None else self.tensor(bias)))

    def scale(self, source: int, factor: Tensor | float, shift: Tensor | float = 0.0) -> int:
        """`factor * operand + shift`, with a number or one per entry of each."""
        return self._append(Scale((source,), self._vector(factor), self._vector(shift), self.width(source)))

    def _vector(self, value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return self.tensor(value).reshape(-1)
        return torch.tensor([value], dtype=self.dtype, device=self.device)

    def sum(self, *sources: int) -> int:
        return self._append(Sum(sources, self.width(sources[0]))) if len(sources) > 1 else sources[0]

    def slice(self, source: int, start: int, stop: int) -> int:
        return self._append(Slice((source,), start, stop))

    def gather(self, source: int, index: Tensor) -> int:
        return self._append(Gather((source,), index.to(self.device)))

    def total(self, source: int, count: int) -> int:
        return self._append(Total((source,), count, self.width(source) // count))

    def convolution(self, source: int, shape: tuple[int, ...], weight: Tensor, bias: Tensor | None, **where: Any) -> int:
        """torch's convolution of the value at `source`, of shape `shape` (channels first)."""
        bias = None if bias is None else self.tensor(bias)
        return self._append(Convolution((source,), shape, self.tensor(weight), bias, **where))

    def concat(self, *sources: int) -> int:
        return self._append(Concat(sources, tuple(self.width(source) for source in sources)))

    def unary(self, source: int, activation: Activation) -> int:
        return self._append(Unary((source,), activation, self.width(source)))

    def gate(self, v: int, z: int, kind: GateKind, *, closing: bool = False) -> int:
        return self._append(Gate((v, z), kind, self.width(z), closing))

    def product(self, x: int, y: int) -> int:
        return self._append(Product((x, y), self.width(x)))

    def maximum(self, *sources: int) -> int:
        return self._append(Maximum(sources, self.width(sources[0]))) if len(sources) > 1 else sources[0]

    def finish(self, output: int, shape: tuple[int, ...] | None = None) -> Tape:
        """The tape of everything `output` depends on, `output` last; `shape` is the output's, by default one axis."""
        needed = {output}
        for position in range(output, -1, -1):
            if position in needed:
                needed.update(self._nodes[position].sources)
        kept = sorted(needed)
        renumbered = {old: new for new, old in enumerate(kept)}
        nodes = tuple(_renumber(self._nodes[old], renumbered.__getitem__) for old in kept)
        shape = (self.width(output),) if shape is None else shape
        assert math.prod(shape) == self.width(output)
        return Tape(nodes, self.frames, self.features, shape)


def _renumber(node: Node, position: Callable[[int], int]) -> Node:
    return replace(node, sources=tuple(position(source) for source in node.sources))  # type: ignore[type-var]
