"""Sequences of any lengths: grouped by length on the way in, put back in the given order on the way out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from popqorn._typing import Float, Int
from popqorn.reading import read_tensor


@dataclass(frozen=True)
class Sequences:
    """Sequences of one length, out of a batch of `batch` of up to `longest` frames; `samples` are their places in it.

    `values` has what moves: frames, flattened. `shape` is that in which the model takes a sample, if it is another; `tokens` are
    what it takes instead, if the values are the vectors of its vocabulary.
    """

    values: Float[Tensor, "group frames features"]
    samples: Int[Tensor, " group"]
    batch: int
    longest: int
    shape: tuple[int, ...] | None = None
    tokens: Int[Tensor, "group frames"] | None = None

    @property
    def frames(self) -> int:
        return self.values.shape[1]

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape in which the model takes a sample."""
        return tuple(self.values.shape[1:]) if self.shape is None else self.shape

    def with_vectors(self, table: Float[Tensor, "words features"]) -> "Sequences":
        """The same with the tokens' vectors as values."""
        assert self.tokens is not None
        outside = self.tokens[(self.tokens < 0) | (self.tokens >= len(table))]
        if len(outside):
            raise ValueError(f"inputs hold token {int(outside[0])}; the model's embedding has 0 to {len(table) - 1}, pass others")
        return replace(self, values=table[self.tokens.to(table.device)])

    def of_batch(self, tensor: Tensor, *, frames: bool = False) -> Tensor:
        """These sequences' part of a tensor `[batch, ...]`; with `frames`, of one `[batch, longest, ...]`."""
        part = tensor[self.samples.to(tensor.device)]
        return part[:, : self.frames] if frames else part


def read_sequences(inputs: Any, lengths: Any, features: int, dtype: torch.dtype) -> list[Sequences]:
    """One group per length that occurs, the shortest first.

    `inputs` is `[batch, frames, features]`, or a list of `[frames, features]` of any lengths, or a `PackedSequence`; with
    `lengths`, frames beyond a sequence's length are padding, whatever they hold.
    """
    padded, lengths = _padded(inputs, lengths)
    shape = tuple(padded.shape)
    if padded.dim() != 3:
        remedy = "add the batch axis with inputs[None]" if padded.dim() == 2 else "reshape them"
        if padded.dim() in (1, 2) and not padded.is_floating_point():
            remedy = "they look like token ids: pass the vectors of the words, table[tokens]"
        raise ValueError(f"inputs have shape {shape}; they must be [batch, frames, features], {remedy}")
    if 0 in shape:
        raise ValueError(f"inputs have shape {shape}; there must be at least one sample, one frame and one feature")
    if shape[2] != features:
        raise ValueError(f"inputs have {shape[2]} features per frame (shape {shape}), but the model takes {features}")
    if padded.is_complex():
        raise ValueError(f"inputs are of dtype {padded.dtype}; pass real numbers")
    padded = padded.to(dtype)
    groups = []
    every = _read_lengths(lengths, shape[0], shape[1])
    for length in sorted(set(every)):
        samples = torch.tensor([sample for sample, own in enumerate(every) if own == length], device=padded.device)
        values = padded[samples, :length]
        if not torch.isfinite(values).all():
            raise ValueError("inputs hold NaN or infinite values; replace or drop those samples")
        groups.append(Sequences(values, samples, shape[0], shape[1]))
    return groups


def read_samples(inputs: Any, lengths: Any, dtype: torch.dtype) -> list[Sequences]:
    """The same for a model whose inputs may be of any shape, `[batch, ...]`.

    `[batch, frames, features]` and more axes are sequences: what is behind the second axis is a frame. `[batch, features]` and
    images, `[batch, channels, height, width]`, are one frame.
    """
    padded, lengths = _padded(inputs, lengths)
    shape = tuple(padded.shape)
    if padded.dim() < 2:
        raise ValueError(f"inputs have shape {shape}; they must be [batch, ...]: add the batch axis with inputs[None]")
    alone = padded.dim() in (2, 4)
    if alone and lengths is not None:
        raise ValueError(f"lengths are given, but inputs of shape {shape} are no sequences; leave them out")
    if 0 in shape:
        raise ValueError(f"inputs have shape {shape}; no axis may be empty")
    flat = padded.reshape(shape[0], 1, -1) if alone else padded.flatten(2)
    groups = read_sequences(flat, lengths, flat.shape[2], dtype)
    return [replace(group, shape=shape[1:] if alone else (group.frames, *shape[2:])) for group in groups]


