"""Given the same slopes, the engine's bounds are the paper's closed forms to 1e-9."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import paper_reference as paper
from popqorn import Ball, SequenceClassifier
from popqorn.bounds.inner import RelaxedTape, relax
from popqorn.readers.classifier import tape_of
from popqorn.relax.methods import METHODS
from popqorn.relax.relaxation import Relaxation
from sets import around

FRAMES, FEATURES, HIDDEN, CLASSES = 3, 4, 5, 3
NORMS = (1.0, 1.5, 2.0, 3.0, math.inf)
EPS = 0.08


def random_model(kind: type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]) -> SequenceClassifier:
    states = torch.randn(1, HIDDEN), torch.randn(1, HIDDEN)
    model = SequenceClassifier(
        kind(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES), initial_state=states if kind is nn.LSTM else states[0]
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model


def relaxed(model: SequenceClassifier, inputs: Tensor, norm: float, method: str) -> RelaxedTape:
    tape = tape_of(model, FRAMES, dtype=torch.float64, device=inputs.device)
    return relax(tape, around(inputs, EPS, Ball(norm)), METHODS[method])


def neurons(relaxation: Relaxation) -> paper.Neurons:
    sides = []
    for line in (relaxation.lower, relaxation.upper):
        parts = [part.expand(1, HIDDEN)[0].tolist() for part in (*line.slopes, line.offset)]
        sides.append(list(zip(*parts, strict=True)))
    return list(zip(*sides, strict=True))


def per_frame(found: RelaxedTape, names: tuple[str, ...]) -> list[dict[str, paper.Neurons]]:
    """The relaxations in tape order, `names` naming those of one frame."""
    ordered = [neurons(found.relaxations[index]) for index in sorted(found.relaxations)]
    count = len(names)
    return [dict(zip(names, ordered[count * k : count * (k + 1)], strict=True)) for k in range(FRAMES)]


def weights_of(model: SequenceClassifier, gates: str) -> dict[str, paper.Array]:
    rnn = {name: parameter.detach().numpy() for name, parameter in model.rnn.named_parameters()}
    weights = {
        "W_F": model.head.weight.detach().numpy(),
        "b_F": model.head.bias.detach().numpy(),
        "a0": model.initial_state[0][0].numpy(),
        "c0": model.initial_state[-1][0].numpy(),
    }
    for number, gate in enumerate(gates):
        part = slice(number * HIDDEN, (number + 1) * HIDDEN)
        weights[f"W_{gate}x"], weights[f"W_{gate}a"] = rnn["weight_ih_l0"][part], rnn["weight_hh_l0"][part]
        weights[f"b_{gate}"] = rnn["bias_ih_l0"][part] + rnn["bias_hh_l0"][part]
        weights[f"b_{gate}x"], weights[f"b_{gate}a"] = rnn["bias_ih_l0"][part], rnn["bias_hh_l0"][part]
    weights["W_aa"], weights["W_ax"], weights["b_a"] = (
        weights[f"W_{gates[0]}a"],
        weights[f"W_{gates[0]}x"],
        weights[f"b_{gates[0]}"],
    )
    return weights


CASES = {
    "rnn": (nn.RNN, "a", ("a",)),
    "lstm": (nn.LSTM, "ifgo", ("fc", "ig", "oc")),
    "gru": (nn.GRU, "rzn", ("rw", "zn", "za")),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", ["planes", "lines", "constants"])
@pytest.mark.parametrize("cell", CASES)
def test_engine_is_the_papers_closed_form(cell: str, method: str, norm: float) -> None:
    kind, gates, names = CASES[cell]
    model = random_model(kind)
    inputs = torch.randn(1, FRAMES, FEATURES, dtype=torch.float64)
    found = relaxed(model, inputs, norm, method)
    identity = torch.eye(CLASSES, dtype=torch.float64).unsqueeze(0)
    lower, upper = found.lower(identity)[0], -found.lower(-identity)[0]

    weights, frames, relaxations = weights_of(model, gates), list(inputs[0].numpy()), per_frame(found, names)
    if cell == "rnn":
        expected = paper.vanilla_rnn(weights, frames, [frame["a"] for frame in relaxations], EPS, norm)
    else:
        expected = {"lstm": paper.lstm, "gru": paper.gru}[cell](weights, frames, relaxations, EPS, norm)
    np.testing.assert_allclose(lower.numpy(), expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(upper.numpy(), expected[1], rtol=1e-9, atol=1e-9)
    assert (lower < upper).all()
