"""Recurrent layers on a tape: vanilla, LSTM and GRU cells; any number of layers, both directions, projections."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from popqorn.relax.activations import RELU, TANH, Activation
from popqorn.relax.gates import GateKind
from popqorn.tape.tape import TapeWriter

States = list[int]


@dataclass(frozen=True)
class Weights:
    """One layer and direction, as torch stacks them: `[gates * hidden, ...]`; None for biases and projections there are not."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None


Cell = Callable[[TapeWriter, Weights, int, States], States]


def unroll(
    writer: TapeWriter, cell: Cell, layers: Sequence[Sequence[Weights]], frames: Sequence[int], initial: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[States]]:
    """Write `layers` (each a list of one or two directions) over `frames` (positions on the tape).

    `initial` holds the states of every layer and direction in torch's order, and so does what is returned beside the outputs of
    the top layer's directions per frame: the final states. States are `[h]`, or `[h, c]` for an LSTM.
    """
    below = list(frames)
    outputs: list[list[int]] = []
    final: list[States] = []
    for layer, directions in enumerate(layers):
        runs = []
        for direction, weights in enumerate(directions):
            states = list(initial[layer * len(directions) + direction])
            hidden, states = _run(writer, cell, weights, below, states, backward=bool(direction))
            runs.append(hidden)
            final.append(states)
        outputs = [list(step) for step in zip(*runs, strict=True)]
        below = [writer.concat(*step) if len(step) > 1 else step[0] for step in outputs]
    return outputs, final


def _run(
    writer: TapeWriter, cell: Cell, weights: Weights, frames: list[int], states: States, *, backward: bool
) -> tuple[list[int], States]:
    hidden = []
    for frame in reversed(frames) if backward else frames:
        states = cell(writer, weights, frame, states)
        hidden.append(states[0])
    return hidden[::-1] if backward else hidden, states


# ---- cells -------------------------------------------------------------------------------------------------------------------


def vanilla(activation: Activation) -> Cell:
    """`a = act(Wx x + Wa a' + b)`."""

    def cell(writer: TapeWriter, weights: Weights, x: int, states: States) -> States:
        y = writer.affine([(x, weights.input), (states[0], weights.hidden)], _bias(writer, weights))
        return [writer.unary(y, activation)]

    return cell


def lstm(writer: TapeWriter, weights: Weights, x: int, states: States) -> States:
    """`c = s(y_f) c' + s(y_i) tanh(y_g)`; `a = s(y_o) tanh(c)`; torch stacks the gates as i, f, g, o."""
    y = writer.affine([(x, weights.input), (states[0], weights.hidden)], _bias(writer, weights))
    size = len(weights.input) // 4
    i, f, g, o = (writer.slice(y, k * size, (k + 1) * size) for k in range(4))
    kept = [] if writer.is_zero(states[1]) else [writer.gate(f, states[1], GateKind.IDENTITY)]
    c = writer.sum(*kept, writer.gate(i, g, GateKind.TANH))
    a = writer.gate(o, c, GateKind.TANH)
    if weights.projection is not None:
        a = writer.affine([(a, weights.projection)])
    return [a, c]


def gru(writer: TapeWriter, weights: Weights, x: int, states: States) -> States:
    """`n = Wnx x + bnx + s(y_r) (Wna a' + bna)`; `a = s(-y_z) tanh(n) + s(y_z) a'`; torch stacks the gates as r, z, n."""
    size = len(weights.input) // 3
    wx, wa = weights.input, weights.hidden
    bx, ba = (None if bias is None else bias[2 * size :] for bias in (weights.input_bias, weights.hidden_bias))
    r, z = _reset_and_update(writer, weights, x, states[0])
    w = writer.affine([(states[0], wa[2 * size :])], ba)
    n = writer.sum(writer.affine([(x, wx[2 * size :])], bx), writer.gate(r, w, GateKind.IDENTITY))
    return _updated(writer, z, n, states[0])


def gru_reset_first(writer: TapeWriter, weights: Weights, x: int, states: States) -> States:
    """`n = Wnx x + bn + Wna (s(y_r) a')` (Cho et al. 2014, `linear_before_reset = 0` in ONNX), the rest as in `gru`."""
    size = len(weights.input) // 3
    r, z = _reset_and_update(writer, weights, x, states[0])
    bias = _bias(writer, weights)
    terms = [(x, weights.input[2 * size :])]
    if not writer.is_zero(states[0]):
        terms.append((writer.gate(r, states[0], GateKind.IDENTITY), weights.hidden[2 * size :]))
    n = writer.affine(terms, None if bias is None else bias[2 * size :])
    return _updated(writer, z, n, states[0])


def _reset_and_update(writer: TapeWriter, weights: Weights, x: int, a: int) -> tuple[int, int]:
    size = len(weights.input) // 3
    bias = _bias(writer, weights)
    y = writer.affine(
        [(x, weights.input[: 2 * size]), (a, weights.hidden[: 2 * size])], None if bias is None else bias[: 2 * size]
    )
    return writer.slice(y, 0, size), writer.slice(y, size, 2 * size)


def _updated(writer: TapeWriter, z: int, n: int, a: int) -> States:
    fresh = writer.gate(z, n, GateKind.TANH, closing=True)
    kept = [] if writer.is_zero(a) else [writer.gate(z, a, GateKind.IDENTITY)]
    return [writer.sum(fresh, *kept)]


def _bias(writer: TapeWriter, weights: Weights) -> Tensor | None:
    """The sum of both biases, computed in the tape's precision."""
    given = [writer.tensor(bias) for bias in (weights.input_bias, weights.hidden_bias) if bias is not None]
    return given[0] + given[1] if len(given) > 1 else given[0] if given else None


# ---- torch's modules ---------------------------------------------------------------------------------------------------------


def cell_kind(rnn: object) -> type | None:
    """`nn.RNN`, `nn.LSTM` or `nn.GRU`, also if its weights are parametrised; None for what is none of them."""
    kind = type(rnn)
    if isinstance(rnn, nn.Module) and is_parametrized(rnn):
        kind = kind.__bases__[0]
    return kind if kind in (nn.RNN, nn.LSTM, nn.GRU) else None


def cell_of(rnn: nn.RNNBase) -> Cell:
    """The cell of one of torch's recurrent modules."""
    kind = cell_kind(rnn)
    if kind is nn.RNN:
        return vanilla(RELU if rnn.mode == "RNN_RELU" else TANH)
    return lstm if kind is nn.LSTM else gru


def weights_of(rnn: nn.RNNBase) -> list[list[Weights]]:
    """All layers and directions of one of torch's recurrent modules."""
    names = ["weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if rnn.bias else (None, None))]
    names.append("weight_hr" if rnn.proj_size else None)
    suffixes = ("", "_reverse") if rnn.bidirectional else ("",)
    return [
        [Weights(*(name and getattr(rnn, f"{name}_l{layer}{suffix}") for name in names)) for suffix in suffixes]
        for layer in range(rnn.num_layers)
    ]
