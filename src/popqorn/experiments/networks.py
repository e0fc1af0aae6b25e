"""Trained networks, kept beside the results so that every experiment (and every later run) finds them again."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from popqorn.experiments.setup import Setup
from popqorn.experiments.training import Recipe, Sequences, accuracy, train
from popqorn.readers.classifier import SequenceClassifier

CELLS: dict[str, Callable[..., nn.RNN | nn.LSTM | nn.GRU]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Split(NamedTuple):
    """Samples and their labels."""

    inputs: Sequences
    labels: Tensor


class Trained(NamedTuple):
    """A network and its accuracy on the test set."""

    model: SequenceClassifier
    accuracy: float


@dataclass(frozen=True)
class Architecture:
    """A recurrent classifier of one layer: its last hidden state decides."""

    kind: str
    features: int
    hidden: int
    classes: int

    def build(self) -> SequenceClassifier:
        rnn = CELLS[self.kind](self.features, self.hidden, batch_first=True)
        return SequenceClassifier(rnn, nn.Linear(self.hidden, self.classes))


def trained(
    setup: Setup,
    name: str,
    architecture: Architecture,
    recipe: Recipe,
    splits: Callable[[], tuple[Split, Split]],
    seed: int = 0,
) -> Trained:
    """The network `name`, from `setup.networks` or trained (on the first of the `splits`, tested on the second) and kept there.

    The file's name tells the architecture, recipe and seed apart: another recipe never meets old weights.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file, save_file

    digest = hashlib.sha256(repr((architecture, recipe, seed)).encode()).hexdigest()[:8]
    path = setup.networks / f"{name}-{digest}.safetensors"
    model = architecture.build()
    if path.exists():
        try:
            with safe_open(path, framework="pt") as file:
                measured = float(file.metadata()["test_accuracy"])
            model.load_state_dict(load_file(path))
        except (SafetensorError, OSError, KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{str(path)!r} does not hold the network {name} ({error}); delete it to train it again") from error
        return Trained(model.eval(), measured)
    training, test = splits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = architecture.build()
        setup.networks.mkdir(parents=True, exist_ok=True)
        kept = path.with_suffix(".epochs")
        with setup.track(f"training {name}", recipe.epochs) as at:
            train(model, training.inputs, training.labels, recipe, lambda done, total: at(recipe.epochs * done / total), kept)
    measured = accuracy(model, test.inputs, test.labels)
    unfinished = path.with_suffix(".part")
    save_file(model.state_dict(), unfinished, metadata={"test_accuracy": repr(measured)})
    unfinished.replace(path)
    kept.unlink(missing_ok=True)
    return Trained(model, measured)