def are_tokens(inputs: Any) -> bool:
    """Whether inputs are whole numbers."""
    first = inputs[0] if isinstance(inputs, Sequence) and inputs else inputs
    if isinstance(first, PackedSequence):
        first = first.data
    try:
        tensor = read_tensor(first, "inputs")
    except ValueError:
        return False
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def read_tokens(inputs: Any, lengths: Any) -> list[Sequences]:
    """Token ids, `[batch, frames]` or a list of such rows of any lengths; their values are still missing."""
    if isinstance(inputs, Sequence) and not isinstance(inputs[0], int):
        rows = [read_tensor(item, f"inputs[{number}]").reshape(-1, 1) for number, item in enumerate(inputs)]
        tokens, lengths = _padded(rows, lengths)
    else:
        tokens = read_tensor(inputs, "inputs").unsqueeze(-1)
    if tokens.dim() != 3:
        raise ValueError(f"inputs have shape {tuple(tokens.shape[:-1])}; token ids must be [batch, frames]")
    groups = read_sequences(tokens, lengths, 1, torch.float64)
    return [replace(group, tokens=group.values.squeeze(-1).long()) for group in groups]


def _padded(inputs: Any, lengths: Any) -> tuple[Tensor, Any]:
    """One tensor `[batch, frames, features]`, and the lengths if they are known by now."""
    if isinstance(inputs, PackedSequence):
        if lengths is not None:
            raise ValueError("lengths are given beside a PackedSequence, which has its own; leave one of them out")
        return pad_packed_sequence(inputs, batch_first=True)
    if not isinstance(inputs, Sequence) or not inputs:
        return read_tensor(inputs, "inputs").detach(), lengths
    rows = [read_tensor(item, f"inputs[{number}]").detach() for number, item in enumerate(inputs)]
    for number, row in enumerate(rows):
        if row.dim() != 2:
            raise ValueError(f"inputs[{number}] has shape {tuple(row.shape)}; every sequence must be [frames, features]")
        if row.shape[1] != rows[0].shape[1]:
            raise ValueError(
                f"inputs[{number}] has {row.shape[1]} features per frame, but inputs[0] has {rows[0].shape[1]}; "
                "all sequences must have the same"
            )
    own = [len(row) for row in rows]
    if lengths is not None and len(set(own)) > 1:
        raise ValueError("lengths are given beside a list of sequences that have their own; leave one of them out")
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), own if lengths is None else lengths


def _read_lengths(given: Any, batch: int, frames: int) -> list[int]:
    if given is None:
        return [frames] * batch
    tensor = read_tensor(given, "lengths")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"lengths are of dtype {tensor.dtype}; pass whole numbers")
    if tuple(tensor.shape) != (batch,):
        raise ValueError(f"lengths have shape {tuple(tensor.shape)}; pass one per sample, shape ({batch},)")
    every: list[int] = tensor.tolist()
    for sample, length in enumerate(every):
        if not 1 <= length <= frames:
            raise ValueError(f"lengths: sample {sample} has {length}, but the inputs have 1 to {frames} frames")
    return every


def together(parts: Sequence[Tensor], groups: Sequence[Sequences]) -> Tensor:
    """What was found for each group, `[group, ...]`, as one tensor `[batch, ...]` in the given order.

    Longer sequences have more; what a shorter one lacks is NaN, -1 or False.
    """
    batch = groups[0].batch
    shape = [max(counts) for counts in zip(*(part.shape[1:] for part in parts), strict=True)]
    empty: float | int | bool = math.nan
    if not parts[0].is_floating_point():
        empty = False if parts[0].dtype == torch.bool else -1
    whole = parts[0].new_full((batch, *shape), empty)
    for part, group in zip(parts, groups, strict=True):
        place: Any = (group.samples, *(slice(0, count) for count in part.shape[1:]))
        whole[place] = part
    return whole
