"""Training of the small classifiers that experiments, benchmarks and the bundled networks need."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from popqorn._typing import Float, Int
from popqorn.models.classifier import SequenceClassifier


def train(
    model: SequenceClassifier,
    inputs: Float[Tensor, "samples frames features"],
    labels: Int[Tensor, " samples"],
    *,
    epochs: int,
    batch: int = 100,
    learning_rate: float = 3e-3,
    on_epoch: Callable[[int], None] | None = None,
) -> SequenceClassifier:
    """Fit `model` by Adam with a cosine schedule and clipped gradients; repeatable for a seeded generator."""
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * -(-len(inputs) // batch))
    for epoch in range(epochs):
        for index in torch.randperm(len(inputs)).split(batch):
            loss = nn.functional.cross_entropy(model(inputs[index]), labels[index])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        if on_epoch is not None:
            on_epoch(epoch)
    return model.eval()


@torch.no_grad()
def accuracy(model: SequenceClassifier, inputs: Tensor, labels: Tensor) -> float:
    """The share of samples whose decision is the label."""
    return float((model(inputs).argmax(-1) == labels).double().mean())
