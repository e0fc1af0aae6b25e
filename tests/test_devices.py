"""Everything runs where its inputs are. Without a second device at hand, the default one is made useless ("meta"): whatever is
created without a device of its own has no values there, and fails at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import popqorn
from popqorn.attacks.methods import EXCHANGING, MOVING
from popqorn.readers.heads import _KNOWN
from popqorn.relax.methods import METHODS
from questions import CLASSES, FEATURES, HIDDEN, REGIONS, SPECS, inputs, network, synonyms, table, tokens


@contextmanager
def useless_default() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


def values_of(result: Any) -> list[Tensor]:
    return [value for value in vars(result).values() if isinstance(value, Tensor)]


def fails_nowhere(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with useless_default():
        result = call(*arguments, **options)
    assert all(value.device.type == "cpu" for value in values_of(result))


@pytest.mark.parametrize("region", REGIONS)
def test_every_region_and_function(region: str) -> None:
    model, sequences, allowed = network("rnn"), inputs(), REGIONS[region]()
    size, quick = (1, "greedy") if "words" in region else (0.1, "fgsm")
    fails_nowhere(popqorn.certify, model, sequences, region=allowed, per_target=True, tolerance=0.5)
    fails_nowhere(popqorn.sensitivity, model, sequences, region=allowed, tolerance=0.5)
    fails_nowhere(popqorn.verify, model, sequences, size, region=allowed)
    fails_nowhere(popqorn.bounds, model, sequences, size, region=allowed)
    fails_nowhere(popqorn.curve, model, sequences, [0, size], region=allowed, attacked=quick)
    fails_nowhere(popqorn.attack, model, sequences, region=allowed, method=quick)
    fails_nowhere(popqorn.estimate_cost, model, sequences, region=allowed)


def test_the_bracket() -> None:
    fails_nowhere(popqorn.bracket, network("rnn"), inputs(), attack_method="fgsm")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("method", METHODS)
def test_every_spec_and_method(spec: str, method: str) -> None:
    if method == "tight" and spec not in ("decision", "tolerance of each output"):
        pytest.skip("rows are rows: two specs will do for the method that takes longest")
    model, sequences, claim = network("gru"), inputs()[:1], SPECS[spec]()
    if method == "split":
        few = popqorn.Ball(2, scale=torch.eye(*sequences.shape[1:], device="cpu"))
        fails_nowhere(popqorn.certify, model, sequences, spec=claim, region=few, method=method, tolerance=0.5, seconds=0.05)
        fails_nowhere(popqorn.verify, model, sequences, 9.0, spec=claim, region=few, method=method, seconds=0.05)
        fails_nowhere(popqorn.curve, model, sequences, [1.0, 9.0], spec=claim, region=few, method=method, seconds=0.05)
        return
    fails_nowhere(popqorn.certify, model, sequences, spec=claim, method=method, tolerance=0.5, chunk_rows=5)
    fails_nowhere(popqorn.verify, model, sequences, 0.1, spec=claim, method=method, dtype=torch.float32)
    if method == "planes":
        fails_nowhere(popqorn.attack, model, sequences, spec=claim, method="fgsm")


@pytest.mark.parametrize("method", [*MOVING, *EXCHANGING])
def test_every_attack(method: str) -> None:
    model, sequences = network("rnn"), inputs()[:2]
    regions = []
    if method in MOVING:
        regions += [popqorn.Ball(2, frames=[1], scale=[1.0, 0.2, 0.0]), popqorn.Ball(1, clip=(0, 1), total=True)]
    if method in EXCHANGING:
        regions += [popqorn.Words(table(), tokens()[:2], synonyms())]
    for region in regions:
        fails_nowhere(popqorn.attack, model, sequences, region=region, method=method, restarts=1)


@pytest.mark.parametrize("norm", [1, 1.5, 2, float("inf")])
def test_the_estimate(norm: float) -> None:
    fails_nowhere(popqorn.clever, network("rnn"), inputs(), norm=norm, batches=2, samples=3)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "tagger", "max", "mean"])
def test_every_kind_of_network_and_sequences_of_any_length(kind: str) -> None:
    model, sequences = network(kind), inputs()
    several = [sequences[0], sequences[1, :2], sequences[2, :1]]
    fails_nowhere(popqorn.verify, model, sequences, 0.1)
    fails_nowhere(popqorn.verify, model, several, 0.1)
    fails_nowhere(popqorn.verify, model, pack_sequence(several), 0.1)
    fails_nowhere(popqorn.sensitivity, model, sequences, lengths=[3, 2, 1], tolerance=0.5)
    if kind == "tagger":
        fails_nowhere(popqorn.certify, model, several, per_step=True, tolerance=0.1)


@pytest.mark.parametrize("activation", [kind for kind in _KNOWN if kind is not nn.Flatten], ids=lambda kind: kind.__name__)
def test_every_activation(activation: type[nn.Module]) -> None:
    head = nn.Sequential(nn.Linear(HIDDEN, 4), activation(), nn.Linear(4, CLASSES))
    model = popqorn.SequenceClassifier(nn.RNN(FEATURES, HIDDEN), head).double().eval()
    for method in ("planes", "constants"):
        fails_nowhere(popqorn.verify, model, inputs(), 0.1, method=method)


def test_numbers_and_lists_are_put_where_the_inputs_are() -> None:
    model, sequences = network("rnn"), inputs()
    decided = model(sequences).argmax(-1)
    asked = {"labels": decided.tolist(), "targets": ((decided + 1) % CLASSES).numpy(), "frames": [0, -1], "norm": 2}
    fails_nowhere(popqorn.certify, model, sequences.numpy(), tolerance=0.1, **asked)
    fails_nowhere(popqorn.verify, model, sequences.tolist(), [0.1, 0.2, 0.3], **asked)


class Mixed(nn.Module):
    """Something of everything that is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, FEATURES)
        self.front = nn.Conv1d(FEATURES, 4, 3, padding=1)
        self.rnn = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.score = nn.Linear(4, 1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else self.embedding(x)
        x = nn.functional.mish(self.front(x.transpose(1, 2))).transpose(1, 2)
        x = self.norm(self.rnn(x)[0])
        return self.head((self.score(x).softmax(1) * x).sum(1)).log_softmax(-1)


def test_every_kind_of_model(tmp_path: Path) -> None:
    model = Mixed().double().eval()
    fails_nowhere(popqorn.verify, model, inputs(), 0.01)
    fails_nowhere(popqorn.attack, model, inputs(), method="fgsm")
    fails_nowhere(popqorn.verify, model, [[1, 2, 3], [4, 5]], 0.01)
    reader = popqorn.TextClassifier(str.split, list("abcdefg"), model)
    fails_nowhere(popqorn.sensitivity, reader, ["a b c", "d e"], tolerance=0.5)
    fails_nowhere(popqorn.verify, reader, ["a b c"], region=reader.exchanges(["a b c"], {"a": ["b"]}))
    images = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, CLASSES)).double()
    fails_nowhere(popqorn.verify, images, torch.rand(2, 1, 4, 4), 0.01)
    popqorn.save(network("rnn"), tmp_path / "model.safetensors")
    program = torch.export.export(images, (torch.rand(1, 1, 4, 4, dtype=torch.float64),))
    torch.export.save(program, tmp_path / "model.pt2")
    torch.onnx.export(images.float(), (torch.rand(1, 1, 4, 4),), tmp_path / "model.onnx", dynamo=False)
    with useless_default():
        kept, again, file = (popqorn.load(tmp_path / f"model.{kind}") for kind in ("safetensors", "pt2", "onnx"))
    fails_nowhere(popqorn.verify, kept, inputs(), 0.1)
    fails_nowhere(popqorn.verify, again, torch.rand(2, 1, 4, 4), 0.01)
    fails_nowhere(popqorn.verify, file, torch.rand(2, 1, 4, 4), 0.01)
