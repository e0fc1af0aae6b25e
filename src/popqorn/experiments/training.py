"""Training of the small classifiers that experiments, benchmarks and the bundled networks need."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from popqorn._typing import Float, Int
from popqorn.readers.classifier import SequenceClassifier
from popqorn.training.kept import keep, resume

Sequences = Tensor | Sequence[Tensor]
"""Samples of one length, `[samples, frames, features]`, or of several: a list of `[frames, features]`."""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: Adam, or gradient descent with momentum; a cosine schedule, clipped gradients."""

    epochs: int
    batch: int = 100
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    momentum: float | None = None
    clip: ClassVar[float] = 1.0

    def loss(self, model: SequenceClassifier, inputs: Tensor, labels: Tensor, share: float) -> Tensor:
        """Of a batch, when this share of all training is done."""
        return nn.functional.cross_entropy(model(inputs), labels)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.momentum is None:
            return torch.optim.Adam(model.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(model.parameters(), self.learning_rate, self.momentum, weight_decay=self.weight_decay)


def train(
    model: SequenceClassifier,
    inputs: Sequences,
    labels: Int[Tensor, " samples"],
    recipe: Recipe,
    on_batch: Callable[[int, int], None] | None = None,
    kept: Path | None = None,
) -> SequenceClassifier:
    """Fit `model`; repeatable for a seeded generator. `on_batch(done, total)` is told of every batch.

    What every epoch ends with is kept in the file `kept`, and training goes on from there, to the same network. Who asked for
    the file deletes it once the network itself is saved.
    """
    model.train()
    optimiser = recipe.optimiser(model)
    total = recipe.epochs * len(batches(inputs, recipe.batch))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    parts: dict[str, Any] = {"model": model, "optimiser": optimiser, "schedule": schedule}
    first, _ = resume(kept, parts) if kept is not None and kept.exists() else (0, {})
    done = first * (total // recipe.epochs)
    for epoch in range(first, recipe.epochs):
        for index in batches(inputs, recipe.batch):
            loss = recipe.loss(model, stacked(inputs, index), labels[index], done / total)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimiser.step()
            schedule.step()
            done += 1
            if on_batch is not None:
                on_batch(done, total)
        if kept is not None:
            keep(kept, parts, epoch + 1)
    return model.eval()


def batches(inputs: Sequences, size: int) -> list[Int[Tensor, " batch"]]:
    """The numbers of all samples, once, in random batches of equal length, so that nothing is padded."""
    if isinstance(inputs, Tensor):
        return list(torch.randperm(len(inputs)).split(size))
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, item in enumerate(inputs):
        by_length[len(item)].append(number)
    parts = [part for same in by_length.values() for part in torch.tensor(same)[torch.randperm(len(same))].split(size)]
    return [parts[number] for number in torch.randperm(len(parts)).tolist()]


def stacked(inputs: Sequences, index: Int[Tensor, " batch"]) -> Float[Tensor, "batch frames features"]:
    """Some samples of equal length."""
    return inputs[index] if isinstance(inputs, Tensor) else torch.stack([inputs[number] for number in index.tolist()])


@torch.no_grad()
def decisions(model: SequenceClassifier, inputs: Sequences) -> Int[Tensor, " samples"]:
    """The class of every sample."""
    found = torch.empty(len(inputs), dtype=torch.long)
    for index in batches(inputs, 1000):
        found[index] = model(stacked(inputs, index)).argmax(-1)
    return found


def accuracy(model: SequenceClassifier, inputs: Sequences, labels: Int[Tensor, " samples"]) -> float:
    """The share of samples whose decision is the label."""
    return float((decisions(model, inputs) == labels).double().mean())
