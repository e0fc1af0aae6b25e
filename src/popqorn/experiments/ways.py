"""Ways to train a network: plainly, against an adversary, with intervals, with small boxes, with the bound in mind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

import popqorn
from popqorn._typing import Float
from popqorn.experiments.training import Recipe, Sequences
from popqorn.readers.models import read_model
from popqorn.regions.region import Region
from popqorn.relax.relaxation import Interval
from popqorn.training.loss import STEPS, cross_entropy, moved
from popqorn.training.widths import ends_along

PLAIN, ADVERSARIAL, INTERVALS, SMALL_BOXES, CERTIFIED = WAYS = ("plain", "adversarial", "intervals", "small boxes", "certified")
SMALL = 0.1  # of eps: the half width of small boxes


def any_ball(inputs: Sequences) -> Region:
    """Every feature moves by at most eps."""
    return popqorn.Ball()


@dataclass(frozen=True)
class CertifiableRecipe(Recipe):
    """AdamW on the loss of a `way` of training, `eps` growing from 0 between two shares of the epochs.

    `around` gives the region of a batch of inputs.
    """

    way: str = PLAIN
    eps: float = 0.0
    strength: float = 0.0
    first: float = 0.04
    last: float = 0.35
    around: Callable[[Sequences], Region] = field(default=any_ball, repr=False)
    clip: ClassVar[float] = 5.0

    def loss(self, model: popqorn.SequenceClassifier, inputs: Tensor, labels: Tensor, share: float) -> Tensor:
        if self.way == PLAIN:
            return super().loss(model, inputs, labels, share)
        eps = popqorn.training.ramp(share, self.first, self.last, self.eps)
        region = self.around(inputs)
        if self.way == INTERVALS:
            return 0.5 * super().loss(model, inputs, labels, share) + 0.5 * interval_loss(model, inputs, labels, eps, region)
        if self.way == SMALL_BOXES:
            return small_box_loss(model, inputs, labels, eps, region)
        return popqorn.training.certified_loss(model, inputs, labels, eps, region=region, strength=self.strength)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), self.learning_rate)


def interval_loss(model: nn.Module, inputs: Tensor, labels: Tensor, eps: float, region: Region) -> Tensor:
    """The cross entropy of the worst logits that intervals allow over the whole region (Gowal et al. 2018)."""
    group = read_model(model).sequences(inputs, None, inputs.dtype)[0]
    allowed = region.around(group).at(inputs.new_full((len(inputs),), eps))
    return cross_entropy(_worst_logits(model, inputs, labels, allowed.box()), labels)


def small_box_loss(model: nn.Module, inputs: Tensor, labels: Tensor, eps: float, region: Region) -> Tensor:
    """The same over a small box inside a ball, around a point moved against the network (SABR, Mueller et al. 2023).

    The point moves by `(1 - SMALL) eps` and the box around it by `SMALL eps`, so that the box lies inside the ball of p = inf.
    """
    group = read_model(model).sequences(inputs, None, inputs.dtype)[0]
    allowed = region.around(group).at(inputs.new_full((len(inputs),), (1 - SMALL) * eps))
    points = moved(model, group, allowed, labels, cross_entropy, STEPS)
    box = Interval(points - SMALL * eps, points + SMALL * eps)
    return cross_entropy(_worst_logits(model, inputs, labels, box), labels)


def _worst_logits(model: nn.Module, inputs: Tensor, labels: Tensor, box: Interval) -> Float[Tensor, "batch classes"]:
    """The least logit of the label and the greatest of all others, by interval arithmetic."""
    network = read_model(model)
    tape = network.live(network.sequences(inputs, None, inputs.dtype)[0])
    lower, upper = ends_along(tape, box)[-1].unbind()
    return torch.where(nn.functional.one_hot(labels, tape.outputs).bool(), lower, upper)
