"""Random tapes of every operation, for Hypothesis to draw and shrink, and their values in exact arithmetic."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from popqorn.relax import activations
from popqorn.relax.gates import GateKind
from popqorn.tape.ops.linear import Affine, Concat, Constant, Convolution, Gather, Input, Scale, Slice, Sum, Total
from popqorn.tape.ops.node import Node
from popqorn.tape.ops.nonlinear import Maximum, Product, Unary
from popqorn.tape.tape import Tape, TapeWriter

FRAMES, FEATURES, OUTPUTS = 2, 4, 3
WIDEST = 12
LEAKY = activations.leaky_relu(-0.3)
CUBE = activations.power(3)
CURVED = [
    activations.TANH,
    activations.SIGMOID,
    activations.SILU,
    activations.GELU,
    activations.ERF,
    activations.EXP,
    activations.LOG,
    activations.SIN,
    activations.COS,
    activations.MISH,
    activations.NEGATED_RECIPROCAL,
    activations.power(0.5),
    activations.power(-0.5),
    activations.softplus(),
]
RATIONAL: dict[Any, Callable[[Fraction], Fraction]] = {
    activations.RELU: lambda x: max(x, Fraction(0)),
    activations.ABS: abs,
    activations.SQUARE: lambda x: x * x,
    activations.HARDSIGMOID: lambda x: min(max(x + 3, Fraction(0)), Fraction(6)) / 6,
    activations.HARDSWISH: lambda x: x * min(max(x + 3, Fraction(0)), Fraction(6)) / 6,
    LEAKY: lambda x: x if x > 0 else Fraction(-0.3) * x,
    CUBE: lambda x: x**3,
}

Steps = Sequence[tuple[str, int]]
"""The operations of a tape, one after the other, each with the seed of its choices."""


def steps(operations: Sequence[str], most: int) -> st.SearchStrategy[Steps]:
    return st.lists(st.tuples(st.sampled_from(list(operations)), st.integers(0, 2**20)), min_size=2, max_size=most)


@dataclass
class Chooser:
    """Random choices for one operation; weights are of sizes up to `10 ** spread` either way."""

    writer: TapeWriter
    built: list[int]
    generator: torch.Generator
    spread: float

    def number(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=self.generator))

    def weights(self, *shape: int) -> Tensor:
        size = 10 ** (self.spread * (2 * torch.rand(shape, generator=self.generator, dtype=torch.float64) - 1))
        return size * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def node(self) -> int:
        """A node of at most `WIDEST` entries."""
        found = self.built[self.number(0, len(self.built) - 1)]
        return found if self.writer.width(found) <= WIDEST else self.writer.slice(found, 1, WIDEST)

    def alike(self, width: int) -> int:
        """A node of the given width; entries are repeated if need be."""
        found = self.node()
        if self.writer.width(found) == width:
            return found
        return self.writer.gather(found, torch.arange(width) % self.writer.width(found))

    def several(self) -> list[int]:
        """Two or three nodes of the same width."""
        first = self.node()
        return [first, *(self.alike(self.writer.width(first)) for _ in range(self.number(1, 2)))]


def _affine(choose: Chooser) -> int:
    sources = [choose.node() for _ in range(choose.number(1, 2))]
    terms = [(source, choose.weights(4, choose.writer.width(source)) / 2) for source in sources]
    return choose.writer.affine(terms, choose.weights(4) if choose.number(0, 1) else None)


def _scale(choose: Chooser) -> int:
    source = choose.node()
    widths = [(1, choose.writer.width(source))[choose.number(0, 1)] for _ in range(2)]
    return choose.writer.scale(source, choose.weights(widths[0]), choose.weights(widths[1]))


def _total(choose: Chooser) -> int:
    source = choose.node()
    width = choose.writer.width(source)
    return choose.writer.total(source, 2 if width % 2 == 0 and choose.number(0, 1) else width)


def _slice(choose: Chooser) -> int:
    source = choose.node()
    start = choose.number(0, choose.writer.width(source) - 1)
    return choose.writer.slice(source, start, choose.number(start + 1, choose.writer.width(source)))


def _gather(choose: Chooser) -> int:
    source = choose.node()
    return choose.writer.gather(source, torch.tensor([choose.number(0, choose.writer.width(source) - 1) for _ in range(5)]))


def _convolution(choose: Chooser) -> int:
    source = choose.alike(12)
    shape = ((2, 6), (3, 4), (1, 3, 4), (2, 2, 3), (1, 2, 2, 3))[choose.number(0, 4)]
    dimensions, channels = len(shape) - 1, shape[0]
    transposed = bool(choose.number(0, 1))
    groups = channels if choose.number(0, 1) else 1
    across = (channels, groups) if transposed else (groups, channels // groups)
    stride = tuple(choose.number(1, 2) for _ in range(dimensions))
    return choose.writer.convolution(
        source,
        shape,
        choose.weights(*across, *(choose.number(1, 2) for _ in range(dimensions))),
        choose.weights(groups * across[1] if transposed else groups) if choose.number(0, 1) else None,
        stride=stride,
        padding=tuple(choose.number(0, 0 if transposed else 1) for _ in range(dimensions)),
        dilation=(1,) * dimensions,
        groups=groups,
        transposed=transposed,
        output_padding=tuple(step - 1 for step in stride) if transposed else (0,) * dimensions,
    )


def _unary(choose: Chooser, table: Sequence[activations.Activation]) -> int:
    return choose.writer.unary(choose.node(), table[choose.number(0, len(table) - 1)])


def _gate(choose: Chooser) -> int:
    v = choose.node()
    kind = (GateKind.IDENTITY, GateKind.TANH)[choose.number(0, 1)]
    return choose.writer.gate(v, choose.alike(choose.writer.width(v)), kind, closing=bool(choose.number(0, 1)))


LINEAR: dict[str, Callable[[Chooser], int]] = {
    "affine": _affine,
    "scale": _scale,
    "sum": lambda choose: choose.writer.sum(*choose.several()),
    "total": _total,
    "slice": _slice,
    "gather": _gather,
    "concat": lambda choose: choose.writer.concat(*(choose.node() for _ in range(choose.number(2, 3)))),
    "constant": lambda choose: choose.writer.constant(choose.weights(3)),
    "convolution": _convolution,
}
BUILT: dict[str, Callable[[Chooser], int]] = {
    **LINEAR,
    "product": lambda choose: choose.writer.product(*choose.several()[:2]),
    "maximum": lambda choose: choose.writer.maximum(*choose.several()),
    "rational": lambda choose: _unary(choose, list(RATIONAL)),
    "curved": lambda choose: _unary(choose, CURVED),
    "gate": _gate,
}
EXACTLY = tuple(name for name in BUILT if name not in ("curved", "gate"))


def random_tape(chosen: Steps, dtype: torch.dtype = torch.float64, spread: float = 0.0) -> Tape:
    """The tape of these operations; its output is an affine function of all that nothing else uses."""
    writer = TapeWriter(FRAMES, FEATURES, dtype=dtype, device=torch.device("cpu"))
    built = [writer.input(frame) for frame in range(FRAMES)]
    for name, seed in chosen:
        built.append(BUILT[name](Chooser(writer, built, torch.Generator().manual_seed(seed), spread)))
    used = {source for node in map(writer.node, range(built[-1] + 1)) for source in node.sources}
    last = Chooser(writer, built, torch.Generator().manual_seed(len(chosen)), spread)
    ends = [position for position in dict.fromkeys(built) if position not in used]
    return writer.finish(writer.affine([(end, last.weights(OUTPUTS, writer.width(end))) for end in ends], last.weights(OUTPUTS)))


# ---- in exact arithmetic -----------------------------------------------------------------------------------------------------


def exact_values(tape: Tape, inputs: Tensor) -> list[list[Fraction]]:
    """The value of every node of a rational tape for one sequence `[frames, features]`."""
    values: list[list[Fraction]] = []
    for node in tape.nodes:
        if isinstance(node, Input):
            values.append(fractions(inputs[node.frame]))
        else:
            values.append(_EXACT[type(node)](node, *(values[source] for source in node.sources)))
    return values


def fractions(vector: Tensor) -> list[Fraction]:
    return [Fraction(entry) for entry in vector.tolist()]


def _product(matrix: Tensor, x: list[Fraction]) -> list[Fraction]:
    return [sum((w * v for w, v in zip(fractions(row), x, strict=True)), Fraction(0)) for row in matrix]


def _added(*terms: list[Fraction]) -> list[Fraction]:
    return [sum(entries, Fraction(0)) for entries in zip(*terms, strict=True)]


def _affine_exactly(node: Affine, *operands: list[Fraction]) -> list[Fraction]:
    return _added(fractions(node.bias), *(_product(weight, x) for weight, x in zip(node.weights, operands, strict=True)))


def _scale_exactly(node: Scale, x: list[Fraction]) -> list[Fraction]:
    factor, shift = (fractions(each.expand(node.width)) for each in (node.factor, node.shift))
    return [a * v + b for a, v, b in zip(factor, x, shift, strict=True)]


def _convolution_exactly(node: Convolution, x: list[Fraction]) -> list[Fraction]:
    """By the columns of its Jacobian: every entry is one weight, so that nothing is rounded."""
    columns = replace(node, bias=None).evaluate(torch.eye(math.prod(node.shape), dtype=node.weight.dtype))
    total = _product(columns.mT, x)
    return total if node.bias is None else _added(total, fractions(node.bias.repeat_interleave(node.width // len(node.bias))))


_EXACT: dict[type[Node], Callable[..., list[Fraction]]] = {
    Constant: lambda node: fractions(node.value),
    Affine: _affine_exactly,
    Scale: _scale_exactly,
    Sum: lambda node, *operands: _added(*operands),
    Total: lambda node, x: [sum(x[start : start + node.count], Fraction(0)) for start in range(0, len(x), node.count)],
    Slice: lambda node, x: x[node.start : node.stop],
    Gather: lambda node, x: [x[entry] for entry in node.index.tolist()],
    Concat: lambda node, *operands: [entry for operand in operands for entry in operand],
    Convolution: _convolution_exactly,
    Product: lambda node, x, y: [a * b for a, b in zip(x, y, strict=True)],
    Maximum: lambda node, *operands: [max(entries) for entries in zip(*operands, strict=True)],
    Unary: lambda node, x: [RATIONAL[node.activation](entry) for entry in x],
}
