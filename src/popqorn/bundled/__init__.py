"""Four small trained networks and 100 MNIST test digits, so that the first certificate needs no download."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from popqorn.readers.classifier import SequenceClassifier

FOLDER = Path(__file__).parent
KINDS = ("rnn", "lstm", "gru", "robust_lstm")  # the last is trained to be certified (docs/training.md)
FRAMES = 4
HIDDEN = 32
PIXELS = 784
CLASSES = 10


class Digits(NamedTuple):
    """MNIST test digits as sequences of `FRAMES` slices of seven rows, pixels in [0, 1]."""

    inputs: Tensor
    labels: Tensor


def blank_model(kind: str) -> SequenceClassifier:
    """An untrained network of the bundled size; `kind` is one of `KINDS`."""
    cells = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU, "robust_lstm": nn.LSTM}
    if kind not in cells:
        raise ValueError(f"kind is {kind!r}; pass one of {', '.join(map(repr, KINDS))}")
    return SequenceClassifier(cells[kind](PIXELS // FRAMES, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES))


def load_model(kind: str) -> SequenceClassifier:
    """A bundled network, trained on MNIST by `scripts/train_bundled.py`."""
    from safetensors.torch import load_file

    model = blank_model(kind)
    model.load_state_dict(load_file(FOLDER / f"{kind}.safetensors"))
    return model.eval()


def test_accuracy(kind: str) -> float:
    """The accuracy of a bundled network on the 10,000 MNIST test digits, as measured when it was trained."""
    from safetensors import safe_open

    with safe_open(FOLDER / f"{kind}.safetensors", framework="pt") as file:
        return float(file.metadata()["test_accuracy"])


def load_digits(count: int = 100) -> Digits:
    """The first `count` (at most 100) digits of the MNIST test set."""
    with np.load(FOLDER / "digits.npz", allow_pickle=False) as file:
        images, labels = file["images"][:count], file["labels"][:count]
    inputs = torch.from_numpy(images).double().reshape(len(images), FRAMES, -1) / 255
    return Digits(inputs, torch.from_numpy(labels).long())
