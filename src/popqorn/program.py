"""The tape: a network unrolled into a straight list of a handful of operations.

Everything else (intervals, relaxations, backward bounds, attacks) walks this list. A node names its operands by their position;
operands come before their users. Values are `[batch, size]`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.activations import Activation


class GateKind(Enum):
    """What a gate `s(v)` multiplies: `z` itself, or `tanh(z)`."""

    IDENTITY = "s(v)*z"
    TANH = "s(v)*tanh(z)"

    def factor(self, z: Tensor) -> Tensor:
        """The second factor of the gate."""
        return torch.tanh(z) if self is GateKind.TANH else z


@runtime_checkable
class Node(Protocol):
    """One operation of a tape."""

    @property
    def sources(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    def evaluate(self, *operands: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Input:
    """Frame `frame` of the input sequence."""

    frame: int
    size: int
    sources: tuple[int, ...] = ()

    def evaluate(self, *operands: Tensor) -> Tensor:
        raise TypeError("an Input has no value of its own; Tape.values supplies it")


@dataclass(frozen=True, eq=False)
class Constant:
    """A fixed vector, such as an initial state."""

    value: Tensor
    sources: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.value.shape[-1]

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.value.unsqueeze(0)


@dataclass(frozen=True, eq=False)
class Affine:
    """`sum_i weights[i] @ operand_i + bias`."""

    sources: tuple[int, ...]
    weights: tuple[Tensor, ...]
    bias: Tensor

    @property
    def size(self) -> int:
        return self.bias.shape[0]

    @cached_property
    def stacked(self) -> Tensor:
        """All weights side by side, `[size, sum of the operands' sizes]`."""
        return torch.cat(self.weights, dim=1)

    def evaluate(self, *operands: Tensor) -> Tensor:
        total = self.bias.unsqueeze(0)
        for operand, weight in zip(operands, self.weights, strict=True):
            total = total + operand @ weight.mT
        return total


@dataclass(frozen=True, eq=False)
class Scale:
    """`factor * operand`."""

    sources: tuple[int]
    factor: float
    size: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.factor * operands[0]


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of its operands."""

    sources: tuple[int, ...]
    size: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        total = operands[0]
        for operand in operands[1:]:
            total = total + operand
        return total


@dataclass(frozen=True, eq=False)
class Slice:
    """Entries `start:stop` of its operand."""

    sources: tuple[int]
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def evaluate(self, *operands: Tensor) -> Tensor:
        return operands[0][..., self.start : self.stop]


@dataclass(frozen=True, eq=False)
class Concat:
    """Its operands one after the other."""

    sources: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def evaluate(self, *operands: Tensor) -> Tensor:
        batch = max(operand.shape[0] for operand in operands)
        return torch.cat([operand.expand(batch, -1) for operand in operands], dim=-1)


@dataclass(frozen=True, eq=False)
class Unary:
    """An activation, entry by entry."""

    sources: tuple[int]
    activation: Activation
    size: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        return self.activation.function(operands[0])


@dataclass(frozen=True, eq=False)
class Gate:
    """`s(v) * z` or `s(v) * tanh(z)`, entry by entry; `sources` are `(v, z)` and `s` is the logistic sigmoid.

    A `closing` gate has `s(-v) = 1 - s(v)` in place of `s(v)`.
    """

    sources: tuple[int, int]
    kind: GateKind
    size: int
    closing: bool = False

    def evaluate(self, *operands: Tensor) -> Tensor:
        v, z = operands
        return torch.sigmoid(-v if self.closing else v) * self.kind.factor(z)


@dataclass(frozen=True, eq=False)
class Tape:
    """A network for sequences of `frames` frames with `features` features; its last node is the output."""

    nodes: tuple[Node, ...]
    frames: int
    features: int

    @cached_property
    def users(self) -> tuple[int, ...]:
        """How many operands each node is."""
        counts = [0] * len(self.nodes)
        for node in self.nodes:
            for source in node.sources:
                counts[source] += 1
        return tuple(counts)

    @property
    def outputs(self) -> int:
        """How many logits the network has."""
        return self.nodes[-1].size

    def values(self, inputs: Float[Tensor, "batch frames features"]) -> list[Tensor]:
        """The value of every node, in order."""
        values: list[Tensor] = []
        for node in self.nodes:
            if isinstance(node, Input):
                values.append(inputs[:, node.frame])
            else:
                values.append(node.evaluate(*(values[source] for source in node.sources)))
        return values

    def __call__(self, inputs: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch outputs"]:
        return self.values(inputs)[-1].expand(inputs.shape[0], -1)


class TapeWriter:
    """Writes a tape; every method appends one operation and returns its position.

    Weights are copied to `dtype` and `device` as they come in, so that a tape never shares storage with a module in training.
    """

    def __init__(self, frames: int, features: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.frames = frames
        self.features = features
        self.dtype = dtype
        self.device = device
        self._nodes: list[Node] = []

    def _append(self, node: Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def tensor(self, value: Tensor) -> Tensor:
        """A copy of `value` in the tape's dtype and on its device, cut off from autograd."""
        return value.detach().to(device=self.device, dtype=self.dtype, copy=True)

    def size(self, position: int) -> int:
        """The width of the value at `position`."""
        return self._nodes[position].size

    def is_zero(self, position: int) -> bool:
        """Whether the value at `position` is a constant zero, such as the usual initial state."""
        node = self._nodes[position]
        return isinstance(node, Constant) and not bool(node.value.any())

    def input(self, frame: int) -> int:
        return self._append(Input(frame, self.features))

    def constant(self, value: Tensor) -> int:
        return self._append(Constant(self.tensor(value)))

    def affine(self, terms: Sequence[tuple[int, Tensor]], bias: Tensor | None = None) -> int:
        """`sum of weight @ operand + bias` over `terms` of `(operand, weight)`; operands that are always zero are left out."""
        terms = [term for term in terms if not self.is_zero(term[0])] or terms
        weights = tuple(self.tensor(weight) for _, weight in terms)
        zero = torch.zeros(weights[0].shape[0], dtype=self.dtype, device=self.device)
        return self._append(Affine(tuple(source for source, _ in terms), weights, zero if bias is None else self.tensor(bias)))

    def scale(self, source: int, factor: float) -> int:
        return self._append(Scale((source,), factor, self.size(source)))

    def sum(self, *sources: int) -> int:
        return self._append(Sum(sources, self.size(sources[0]))) if len(sources) > 1 else sources[0]

    def slice(self, source: int, start: int, stop: int) -> int:
        return self._append(Slice((source,), start, stop))

    def concat(self, *sources: int) -> int:
        return self._append(Concat(sources, tuple(self.size(source) for source in sources)))

    def unary(self, source: int, activation: Activation) -> int:
        return self._append(Unary((source,), activation, self.size(source)))

    def gate(self, v: int, z: int, kind: GateKind, *, closing: bool = False) -> int:
        return self._append(Gate((v, z), kind, self.size(z), closing))

    def finish(self, output: int) -> Tape:
        """The tape of everything `output` depends on, `output` last."""
        needed = {output}
        for position in range(output, -1, -1):
            if position in needed:
                needed.update(self._nodes[position].sources)
        kept = sorted(needed)
        renumbered = {old: new for new, old in enumerate(kept)}
        nodes = tuple(_renumber(self._nodes[old], renumbered.__getitem__) for old in kept)
        return Tape(nodes, self.frames, self.features)


def _renumber(node: Node, position: Callable[[int], int]) -> Node:
    return replace(node, sources=tuple(position(source) for source in node.sources))  # type: ignore[type-var]
