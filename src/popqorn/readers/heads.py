"""Heads: what stands behind the recurrent part, read module by module."""

from collections.abc import Callable
from typing import Any

from torch import nn

from popqorn.relax import activations
from popqorn.relax.activations import Activation
from popqorn.tape.tape import TapeWriter

Reader = Callable[[Any], Activation | None]
_SOFTMAX = (nn.Softmax, nn.LogSoftmax)
_MIXING = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
_READERS: dict[type[nn.Module], Reader] = {
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


def register_activation(module: type[nn.Module], activation: Activation | Callable[[Any], Activation]) -> None:
    """Teach heads a new activation module: its `Activation`, or a function from the module to one (to read its parameters).

    >>> class Arctan(nn.Module):
    ...     def forward(self, x):
    ...         return torch.atan(x)
    >>> register_activation(Arctan, activations.ARCTAN)
    """
    if isinstance(activation, Activation):
        fixed = activation
        _READERS[module] = lambda module: fixed
    else:
        _READERS[module] = activation


def write_head(writer: TapeWriter, head: nn.Module, position: int) -> int:
    """Write `head` behind the value at `position`; returns where its output is."""
    if isinstance(head, nn.Sequential) and type(head).forward is nn.Sequential.forward:
        for module in head:
            position = write_head(writer, module, position)
        return position
    if isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward:
        if head.in_features != writer.width(position):
            raise ValueError(
                f"head: {head} takes {head.in_features} features, but {writer.width(position)} arrive; "
                f"make its in_features {writer.width(position)}"
            )
        return writer.affine([(position, head.weight)], head.bias)
    if isinstance(head, _SOFTMAX):
        raise TypeError(
            f"head: cannot read a {type(head).__name__}; leave it out, as it changes no decision: certify the logits before it"
        )
    if isinstance(head, _MIXING):
        raise TypeError(
            f"head: cannot read a {type(head).__name__}, which is not elementwise; in eval mode a BatchNorm1d is a Linear layer: "
            "fold it into the one before, and leave other normalisations out"
        )
    if type(head) not in _READERS:
        known = ", ".join(sorted(kind.__name__ for kind in _READERS))
        raise TypeError(
            f"head: cannot read a {type(head).__name__}; use Linear, Sequential, {known}, "
            "or, if it is elementwise, teach it with popqorn.register_activation"
        )
    activation = _READERS[type(head)](head)
    return position if activation is None else writer.unary(position, activation)
