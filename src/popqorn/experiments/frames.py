"""The radius of every single frame (the paper's Experiments II and III), for sequences of any kind and length."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import popqorn
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.training import Sequences
from popqorn.experiments.work import fill, unstopped
from popqorn.runs.store import Row

TABLE = "frames"
NORM = 2.0
TOLERANCE = 1e-2


def measure(
    results: Results,
    setup: Setup,
    model: popqorn.SequenceClassifier,
    inputs: Sequences,
    labels: Tensor,
    samples: Sequence[int],
    more: Callable[[int, Row], Row],
) -> None:
    """One row per sample: label, decision, the certified radius of every frame alone (untargeted, p = 2), and the radius at which
    an attack on that frame alone succeeds (None: none did); `more(sample, row)` adds what the experiment wants besides.

    Samples that the model decides wrongly have no radii.
    """

    def measured(group: Row, some: list[int]) -> list[Row]:
        (sample,) = some
        row = _radii(model, inputs[sample].unsqueeze(0), labels[sample : sample + 1])
        return [{**row, **more(sample, row)}]

    # The walk is quadratic in the frames, and every frame is searched.
    fill(results, TABLE, samples, measured, setup.track, "radius of every frame", cost=lambda sample: len(inputs[sample]) ** 3)


def _radii(model: popqorn.SequenceClassifier, inputs: Tensor, label: Tensor) -> Row:
    decision = int(model(inputs).argmax(-1))
    found: Row = {"label": int(label), "decision": decision}
    if decision != int(label):
        return {**found, "radii": None, "attacked": None}
    radii = unstopped(popqorn.sensitivity(model, inputs, labels=label, norm=NORM, tolerance=TOLERANCE)).radius[0]
    frames = len(radii)
    alone = torch.eye(frames, dtype=torch.bool)
    copies, labels = inputs.expand(frames, -1, -1), label.expand(frames)
    attack = unstopped(popqorn.attack(model, copies, labels=labels, norm=NORM, frames=alone, method="pgd"))
    attacked = [radius if math.isfinite(radius) else None for radius in attack.radius.tolist()]
    return {**found, "radii": radii.tolist(), "attacked": attacked}


def most_sensitive(radii: Sequence[float], count: int = 3) -> list[int]:
    """The frames of least radius, in order of position."""
    return sorted(torch.tensor(radii).argsort(stable=True)[:count].tolist())
