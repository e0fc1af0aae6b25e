"""RNN, LSTM and GRU nodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.onnx.table import Operation, known, known_or_none, rule
from popqorn.readers.recurrent import Cell, States, Weights, gru, gru_reset_first, lstm
from popqorn.readers.symbols import Symbol, SymbolWriter, Value
from popqorn.relax import activations
from popqorn.relax.activations import SIGMOID, TANH, Activation
from popqorn.relax.gates import GateKind
from popqorn.tape.tape import TapeWriter

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
STATES = {"RNN": 1, "LSTM": 2, "GRU": 1}
# ONNX stacks the gates of an LSTM as i, o, f, c and those of a GRU as z, r, h; torch as i, f, g, o and r, z, n.
ORDER = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
DEFAULT = {"RNN": ("Tanh",), "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}


@dataclass(frozen=True)
class Curve:
    """`factor * activation(inside * x + before) + after`."""

    activation: Activation
    inside: float = 1.0
    before: float = 0.0
    factor: float = 1.0
    after: float = 0.0

    @property
    def plain(self) -> bool:
        return (self.inside, self.before, self.factor, self.after) == (1.0, 0.0, 1.0, 0.0)

    def write(self, writer: TapeWriter, x: int) -> int:
        within = x if (self.inside, self.before) == (1.0, 0.0) else writer.scale(x, self.inside, self.before)
        found = within if self.activation is activations.IDENTITY else writer.unary(within, self.activation)
        return found if (self.factor, self.after) == (1.0, 0.0) else writer.scale(found, self.factor, self.after)


SAME = Curve(activations.IDENTITY)

# By ONNX's names, of the numbers alpha and beta; None where those are not given.
CURVES: dict[str, Callable[[float | None, float | None], Curve]] = {
    "relu": lambda alpha, beta: Curve(activations.RELU),
    "tanh": lambda alpha, beta: Curve(TANH),
    "sigmoid": lambda alpha, beta: Curve(SIGMOID),
    "affine": lambda alpha, beta: Curve(activations.IDENTITY, inside=_or(alpha, 1.0), before=_or(beta, 0.0)),
    "leakyrelu": lambda alpha, beta: Curve(activations.leaky_relu(_or(alpha, 0.01))),
    "scaledtanh": lambda alpha, beta: Curve(TANH, inside=_or(beta, 1.0), factor=_or(alpha, 1.0)),
    "hardsigmoid": lambda alpha, beta: Curve(activations.hardtanh(0.0, 1.0), inside=_or(alpha, 0.2), before=_or(beta, 0.5)),
    "elu": lambda alpha, beta: Curve(activations.elu(_or(alpha, 1.0))),
    "softsign": lambda alpha, beta: Curve(activations.SOFTSIGN),
    "softplus": lambda alpha, beta: Curve(activations.softplus(1.0, 30.0)),
}
_TAKES = {"affine": 2, "leakyrelu": 1, "scaledtanh": 2, "hardsigmoid": 2, "elu": 1, "thresholdedrelu": 1}


def _or(given: float | None, default: float) -> float:
    return default if given is None else given


@rule("RNN", "LSTM", "GRU")
def _recurrent(
    sheet: SymbolWriter,
    node: Operation,
    x: Value,
    input_weights: Value,
    hidden_weights: Value,
    biases: Value | None = None,
    lengths: Value | None = None,
    initial_hidden: Value | None = None,
    initial_cell: Value | None = None,
    peepholes: Value | None = None,
) -> tuple[Symbol, ...]:
    """`Y` of shape `[frames, directions, batch, size]` and the final states, `[directions, batch, size]`."""
    batch_first = bool(node.get("layout", 0))
    entries = sheet.symbol(x).entries
    frames = entries.transpose(0, 1) if batch_first else entries
    _check(node, frames, lengths, peepholes)
    weights = _weights(node, input_weights, hidden_weights, biases)
    cells = _cells(node, len(weights))
    size, batch = weights[0].hidden.shape[1], frames.shape[1]
    given = [initial_hidden, initial_cell][: STATES[node.kind]]
    states = [_state(state, (len(weights), batch, size), batch_first) for state in given]
    outputs, finals = [], []
    for place, (cell, own) in enumerate(zip(cells, weights, strict=True)):
        backward = place == 1 or node.get("direction") == "reverse"
        runs = [_run(sheet, cell, own, frames[:, sample], _start(states, place, sample), backward) for sample in range(batch)]
        outputs.append(torch.stack([steps for steps, _ in runs], dim=1))
        finals.append([torch.stack(column) for column in zip(*(final for _, final in runs), strict=True)])
    steps = torch.stack(outputs, dim=1)
    last = [torch.stack(column) for column in zip(*finals, strict=True)]
    if batch_first:
        steps, last = steps.permute(2, 0, 1, 3), [state.transpose(0, 1) for state in last]
    return tuple(map(Symbol, (steps, *last)))


def _run(
    sheet: SymbolWriter, cell: Cell, weights: Weights, frames: Tensor, initial: Sequence[Value], backward: bool
) -> tuple[Tensor, list[Tensor]]:
    """One direction of one sample: the entries of all steps, `[frames, size]`, and of the final states."""
    steps, final = layers.recurrent(sheet, cell, [[weights]], frames.flip(0) if backward else frames, initial)
    steps = steps.squeeze(1)
    return steps.flip(0) if backward else steps, [state.squeeze(0) for state in final]


def _check(node: Operation, frames: Tensor, lengths: Value | None, peepholes: Value | None) -> None:
    if peepholes is not None:
        raise LookupError(f"{node.kind} with peepholes (its input P)")
    if node.get("clip") is not None:
        raise LookupError(f"{node.kind} with clip={node.get('clip'):g}")
    if node.get("input_forget", 0):
        raise LookupError(f"{node.kind} with input_forget=1")
    if lengths is not None:
        told = known(lengths, f"sequence_lens of {node.kind}").tolist()
        if any(length != len(frames) for length in told):
            raise LookupError(
                f"{node.kind} with sequence_lens {told} for {len(frames)} frames (pass sequences without their padding)"
            )


def _weights(node: Operation, input_weights: Value, hidden_weights: Value, biases: Value | None) -> list[Weights]:
    """One record per direction, with the gates in torch's order."""
    what, gates = f"weights of {node.kind}", GATES[node.kind]
    inputs, hidden = known(input_weights, what), known(hidden_weights, what)
    both = known_or_none(biases, f"biases of {node.kind}")
    size = hidden.shape[2]
    if hidden.shape[1] != gates * size or inputs.shape[:2] != hidden.shape[:2]:
        raise ValueError(f"its weights have shapes {tuple(inputs.shape)} and {tuple(hidden.shape)}")

    def ordered(matrix: Tensor) -> Tensor:
        parts = matrix.split(size)
        return torch.cat([parts[place] for place in ORDER[node.kind]])

    found = []
    for place in range(len(inputs)):
        bias = [None, None] if both is None else [ordered(half) for half in both[place].split(gates * size)]
        found.append(Weights(ordered(inputs[place]), ordered(hidden[place]), *bias))
    return found


