"""Networks for the benchmarks, trained once and kept in `benchmarks/results/networks`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import public
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import popqorn
from popqorn.experiments import data, signals, strokes
from popqorn.experiments.networks import Architecture
from popqorn.experiments.training import Recipe, Sequences, train

KEPT = Path(__file__).parent / "results" / "networks"
CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def kept(
    name: str, build: Callable[[], popqorn.SequenceClassifier], training: Callable[[], tuple[Sequences, Tensor]], recipe: Recipe
) -> popqorn.SequenceClassifier:
    """A trained network, out of its file if there is one."""
    path = KEPT / f"{name}.safetensors"
    torch.manual_seed(0)
    model = build()
    if path.exists():
        model.load_state_dict(load_file(path))
        return model.eval()
    train(model, *training(), recipe)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), path)
    return model


def network(kind: str, frames: int, hidden: int, *, epochs: int = 3, digits: int = 60_000) -> popqorn.SequenceClassifier:
    """A classifier of MNIST digits cut into `frames` slices."""

    def training() -> tuple[Tensor, Tensor]:
        inputs, labels = public.digits(frames, digits, "train")
        return inputs.float(), labels

    def build() -> popqorn.SequenceClassifier:
        return popqorn.SequenceClassifier(CELLS[kind](784 // frames, hidden), nn.Linear(hidden, 10))

    return kept(f"{kind}_{frames}x{hidden}_{epochs}_{digits}", build, training, Recipe(epochs))


def pen(digits: int = 20_000) -> popqorn.SequenceClassifier:
    """The LSTM of the stroke experiment, a classifier of digits as a pen drew them."""

    def training() -> tuple[list[Tensor], Tensor]:
        read = data.strokes(public.DATA, "train")
        return [torch.from_numpy(item) for item in read.items[:digits]], torch.from_numpy(read.labels[:digits])

    return kept(f"strokes_{digits}", strokes.ARCHITECTURE.build, training, strokes.RECIPE)


def beats() -> popqorn.SequenceClassifier:
    """The LSTM of the ECG experiment: 14 frames of 6 samples of a heart beat."""

    def training() -> tuple[Tensor, Tensor]:
        read = data.heart_beats(public.DATA, "train", signals.BEAT_FRAMES)
        return torch.from_numpy(np.stack(read.items)), torch.from_numpy(read.labels)

    architecture = Architecture("lstm", signals.BEAT_SAMPLES // signals.BEAT_FRAMES, signals.HIDDEN, len(signals.BEAT_CLASSES))
    return kept("beats", architecture.build, training, signals.ECG_RECIPE)
