"""Heads: what stands behind the recurrent part of a `SequenceClassifier`. Those made of what is listed here need no tracing."""

from collections.abc import Callable
from typing import Any

from torch import nn

from popqorn.readers.taught import TAUGHT
from popqorn.relax import activations
from popqorn.relax.activations import Activation
from popqorn.tape.tape import TapeWriter

_KNOWN: dict[type[nn.Module], Callable[[Any], Activation | None]] = {
    nn.ReLU: lambda module: activations.RELU,
    nn.LeakyReLU: lambda module: activations.leaky_relu(module.negative_slope),
    nn.Tanh: lambda module: activations.TANH,
    nn.Sigmoid: lambda module: activations.SIGMOID,
    nn.ELU: lambda module: activations.elu(module.alpha),
    nn.SiLU: lambda module: activations.SILU,
    nn.GELU: lambda module: activations.TANH_GELU if module.approximate == "tanh" else activations.GELU,
    nn.Softplus: lambda module: activations.softplus(module.beta, module.threshold),
    nn.Hardtanh: lambda module: activations.hardtanh(module.min_val, module.max_val),
    nn.Softsign: lambda module: activations.SOFTSIGN,
    nn.Dropout: lambda module: None,
    nn.Flatten: lambda module: None,
    nn.Identity: lambda module: None,
}


def is_known(head: nn.Module) -> bool:
    """Whether a head is made of modules that can be written as they are."""
    if isinstance(head, nn.Sequential) and type(head).forward is nn.Sequential.forward:
        return all(map(is_known, head))
    return type(head) is nn.Linear or type(head) in TAUGHT or type(head) in _KNOWN


def write_head(writer: TapeWriter, head: nn.Module, position: int) -> int:
    """Write a known `head` behind the value at `position`; returns where its output is."""
    if isinstance(head, nn.Sequential):
        for module in head:
            position = write_head(writer, module, position)
        return position
    if isinstance(head, nn.Linear):
        if head.in_features != writer.width(position):
            raise ValueError(
                f"head: {head} takes {head.in_features} features, but {writer.width(position)} arrive; "
                f"make its in_features {writer.width(position)}"
            )
        return writer.affine([(position, head.weight)], head.bias)
    activation = TAUGHT[type(head)](head) if type(head) in TAUGHT else _KNOWN[type(head)](head)
    return position if activation is None else writer.unary(position, activation)
