"""Tensors of a network while it is being read: what is known is a tensor, what depends on the inputs a `Symbol`.

A symbol is a tensor of numbers, one per entry, each naming one entry of one node of the tape. Whatever only moves data about
(transposing, slicing, stacking, repeating, padding) is therefore done by moving those numbers, once, while the network is read:
it leaves no trace on the tape. `SymbolWriter` has what computes. Nothing here knows about a batch: a network is read with one
sample, whose batch axis is an axis like any other.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from popqorn.relax.activations import SIGMOID, SQUARE, TANH, Activation
from popqorn.relax.gates import GateKind
from popqorn.tape.ops.linear import Constant, Scale
from popqorn.tape.ops.nonlinear import Unary
from popqorn.tape.tape import Tape, TapeWriter

MOST_PIECES = 8  # of an operand that is put together; beyond, entries are chosen one by one


@dataclass(frozen=True, eq=False)
class Symbol:
    """A tensor of entries of the tape."""

    entries: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.entries.shape

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Symbol":
        """The same entries elsewhere."""
        return Symbol(move(self.entries))


Value = Symbol | Tensor
"""What an operation of a network takes and gives."""


class SymbolWriter:
    """Writes a tape for a network that computes with tensors of any shape."""

    def __init__(self, frames: int, features: int, *, dtype: torch.dtype, device: torch.device, live: bool = False) -> None:
        self.writer = TapeWriter(frames, features, dtype=dtype, device=device, live=live)
        self._starts: list[int] = []  # the number of every node's first entry
        self._numbered = torch.empty(0)  # the same as a tensor
        self._end = 0
        self._found: dict[bytes, int] = {}  # operands put together before

    # ---- entries and nodes -----------------------------------------------------------------------------------------------

    def inputs(self, shape: Sequence[int]) -> Symbol:
        """All frames, as one tensor."""
        nodes = [self.entries(self.writer.input(frame)) for frame in range(self.writer.frames)]
        return Symbol(torch.cat(nodes).reshape(tuple(shape)))

    def entries(self, position: int) -> Tensor:
        """The numbers of a node's entries, `[width]`."""
        while len(self._starts) <= position:
            self._starts.append(self._end)
            self._end += self.writer.width(len(self._starts) - 1)
        return torch.arange(self._starts[position], self._starts[position] + self.writer.width(position))

    def symbol(self, value: Value) -> Symbol:
        """A value as a symbol: a known one becomes a constant of the tape."""
        if isinstance(value, Symbol):
            return value
        flat = value.reshape(-1).to(self.writer.dtype)
        return Symbol(self.entries(self.writer.constant(flat)).reshape(value.shape))

    def position(self, entries: Tensor) -> int:
        """A node whose value are these entries, one after the other; written if there is none."""
        flat = entries.reshape(-1)
        key = flat.numpy().tobytes()
        if key not in self._found:
            self._found[key] = self._put_together(flat)
        return self._found[key]

    def _put_together(self, entries: Tensor) -> int:
        pieces = self.pieces(entries, runs=True)
        whole = len(pieces) == 1 and len(entries) == self.writer.width(self._node(int(entries[0])))
        if not whole and (values := self.known(entries)) is not None:
            return self.writer.constant(values)  # a part of a constant that is zero must be seen to be zero
        if len(pieces) <= MOST_PIECES:
            parts = [self._run(entries[start:stop]) for start, stop in pieces]
            return self.writer.concat(*parts) if len(parts) > 1 else parts[0]
        nodes = self._nodes(entries)
        used = nodes.unique(sorted=True)
        source = self.writer.concat(*used.tolist()) if len(used) > 1 else int(used[0])
        widths = torch.tensor([self.writer.width(node) for node in used.tolist()])
        offsets = (widths.cumsum(0) - widths)[torch.searchsorted(used, nodes)]
        return self.writer.gather(source, offsets + entries - self._numbered[nodes])

    def _run(self, entries: Tensor) -> int:
        """Neighbouring entries of one node."""
        node, first = self._node(int(entries[0])), int(entries[0])
        start = first - self._starts[node]
        if start == 0 and len(entries) == self.writer.width(node):
            return node
        return self.writer.slice(node, start, start + len(entries))

    def _node(self, entry: int) -> int:
        return bisect_right(self._starts, entry) - 1

    def _nodes(self, entries: Tensor) -> Tensor:
        if len(self._numbered) != len(self._starts):
            self._numbered = torch.tensor(self._starts)
        return torch.searchsorted(self._numbered, entries.contiguous(), right=True) - 1

    def pieces(self, entries: Tensor, *, runs: bool = False) -> list[tuple[int, int]]:
        """Where entries that stand one after the other pass from one node to another (or, for `runs`, are no neighbours)."""
        nodes = self._nodes(entries)
        breaks = nodes[1:] != nodes[:-1]
        if runs:
            breaks |= entries[1:] != entries[:-1] + 1
        cuts = [0, *((breaks.nonzero().squeeze(1) + 1).tolist()), len(entries)]
        return list(pairwise(cuts))

    def _entrywise(self, write: Callable[..., int], *operands: Symbol) -> Symbol:
        """An operation entry by entry, one node per node of the first operand: frames stay apart."""
        shaped = torch.broadcast_tensors(*(operand.entries for operand in operands))
        flat = [entries.reshape(-1) for entries in shaped]
        pieces = self.pieces(flat[0])
        for other in flat[1:]:
            finer = self.pieces(other)
            pieces = finer if len(pieces) < len(finer) <= len(flat[0]) // 2 else pieces
        if len(pieces) > max(1, len(flat[0]) // 2):
            pieces = [(0, len(flat[0]))]
        parts = [self.entries(write(slice(start, stop), *(each[start:stop] for each in flat))) for start, stop in pieces]
        return Symbol(torch.cat(parts).reshape(shaped[0].shape))

    # ---- sums and multiples ----------------------------------------------------------------------------------------------

    def add(self, x: Value, y: Value) -> Value:
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            return x + y
        if isinstance(x, Tensor) or isinstance(y, Tensor):
            symbol, known = (x, y) if isinstance(x, Symbol) else (y, x)
            assert isinstance(symbol, Symbol)
            assert isinstance(known, Tensor)
            return self.scale(symbol, 1.0, known)
        return self._entrywise(lambda _, a, b: self.writer.sum(self.position(a), self.position(b)), x, y)

    def subtract(self, x: Value, y: Value) -> Value:
        return self.add(x, self.negate(y))

    def negate(self, x: Value) -> Value:
        return -x if isinstance(x, Tensor) else self.scale(x, -1.0)

    def scale(self, x: Symbol, factor: Tensor | float, shift: Tensor | float = 0.0) -> Symbol:
        """`factor * x + shift`."""
        factor, shift = (torch.as_tensor(each, dtype=self.writer.dtype) for each in (factor, shift))
        shape = torch.broadcast_shapes(x.shape, factor.shape, shift.shape)
        factors, shifts = (each.expand(shape).reshape(-1) for each in (factor, shift))
        same = factor.numel() == 1, shift.numel() == 1

        def write(place: slice, entries: Tensor) -> int:
            own = (value[place][:1] if alike else value[place] for value, alike in zip((factors, shifts), same, strict=True))
            return self.writer.scale(self.position(entries), *(each.clone() for each in own))

        return self._entrywise(write, Symbol(x.entries.expand(shape)))

    def total(self, x: Symbol, axes: Sequence[int], keep: bool = False) -> Symbol:
        """The sum over `axes`."""
        axes = sorted({axis % max(1, x.entries.dim()) for axis in axes}) if axes else list(range(x.entries.dim()))
        kept = [axis for axis in range(x.entries.dim()) if axis not in axes]
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)] if keep else [x.shape[axis] for axis in kept]
        terms = x.entries.permute(*axes, *kept).reshape(-1, *(x.shape[axis] for axis in kept))
        count, flat = len(terms), terms.reshape(len(terms), -1)
        if count == 1:
            return Symbol(terms.reshape(shape))
        if all(len(self.pieces(row, runs=True)) == 1 for row in flat):
            return Symbol(self.entries(self.writer.sum(*map(self.position, flat))).reshape(shape))
        return Symbol(self.entries(self.writer.total(self.position(flat.T), count)).reshape(shape))

    def mean(self, x: Symbol, axes: Sequence[int], keep: bool = False) -> Symbol:
        whole = self.total(x, axes, keep)
        return self.scale(whole, whole.entries.numel() / x.entries.numel())

    def running_total(self, x: Symbol, axis: int) -> Symbol:
        """The sums of all entries up to each along `axis`."""
        steps = [Symbol(step) for step in x.entries.unbind(axis)]
        sums = steps[:1]
        for step in steps[1:]:
            following = self.add(sums[-1], step)
            assert isinstance(following, Symbol)
            sums.append(following)
        return Symbol(torch.stack([each.entries for each in sums], dim=axis))

    # ---- matrices --------------------------------------------------------------------------------------------------------

    def linear(self, x: Symbol, weight: Tensor, bias: Tensor | None = None) -> Symbol:
        """`x @ weight.mT + bias` for `x` of shape `[..., in]`: one node for every row of `x`."""
        rows = x.entries.reshape(-1, x.shape[-1])
        weight = weight.to(self.writer.dtype)
        found = [self.affine([(row, weight)], bias) for row in rows]
        return Symbol(torch.stack(found).reshape(*x.shape[:-1], len(weight)))

    def affine(self, terms: Sequence[tuple[Tensor, Tensor]], bias: Tensor | None) -> Tensor:
        """Entries of `sum of weight @ entries + bias`; what comes from several nodes is taken from each on its own."""
        split: list[tuple[int, Tensor]] = []
        for entries, weight in terms:
            pieces = self.pieces(entries, runs=True)
            if len(pieces) > MOST_PIECES:
                split.append((self.position(entries), weight))
            else:
                split.extend((self._run(entries[start:stop]), weight[:, start:stop]) for start, stop in pieces)
        return self.entries(self.writer.affine(split, bias))

    def product(self, x: Value, y: Value) -> Value:
        """Matrix product with torch's rules for the axes."""
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            return x @ y
        if isinstance(x, Symbol) and isinstance(y, Tensor) and y.dim() <= 2:
            return self.linear(x, y.mT) if y.dim() == 2 else self.linear(x, y[None]).moved(lambda e: e.squeeze(-1))
        left = _entries(x).unsqueeze(0) if len(x.shape) == 1 else _entries(x)
        right = _entries(y).unsqueeze(-1) if len(y.shape) == 1 else _entries(y)
        lead = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = left.expand(*lead, *left.shape[-2:]), right.expand(*lead, *right.shape[-2:])
        shape = (*lead, left.shape[-2], right.shape[-1])
        left, right = left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:])
        parts = [self._matrix(a, b, isinstance(x, Symbol), isinstance(y, Symbol)) for a, b in zip(left, right, strict=True)]
        found = torch.stack(parts).reshape(shape)
        found = found.squeeze(-2) if len(x.shape) == 1 else found
        return Symbol(found.squeeze(-1) if len(y.shape) == 1 else found)

    def _matrix(self, x: Tensor, y: Tensor, x_moves: bool, y_moves: bool) -> Tensor:
        if x_moves and not y_moves:
            return self.linear(Symbol(x), y.mT).entries
        if y_moves and not x_moves:
            return self.linear(Symbol(y.mT), x).entries.mT
        # one product for every inner index, so that what is weighed (the states of attention) stays together
        multiplied = self.multiply(Symbol(x.mT.unsqueeze(-1)), Symbol(y.unsqueeze(1)))
        assert isinstance(multiplied, Symbol)
        return self.total(multiplied, [0]).entries

    # ---- entry by entry --------------------------------------------------------------------------------------------------

    def unary(self, x: Value, activation: Activation) -> Value:
        if isinstance(x, Tensor):
            return activation.function(x)
        return self._entrywise(lambda _, entries: self.writer.unary(self.position(entries), activation), x)

    def multiply(self, x: Value, y: Value) -> Value:
        """`x * y`; a sigmoid times something, written out, becomes the gate it is."""
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            return x * y
        if isinstance(x, Tensor) or isinstance(y, Tensor):
            symbol, known = (x, y) if isinstance(x, Symbol) else (y, x)
            assert isinstance(symbol, Symbol)
            assert isinstance(known, Tensor)
            return self.scale(symbol, known)
        if x.shape == y.shape and torch.equal(x.entries, y.entries):
            return self.unary(x, SQUARE)
        return self._entrywise(self._multiplied, x, y)

    def _multiplied(self, _: slice, x: Tensor, y: Tensor) -> int:
        for first, second in ((x, y), (y, x)):
            opened = self._opened(first)
            if opened is not None:
                v, closing = opened
                inner = self._behind(second, TANH)
                kind = GateKind.IDENTITY if inner is None else GateKind.TANH
                z = self.position(second if inner is None else inner)
                return self.writer.gate(self.position(v), z, kind, closing=closing)
        return self.writer.product(self.position(x), self.position(y))

    def _opened(self, entries: Tensor) -> tuple[Tensor, bool] | None:
        """`(v, False)` if these entries are `s(v)`, `(v, True)` if they are `1 - s(v)`."""
        v = self._behind(entries, SIGMOID)
        if v is not None:
            return v, False
        complement = self._sources(entries, _is_complement)
        if complement is not None and (v := self._behind(complement, SIGMOID)) is not None:
            return v, True
        return None

    def _behind(self, entries: Tensor, activation: Activation) -> Tensor | None:
        """The operands of these entries, if all are values of `activation`."""
        return self._sources(entries, lambda node: isinstance(node, Unary) and node.activation is activation)

    def _sources(self, entries: Tensor, wanted: Callable[[Any], bool]) -> Tensor | None:
        """The entries of the operands of nodes that work entry by entry, if all of them are `wanted`."""
        nodes = self._nodes(entries)
        found = torch.empty_like(entries)
        for node in nodes.unique().tolist():
            if not wanted(self.writer.node(node)):
                return None
            mine = nodes == node
            (source,) = self.writer.node(node).sources
            found[mine] = self.resolved(source)[entries[mine] - self._starts[node]]
        return found

    def resolved(self, position: int) -> Tensor:
        """The entries a node was put together from; its own, if it computes something."""
        return self.writer.chosen(position, self.entries)

    def known(self, entries: Tensor) -> Tensor | None:
        """The values of entries that are constants; None if any is not."""
        nodes = self._nodes(entries.reshape(-1))
        values = torch.empty(len(nodes), dtype=self.writer.dtype)
        for node in nodes.unique().tolist():
            constant = self.writer.node(node)
            if not isinstance(constant, Constant):
                return None
            mine = nodes == node
            values[mine] = constant.value.cpu()[entries.reshape(-1)[mine] - self._starts[node]]
        return values.reshape(entries.shape)

    def maximum(self, *operands: Value) -> Value:
        if all(isinstance(operand, Tensor) for operand in operands):
            greatest: Tensor = operands[0]  # type: ignore[assignment]
            for operand in operands[1:]:
                greatest = torch.maximum(greatest, operand)  # type: ignore[arg-type]
            return greatest
        symbols = [self.symbol(operand) for operand in operands]
        return self._entrywise(lambda _, *parts: self.writer.maximum(*map(self.position, parts)), *symbols)

    def minimum(self, *operands: Value) -> Value:
        return self.negate(self.maximum(*map(self.negate, operands)))

    # ---- the end ---------------------------------------------------------------------------------------------------------

    def finish(self, output: Symbol, shape: Sequence[int]) -> Tape:
        """The tape of `output`; `shape` is the output's, per sample."""
        return self.writer.finish(self.position(output.entries), tuple(shape))


def _is_complement(node: Any) -> bool:
    return isinstance(node, Scale) and bool((node.factor == -1).all() and (node.shift == 1).all())


def _entries(value: Value) -> Tensor:
    return value.entries if isinstance(value, Symbol) else value
