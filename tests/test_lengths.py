"""Sequences of different lengths: every one gets what it would get alone, in the given order; padding never counts."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

import popqorn
from questions import network

pytestmark = pytest.mark.shapes

LENGTHS = (3, 1, 4, 3)


def sequences() -> list[Tensor]:
    torch.manual_seed(4)
    return [torch.randn(length, 3, dtype=torch.float64) for length in LENGTHS]


def padded(filler: float = math.nan) -> Tensor:
    return pad_sequence(sequences(), batch_first=True, padding_value=filler)


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "list": lambda: {"inputs": sequences()},
    "arrays": lambda: {"inputs": [sequence.numpy() for sequence in sequences()]},
    "nested lists": lambda: {"inputs": [sequence.tolist() for sequence in sequences()]},
    "padded": lambda: {"inputs": padded(7.0), "lengths": list(LENGTHS)},
    "padded with NaN": lambda: {"inputs": padded(), "lengths": torch.tensor(LENGTHS)},
    "packed": lambda: {"inputs": pack_sequence(sequences(), enforce_sorted=False)},
}


@pytest.mark.parametrize(
    ("form", "kind"), [*((form, "mean") for form in FORMS), ("list", "lstm"), ("list", "max"), ("list", "both ways")]
)
def test_each_sequence_gets_the_radius_it_has_alone(form: str, kind: str) -> None:
    if kind == "both ways":
        torch.manual_seed(1)
        model = popqorn.SequenceClassifier(nn.RNN(3, 4, bidirectional=True), nn.Linear(8, 3), "final").double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
    else:
        model = network(kind)
    given = FORMS[form]()
    found = popqorn.certify(model, **given, norm=2)
    for sample, sequence in enumerate(sequences()):
        alone = popqorn.certify(model, sequence[None], norm=2)
        torch.testing.assert_close(found.radius[sample], alone.radius[0], rtol=1e-9, atol=0)
        torch.testing.assert_close(found.margins[sample], alone.margins[0], rtol=1e-6, atol=1e-9)
        assert found.status[sample] is alone.status[0]
        assert found.labels[sample] == alone.labels[0]


def test_every_function_takes_them() -> None:
    model, given = network("rnn"), {"inputs": padded(), "lengths": LENGTHS}
    sensitive = popqorn.sensitivity(model, **given)
    assert torch.equal(sensitive.radius.isnan(), torch.arange(4) >= torch.tensor(LENGTHS)[:, None])
    assert tuple(map(len, sensitive.status)) == LENGTHS
    proof = popqorn.verify(model, **given, eps=[0.1, 0.2, 0.3, 0.4])
    low, high = popqorn.bounds(model, **given, eps=0.1)
    attacked = popqorn.attack(model, **given, method="fgsm")
    estimated = popqorn.clever(model, **given, batches=3, samples=5)
    curve = popqorn.curve(model, **given, eps=[0.01, 0.1])
    assert "attack" in str(popqorn.bracket(model, **given, attack_method="fgsm"))
    assert popqorn.estimate_cost(model, **given).seconds > 0
    for sample, sequence in enumerate(sequences()):
        alone = sequence[None]
        length = len(sequence)
        each = popqorn.sensitivity(model, alone).radius[0]
        torch.testing.assert_close(sensitive.radius[sample, :length], each, rtol=1e-9, atol=0)
        margins = popqorn.verify(model, alone, eps=0.1 * (sample + 1)).margins[0]
        torch.testing.assert_close(proof.margins[sample], margins, rtol=1e-9, atol=1e-9)
        lower, upper = popqorn.bounds(model, alone, eps=0.1)
        torch.testing.assert_close(low[sample], lower[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(high[sample], upper[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            attacked.radius[sample], popqorn.attack(model, alone, method="fgsm").radius[0], rtol=1e-6, atol=0
        )
        assert attacked.adversarial[sample, length:].isnan().all()
        assert estimated.gradients[sample, length:].isnan().all()
        assert torch.equal(curve.proven[sample], popqorn.curve(model, alone, eps=[0.01, 0.1]).proven[0])


def test_steps_beyond_the_end_are_nowhere() -> None:
    model = network("tagger")
    labels = [model(sequence[None])[0].argmax(-1).tolist() for sequence in sequences()]
    found = popqorn.certify(model, sequences(), labels=labels, per_step=True)
    beyond = torch.arange(4) >= torch.tensor(LENGTHS)[:, None]
    assert found.step_radius is not None
    assert torch.equal(found.step_radius.isnan(), beyond)
    assert torch.equal(found.margins.isnan().all(-1), beyond)
    assert torch.equal(found.labels == -1, beyond)
    as_padded = torch.full((4, 4), 99)
    for sample, row in enumerate(labels):
        as_padded[sample, : len(row)] = torch.tensor(row)
    again = popqorn.certify(model, sequences(), labels=as_padded, per_step=True)
    torch.testing.assert_close(again.radius, found.radius, rtol=1e-9, atol=0)


def test_specs_of_steps_may_be_padded() -> None:
    model = network("tagger")
    rows = torch.zeros(2, 4, 3, dtype=torch.float64)
    rows[0, 0, 0] = rows[1, 3, 1] = 1.0
    for claim in (
        popqorn.Property(rows, 9.0),
        popqorn.Tolerance(torch.rand(4, 3) + 0.1),
        popqorn.Tolerance(torch.rand(4, 4, 3) + 0.1),
    ):
        found = popqorn.verify(model, sequences(), 1e-3, spec=claim)
        assert found.certified.all()


def test_regions_and_specs_follow_each_sequence() -> None:
    """What is given per sample, per frame or from the end is each sequence's own."""
    model = network("rnn")
    scale = torch.rand(4, 4, 3, dtype=torch.float64) + 0.2
    mask = torch.rand(4, 4) > 0.4
    mask[:, 0] = True
    lower = torch.randn(4, 4, 3, dtype=torch.float64).abs()
    whole = {
        "scale": popqorn.certify(model, sequences(), region=popqorn.Ball(2, scale=scale)).radius,
        "mask": popqorn.certify(model, sequences(), region=popqorn.Ball(2, frames=mask)).radius,
        "last": popqorn.certify(model, sequences(), region=popqorn.Ball(2, frames=[-1])).radius,
        "first": popqorn.certify(model, sequences(), region=popqorn.Ball(2, frames=[0, 3])).radius,
        "box": popqorn.certify(model, sequences(), region=popqorn.Box(padded(0.0) - lower, padded(0.0) + 0.1)).radius,
    }
    for sample, sequence in enumerate(sequences()):
        length = len(sequence)
        alone = {
            "scale": popqorn.Ball(2, scale=scale[sample, :length]),
            "mask": popqorn.Ball(2, frames=mask[sample, :length]),
            "last": popqorn.Ball(2, frames=[length - 1]),
            "first": popqorn.Ball(2, frames=[frame for frame in (0, 3) if frame < length]),
            "box": popqorn.Box(sequence - lower[sample, :length], sequence + 0.1),
        }
        for name, region in alone.items():
            radius = popqorn.certify(model, sequence[None], region=region).radius[0]
            torch.testing.assert_close(whole[name][sample], radius, rtol=1e-9, atol=0)


def test_sentences_of_different_lengths() -> None:
    torch.manual_seed(0)
    table = torch.randn(20, 3, dtype=torch.float64)
    tokens = [[1, 2, 3], [4], [5, 6, 7, 8]]
    neighbours = {word: [word + 10, word + 11] for word in range(9)}
    model = network("rnn")
    inputs = [table[row] for row in tokens]
    found = popqorn.certify(model, inputs, region=popqorn.Words(table, tokens, neighbours))
    as_padded = torch.tensor([[1, 2, 3, -1], [4, -1, -1, -1], [5, 6, 7, 8]])
    again = popqorn.certify(model, inputs, region=popqorn.Words(table, as_padded, neighbours))
    assert torch.equal(found.radius, again.radius)
    for sample, row in enumerate(tokens):
        alone = popqorn.certify(model, table[row][None], region=popqorn.Words(table, [row], neighbours))
        assert alone.radius[0] == found.radius[sample]


def test_a_frame_that_a_sequence_lacks_cannot_move() -> None:
    with pytest.raises(ValueError, match="leave nothing that may move in sample 1"):
        popqorn.certify(network("rnn"), sequences(), frames=[2])
