"""Fine-tuning of a trained network until it can be certified."""

import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from popqorn._typing import Int
from popqorn.api import verify
from popqorn.progress import Watch
from popqorn.reading import read_count, read_seed, read_tensor
from popqorn.regions.region import Region
from popqorn.task import read_eps
from popqorn.training.kept import keep, resume
from popqorn.training.loss import STRENGTH, certified_loss
from popqorn.training.ramp import ramp

_log = logging.getLogger("popqorn")

CLIP = 5.0  # the norm of gradients
CERTIFIED = 200  # samples of the validation split that are certified after every epoch, at most
GROWING = 0.6  # of all epochs: while eps grows
LESS, MORE = 0.5, 1.5  # times the strength, after an epoch that lost too much accuracy, and after one that did not


@dataclass(frozen=True)
class Epoch:
    """What a network does on the samples held back: the shares of right decisions, and of right ones that are certified.

    `loss` is the mean over the epoch, `strength` that of its loss.
    """

    number: int
    loss: float
    clean: float
    certified: float
    strength: float = math.nan


@dataclass(frozen=True)
class Robustified:
    """The best epoch's network in eval mode, and all epochs; epoch 0 is the network as it was given."""

    model: nn.Module
    epochs: tuple[Epoch, ...]
    best: int

    def __str__(self) -> str:
        lines = ["epoch strength   loss   clean %   certified %"]
        for epoch in self.epochs:
            mark = "  <- kept" if epoch.number == self.best else ""
            shares = f"{100 * epoch.clean:9.2f} {100 * epoch.certified:13.1f}"
            lines.append(f"{epoch.number:5} {epoch.strength:8.3g} {epoch.loss:6.3f} {shares}{mark}")
        return "\n".join(lines)


