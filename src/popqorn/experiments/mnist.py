"""Experiment I: certified radius, CLEVER-RNN and attacks for recurrent networks on MNIST, as in Table 2 of the paper."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import popqorn
from popqorn.experiments import data
from popqorn.experiments.networks import Architecture, Split, Trained, trained
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.training import Recipe, stacked
from popqorn.experiments.work import fill, unstopped
from popqorn.runs.store import Row

NORMS = {"inf": math.inf, "2": 2.0, "1": 1.0}
SAMPLES, QUICK_SAMPLES = 1000, 5
RECIPE = Recipe(epochs=8, learning_rate=0.1, weight_decay=2e-3, momentum=0.9)
BLOCK = 50
CLASSES = 10
PIXELS = 784


@dataclass(frozen=True)
class Network:
    """One network of the table: an image in `frames` slices of whole rows, `hidden` hidden units."""

    kind: str
    frames: int
    hidden: int

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.frames}x{self.hidden}"

    @property
    def architecture(self) -> Architecture:
        return Architecture(self.kind, PIXELS // self.frames, self.hidden, CLASSES)


PAPER = (
    *(Network("rnn", 4, hidden) for hidden in (32, 64, 128)),
    *(Network("rnn", 7, hidden) for hidden in (32, 64)),
    *(Network("rnn", 14, hidden) for hidden in (32, 64)),
    *(Network("lstm", 4, hidden) for hidden in (32, 64, 128)),
    *(Network("lstm", frames, 32) for frames in (7, 14)),
)
GRUS = (*(Network("gru", 4, hidden) for hidden in (32, 64, 128)), *(Network("gru", frames, 32) for frames in (7, 14)))
NETWORKS = (*PAPER, *GRUS)
QUICK = (Network("rnn", 4, 32), Network("rnn", 7, 32), Network("lstm", 4, 32), Network("gru", 4, 32))


@dataclass(frozen=True)
class Digits:
    """MNIST, read once, in as many slices as a network asks for; every test digit has its random target."""

    train: data.Images
    test: data.Images
    targets: Tensor

    @staticmethod
    def read(folder: Path) -> "Digits":
        test = data.mnist(folder, "test")
        shift = torch.randint(1, CLASSES, (len(test.labels),), generator=torch.Generator().manual_seed(0))
        return Digits(data.mnist(folder, "train"), test, (torch.from_numpy(test.labels) + shift) % CLASSES)

    def split(self, images: data.Images, frames: int) -> Split:
        return Split(torch.from_numpy(images.as_frames(frames)), torch.from_numpy(images.labels))

    def network(self, network: Network, setup: Setup) -> Trained:
        """The trained network, from disk if it is there."""

        def splits() -> tuple[Split, Split]:
            return self.split(self.train, network.frames), self.split(self.test, network.frames)

        return trained(setup, f"mnist_{network.name}", network.architecture, RECIPE, splits)


def run(results: Results, setup: Setup) -> None:
    """Fill the tables `networks` and `radii` for the first test digits."""
    digits = Digits.read(setup.data)
    chosen = QUICK if setup.quick else NETWORKS
    models = []
    for network in chosen:
        model, accuracy = digits.network(network, setup)
        models.append(model)
        row = {"network": network.name, "kind": network.kind, "frames": network.frames, "hidden": network.hidden}
        results.note("networks", {**row, "accuracy": accuracy})
    for number, (network, model) in enumerate(zip(chosen, models, strict=True), start=1):
        fill(
            results,
            "radii",
            range(setup.samples),
            partial(_measure, digits, network, model),
            setup.track,
            f"{network.name} ({number} of {len(chosen)})",
            groups=[{"network": network.name, "norm": norm} for norm in NORMS],
            block=BLOCK,
        )


def _measure(digits: Digits, network: Network, model: popqorn.SequenceClassifier, group: Row, block: list[int]) -> list[Row]:
    """One row per digit: what is proven, estimated and found for its random target."""
    index = torch.tensor(block)
    inputs, labels = digits.split(digits.test, network.frames)
    labels, targets = labels[index], digits.targets[index]
    given: dict[str, Any] = {"labels": labels, "targets": targets, "norm": NORMS[group["norm"]]}
    images = stacked(inputs, index)
    certificate = unstopped(popqorn.certify(model, images, **given))
    clever = unstopped(popqorn.clever(model, images, seed=block[0], **given))
    cw = unstopped(popqorn.attack(model, images, method="cw", seed=block[0], **given))
    best = unstopped(popqorn.attack(model, images, method="best", seed=block[0], **given))
    columns = {
        "label": labels.tolist(),
        "target": targets.tolist(),
        "status": [str(status) for status in certificate.status],
        "certified": certificate.radius.tolist(),
        "clever": clever.score.tolist(),
        "cw": _finite(cw.radius),
        "best": _finite(best.radius),
    }
    results: dict[str, Any] = {"certified": certificate, "clever": clever, "cw": cw, "best": best}
    seconds = {name: result.seconds / len(block) for name, result in results.items()}
    return [{**dict(zip(columns, values, strict=True)), "seconds": seconds} for values in zip(*columns.values(), strict=True)]


def _finite(radii: Tensor) -> list[float | None]:
    """Radii for a JSON file: None where no attack was found."""
    return [radius if math.isfinite(radius) else None for radius in radii.tolist()]
