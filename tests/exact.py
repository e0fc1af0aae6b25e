"""The same networks in exact arithmetic: `fractions` where everything is rational, mpmath with 60 digits where it is not."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
from torch import Tensor, nn

import popqorn

mpmath.mp.dps = 60


def outputs(model: popqorn.SequenceClassifier, sequence: Tensor) -> list[Any]:
    """The outputs for one sequence `[frames, features]` of a network of one layer and one direction with a linear head."""
    rnn, head = model.rnn, model.head
    rational = isinstance(rnn, nn.RNN) and rnn.nonlinearity == "relu"
    number = Fraction if rational else mpmath.mpf
    weights = {name: numbers(parameter, number) for name, parameter in rnn.named_parameters()}
    states = [numbers(state[0], number) for state in model.initial_state]
    for frame in sequence:
        states = _STEPS[type(rnn)](weights, numbers(frame, number), states, rational)
    values = states[0]
    for layer in head if isinstance(head, nn.Sequential) else [head]:
        assert isinstance(layer, nn.Linear)
        values = affine(numbers(layer.weight, number), values, numbers(layer.bias, number))
    return values


def numbers(tensor: Tensor, number: Any) -> Any:
    """A tensor as nested lists of exact numbers."""
    if tensor.dim() > 1:
        return [numbers(row, number) for row in tensor]
    return [number(float(entry)) for entry in tensor.detach()]


def affine(weight: Sequence[Sequence[Any]], x: Sequence[Any], bias: Sequence[Any]) -> list[Any]:
    return [sum((w * v for w, v in zip(row, x, strict=True)), b) for row, b in zip(weight, bias, strict=True)]


def _preactivations(weights: dict[str, Any], x: list[Any], h: list[Any]) -> tuple[list[Any], list[Any]]:
    return (
        affine(weights["weight_ih_l0"], x, weights["bias_ih_l0"]),
        affine(weights["weight_hh_l0"], h, weights["bias_hh_l0"]),
    )


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _rnn(weights: dict[str, Any], x: list[Any], states: list[list[Any]], rational: bool) -> list[list[Any]]:
    by_x, by_h = _preactivations(weights, x, states[0])
    return [[max(a + b, a - a) if rational else mpmath.tanh(a + b) for a, b in zip(by_x, by_h, strict=True)]]


def _lstm(weights: dict[str, Any], x: list[Any], states: list[list[Any]], rational: bool) -> list[list[Any]]:
    h, c = states
    y = [a + b for a, b in zip(*_preactivations(weights, x, h), strict=True)]
    size = len(c)
    i, f, g, o = (y[k * size : (k + 1) * size] for k in range(4))
    c = [_sigmoid(f[k]) * c[k] + _sigmoid(i[k]) * mpmath.tanh(g[k]) for k in range(size)]
    return [[_sigmoid(o[k]) * mpmath.tanh(c[k]) for k in range(size)], c]


def _gru(weights: dict[str, Any], x: list[Any], states: list[list[Any]], rational: bool) -> list[list[Any]]:
    (h,) = states
    by_x, by_h = _preactivations(weights, x, h)
    size = len(h)
    r = [_sigmoid(by_x[k] + by_h[k]) for k in range(size)]
    z = [_sigmoid(by_x[size + k] + by_h[size + k]) for k in range(size)]
    n = [mpmath.tanh(by_x[2 * size + k] + r[k] * by_h[2 * size + k]) for k in range(size)]
    return [[(1 - z[k]) * n[k] + z[k] * h[k] for k in range(size)]]


_STEPS = {nn.RNN: _rnn, nn.LSTM: _lstm, nn.GRU: _gru}
