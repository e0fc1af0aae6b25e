"""Arguments of the public functions, checked and brought to one form. Every error names the argument, what it got, what to do."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from popqorn.models.classifier import SequenceClassifier
from popqorn.relax.methods import METHODS, Method


def check_model(model: object) -> SequenceClassifier:
    if isinstance(model, SequenceClassifier) and type(model).forward is not SequenceClassifier.forward:
        kind = type(model).__name__
        raise TypeError(f"model is a {kind} with a forward of its own, which cannot be read; pass a SequenceClassifier")
    if not isinstance(model, SequenceClassifier):
        kind = type(model).__name__
        remedy = "wrap your network as popqorn.SequenceClassifier(rnn, head)"
        if isinstance(model, nn.RNNBase):
            remedy = "add its head: popqorn.SequenceClassifier(rnn, nn.Linear(rnn.hidden_size, classes))"
        raise TypeError(f"model is a {kind}, which cannot be read; {remedy}")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise ValueError(
                f"model: {name} holds {bad} value(s) that are NaN or infinite; nothing can be proven, load sound weights"
            )
    return model


def check_dtype(dtype: object) -> torch.dtype:
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}; pass torch.float64 (the default) or torch.float32")
    assert isinstance(dtype, torch.dtype)
    return dtype


def check_inputs(inputs: Any, features: int, dtype: torch.dtype) -> Tensor:
    tensor = _tensor(inputs, "inputs").detach()
    shape = tuple(tensor.shape)
    if tensor.dim() != 3:
        remedy = "add the batch axis with inputs[None]" if tensor.dim() == 2 else "reshape them"
        raise ValueError(f"inputs have shape {shape}; they must be [batch, frames, features], {remedy}")
    if 0 in shape:
        raise ValueError(f"inputs have shape {shape}; there must be at least one sample, one frame and one feature")
    if shape[2] != features:
        raise ValueError(f"inputs have {shape[2]} features per frame (shape {shape}), but the model's rnn takes {features}")
    if not torch.isfinite(tensor).all():
        raise ValueError("inputs hold NaN or infinite values; replace or drop those samples")
    return tensor.to(dtype)


def check_classes(name: str, given: Any, batch: int, classes: int, device: torch.device) -> Tensor:
    tensor = _tensor(given, name).to(device)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} are of dtype {tensor.dtype}; pass integer class numbers")
    tensor = tensor.long()
    if tensor.dim() == 0:
        tensor = tensor.expand(batch)
    if tuple(tensor.shape) != (batch,):
        raise ValueError(f"{name} have shape {tuple(tensor.shape)}; pass one class per sample, shape ({batch},)")
    outside = tensor[(tensor < 0) | (tensor >= classes)]
    if len(outside):
        raise ValueError(f"{name} hold {int(outside[0])}; the model has classes 0 to {classes - 1}")
    return tensor


def check_targets(given: Any, labels: Tensor, classes: int) -> Tensor:
    targets = check_classes("targets", given, len(labels), classes, labels.device)
    equal = (targets == labels).nonzero()
    if len(equal):
        sample = int(equal[0])
        raise ValueError(
            f"targets: sample {sample} has target {int(targets[sample])}, which is its label; "
            "choose another class, or leave targets out for untargeted radii"
        )
    return targets


def check_norm(norm: Any) -> float:
    try:
        value = float(norm)
    except (TypeError, ValueError):
        raise ValueError(f"norm is {norm!r}; pass a number >= 1 or float('inf')") from None
    if not value >= 1:
        raise ValueError(f"norm is {norm!r}; l_p is a norm only for p >= 1: pass a number >= 1 or float('inf')")
    return value


def check_eps(eps: Any, batch: int, like: Tensor, *, name: str = "eps") -> Tensor:
    tensor = _tensor(eps, name).to(like)
    if tensor.dim() == 0:
        tensor = tensor.expand(batch)
    if tuple(tensor.shape) != (batch,):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; pass one number, or one per sample, shape ({batch},)")
    if not (torch.isfinite(tensor) & (tensor >= 0)).all():
        worst = float(tensor[~(torch.isfinite(tensor) & (tensor >= 0))][0])
        raise ValueError(f"{name} holds {worst:g}; it must be finite and not negative")
    return tensor


def check_method(method: Any) -> Method:
    return METHODS[check_choice("method", method, METHODS)]


def check_choice(name: str, given: Any, choices: Iterable[str]) -> str:
    if given not in choices:
        raise ValueError(f"{name} is {given!r}; pass one of {', '.join(map(repr, choices))}")
    return str(given)


def check_count(name: str, given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{name} is {given!r}; pass a positive whole number")
    return given


def check_distance(name: str, given: Any) -> float:
    if not isinstance(given, int | float) or not given >= 0:
        raise ValueError(f"{name} is {given!r}; pass a number that is not negative, or inf for no limit")
    return float(given)


def check_seed(seed: Any) -> int:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed!r}; pass a whole number that is not negative")
    return seed


def check_table(table: Any, dtype: torch.dtype) -> Tensor:
    tensor = _tensor(table, "table").detach()
    if tensor.dim() != 2 or 0 in tensor.shape:
        raise ValueError(f"table has shape {tuple(tensor.shape)}; pass embeddings [words, features]")
    if not torch.isfinite(tensor).all():
        raise ValueError("table holds NaN or infinite values; replace or drop those words")
    return tensor.to(dtype)


def check_tokens(tokens: Any, table: Tensor) -> Tensor:
    tensor = _tensor(tokens, "tokens").to(table.device)
    if tensor.dim() != 2 or 0 in tensor.shape or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise ValueError(
            f"tokens are of dtype {tensor.dtype} and shape {tuple(tensor.shape)}; pass row numbers of table, [batch, frames]"
        )
    outside = tensor[(tensor < 0) | (tensor >= len(table))]
    if len(outside):
        raise ValueError(f"tokens hold {int(outside[0])}; the table has words 0 to {len(table) - 1}")
    return tensor.long()


def check_tolerance(tolerance: Any) -> float:
    if not isinstance(tolerance, int | float) or not 1e-9 <= tolerance < 1:
        raise ValueError(f"tolerance is {tolerance!r}; pass a relative width of the search between 1e-9 and 1")
    return float(tolerance)


def check_chunk_rows(chunk_rows: Any) -> int | None:
    if chunk_rows is None:
        return None
    if not isinstance(chunk_rows, int) or isinstance(chunk_rows, bool) or chunk_rows < 1:
        raise ValueError(f"chunk_rows is {chunk_rows!r}; pass a positive whole number, or None to have it chosen")
    return chunk_rows


def check_share(frames: Any, scale: Any, inputs: Tensor) -> Tensor:
    """Every feature's share of eps, `[batch or 1, frames, features or 1]`: `scale` where a frame may move, else 0."""
    share = _check_scale(scale, inputs)
    if frames is not None:
        share = share * _check_frames(frames, inputs).unsqueeze(-1)
    if not (share > 0).flatten(1).any(1).all():
        raise ValueError("frames and scale leave nothing that may move in at least one sample; let a frame move")
    return share


