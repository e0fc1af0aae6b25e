"""What tells one model from another, so that no row is ever taken for a row of another model."""

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from popqorn.readers.models import read_model
from popqorn.readers.text import TextClassifier
from popqorn.reading import fingerprint
from popqorn.relax.activations import Activation
from popqorn.runs.data import Sample, together
from popqorn.tape.tape import Tape

POINTS = torch.linspace(-6.0, 6.0, 97, dtype=torch.float64)  # where functions of the user's own are compared
DIGITS = 1e6


def identity(given: Any, model: Any, probe: Sample) -> str:
    """A hash of what a model computes: its file, its weights, and the tape that is read of it for one sample, `probe`.

    The tape is what proofs are about, so that nothing needs to be known of how the model is written: modules of equal weights
    with another forward, pooling or constant have another tape.
    """
    digest = hashlib.sha256()
    for part in _parts(given, model, probe):
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()


def _parts(given: Any, model: Any, probe: Sample) -> Iterator[str]:
    if isinstance(given, str | Path) and Path(given).is_file():
        with Path(given).open("rb") as file:
            yield hashlib.file_digest(file, "sha256").hexdigest()
    network = read_model(model)
    yield fingerprint(tensor for _, tensor in network.tensors())
    if isinstance(model, TextClassifier):
        yield model.numbering
    inputs = together([probe])
    if isinstance(inputs, Tensor):
        inputs = inputs.to(next((tensor.device for _, tensor in network.tensors()), inputs.device))
    (group,) = network.sequences(inputs, None, torch.float64)
    reading = network.reading(group, decides=False)
    yield f"{reading.dtype} {reading.left_off} {reading.axis}"
    yield from _operations(reading.tape)


def _operations(tape: Tape) -> Iterator[str]:
    yield f"{tape.frames} {tape.features} {tuple(tape.shape)}"
    for node in tape.nodes:
        yield _plain(node)


def _plain(value: Any) -> str:
    """The content of a record: tensors by their numbers, functions by their values; never an address in memory."""
    if isinstance(value, Tensor):
        return fingerprint([value])
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_plain, value))})"
    if isinstance(value, Activation):
        values = (DIGITS * value.function(POINTS)).round().nan_to_num()
        return f"{value.name} {fingerprint([values])}"
    if is_dataclass(value):
        named = ", ".join(f"{field.name}={_plain(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({named})"
    return getattr(value, "__qualname__", None) or repr(value)