def _state(given: Value | None, shape: tuple[int, int, int], batch_first: bool) -> Value:
    """An initial state, `[directions, batch, size]`."""
    if given is None:
        return torch.zeros(shape, dtype=torch.float64)
    if not batch_first:
        return given
    return given.moved(lambda entries: entries.transpose(0, 1)) if isinstance(given, Symbol) else given.transpose(0, 1)


def _start(states: Sequence[Value], direction: int, sample: int) -> list[Value]:
    """The states one run begins with, each `[1, size]`."""
    return [
        state.moved(lambda entries: entries[direction, sample][None])
        if isinstance(state, Symbol)
        else state[direction, sample][None]
        for state in states
    ]


# ---- cells -------------------------------------------------------------------------------------------------------------------


def _cells(node: Operation, directions: int) -> list[Cell]:
    """The cell of every direction, by its activations."""
    count = len(DEFAULT[node.kind])
    names = list(node.get("activations") or DEFAULT[node.kind] * directions)
    alphas, betas = list(node.get("activation_alpha") or ()), list(node.get("activation_beta") or ())
    curves = [_curve(node, name, alphas, betas) for name in names]
    if len(curves) != count * directions:
        raise ValueError(f"it has {len(curves)} activations, {count * directions} are needed")
    return [_cell(node, curves[start : start + count]) for start in range(0, len(curves), count)]


