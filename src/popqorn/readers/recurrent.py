"""Tapes of `nn.RNN`, `nn.LSTM` and `nn.GRU`: any number of layers, both directions, projections, with or without biases."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from popqorn.tape.activations import RELU, TANH
from popqorn.tape.ops import GateKind
from popqorn.tape.tape import TapeWriter

States = list[int]
Cell = Callable[[TapeWriter, nn.RNNBase, str, int, States], States]


def unroll(writer: TapeWriter, rnn: nn.RNNBase, frames: Sequence[int], initial: Sequence[Tensor]) -> list[list[int]]:
    """Write `rnn` over `frames` (positions on the tape); returns, per frame, the outputs of the top layer's directions.

    `initial` holds one tensor `[layers * directions, size]` per state: `(h,)`, or `(h, c)` for an LSTM.
    """
    kind = cell_kind(rnn)
    assert kind is not None
    cell = _CELLS[kind]
    directions = 2 if rnn.bidirectional else 1
    below = list(frames)
    outputs: list[list[int]] = []
    for layer in range(rnn.num_layers):
        runs = []
        for direction in range(directions):
            states = [writer.constant(state[layer * directions + direction]) for state in initial]
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            runs.append(_run(writer, rnn, cell, suffix, below, states, backward=bool(direction)))
        outputs = [list(step) for step in zip(*runs, strict=True)]
        below = [writer.concat(*step) if len(step) > 1 else step[0] for step in outputs]
    return outputs


def cell_kind(rnn: object) -> type | None:
    """`nn.RNN`, `nn.LSTM` or `nn.GRU`, also if its weights are parametrised; None for what is none of them."""
    kind = type(rnn)
    if isinstance(rnn, nn.Module) and is_parametrized(rnn):
        kind = kind.__bases__[0]
    return kind if kind in _CELLS else None


def _run(
    writer: TapeWriter, rnn: nn.RNNBase, cell: Cell, suffix: str, frames: list[int], states: States, *, backward: bool
) -> list[int]:
    hidden = []
    for frame in reversed(frames) if backward else frames:
        states = cell(writer, rnn, suffix, frame, states)
        hidden.append(states[0])
    return hidden[::-1] if backward else hidden


def _weight(rnn: nn.RNNBase, name: str) -> Tensor:
    weight = getattr(rnn, name)
    assert isinstance(weight, Tensor)
    return weight.detach()


def _biases(rnn: nn.RNNBase, suffix: str) -> tuple[Tensor, Tensor]:
    if rnn.bias:
        return _weight(rnn, "bias_ih" + suffix), _weight(rnn, "bias_hh" + suffix)
    zero = torch.zeros_like(_weight(rnn, "weight_ih" + suffix)[:, 0])
    return zero, zero


def _vanilla(writer: TapeWriter, rnn: nn.RNNBase, suffix: str, x: int, states: States) -> States:
    """`a = act(Wx x + Wa a' + b)`."""
    wx, wa = _weight(rnn, "weight_ih" + suffix), _weight(rnn, "weight_hh" + suffix)
    bx, ba = (writer.tensor(bias) for bias in _biases(rnn, suffix))
    y = writer.affine([(x, wx), (states[0], wa)], bx + ba)
    return [writer.unary(y, RELU if rnn.mode == "RNN_RELU" else TANH)]


def _lstm(writer: TapeWriter, rnn: nn.RNNBase, suffix: str, x: int, states: States) -> States:
    """`c = s(y_f) c' + s(y_i) tanh(y_g)`; `a = s(y_o) tanh(c)`; torch stacks the gates as i, f, g, o."""
    wx, wa = _weight(rnn, "weight_ih" + suffix), _weight(rnn, "weight_hh" + suffix)
    bx, ba = (writer.tensor(bias) for bias in _biases(rnn, suffix))
    y = writer.affine([(x, wx), (states[0], wa)], bx + ba)
    size = rnn.hidden_size
    i, f, g, o = (writer.slice(y, k * size, (k + 1) * size) for k in range(4))
    kept = [] if writer.is_zero(states[1]) else [writer.gate(f, states[1], GateKind.IDENTITY)]
    c = writer.sum(*kept, writer.gate(i, g, GateKind.TANH))
    a = writer.gate(o, c, GateKind.TANH)
    if rnn.proj_size:
        a = writer.affine([(a, _weight(rnn, "weight_hr" + suffix))])
    return [a, c]


def _gru(writer: TapeWriter, rnn: nn.RNNBase, suffix: str, x: int, states: States) -> States:
    """`n = Wnx x + bnx + s(y_r) (Wna a' + bna)`; `a = s(-y_z) tanh(n) + s(y_z) a'`; torch stacks the gates as r, z, n."""
    size = rnn.hidden_size
    wx, wa = _weight(rnn, "weight_ih" + suffix), _weight(rnn, "weight_hh" + suffix)
    bx, ba = (writer.tensor(bias) for bias in _biases(rnn, suffix))
    y = writer.affine([(x, wx[: 2 * size]), (states[0], wa[: 2 * size])], (bx + ba)[: 2 * size])
    r, z = writer.slice(y, 0, size), writer.slice(y, size, 2 * size)
    w = writer.affine([(states[0], wa[2 * size :])], ba[2 * size :])
    n = writer.sum(writer.affine([(x, wx[2 * size :])], bx[2 * size :]), writer.gate(r, w, GateKind.IDENTITY))
    fresh = writer.gate(z, n, GateKind.TANH, closing=True)
    kept = [] if writer.is_zero(states[0]) else [writer.gate(z, states[0], GateKind.IDENTITY)]
    return [writer.sum(fresh, *kept)]


_CELLS: dict[type, Cell] = {nn.RNN: _vanilla, nn.LSTM: _lstm, nn.GRU: _gru}
