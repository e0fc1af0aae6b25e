"""`SequenceClassifier`: a recurrent network, a way to pool its outputs, and a head; and the tape of one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from popqorn import activations
from popqorn.activations import Activation
from popqorn.models.recurrent import unroll
from popqorn.program import Tape, TapeWriter

POOLINGS = ("last", "mean", "final")


class SequenceClassifier(nn.Module):
    """`head(pool(rnn(x)))` for sequences `x` of shape `[batch, frames, features]`, whatever the rnn's own `batch_first`.

    `pooling` is `"last"` (the output at the last frame), `"mean"` (the mean of all outputs) or `"final"` (each direction's
    final state; for one direction the same as `"last"`). `initial_state` is what torch takes as the initial state, without its
    batch axis: `[layers * directions, hidden]`, or a pair of those for an LSTM; zeros by default.

    >>> model = SequenceClassifier(nn.LSTM(196, 32), nn.Linear(32, 10))
    >>> model(torch.zeros(5, 4, 196)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        rnn: nn.Module,
        head: nn.Module,
        pooling: str = "last",
        initial_state: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        if type(rnn) not in (nn.RNN, nn.LSTM, nn.GRU):
            raise TypeError(f"rnn is a {_type_name(rnn)}; pass an nn.RNN, nn.LSTM or nn.GRU")
        assert isinstance(rnn, nn.RNN | nn.LSTM | nn.GRU)
        if pooling not in POOLINGS:
            raise ValueError(f"pooling is {pooling!r}; pass one of {', '.join(map(repr, POOLINGS))}")
        self.rnn = rnn
        self.head = head
        self.pooling = pooling
        states = _check_initial_state(rnn, initial_state)
        for name, state in zip(("initial_hidden", "initial_cell"), states, strict=False):
            self.register_buffer(name, state, persistent=initial_state is not None)

    @property
    def initial_state(self) -> tuple[Tensor, ...]:
        """`(h,)`, or `(h, c)` for an LSTM; each `[layers * directions, size]`."""
        names = ("initial_hidden", "initial_cell") if isinstance(self.rnn, nn.LSTM) else ("initial_hidden",)
        return tuple(self.get_buffer(name) for name in names)

    def forward(self, inputs: Tensor) -> Tensor:
        batch = inputs.shape[0]
        states = tuple(state.unsqueeze(1).expand(-1, batch, -1).contiguous() for state in self.initial_state)
        sequence = inputs if self.rnn.batch_first else inputs.transpose(0, 1)
        outputs, final = self.rnn(sequence, states if isinstance(self.rnn, nn.LSTM) else states[0])
        outputs = outputs if self.rnn.batch_first else outputs.transpose(0, 1)
        if self.pooling == "mean":
            pooled = outputs.mean(dim=1)
        elif self.pooling == "last":
            pooled = outputs[:, -1]
        else:
            hidden = final[0] if isinstance(self.rnn, nn.LSTM) else final
            directions = 2 if self.rnn.bidirectional else 1
            pooled = torch.cat(list(hidden[-directions:]), dim=-1)
        logits = self.head(pooled)
        assert isinstance(logits, Tensor)
        return logits


def tape_of(model: SequenceClassifier, frames: int, *, dtype: torch.dtype, device: torch.device) -> Tape:
    """The tape of `model` in eval mode for sequences of `frames` frames."""
    writer = TapeWriter(frames, model.rnn.input_size, dtype=dtype, device=device)
    positions = [writer.input(frame) for frame in range(frames)]
    outputs = unroll(writer, model.rnn, positions, model.initial_state)
    if model.pooling == "mean":
        steps = [writer.concat(*step) if len(step) > 1 else step[0] for step in outputs]
        pooled = writer.scale(writer.sum(*steps), 1 / frames)
    else:
        last = outputs[-1] if model.pooling == "last" else [outputs[-1][0], *outputs[0][1:]]
        pooled = writer.concat(*last) if len(last) > 1 else last[0]
    return writer.finish(_write_head(writer, model.head, pooled))


# ---- heads -------------------------------------------------------------------------------------------------------------------

Reader = Callable[[Any], Activation | None]
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


def _write_head(writer: TapeWriter, head: nn.Module, position: int) -> int:
    if isinstance(head, nn.Sequential) and type(head).forward is nn.Sequential.forward:
        for module in head:
            position = _write_head(writer, module, position)
        return position
    if isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward:
        if head.in_features != writer.size(position):
            raise ValueError(
                f"head: {head} takes {head.in_features} features, but {writer.size(position)} arrive; "
                f"make its in_features {writer.size(position)}"
            )
        return writer.affine([(position, head.weight)], head.bias)
    if type(head) not in _READERS:
        known = ", ".join(sorted(kind.__name__ for kind in _READERS))
        raise TypeError(
            f"head: cannot read a {_type_name(head)}; use Linear, Sequential, {known}, "
            "or teach it with popqorn.register_activation"
        )
    activation = _READERS[type(head)](head)
    return position if activation is None else writer.unary(position, activation)


# ---- checks ------------------------------------------------------------------------------------------------------------------


def _type_name(value: object) -> str:
    return type(value).__name__


def _check_initial_state(rnn: nn.RNN | nn.LSTM | nn.GRU, given: Tensor | tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
    layers = rnn.num_layers * (2 if rnn.bidirectional else 1)
    shapes = [(layers, rnn.proj_size or rnn.hidden_size)]
    if isinstance(rnn, nn.LSTM):
        shapes.append((layers, rnn.hidden_size))
    if given is None:
        weight = next(rnn.parameters())
        return tuple(weight.new_zeros(shape) for shape in shapes)
    states = (given,) if isinstance(given, Tensor) else tuple(given)
    if [tuple(state.shape) for state in states] != shapes:
        raise ValueError(
            f"initial_state has shape {', '.join(str(tuple(state.shape)) for state in states)}; "
            f"this {_type_name(rnn)} takes {', '.join(map(str, shapes))} (no batch axis)"
        )
    return states
