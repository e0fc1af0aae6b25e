"""How a module is called: on which tensors, in which mode, and how its outputs are understood."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn as packing

from popqorn.sequences import Sequences


class Call(nn.Module):
    """A module as a function of one tensor, `[batch, *sample]`.

    Token ids are not a thing that moves: a module that is given those is a function of the vectors that its embedding makes of
    them. A parameter of `forward` for the lengths of sequences is given the one length that all of them have.
    """

    def __init__(self, module: nn.Module, group: Sequences) -> None:
        super().__init__()
        self.module = module
        self.sample = group.sample
        self.like = group.values[:1]
        self.tokens = None if group.tokens is None else group.tokens[:1]
        self.embedding = None if group.tokens is None else embedding_of(module, group.tokens[:1])

    @property
    def dtype(self) -> torch.dtype:
        """What the module computes in."""
        return next((tensor.dtype for tensor in self._floating()), self.like.dtype)

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self._floating()), self.like.device)

    def _floating(self) -> Iterator[Tensor]:
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.is_floating_point():
                yield tensor

    def example(self, batch: int) -> Tensor:
        """Inputs to trace or try it with."""
        values = self.like.reshape(1, *self.sample).to(device=self.device, dtype=self.dtype)
        return values.expand(batch, *self.sample).clone()

    def forward(self, values: Tensor) -> Tensor:
        if self.embedding is None or self.tokens is None:
            return called(self.module, values, self.sample[0])
        with _instead(self.embedding, values):
            return called(self.module, self.tokens.expand(len(values), -1), self.sample[0])

    def output_shape(self) -> tuple[tuple[int, ...], int | None]:
        """The shape of the output for one sample, and which of its axes is the batch; None if it has none."""
        one, two, three = (tuple(self._run(self.example(batch)).shape) for batch in (1, 2, 3))
        axes = [place for place, sizes in enumerate(zip(two, three, strict=False)) if sizes == (2, 3)]
        if len(two) != len(three) or not axes:
            raise ValueError(
                f"model: for 2 samples it returns shape {two}, for 3 samples {three}; one axis must be the batch. "
                "A model that takes [frames, batch, features] must be wrapped in one that takes [batch, frames, features]"
            )
        return one, (axes[0] if len(one) == len(two) else None)

    def own(self, values: Tensor) -> Tensor:
        """The module's own outputs at any inputs, `[batch, outputs]`."""
        shaped = values.reshape(len(values), *self.sample).to(device=self.device, dtype=self.dtype)
        return self._flat(self._run(shaped), values)

    def own_at(self, group: Sequences) -> Tensor:
        """The module's own outputs at the inputs of a group, as they were given."""
        if group.tokens is None:
            return self.own(group.values)
        return self._flat(self._run(group.tokens.to(self.device), called), group.values)

    def _flat(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Outputs with the batch in front, `[batch, outputs]`."""
        _, axis = self.output_shape() if outputs.dim() > 1 and outputs.shape[0] != len(values) else ((), 0)
        front = outputs if axis is None or not outputs.dim() else outputs.movedim(axis, 0)
        return front.reshape(len(values), -1).to(values.device)

    @torch.no_grad()
    def _run(self, values: Tensor, call: Callable[..., Tensor] | None = None) -> Tensor:
        try:
            with in_eval_mode(self.module):
                return self(values) if call is None else call(self.module, values, self.sample[0])
        except Exception as error:
            raise ValueError(
                f"model: it cannot be run on inputs of shape {tuple(values.shape)} ({type(error).__name__}: {error}); "
                "it must take [batch, ...], with the sequences of a batch of one length"
            ) from error


def first_tensor(value: Any, kind: type) -> Any:
    """The first of the tensors a module returns."""
    if isinstance(value, kind):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for item in items if (found := first_tensor(item, kind)) is not None), None)


def _lengths_name(module: nn.Module) -> str | None:
    """The parameter of `forward` that takes the lengths of the sequences."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return None
    return next((each.name for each in parameters[1:] if "len" in each.name.lower()), None)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Run a module in eval mode; every part is put back into its own afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def called(module: nn.Module, values: Tensor, frames: int) -> Tensor:
    """The first output of a module; a parameter of `forward` for lengths is given the one length there is."""
    lengths = _lengths_name(module)
    more = {} if lengths is None else {lengths: torch.full((len(values),), frames, dtype=torch.long)}
    found = first_tensor(module(values, **more), Tensor)
    if not isinstance(found, Tensor):
        raise TypeError("it returns no tensor")
    return found


def embedding_of(module: nn.Module, tokens: Tensor) -> nn.Embedding:
    """The embedding that is given the tokens themselves, when the module is run on them."""
    found: list[nn.Embedding] = []

    def seen(part: nn.Module, arguments: tuple[Any, ...]) -> None:
        given = arguments[0]
        same = given.numel() == tokens.numel() and torch.equal(given.flatten().sort().values, tokens.flatten().sort().values)
        if same and isinstance(part, nn.Embedding):
            found.append(part)

    hooks = [part.register_forward_pre_hook(seen) for part in module.modules() if isinstance(part, nn.Embedding)]
    try:
        with torch.no_grad(), in_eval_mode(module):
            called(module, tokens, tokens.shape[1])
    except Exception as error:
        raise ValueError(f"model: it cannot be run on token ids of shape {tuple(tokens.shape)} ({error})") from error
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise ValueError("inputs are whole numbers, but no nn.Embedding of the model is given them; pass floating point numbers")
    return found[0]


@contextmanager
def _instead(embedding: nn.Embedding, values: Tensor) -> Iterator[None]:
    """While this lasts, the embedding gives `values`, whatever it is asked."""
    embedding.forward = lambda input: values  # type: ignore[method-assign]  # noqa: A006
    try:
        yield
    finally:
        del embedding.forward


@dataclass(frozen=True)
class _Packed:
    """What stands in for a `PackedSequence`: sequences of one length, `[batch, frames, features]`."""

    values: Tensor


@contextmanager
def plain_packing(module: nn.Module) -> Iterator[None]:
    """Sequences of one length need no packing, which torch cannot trace: while this lasts, a packed sequence is a plain one.

    The functions are replaced wherever the module's classes know them by name, and recurrent layers take what they give.
    """

    def pack(input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> _Packed:  # noqa: A002
        return _Packed(input if batch_first else input.transpose(0, 1))

    def pad(
        sequence: _Packed, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        batch, frames = sequence.values.shape[:2]
        values = sequence.values if batch_first else sequence.values.transpose(0, 1)
        return values, torch.full((batch,), frames, dtype=torch.long)

    def layer(plain: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self: nn.RNNBase, input: Any, hx: Any = None) -> Any:  # noqa: A002
            if not isinstance(input, _Packed):
                return plain(self, input, hx)
            outputs, final = plain(self, input.values if self.batch_first else input.values.transpose(0, 1), hx)
            return _Packed(outputs if self.batch_first else outputs.transpose(0, 1)), final

        return forward

    functions: dict[Any, Any] = {packing.pack_padded_sequence: pack, packing.pad_packed_sequence: pad}
    names = {kind.__module__ for part in module.modules() for kind in type(part).__mro__}
    places = [packing, *(sys.modules[name] for name in names if name in sys.modules and name != packing.__name__)]
    changed: list[tuple[Any, str, Any]] = []
    for place in places:
        for key, value in list(vars(place).items()):
            if isinstance(value, FunctionType) and value in functions:
                changed.append((place, key, value))
                setattr(place, key, functions[value])
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        changed.append((kind, "forward", kind.forward))
        kind.forward = layer(kind.forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for place, key, value in reversed(changed):
            setattr(place, key, value)
