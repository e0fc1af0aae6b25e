"""How a module is called: on which tensors, in which mode, and how its outputs are understood."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn as packing

from popqorn.arithmetic import agreement
from popqorn.readers.untouched import untouched
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
        self.lookup = None if group.tokens is None else lookup_of(module, group.tokens[:1])

    @property
    def dtype(self) -> torch.dtype:
        """What the module computes in."""
        return next((tensor.dtype for tensor in self._floating()), self.like.dtype)

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self._floating()), self.like.device)

    def _floating(self) -> Iterator[Tensor]:
        for tensor in (*self.module.parameters(), *self.module.buffers(), *_frozen(self.module)):
            if tensor.is_floating_point():
                yield tensor

    def example(self, batch: int) -> Tensor:
        """Inputs to trace or try it with: the first sample, and others beside it."""
        values = self.like.reshape(1, *self.sample).to(device=self.device, dtype=self.dtype)
        other = values if bool(values.any()) else values + 1
        steps = torch.arange(batch, device=self.device).to(self.dtype).reshape(-1, *[1] * len(self.sample))
        return values - other * steps / 8  # towards zero, where most modules are at home

    def forward(self, values: Tensor) -> Tensor:
        if self.lookup is None or self.tokens is None:
            return called(self.module, values, self.sample[0])
        with _instead(self.lookup, values):
            return called(self.module, self.tokens.expand(len(values), -1), self.sample[0])

    @cached_property
    def output_shape(self) -> tuple[tuple[int, ...], int | None]:
        """The shape of the output for one sample, and which of its axes is the batch; None if it has none."""
        one = tuple(self._run(self.example(1)).shape)
        try:
            two, three = (tuple(self._run(self.example(batch)).shape) for batch in (2, 3))
        except ValueError:  # a program that was exported for one sample
            return one, (0 if one[:1] == (1,) else None)
        axes = [place for place, sizes in enumerate(zip(two, three, strict=False)) if sizes == (2, 3)]
        if len(two) != len(three) or not axes:
            raise ValueError(
                f"model: for 2 samples it returns shape {two}, for 3 samples {three}; one axis must be the batch. "
                "A model that takes [frames, batch, features] must be wrapped in one that takes [batch, frames, features]"
            )
        return one, (axes[0] if len(one) == len(two) else None)

    def check_runs_are_alike(self) -> None:
        """Refuse a module that gives something else when it is run again: it would be proven of one run, and used in another."""
        first, other = self.example(2).split(1)
        with untouched(self.module):
            runs = [self._ran(values).double() for values in (first, first, other, first)]
        once, again = runs[0], torch.stack([runs[1], runs[3]])
        most = agreement(self.sample[0], self.dtype) * float(once.nan_to_num(0.0, 0.0, 0.0).abs().amax())
        if not torch.isclose(again, once, rtol=0.0, atol=most, equal_nan=True).all():
            raise ValueError(
                "model: two runs on the same input give different outputs, as it draws random numbers or goes on from what an "
                "earlier run has left behind; pass one that depends on nothing but its input: draw once, and begin every run anew"
            )

    def check_samples_are_apart(self) -> None:
        """Refuse a module whose outputs for a sample depend on the other samples of a batch."""
        if self.one_by_one:
            return
        several = self.example(3)
        among = self._flat(self._run(several), several).double()
        alone = torch.cat([self._flat(self._run(one), one) for one in several.split(1)]).double()
        most = agreement(self.sample[0], self.dtype) * float(alone.nan_to_num(0.0, 0.0, 0.0).abs().amax())
        if not torch.isclose(among, alone, rtol=0.0, atol=most, equal_nan=True).all():
            raise ValueError(
                "model: what it returns for a sample depends on the other samples of the batch, so that nothing can be proven of "
                "one; normalise by stored statistics, and wrap a model that takes [frames, batch, features] in one that takes "
                "[batch, frames, features]"
            )

    @cached_property
    def one_by_one(self) -> bool:
        """Whether it takes no more than one sample at a time."""
        try:
            self._run(self.example(2))
        except ValueError:
            return True
        return False

    def own(self, values: Tensor) -> Tensor:
        """The module's own outputs at any inputs, `[batch, outputs]`."""
        shaped = values.reshape(len(values), *self.sample).to(device=self.device, dtype=self.dtype)
        if self.one_by_one:
            return torch.cat([self._flat(self._run(one), values[:1]) for one in shaped.split(1)])
        return self._flat(self._run(shaped), values)

    def own_at(self, group: Sequences) -> Tensor:
        """The module's own outputs at the inputs of a group, as they were given."""
        if group.tokens is None:
            return self.own(group.values)
        return self._flat(self._run(group.tokens.to(self.device), called), group.values)

    def _flat(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Outputs with the batch in front, `[batch, outputs]`."""
        _, axis = self.output_shape
        front = outputs if axis is None or not outputs.dim() else outputs.movedim(axis, 0)
        return front.reshape(len(values), -1).to(values.device)

    def _run(self, values: Tensor, call: Callable[..., Tensor] | None = None) -> Tensor:
        with untouched(self.module):
            return self._ran(values, call)

    @torch.no_grad()
    def _ran(self, values: Tensor, call: Callable[..., Tensor] | None = None) -> Tensor:
        values = values.clone()  # it may write to its input
        try:
            return (self(values) if call is None else call(self.module, values, self.sample[0])).clone()
        except Exception as error:
            raise ValueError(
                f"model: it cannot be run on inputs of shape {tuple(values.shape)} ({type(error).__name__}: {error}); "
                f"{self._remedy(error)}"
            ) from error

    def _remedy(self, error: Exception) -> str:
        if isinstance(error, NoTensorError):
            return (
                "it must return a tensor, or a tuple, list or dictionary that holds one: wrap the model in one that returns what "
                "is to be certified"
            )
        if "more than 1 value per channel" in str(error):
            return "it normalises by the statistics of the batch: let it track and use stored ones (track_running_stats=True)"
        if self.tokens is None and "'indices'" in str(error):
            if any(isinstance(part, nn.Embedding) for part in self.modules()):
                return "its nn.Embedding takes token ids: pass inputs that are whole numbers, [batch, frames]"
            return "it looks inputs up otherwise than by an nn.Embedding: use one, or pass a model that takes the words' vectors"
        return (
            "it must take [batch, ...], with the sequences of a batch of one length, and nothing else: check the shape of inputs "
            "and its features, or wrap the model in one that gives it what it needs"
        )

    def with_vectors_of_the_first(self, tokens: Tensor) -> Tensor:
        """Outputs for tokens that all have the same vectors: they differ where a module sees the tokens otherwise as well."""
        assert self.lookup is not None
        vectors = self.example(1).expand(len(tokens), *self.sample)
        with _instead(self.lookup, vectors):
            return self._flat(self._run(tokens.to(self.device), called), vectors)


def first_tensor(value: Any, kind: type) -> Any:
    """The first of the tensors a module returns."""
    if isinstance(value, kind):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for item in items if (found := first_tensor(item, kind)) is not None), None)


def _lengths_name(module: nn.Module) -> str | None:
    """The parameter of `forward` that takes the lengths of the sequences."""
    scripted = getattr(module.forward, "schema", None)
    try:
        names = [each.name for each in scripted.arguments][1:] if scripted else _open_parameters(module.forward)
    except (TypeError, ValueError):
        return None
    return next((name for name in names[1:] if "len" in name.lower()), None)


def _open_parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters that wait for a value: `max_len=50` does not."""
    given = inspect.signature(function).parameters.values()
    return [each.name for each in given if each.default is None or each.default is inspect.Parameter.empty]


def _frozen(module: nn.Module) -> list[Tensor]:
    """The constants that `torch.jit.freeze` makes of weights."""
    if not isinstance(module, torch.jit.ScriptModule):
        return []
    graph: Any = module.inlined_graph  # its nodes live as long as it does
    nodes = graph.findAllNodes("prim::Constant")
    return [node.t("value") for node in nodes if node.hasAttribute("value") and node.kindOf("value") == "t"]


class NoTensorError(TypeError):
    """A module that returns nothing that could be certified."""


def called(module: nn.Module, values: Tensor, frames: int) -> Tensor:
    """The first output of a module; a parameter of `forward` for lengths is given the one length there is."""
    lengths = _lengths_name(module)
    more = {} if lengths is None else {lengths: torch.full((len(values),), frames, dtype=torch.long)}
    returned = module(values, **more)
    found = first_tensor(returned, Tensor)
    if not isinstance(found, Tensor):
        raise NoTensorError(f"it returns no tensor, but {'None' if returned is None else f'a {type(returned).__name__}'}")
    return found


@dataclass(frozen=True)
class Lookup:
    """The embedding that is given the tokens themselves: `[batch, frames]`, or `turned` to `[frames, batch]`."""

    embedding: nn.Embedding
    turned: bool


@torch.no_grad()
def vectors_of(module: nn.Module, tokens: Tensor) -> Tensor:
    """The vectors of all words, `[words, features]`, in the embedding that is given the tokens when the module is run on them."""
    embedding = lookup_of(module, tokens).embedding
    if type(embedding).forward is not nn.Embedding.forward or embedding.max_norm is None:
        return embedding.weight.detach()
    with untouched(embedding):  # it scales rows down as it looks them up
        return embedding.forward(torch.arange(embedding.num_embeddings, device=embedding.weight.device))


def lookup_of(module: nn.Module, tokens: Tensor) -> Lookup:
    """The same, with the order in which it is given them; `tokens` is one row."""
    frames = tokens.shape[1]
    rows = tokens.expand(frames + 1, -1)  # no square: which axis is which can be seen
    found: list[Lookup] = []

    def seen(part: nn.Module, arguments: tuple[Any, ...]) -> None:
        given = arguments[0] if arguments else None
        if not isinstance(given, Tensor) or not isinstance(part, nn.Embedding):
            return
        for turned, expected in ((False, rows), (True, rows.T)):
            if given.shape == expected.shape and torch.equal(given, expected):
                found.append(Lookup(part, turned))

    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    words = max((part.num_embeddings for part in embeddings), default=0)
    outside = tokens[(tokens < 0) | (tokens >= words)]
    if embeddings and len(outside):
        raise ValueError(f"inputs hold token {int(outside[0])}; the model's embedding has 0 to {words - 1}, pass others")
    hooks = [part.register_forward_pre_hook(seen) for part in embeddings]
    try:
        with torch.no_grad(), untouched(module):
            called(module, rows, frames)
    except Exception as error:
        raise ValueError(
            f"model: it cannot be run on token ids of shape {tuple(rows.shape)} ({type(error).__name__}: {error}); it must take "
            "[batch, frames], and inputs be tokens of its vocabulary"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise ValueError(
            "inputs are whole numbers, but no nn.Embedding of the model is given them, all at once; pass floating point numbers, "
            "or let the model look all tokens up before its loop"
        )
    return found[0]


def alike(module: nn.Module, group: Sequences) -> list[Sequences]:
    """A group in parts, in each of which the module sees the tokens through its embedding only.

    What else it may make of them, such as a mask of padding, is the same for all tokens of one part.
    """
    if len(group.values) == 1 or group.tokens is None:
        return [group]
    outputs = Call(module, group).with_vectors_of_the_first(group.tokens).double()
    parts, left = [], torch.arange(len(outputs))
    while len(left):
        apart = (outputs[left] - outputs[left[0]]).abs().amax(-1)
        same = ~(apart > agreement(group.frames, torch.float32) * outputs.abs().amax())
        chosen = left[same]
        parts.append(replace(group, values=group.values[chosen], samples=group.samples[chosen], tokens=group.tokens[chosen]))
        left = left[~same]
    return parts


@contextmanager
def _instead(lookup: Lookup, values: Tensor) -> Iterator[None]:
    """While this lasts, the embedding gives `values` (`[batch, frames, features]`), whatever it is asked."""
    part, given = lookup.embedding, values.transpose(0, 1) if lookup.turned else values
    before = vars(part).get("forward")
    part.forward = lambda input: given  # type: ignore[method-assign]  # noqa: A006
    try:
        yield
    finally:
        del part.forward
        if before is not None:
            part.forward = before  # type: ignore[method-assign]


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
