"""Activations that users teach: modules whose function torch's operators do not tell."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from popqorn.relax.activations import Activation

TAUGHT: dict[type[nn.Module], Callable[[Any], Activation]] = {}
_SEEN: list[Activation] = []  # those of modules traced so far; what is traced names them by their number


def register_activation(module: type[nn.Module], activation: Activation | Callable[[Any], Activation]) -> None:
    """Teach a new activation module: its `Activation`, or a function from the module to one (to read its parameters).

    >>> class Arctan(nn.Module):
    ...     def forward(self, x):
    ...         return torch.atan(x)
    >>> register_activation(Arctan, activations.ARCTAN)
    """
    if isinstance(activation, Activation):
        fixed = activation
        TAUGHT[module] = lambda module: fixed
    else:
        TAUGHT[module] = activation


@torch.library.custom_op("popqorn::taught", mutates_args=())
def _taught(x: Tensor, number: int) -> Tensor:
    """The operator that stands for a taught module in a traced program."""
    return _SEEN[number].function(x)


@_taught.register_fake
def _(x: Tensor, number: int) -> Tensor:
    return torch.empty_like(x)


def taught(number: int) -> Activation:
    """The activation of a traced module."""
    return _SEEN[number]


@contextmanager
def standing_in(module: nn.Module) -> Iterator[None]:
    """While this lasts, taught modules inside `module` are traced as one operator each."""
    changed = []
    for part in module.modules():
        if type(part) in TAUGHT:
            _SEEN.append(TAUGHT[type(part)](part))
            number = len(_SEEN) - 1
            part.forward = lambda x, number=number: torch.ops.popqorn.taught(x, number)
            changed.append(part)
    try:
        yield
    finally:
        for part in changed:
            del part.forward