def _check_scale(scale: Any, inputs: Tensor) -> Tensor:
    batch, frames, features = inputs.shape
    if scale is None:
        return inputs.new_ones(1, frames, 1)
    tensor = _tensor(scale, "scale").to(inputs)
    forms = {(): (1, 1, 1), (frames,): (1, frames, 1), (frames, features): (1, frames, features)}
    shape = tuple(tensor.shape)
    if shape != (batch, frames, features) and shape not in forms:
        raise ValueError(
            f"scale has shape {shape}; pass [frames] = ({frames},), [frames, features] = ({frames}, {features}) "
            f"or [batch, frames, features] = ({batch}, {frames}, {features})"
        )
    if not (torch.isfinite(tensor) & (tensor >= 0)).all():
        worst = float(tensor[~(torch.isfinite(tensor) & (tensor >= 0))].flatten()[0])
        raise ValueError(f"scale holds {worst:g}; shares of eps must be finite and not negative")
    return tensor.reshape(forms.get(shape, shape)).expand(-1, frames, -1)


def _check_frames(given: Any, inputs: Tensor) -> Tensor:
    """A mask `[batch or 1, frames]`."""
    batch, frames, _ = inputs.shape
    tensor = _tensor(given, "frames").to(inputs.device)
    if tensor.numel() == 0:
        raise ValueError("frames is empty; name at least one frame that may move, or leave it out to let all move")
    if tensor.dtype == torch.bool:
        if tuple(tensor.shape) not in ((frames,), (batch, frames)):
            raise ValueError(
                f"frames is a mask of shape {tuple(tensor.shape)}; pass ({frames},) or [batch, frames] = ({batch}, {frames})"
            )
        return tensor.reshape(-1, frames).to(inputs.dtype)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dim() > 1:
        raise ValueError(
            f"frames is of dtype {tensor.dtype} and shape {tuple(tensor.shape)}; pass a list of frame numbers or a boolean mask"
        )
    index = tensor.long().reshape(-1)
    outside = index[(index < -frames) | (index >= frames)]
    if len(outside):
        raise ValueError(f"frames holds {int(outside[0])}; the inputs have frames 0 to {frames - 1}")
    mask = inputs.new_zeros(1, frames)
    mask[0, index] = 1
    return mask


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    try:
        if isinstance(value, Sequence) and value and isinstance(value[0], Tensor):
            return torch.stack(list(value))
        return torch.as_tensor(np.asarray(value)) if not isinstance(value, np.ndarray) else torch.from_numpy(value.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be made a tensor ({error}); pass a torch tensor, a numpy array or numbers") from None


def describe(value: float) -> float | str:
    """A number as settings store it: infinity as text, so that it survives JSON."""
    return "inf" if math.isinf(value) else value
