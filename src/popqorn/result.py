"""What every result can do: become plain data, be saved, and be read back, without pickle."""

import json
import math
import types
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from popqorn.status import Status

LARGEST_FILE = 2**30

R = TypeVar("R", bound="Result")


@dataclass(frozen=True, eq=False)
class Result:
    """A frozen record of tensors, statuses, numbers and settings. `seconds` is the time of the whole call."""

    seconds: float
    settings: dict[str, Any]

    @property
    def stopped(self) -> bool:
        """Whether the user stopped the call before all was done; what was not has the status `STOPPED`."""
        rows = getattr(self, "status", ())
        return any(Status.STOPPED in (row if isinstance(row, tuple) else (row,)) for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON: infinite and missing values are None."""
        return {"format": _format(type(self))} | {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def save(self, path: str | Path) -> None:
        """Write the result as its suffix says: `.npz` (compressed arrays) or `.json` (text); both keep every bit."""
        path = Path(path)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if path.suffix == ".json":
            path.write_text(json.dumps({"format": _format(type(self)), **{k: _stored(v) for k, v in values.items()}}))
        elif path.suffix == ".npz":
            arrays: dict[str, Any] = {
                name: value.detach().cpu().numpy() for name, value in values.items() if isinstance(value, Tensor)
            }
            rest = {name: _stored(value) for name, value in values.items() if not isinstance(value, Tensor)}
            about = json.dumps({"format": _format(type(self)), **rest})
            with path.open("wb") as file:
                np.savez_compressed(file, about=np.frombuffer(about.encode(), dtype=np.uint8), **arrays)
        else:
            raise ValueError(f"path: {str(path)!r} ends in {path.suffix!r}; end it in .npz or .json")

    @classmethod
    def load(cls: type[R], path: str | Path) -> R:
        """Read a result that `save` wrote."""
        path = Path(path)
        try:
            values = _read_json(path) if path.suffix == ".json" else _read_npz(path)
            if values["format"] != _format(cls):
                raise ValueError(f"its format is {values['format']!r}, not {_format(cls)!r}")
            return cls(**{name: _restored(values[name], hint) for name, hint in _hints(cls).items()})
        except FileNotFoundError:
            raise
        except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
            name = cls.__name__
            raise ValueError(
                f"path: {str(path)!r} is not a readable {name} ({error}); "
                f"it may be truncated or of another kind: write it again with {name}.save"
            ) from error


def _format(kind: type) -> str:
    return f"popqorn-{kind.__name__.lower()}-3"


def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _plain(value: Any) -> Any:
    """For people and other programs: statuses as words, infinite values as None."""
    if isinstance(value, Status):
        return str(value)
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _stored(value: Any) -> Any:
    """For `load`: nothing is lost. A tensor is its dtype and its numbers; those that JSON lacks are text."""
    if isinstance(value, Status):
        return value.name
    if isinstance(value, Tensor):
        return {"tensor": str(value.dtype).removeprefix("torch."), "values": _stored(value.tolist()), "shape": list(value.shape)}
    if isinstance(value, list | tuple):
        return [_stored(item) for item in value]
    if isinstance(value, dict):
        return {name: _stored(item) for name, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _restored(value: Any, hint: Any) -> Any:
    if value is None or isinstance(value, Tensor):
        return value
    wants_tensor = "Tensor" in str(hint)
    if wants_tensor != (isinstance(value, dict) and "tensor" in value):
        raise ValueError(f"it holds {type(value).__name__} where {'an array' if wants_tensor else 'none'} belongs")
    if isinstance(value, dict) and "tensor" in value:
        dtype = {"float64": torch.float64, "float32": torch.float32, "int64": torch.int64, "bool": torch.bool}[value["tensor"]]
        return torch.tensor(_numbers(value["values"]), dtype=dtype, device="cpu").reshape(value["shape"])
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if any("Status" in str(option) for option in options):
        return _statuses(value)
    return float(value) if hint is float else value


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) else value


def _statuses(value: Any) -> Any:
    return tuple(_statuses(item) for item in value) if isinstance(value, list) else Status[value]


def _check_size(count: int) -> None:
    if count > LARGEST_FILE:
        raise ValueError(f"it would take {count} bytes, more than any result")


def _read_json(path: Path) -> dict[str, Any]:
    _check_size(path.stat().st_size)
    read = json.loads(path.read_text())
    if not isinstance(read, dict):
        raise ValueError("it holds no record")
    return read


def _read_npz(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        _check_size(sum(entry.file_size for entry in archive.infolist()))
    with np.load(path, allow_pickle=False) as file:
        about: dict[str, Any] = json.loads(file["about"].tobytes())
        return about | {name: torch.from_numpy(file[name]) for name in file.files if name != "about"}
