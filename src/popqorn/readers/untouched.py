"""A module of the user's is run in eval mode, and left as it was: its modes, its tensors and all its attributes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Restore = Callable[[], None]


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """While this lasts, a module is in eval mode; what it changes of itself meanwhile is put back afterwards.

    Counters, running means, the state of a recurrence that is kept, rows that an embedding scales down: whatever a `forward`
    writes to parameters, buffers and attributes of the module.
    """
    parts = list(module.modules())
    back: list[Restore] = [_attributes(part) for part in parts]
    back += [_values(tensor) for tensor in _tensors(parts)]
    modes = [(part, part.training) for part in parts if hasattr(part, "training")]  # what is frozen has none
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for restore in back:
            restore()
        for part, mode in modes:
            part.training = mode


def _attributes(part: nn.Module) -> Restore:
    """Which objects the names of a module, and the lists and dictionaries among them, stand for."""
    own = vars(part)
    saved = dict(own)
    inner = [(each, each.copy()) for each in saved.values() if isinstance(each, list | dict | set)]

    def restore() -> None:
        if not _same(own, saved):
            own.clear()
            own.update(saved)
        for each, before in inner:
            if not _same(each, before):
                each.clear()
                each.extend(before) if isinstance(each, list) else each.update(before)

    return restore


def _same(now: Any, before: Any) -> bool:
    """Whether two collections hold the same objects."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return all(key in now and now[key] is value for key, value in before.items())
    return now == before if isinstance(now, set) else all(one is other for one, other in zip(now, before, strict=True))


def _tensors(parts: list[nn.Module]) -> list[Tensor]:
    """All tensors that a module's parts know by name, each once."""
    found: dict[int, Tensor] = {}
    for part in parts:
        held = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        for value in vars(part).values():
            held += (
                list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list | tuple) else [value]
            )
        found |= {id(each): each for each in held if isinstance(each, Tensor)}
    return [each for each in found.values() if _may_change(each)]


def _may_change(tensor: Tensor) -> bool:
    """Whether a tensor has values, and nobody but their owner forbids to write them."""
    return not (is_lazy(tensor) or tensor.is_meta or tensor.is_inference()) and tensor.layout is torch.strided


def _values(tensor: Tensor) -> Restore:
    saved = tensor.detach().clone()

    def restore() -> None:
        now = tensor.detach()
        if not torch.equal(now, saved):  # written only then: whoever differentiates through it would be told
            now.copy_(saved)

    return restore
