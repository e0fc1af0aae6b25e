"""`SequenceClassifier`: a recurrent network, a way to pool its outputs, and a head; and the tape of one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from popqorn.readers.heads import write_head
from popqorn.readers.network import Network, Reading
from popqorn.readers.recurrent import cell_kind, cell_of, unroll, weights_of
from popqorn.readers.untouched import untouched
from popqorn.sequences import Sequences, read_sequences
from popqorn.tape.tape import Tape, TapeWriter

POOLINGS = ("last", "mean", "max", "final", None)


class SequenceClassifier(nn.Module):
    """`head(pool(rnn(x)))` for sequences `x` of shape `[batch, frames, features]`, whatever the rnn's own `batch_first`.

    `pooling` is `"last"` (the output at the last frame), `"mean"` or `"max"` (of all outputs, entry by entry), `"final"` (each
    direction's final state; for one direction the same as `"last"`) or None: the head at every step, `[batch, steps, classes]`.
    `initial_state` is what torch takes as the initial state, without its batch axis: `[layers * directions, hidden]`, or a pair
    of those for an LSTM; zeros by default.

    >>> model = SequenceClassifier(nn.LSTM(196, 32), nn.Linear(32, 10))
    >>> model(torch.zeros(5, 4, 196)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        rnn: nn.Module,
        head: nn.Module,
        pooling: str | None = "last",
        initial_state: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        if cell_kind(rnn) is None:
            raise TypeError(f"rnn is a {_type_name(rnn)}; {_rnn_remedy(rnn)}")
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
        like = next(self.rnn.parameters())
        states = tuple(state.to(like).unsqueeze(1).expand(-1, batch, -1).contiguous() for state in self.initial_state)
        sequence = inputs if self.rnn.batch_first else inputs.transpose(0, 1)
        outputs, final = self.rnn(sequence, states if isinstance(self.rnn, nn.LSTM) else states[0])
        outputs = outputs if self.rnn.batch_first else outputs.transpose(0, 1)
        if self.pooling is None:
            steps: Tensor = self.head(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2])
            return steps
        if self.pooling == "mean":
            pooled = outputs.mean(dim=1)
        elif self.pooling == "max":
            pooled = outputs.amax(dim=1)
        elif self.pooling == "last":
            pooled = outputs[:, -1]
        else:
            hidden = final[0] if isinstance(self.rnn, nn.LSTM) else final
            directions = 2 if self.rnn.bidirectional else 1
            pooled = torch.cat(list(hidden[-directions:]), dim=-1)
        logits = self.head(pooled)
        assert isinstance(logits, Tensor)
        return logits


def tape_of(model: SequenceClassifier, frames: int, *, dtype: torch.dtype, device: torch.device, live: bool = False) -> Tape:
    """The tape of `model` in eval mode for sequences of `frames` frames; a live one has the model's own weights."""
    writer = TapeWriter(frames, model.rnn.input_size, dtype=dtype, device=device, live=live)
    positions = [writer.input(frame) for frame in range(frames)]
    layers = weights_of(model.rnn)
    initial = [[writer.constant(state[place]) for state in model.initial_state] for place in range(len(layers) * len(layers[0]))]
    outputs, _ = unroll(writer, cell_of(model.rnn), layers, positions, initial)
    steps = [writer.concat(*step) if len(step) > 1 else step[0] for step in outputs]
    if model.pooling is None:
        heads = [write_head(writer, model.head, step) for step in steps]
        return writer.finish(writer.concat(*heads), (frames, writer.width(heads[0])))
    if model.pooling == "final" and model.rnn.bidirectional:
        pooled = writer.concat(outputs[-1][0], outputs[0][1])
    elif model.pooling == "mean":
        pooled = writer.scale(writer.sum(*steps), 1 / frames)
    elif model.pooling == "max":
        pooled = writer.maximum(*steps)
    else:
        pooled = steps[-1]
    return writer.finish(write_head(writer, model.head, pooled))


@dataclass(frozen=True)
class ClassifierNetwork(Network):
    """A `SequenceClassifier`, whose parts are known: it needs no tracing."""

    model: SequenceClassifier

    def sequences(self, inputs: Any, lengths: Any, dtype: torch.dtype) -> list[Sequences]:
        return read_sequences(inputs, lengths, self.model.rnn.input_size, dtype)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def reading(self, group: Sequences, *, decides: bool) -> Reading:
        options: dict[str, Any] = {"dtype": group.values.dtype, "device": group.values.device}
        tape_of(self.model, 1, **options)  # what cannot be read is told before it is run
        with untouched(self.model):
            at_inputs = outputs_of(self.model, group.values)  # before weights are read: it may be a hook that makes them
            tape = tape_of(self.model, group.frames, **options)
        if at_inputs.shape[1] != tape.outputs:
            raise ValueError(
                f"model: it returns {at_inputs.shape[1]} outputs per sample where {tape.outputs} were read from its modules; "
                "remove forward hooks and changes of forward"
            )
        return Reading(tape, at_inputs, self._own, next(self.model.parameters()).dtype)

    def live(self, group: Sequences) -> Tape:
        return tape_of(self.model, group.frames, dtype=group.values.dtype, device=group.values.device, live=True)

    def _own(self, values: Tensor) -> Tensor:
        with untouched(self.model):
            return outputs_of(self.model, values)


@torch.no_grad()
def outputs_of(model: SequenceClassifier, inputs: Tensor) -> Tensor:
    """The model's own outputs, in its own dtype and on its own device; flattened to `[batch, outputs]`."""
    parameter = next(model.parameters())
    try:
        outputs = model(inputs.to(parameter, copy=True))
    except Exception as error:
        raise ValueError(
            f"model: it cannot be run on the inputs ({type(error).__name__}: {error}); bring its modules to one dtype and "
            "device, and remove forward hooks and changes of forward"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.dim() < 2 or len(outputs) != len(inputs):
        found = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise ValueError(
            f"model: it returns {found}, where its modules give [batch, outputs] (or [batch, steps, outputs] without pooling); "
            "remove forward hooks and changes of forward"
        )
    return outputs.flatten(1).to(inputs.device)


def _type_name(value: object) -> str:
    """The name of a type, with its module where it is not torch's type of that name."""
    kind = type(value)
    return kind.__name__ if getattr(nn, kind.__name__, kind) is kind else f"{kind.__module__}.{kind.__name__}"


def _rnn_remedy(rnn: object) -> str:
    if "quantized" in type(rnn).__module__:
        return "its weights are quantised; pass the nn.LSTM or nn.GRU it was made from"
    if isinstance(rnn, nn.RNNBase):
        return "a subclass may compute anything; pass an nn.RNN, nn.LSTM or nn.GRU"
    return "pass an nn.RNN, nn.LSTM or nn.GRU"


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
