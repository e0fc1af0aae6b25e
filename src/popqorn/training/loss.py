"""The loss that trains a network to be certified: adversarial training, and the widths of boxes.

What a bound loses is of second order in the widths of the boxes that its relaxations rest on (`widths.py`). Their sum of squares
differs by orders of magnitude between networks, and grows like a power of the frames; the logarithm of one more is what is added,
so that one strength does for all: it asks for so many per cent less of what is much, and leaves alone what is little.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from popqorn._typing import Float
from popqorn.readers.models import read_model
from popqorn.readers.network import Network
from popqorn.reading import read_count, read_tensor
from popqorn.regions.region import AllowedSet, Choices, Region
from popqorn.relax.relaxation import Interval
from popqorn.sequences import Sequences
from popqorn.task import read_eps, read_region
from popqorn.training.widths import squared_widths

STEPS = 2
STRENGTH = 0.1
SHARE = 0.1  # of the region, in which widths are taken: intervals of all of it say little about long sequences
STRIDE = 1.5  # times eps, over all steps together
WIDTHS = 64  # samples of a batch whose widths are taken: these differ much less between samples than between networks
IGNORED = -100  # a target without a class, as in torch
Criterion = Callable[[Tensor, Tensor], Tensor]


def certified_loss(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    eps: Any,
    *,
    lengths: Any = None,
    region: Region | None = None,
    strength: float = STRENGTH,
    steps: int = STEPS,
    criterion: Criterion | None = None,
) -> Tensor:
    """The loss of a batch whose inputs move by up to `eps`: minimised, it makes networks whose certificates reach far.

    It is the `criterion` (by default cross entropy, and the mean square for targets that are no classes) at inputs moved against
    the network, by `steps` of projected gradient descent from a random start, and `strength` times the logarithm of the squared
    widths of the boxes on which a certificate would rest. `eps` is a number or one per sample, `region` how inputs move (by
    default a Ball of norm inf). Strength 0 is plain adversarial training; eps 0, as at the start of a ramp, plain training.

    >>> loss = popqorn.training.certified_loss(model, images, labels, eps=0.02)
    >>> loss.backward()
    """
    network = read_model(model)
    steps = read_count("steps", steps)
    if not (isinstance(strength, int | float) and 0 <= strength < float("inf")):
        raise ValueError(f"strength is {strength!r}; pass a number, 0 for plain adversarial training")
    parameter = next((each for each in model.parameters() if each.requires_grad), None)
    if parameter is None:
        raise ValueError("model: none of its parameters wants a gradient, there is nothing to train; unfreeze some")
    dtype = parameter.dtype if parameter.dtype.itemsize >= 4 else torch.float32
    groups = network.sequences(inputs, lengths, dtype)
    targets = read_tensor(targets, "targets").to(parameter.device)
    if len(targets) != groups[0].batch:
        raise ValueError(f"targets are {len(targets)} for {groups[0].batch} inputs; pass one per sample")
    sizes = read_eps(eps, groups[0].batch, groups[0].values)
    region = read_region(region, None, None, None)
    if criterion is None:
        criterion = _mean_square if targets.is_floating_point() else cross_entropy
    if not callable(criterion):
        raise ValueError(f"criterion is {criterion!r}; pass a function of outputs and targets, such as nn.CrossEntropyLoss()")
    total = parameter.new_zeros(())
    for group in groups:
        allowed = region.around(group).at(group.of_batch(sizes))
        aims = _aims(targets, group, network)
        points = moved(model, group, allowed, aims, criterion, steps)
        loss = _number(criterion, model(_shaped(points, group, parameter)), aims)
        if strength > 0:
            loss = loss + strength * _looseness(network, group, allowed)
        total = total + len(group.samples) / group.batch * loss
    if not bool(total.isfinite()):
        raise FloatingPointError(
            f"the loss is {float(total)}: training has diverged; clip gradients, lower the learning rate, or let eps grow more "
            "slowly (popqorn.training.ramp)"
        )
    return total


def _aims(targets: Tensor, group: Sequences, network: Network) -> Tensor:
    """The targets of a group; of one target per step those of its own steps, not of the padding."""
    steps = targets.dim() > 1 and targets.shape[1] == group.longest > group.frames
    return group.of_batch(targets, frames=steps and network.live(group).shape[0] == group.frames)


def moved(
    model: nn.Module, group: Sequences, allowed: AllowedSet, targets: Tensor, criterion: Criterion, steps: int
) -> Float[Tensor, "batch frames features"]:
    """Inputs moved against the network, which is asked in eval mode and left as it was."""
    if not bool((allowed.eps > 0).any()):
        return group.values
    generator = torch.Generator(group.values.device).manual_seed(int(torch.randint(2**62, ())))
    modes = [(part, part.training) for part in model.modules()]
    words = allowed.choices
    points = group.values if words is not None else allowed.random(generator)
    try:
        model.eval()
        for step in range(1 if words is not None else steps):
            gradient = _gradient(model, group, points, targets, criterion)
            if words is not None:
                points = _exchanged(allowed, words, gradient)
            else:
                stride = STRIDE * allowed.eps * 2 / (steps + 1) * (1 - step / steps)
                points = allowed.nearest(points + stride[:, None, None] * allowed.steepest(-gradient)).detach()
    finally:
        for part, mode in modes:
            part.training = mode
    return points


def _gradient(model: nn.Module, group: Sequences, points: Tensor, targets: Tensor, criterion: Criterion) -> Tensor:
    """Of the loss, by the inputs."""
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        loss = _number(criterion, model(_shaped(points, group, next(model.parameters()))), targets)
        return torch.autograd.grad(loss, points)[0]


def _exchanged(allowed: AllowedSet, words: Choices, gradient: Tensor) -> Tensor:
    """In the frames where that raises the loss most, to first order, the word that does so; as many as the size says."""
    center = allowed.center
    others = words.table[words.options]
    gain = ((others - center.unsqueeze(2)) * gradient.unsqueeze(2)).sum(-1).masked_fill(~words.allowed, -torch.inf)
    best, which = gain.max(-1)
    order = best.argsort(-1, descending=True).argsort(-1)
    taken = order < allowed.eps.unsqueeze(-1)  # the word that stands there is an option: nothing is taken that lowers the loss
    word = others.gather(2, which[:, :, None, None].expand(-1, -1, 1, center.shape[-1])).squeeze(2)
    return torch.where(taken.unsqueeze(-1), word, center)


def _looseness(network: Network, group: Sequences, allowed: AllowedSet) -> Tensor:
    """The mean over a batch of the logarithm of one more than the squared widths of its boxes; of a large batch over every so
    manieth sample.
    """
    allowed = allowed.select(slice(None, None, -(-len(group.samples) // WIDTHS)))
    box, center = allowed.box(), allowed.center
    part = Interval(center + SHARE * (box.lower - center), center + SHARE * (box.upper - center))
    with torch.autocast(group.values.device.type, enabled=False):
        widths = squared_widths(network.live(group), part) / SHARE**2
    return widths.log1p().mean()


def _number(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    loss = criterion(outputs, targets)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(f"criterion gives {found}; pass one that gives a number as a tensor, such as a mean")
    return loss


def _shaped(points: Tensor, group: Sequences, like: Tensor) -> Tensor:
    """Points as the model takes them."""
    return points.reshape(len(points), *group.sample).to(like)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of one decision per sample, or one per step; targets that torch ignores (-100) do not count."""
    outputs, targets = outputs.flatten(0, -2), targets.flatten().long()
    if len(outputs) != len(targets):
        raise ValueError(f"targets are {len(targets)} classes for {len(outputs)} decisions; pass one per decision")
    outside = targets[((targets < 0) | (targets >= outputs.shape[-1])) & (targets != IGNORED)]
    if len(outside):
        raise ValueError(f"targets hold {int(outside[0])}; the model has classes 0 to {outputs.shape[-1] - 1}")
    return nn.functional.cross_entropy(outputs, targets, ignore_index=IGNORED)


def _mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.numel() != targets.numel():
        raise ValueError(
            f"targets are numbers of shape {tuple(targets.shape)}, the model's outputs have shape {tuple(outputs.shape)}; pass "
            "numbers of that shape, or classes as whole numbers"
        )
    return nn.functional.mse_loss(outputs, targets.to(outputs).reshape(outputs.shape))