def _curve(node: Operation, name: str, alphas: list[float], betas: list[float]) -> Curve:
    """The next activation; it takes its numbers off the lists."""
    key = name.lower()
    takes = _TAKES.get(key, 0)
    alpha = alphas.pop(0) if takes >= 1 and alphas else None
    beta = betas.pop(0) if takes >= 2 and betas else None
    if key not in CURVES:
        raise LookupError(f"{node.kind} with the activation {name} ({', '.join(sorted(CURVES))} can be read)")
    return CURVES[key](alpha, beta)


def _cell(node: Operation, curves: Sequence[Curve]) -> Cell:
    usual = (
        all(curve.plain for curve in curves) and [curve.activation for curve in curves] == [SIGMOID, TANH, TANH][: len(curves)]
    )
    if node.kind == "RNN":
        return _vanilla(curves[0])
    if node.kind == "LSTM":
        return lstm if usual else _lstm(*curves)
    reset_first = not node.get("linear_before_reset", 0)
    if usual:
        return gru_reset_first if reset_first else gru
    return _gru(*curves, reset_first=reset_first)


def _affine(writer: TapeWriter, weights: Weights, rows: slice, x: int | None, a: int | None, *biases: Tensor | None) -> int:
    """`Wx x + Wa a + b` for some rows."""
    terms = [] if x is None else [(x, weights.input[rows])]
    terms += [] if a is None else [(a, weights.hidden[rows])]
    given = [writer.tensor(bias)[rows] for bias in biases if bias is not None]
    return writer.affine(terms, sum(given[1:], given[0]) if given else None)


def _gated(writer: TapeWriter, gate: Curve, v: int, z: int, inner: Curve = SAME, *, closing: bool = False) -> int:
    """`f(v) g(z)`, or `(1 - f(v)) g(z)` for a closing one."""
    usual = gate.activation is SIGMOID and gate.plain
    if usual and inner.activation is TANH and inner.plain:
        return writer.gate(v, z, GateKind.TANH, closing=closing)
    value = inner.write(writer, z)
    if usual:
        return writer.gate(v, value, GateKind.IDENTITY, closing=closing)
    opened = gate.write(writer, v)
    return writer.product(writer.scale(opened, -1.0, 1.0) if closing else opened, value)


def _vanilla(curve: Curve) -> Cell:
    """`a = f(Wx x + Wa a' + b)`."""

    def cell(writer: TapeWriter, weights: Weights, x: int, states: States) -> States:
        y = _affine(writer, weights, slice(None), x, states[0], weights.input_bias, weights.hidden_bias)
        return [curve.write(writer, y)]

    return cell


def _lstm(f: Curve, g: Curve, h: Curve) -> Cell:
    """`c = f(y_f) c' + f(y_i) g(y_g)`; `a = f(y_o) h(c)`."""

    def cell(writer: TapeWriter, weights: Weights, x: int, states: States) -> States:
        y = _affine(writer, weights, slice(None), x, states[0], weights.input_bias, weights.hidden_bias)
        size = len(weights.input) // 4
        i, forget, new, o = (writer.slice(y, k * size, (k + 1) * size) for k in range(4))
        kept = [] if writer.is_zero(states[1]) else [_gated(writer, f, forget, states[1])]
        c = writer.sum(*kept, _gated(writer, f, i, new, g))
        return [_gated(writer, f, o, c, h), c]

    return cell


def _gru(f: Curve, g: Curve, *, reset_first: bool) -> Cell:
    """`a = (1 - f(y_z)) g(n) + f(y_z) a'`."""

    def cell(writer: TapeWriter, weights: Weights, x: int, states: States) -> States:
        size = len(weights.input) // 3
        gates, last = slice(0, 2 * size), slice(2 * size, None)
        bx, ba = weights.input_bias, weights.hidden_bias
        y = _affine(writer, weights, gates, x, states[0], bx, ba)
        r, z = writer.slice(y, 0, size), writer.slice(y, size, 2 * size)
        if reset_first:
            n = _affine(writer, weights, last, x, _gated(writer, f, r, states[0]), bx, ba)
        else:
            own = _affine(writer, weights, last, None, states[0], ba)
            n = writer.sum(_affine(writer, weights, last, x, None, bx), _gated(writer, f, r, own))
        fresh = _gated(writer, f, z, n, g, closing=True)
        return [writer.sum(fresh, _gated(writer, f, z, states[0]))]

    return cell