def robustify(
    model: nn.Module,
    inputs: Any,
    labels: Any,
    eps: float,
    *,
    region: Region | None = None,
    strength: float = STRENGTH,
    accuracy_loss: float | None = None,
    epochs: int = 5,
    batch: int = 256,
    learning_rate: float = 2e-3,
    validation: float = 0.1,
    seed: int = 0,
    kept: str | Path | None = None,
    progress: Any = None,
) -> Robustified:
    """Fine-tune a copy of a classifier until its decisions can be certified up to `eps`.

    A share of the samples (`validation`) is held back; the epoch with the most certified decisions among these is kept. With an
    `accuracy_loss` (0.01: one point), of those epochs only that lose no more of the clean accuracy than that; and the strength
    finds itself: after every epoch it is lowered if that lost more, and raised if not. `kept` names a file: a run that is stopped
    goes on from there, to the same network. Other options are those of `certified_loss`.

    >>> found = popqorn.training.robustify(model, images, labels, eps=0.02)
    >>> print(found)
    >>> popqorn.certify(found.model, images)
    """
    inputs, labels = read_tensor(inputs, "inputs"), read_tensor(labels, "labels")
    epochs, batch = read_count("epochs", epochs), read_count("batch", batch)
    eps = float(read_eps(eps, 1, inputs.new_zeros((), dtype=torch.float64))[0])
    if len(inputs) != len(labels):
        raise ValueError(f"labels are {len(labels)} for {len(inputs)} inputs; pass one per sample")
    if not 0 < validation < 1 or len(inputs) < 2:
        raise ValueError(
            f"validation is {validation:g} of {len(inputs)} samples; pass a share between 0 and 1, of two samples or more"
        )
    if labels.is_floating_point():
        raise ValueError(f"labels are of dtype {labels.dtype}; pass classes as whole numbers, robustify is for classifiers")
    if accuracy_loss is not None and not (isinstance(accuracy_loss, int | float) and 0 <= accuracy_loss < 1):
        raise ValueError(f"accuracy_loss is {accuracy_loss!r}; pass a share of all decisions, such as 0.01 for one point")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("model: none of its parameters wants a gradient, there is nothing to train; unfreeze some")
    with torch.random.fork_rng():
        torch.manual_seed(read_seed(seed))
        order = torch.randperm(len(inputs), device=inputs.device)
        held, used = order.tensor_split([max(1, int(validation * len(inputs)))])
        watch = Watch(progress, "training", epochs * -(-len(used) // batch))
        samples = _Samples(inputs[used], labels[used], inputs[held], labels[held], eps, region, strength, accuracy_loss)
        return _fit(copy.deepcopy(model), samples, epochs, batch, learning_rate, None if kept is None else Path(kept), watch)


@dataclass(frozen=True)
class _Samples:
    """What is trained on, what is held back, and what is asked of both."""

    inputs: Tensor
    labels: Int[Tensor, " samples"]
    held_inputs: Tensor
    held_labels: Int[Tensor, " held"]
    eps: float
    region: Region | None
    strength: float
    accuracy_loss: float | None

    def measured(self, model: nn.Module, number: int, loss: float = math.nan, strength: float = math.nan) -> Epoch:
        """How a network does on what is held back."""
        model.eval()
        with torch.no_grad():
            parts = zip(self.held_inputs.split(1000), self.held_labels.split(1000), strict=True)
            right = sum(int((model(inputs.to(_like(model))).argmax(-1) == labels).sum()) for inputs, labels in parts)
        inputs, labels = self.held_inputs[:CERTIFIED], self.held_labels[:CERTIFIED]
        proven = verify(model, inputs, self.eps, labels=labels, region=self.region).certified
        return Epoch(number, loss, right / len(self.held_labels), float(proven.double().mean()), strength)

    def allows(self, epoch: Epoch, first: Epoch) -> bool:
        """Whether no more accuracy is lost than may be."""
        return self.accuracy_loss is None or epoch.clean >= first.clean - self.accuracy_loss

    def next_strength(self, epochs: Sequence[Epoch]) -> float:
        """The strength of the epoch after these; the first is the network as it was given."""
        if len(epochs) == 1 or self.accuracy_loss is None:
            return self.strength
        return epochs[-1].strength * (MORE if self.allows(epochs[-1], epochs[0]) else LESS)


def _like(model: nn.Module) -> Tensor:
    return next(model.parameters())


def _fit(
    model: nn.Module, samples: _Samples, epochs: int, batch: int, learning_rate: float, kept: Path | None, watch: Watch
) -> Robustified:
    optimiser = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, watch.total)
    parts: dict[str, Any] = {"model": model, "optimiser": optimiser, "schedule": schedule}
    first, also = resume(kept, parts) if kept is not None and kept.exists() else (0, {})
    if not also:
        also = {"epochs": [asdict(samples.measured(model, 0))], "best": 0, "state": _copied(model)}
    done, best = [Epoch(**epoch) for epoch in also["epochs"]], int(also["best"])
    watch.advance(first * (watch.total // epochs))
    for number in range(first, epochs):
        with watch.stoppable():
            strength = samples.next_strength(done)
            loss = _epoch(model, samples, strength, number / epochs, 1 / epochs, batch, optimiser, schedule, watch)
            found = samples.measured(model, number + 1, loss, strength)
            _log.info("epoch %d of %d: clean %.4f, certified %.4f", found.number, epochs, found.clean, found.certified)
            if samples.allows(found, done[0]) and found.certified >= done[best].certified:
                best, also["state"] = found.number, _copied(model)
            done.append(found)
            if kept is not None:
                keep(kept, parts, number + 1, {**also, "epochs": [asdict(epoch) for epoch in done], "best": best})
        if watch.stopped:
            break
    model.load_state_dict(also["state"])
    return Robustified(model.eval(), tuple(done), best)


def _epoch(
    model: nn.Module,
    samples: _Samples,
    strength: float,
    start: float,
    share: float,
    batch: int,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    watch: Watch,
) -> float:
    """One pass over the samples, from `start` to `start + share` of all training; the mean loss."""
    model.train()
    batches = torch.randperm(len(samples.inputs), device=samples.inputs.device).split(batch)
    total = 0.0
    for place, index in enumerate(batches):
        eps = ramp(start + share * place / len(batches), 0.0, GROWING, samples.eps)
        inputs, labels = samples.inputs[index], samples.labels[index]
        loss = certified_loss(model, inputs, labels, eps, region=samples.region, strength=strength)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        schedule.step()
        total += loss.item() / len(batches)
        watch.advance(1)
        if watch.stopped:
            raise KeyboardInterrupt
    return total


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
