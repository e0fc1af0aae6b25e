"""Arguments brought to one form. Every error names the argument, what it got, what to do."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

IN_FULL = 1_000  # numbers; a larger array is described by its shape and its hash


def read_tensor(value: Any, name: str) -> Tensor:
    """A tensor of its own: never one of inference mode, and none that shares memory with a numpy array."""
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    try:
        if isinstance(value, Sequence) and value and isinstance(value[0], Tensor):
            return torch.stack(list(value))
        array = np.array(value)
        if array.dtype.kind in "US":
            raise TypeError("it holds text")
        if array.dtype.kind not in "biufc":
            raise TypeError(f"it holds {array.dtype.name}")
        return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError) as error:
        if "inhomogeneous" in str(error) or "stack expects each tensor" in str(error):
            raise ValueError(f"{name}: its rows have different lengths; pass one tensor, padded if need be") from None
        raise ValueError(f"{name} cannot be made a tensor ({error}); pass a torch tensor, a numpy array or numbers") from None


def read_dtype(dtype: object) -> torch.dtype:
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}; pass torch.float64 (the default) or torch.float32")
    assert isinstance(dtype, torch.dtype)
    if dtype == torch.float32:
        check_products("dtype is float32")
    return dtype


def check_products(why: str) -> None:
    """Refuse proofs in single precision while torch multiplies float32 matrices with less."""
    for name, precision in _precisions_below_float32().items():
        raise ValueError(
            f"{why}, but torch multiplies matrices with {precision!r} precision ({name}), which proves nothing; "
            "call torch.set_float32_matmul_precision('highest')"
        )


def _precisions_below_float32() -> dict[str, str]:
    """What torch may multiply float32 matrices with instead, by the names of the switches."""
    names = ("cuda", "mkldnn")
    found = {name: getattr(getattr(getattr(torch.backends, name), "matmul", None), "fp32_precision", None) for name in names}
    if None in found.values():  # before torch 2.9; since, asking so is an error where the two differ
        precision = torch.get_float32_matmul_precision()
        return {} if precision == "highest" else {"torch.get_float32_matmul_precision()": precision}
    switches = {f"torch.backends.{name}.matmul.fp32_precision": str(each) for name, each in found.items()}
    return {name: precision for name, precision in switches.items() if precision not in ("none", "ieee")}


def read_norm(norm: Any) -> float:
    try:
        if isinstance(norm, bool):
            raise TypeError
        value = float(norm.lower().removeprefix("l").removeprefix("_") if isinstance(norm, str) else norm)
    except (TypeError, ValueError):
        raise ValueError(f"norm is {norm!r}; pass a number >= 1, float('inf'), or 'l1', 'l2', 'linf'") from None
    if not value >= 1:
        raise ValueError(f"norm is {norm!r}; l_p is a norm only for p >= 1: pass a number >= 1 or float('inf')")
    return value


def read_classes(name: str, tensor: Tensor, classes: int) -> Tensor:
    """Class numbers, as given or one for all."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} are of dtype {tensor.dtype}; pass integer class numbers")
    tensor = tensor.long()
    outside = tensor[(tensor < 0) | (tensor >= classes)]
    if len(outside):
        raise ValueError(f"{name} hold {int(outside[0])}; the model has classes 0 to {classes - 1}")
    return tensor


def read_choice(name: str, given: Any, choices: Iterable[str]) -> str:
    if not isinstance(given, str) or given not in choices:
        raise ValueError(f"{name} is {given!r}; pass one of {', '.join(map(repr, choices))}")
    return str(given)


def read_count(name: str, given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{name} is {given!r}; pass a positive whole number")
    return given


def read_seed(seed: Any) -> int:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed!r}; pass a whole number that is not negative")
    return seed


def read_device(device: Any) -> torch.device:
    """A device that is there."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"device is {device!r}, which is not there ({error}); pass 'cpu', or 'cuda' where there is one"
        ) from None


def read_tolerance(tolerance: Any) -> float:
    if not isinstance(tolerance, int | float) or not 1e-9 <= tolerance < 1:
        raise ValueError(f"tolerance is {tolerance!r}; pass a relative width of the search between 1e-9 and 1")
    return float(tolerance)


def read_seconds(seconds: Any) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValueError(f"seconds is {seconds!r}; pass how long each sample may take, a positive number")
    return float(seconds)


def describe(value: Any) -> Any:
    """A value as settings store it: plain JSON, infinity as text, frozen records by their fields, large arrays by their hash."""
    if hasattr(value, "__dataclass_fields__"):
        return {"kind": type(value).__name__} | {field.name: describe(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        value = torch.from_numpy(np.array(value))
    if isinstance(value, Tensor):
        if value.numel() > IN_FULL:
            return {"shape": list(value.shape), "sha256": fingerprint([value])}
        return describe(value.tolist())
    if isinstance(value, dict):
        if sum(map(len, value.values())) > IN_FULL:
            text = repr(sorted((key, list(entry)) for key, entry in value.items()))
            return {"entries": len(value), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        return {str(key): describe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [describe(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """The SHA-256 of dtypes, shapes and values, in order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
