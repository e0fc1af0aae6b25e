"""Beyond the paper: networks trained with the bound in mind, beside plain, adversarial and interval training."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import popqorn
from popqorn.experiments import data
from popqorn.experiments.mnist import CLASSES, PIXELS
from popqorn.experiments.networks import Architecture, Split, trained
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.signals import BEAT_CLASSES, BEAT_FRAMES, BEAT_SAMPLES
from popqorn.experiments.training import Recipe, accuracy, stacked
from popqorn.experiments.work import fill, unstopped
from popqorn.readers.classifier import tape_of
from popqorn.relax.relaxation import Interval
from popqorn.runs.store import Row
from popqorn.training.loss import STRENGTH
from popqorn.training.widths import boxes_along

SAMPLES, QUICK_SAMPLES = 200, 4
RADII = 50  # samples whose radius is searched, certified and attacked
SEEDS, QUICK_SEEDS = 3, 1
HIDDEN = 32
BLOCK = 50
VALIDATION = 0.1  # of the training set: held back, to choose strengths by
TOLERANCE = 1e-2


@dataclass(frozen=True)
class CertifiableRecipe(Recipe):
    """AdamW on the loss of a `way` of training, `eps` growing from 0 between two shares of the epochs."""

    way: str = "plain"
    eps: float = 0.0
    strength: float = 0.0
    first: float = 0.04
    last: float = 0.35
    clip: ClassVar[float] = 5.0

    def loss(self, model: popqorn.SequenceClassifier, inputs: Tensor, labels: Tensor, share: float) -> Tensor:
        eps = popqorn.training.ramp(share, self.first, self.last, self.eps)
        if self.way == "plain":
            return super().loss(model, inputs, labels, share)
        if self.way == "intervals":
            worst = nn.functional.cross_entropy(_worst_logits(model, inputs, labels, eps), labels)
            return 0.5 * super().loss(model, inputs, labels, share) + 0.5 * worst
        return popqorn.training.certified_loss(model, inputs, labels, eps, strength=self.strength)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), self.learning_rate)


def _worst_logits(model: popqorn.SequenceClassifier, inputs: Tensor, labels: Tensor, eps: float) -> Tensor:
    """The least logit of the label and the greatest of all others, by interval arithmetic (Gowal et al. 2018)."""
    tape = tape_of(model, inputs.shape[1], dtype=inputs.dtype, device=inputs.device, live=True)
    box = boxes_along(tape, Interval(inputs - eps, inputs + eps))[-1]
    return torch.where(nn.functional.one_hot(labels, tape.outputs).bool(), box.lower, box.upper)


@dataclass(frozen=True)
class Case:
    """A network and its task."""

    name: str
    kind: str
    frames: int
    eps: float
    epochs: int
    beats: bool = False

    @property
    def architecture(self) -> Architecture:
        features, classes = (BEAT_SAMPLES, len(BEAT_CLASSES)) if self.beats else (PIXELS, CLASSES)
        return Architecture(self.kind, features // self.frames, HIDDEN, classes)


CASES = (
    Case("lstm_4x32", "lstm", 4, 0.02, 14),
    Case("gru_4x32", "gru", 4, 0.02, 14),
    Case("rnn_4x32", "rnn", 4, 0.02, 14),
    Case("ecg_lstm", "lstm", BEAT_FRAMES, 0.05, 14, beats=True),
    Case("lstm_14x32", "lstm", 14, 0.02, 14),
)
RECIPE = CertifiableRecipe(epochs=14, batch=256, learning_rate=3e-3)
STRENGTHS = (0.02, 0.05, STRENGTH, 0.2)
QUICK = (replace(CASES[0], epochs=2),)


def ways(case: Case) -> list[CertifiableRecipe]:
    """How a network of the table is trained: in order, from plain to the strongest."""
    base = replace(RECIPE, epochs=case.epochs, eps=case.eps)
    others = [replace(base, way="plain"), replace(base, way="adversarial"), replace(base, way="intervals")]
    return others + [replace(base, way="certified", strength=strength) for strength in STRENGTHS]


def run(results: Results, setup: Setup) -> None:
    """Fill the tables `networks` (accuracies) and `samples` (what is proven and attacked)."""
    for case in QUICK if setup.quick else CASES:
        splits = cache(partial(_splits, case, setup))
        for seed in range(QUICK_SEEDS if setup.quick else SEEDS):
            for recipe in ways(case):
                _measure(results, setup, case, recipe, seed, splits)


def _measure(
    results: Results,
    setup: Setup,
    case: Case,
    recipe: CertifiableRecipe,
    seed: int,
    splits: Callable[[], tuple[Split, Split, Split]],
) -> None:
    group: Row = {"network": case.name, "way": recipe.way, "strength": recipe.strength, "seed": seed}
    title = f"{case.name}, {recipe.way}{f' {recipe.strength:g}' if recipe.strength else ''}, seed {seed}"
    name = f"training_{case.name}_{recipe.way}"
    model, clean = trained(setup, name, case.architecture, recipe, lambda: (splits()[0], splits()[2]), seed)
    if not any(all(row[key] == value for key, value in group.items()) for row in results.rows("networks")):
        held = splits()[1]
        results.note("networks", {**group, "eps": case.eps, "clean": clean, "held": accuracy(model, held.inputs, held.labels)})
    order = torch.randperm(10**4, generator=torch.Generator().manual_seed(0)).tolist()
    count = len(splits()[2].labels)
    chosen = [number for number in order if number < count][: setup.samples]
    searched = set(chosen[:RADII])
    measure = partial(_rows, model, splits()[2], case.eps, searched)
    fill(results, "samples", chosen, measure, setup.track, title, groups=[group], block=BLOCK)


def _rows(model: popqorn.SequenceClassifier, test: Split, eps: float, searched: set[int], _: Row, block: list[int]) -> list[Row]:
    """One row per sample: whether it is right, proven and broken at `eps`; of some the radii."""
    index = torch.tensor(block)
    inputs, labels = stacked(test.inputs, index), test.labels[index]
    proven = unstopped(popqorn.verify(model, inputs, eps, labels=labels)).certified.tolist()
    attacked = unstopped(popqorn.attack(model, inputs, labels=labels, method="pgd", restarts=1)).radius.tolist()
    with torch.no_grad():
        right = (model(inputs).argmax(-1) == labels).tolist()
    rows = [
        {"right": is_right, "proven": is_proven, "broken": not is_right or radius <= eps}
        for is_right, is_proven, radius in zip(right, proven, attacked, strict=True)
    ]
    some = [place for place, number in enumerate(block) if number in searched]
    if some:
        found = unstopped(popqorn.certify(model, inputs[some], labels=labels[some], tolerance=TOLERANCE))
        for place, radius in zip(some, found.radius.tolist(), strict=True):
            finite = attacked[place] if attacked[place] < float("inf") else None
            rows[place] |= {"certified": radius, "attacked": finite}
    return rows


def _splits(case: Case, setup: Setup) -> tuple[Split, Split, Split]:
    """What is trained on, what is held back of it, and the test set."""
    if case.beats:
        beats = [data.heart_beats(setup.data, name, case.frames) for name in ("train", "test")]
        training, test = (Split(torch.from_numpy(np.stack(each.items)), torch.from_numpy(each.labels)) for each in beats)
    else:
        images = [data.mnist(setup.data, name) for name in ("train", "test")]
        training, test = (Split(torch.from_numpy(each.as_frames(case.frames)), torch.from_numpy(each.labels)) for each in images)
    order = torch.randperm(len(training.labels), generator=torch.Generator().manual_seed(0))
    held, used = order.tensor_split([int(VALIDATION * len(order))])
    parts = [Split(stacked(training.inputs, part), training.labels[part]) for part in (used, held)]
    return parts[0], parts[1], test
