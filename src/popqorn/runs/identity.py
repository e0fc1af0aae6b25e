"""What tells one model from another, so that no row is ever taken for a row of another model."""

import hashlib
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from popqorn.readers.models import read_model
from popqorn.reading import fingerprint

OURS = ("torch", "popqorn", "builtins")  # their versions are kept beside every run
KEPT_ELSEWHERE = ("_modules", "_parameters", "_buffers", "_flat_weights", "training")  # read as weights, or of no effect


def identity(given: Any, model: Any) -> str:
    """A hash of all that decides what `model` computes: its file, byte by byte; else weights, structure, attributes, and the
    source files of its classes and functions.
    """
    if isinstance(given, str | Path) and Path(given).is_file():
        return _file(Path(given))
    digest = hashlib.sha256(fingerprint(tensor for _, tensor in read_model(model).tensors()).encode())
    for part in _parts("", model):
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()


def _parts(name: str, value: Any) -> Iterator[str]:
    """What is no weight, in a fixed order; never an address in memory."""
    if isinstance(value, nn.Module) or (is_dataclass(value) and not isinstance(value, type)):
        yield f"{name}: {type(value).__qualname__} {_source(type(value))}"
        if isinstance(value, fx.GraphModule):
            yield value.code
        for attribute, each in sorted(vars(value).items()):
            if attribute not in KEPT_ELSEWHERE:
                yield from _parts(f"{name}.{attribute}", each)
        for child, module in value.named_children() if isinstance(value, nn.Module) else ():
            yield from _parts(f"{name}.{child}", module)
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _parts(f"{name}[{key!r}]", entry)
    elif isinstance(value, list | tuple):
        for place, entry in enumerate(value):
            yield from _parts(f"{name}[{place}]", entry)
    elif isinstance(value, Tensor | np.ndarray):
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        yield f"{name}: {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    elif hasattr(value, "SerializeToString"):  # a graph out of a file
        yield f"{name}: {hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()}"
    elif callable(value):
        yield f"{name}: {getattr(value, '__qualname__', type(value).__qualname__)} {_source(value)}"
    elif isinstance(value, str | bytes | int | float | complex | bool | None):
        yield f"{name}: {value!r}"


def _source(of: Any) -> str:
    """The hash of the file in which a class or a function of the user's is written, if there is one."""
    if (getattr(of, "__module__", None) or "").split(".")[0] in OURS:
        return ""
    try:
        return _file(Path(inspect.getfile(of)))
    except (TypeError, OSError):
        return ""


def _file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
