"""The loss that trains a network to be certified: adversarial training, and the widths of boxes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from popqorn._typing import Float
from popqorn.readers.models import read_model
from popqorn.readers.network import Network
from popqorn.reading import read_count, read_tensor
from popqorn.regions.region import AllowedSet, Region
from popqorn.sequences import Sequences
from popqorn.task import read_eps, read_region
from popqorn.training.widths import squared_widths

STEPS = 2
STRIDE = 1.5  # times eps, over all steps together
Criterion = Callable[[Tensor, Tensor], Tensor]


def certified_loss(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    eps: Any,
    *,
    lengths: Any = None,
    region: Region | None = None,
    strength: float = 3e-4,
    steps: int = STEPS,
    criterion: Criterion | None = None,
) -> Tensor:
    """The loss of a batch whose inputs move by up to `eps`: minimised, it makes networks whose certificates reach far.

    It is the `criterion` (by default cross entropy, and the mean square for targets that are no classes) at inputs moved against
    the network, by `steps` of projected gradient descent from a random start, and `strength` times the squared widths of the
    boxes on which a certificate would rest. `eps` is a number or one per sample, `region` how inputs move (by default a Ball of
    norm inf). Strength 0 is plain adversarial training; eps 0, as at the start of a ramp, plain training.

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
        criterion = _mean_square if targets.is_floating_point() else _cross_entropy
    total = parameter.new_zeros(())
    for group in groups:
        allowed = region.around(group).at(group.of_batch(sizes))
        aims = group.of_batch(targets)
        points = _moved(model, group, allowed, aims, criterion, steps)
        loss = criterion(model(_shaped(points, group, parameter)), aims)
        total = total + len(group.samples) / group.batch * (loss + strength * _widths(network, group, allowed))
    if not bool(total.isfinite()):
        raise FloatingPointError(
            f"the loss is {float(total)}: training has diverged; clip gradients, lower the learning rate, or let eps grow more "
            "slowly (popqorn.training.ramp)"
        )
    return total


def _moved(
    model: nn.Module, group: Sequences, allowed: AllowedSet, targets: Tensor, criterion: Criterion, steps: int
) -> Float[Tensor, "batch frames features"]:
    """Inputs moved against the network, which is asked in eval mode and left as it was."""
    if not bool((allowed.eps > 0).any()):
        return group.values
    generator = torch.Generator(group.values.device).manual_seed(int(torch.randint(2**62, ())))
    modes = [(part, part.training) for part in model.modules()]
    points = allowed.random(generator)
    parameter = next(model.parameters())
    try:
        model.eval()
        for step in range(steps):
            points = points.detach().requires_grad_()
            with torch.enable_grad():
                loss = criterion(model(_shaped(points, group, parameter)), targets)
                (gradient,) = torch.autograd.grad(loss, points)
            stride = STRIDE * allowed.eps * 2 / (steps + 1) * (1 - step / steps)
            points = allowed.nearest(points.detach() + stride[:, None, None] * allowed.steepest(-gradient))
    finally:
        for part, mode in modes:
            part.training = mode
    return points.detach()


def _widths(network: Network, group: Sequences, allowed: AllowedSet) -> Tensor:
    """The mean over a batch of the squared widths of its boxes, in single precision or more."""
    with torch.autocast(group.values.device.type, enabled=False):
        return squared_widths(network.live(group), allowed.box()).mean()


def _shaped(points: Tensor, group: Sequences, like: Tensor) -> Tensor:
    """Points as the model takes them."""
    return points.reshape(len(points), *group.sample).to(like)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of one decision per sample, or one per step."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten().long())


def _mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets.to(outputs).reshape(outputs.shape))
