"""`load` and `save`: one way in for every kind of file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from popqorn.files.own import load_own, save_own
from popqorn.files.program import load_program
from popqorn.readers.network import Network

GIT_LFS = b"version https://git-lfs"
ONNX_ONLY = ("frames", "inputs", "batch_axis", "output", "check")


def load(
    path: Any,
    *,
    frames: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    batch_axis: int | None = None,
    output: str | None = None,
    check: bool = True,
) -> nn.Module | Network:
    """A model from a file, ready for `certify` and the others: `.onnx`, `.safetensors` of `popqorn.save`, `.pt2` of torch.export.

    For ONNX files:

    - `frames`: how many frames to try it with, if the file leaves that open;
    - `inputs`: values of all inputs but the one that moves, by name, for one sample;
    - `batch_axis`: which axis of that input is the batch, if the file does not tell. You pass `[batch, ...]` whatever it is;
    - `output`: which output is meant, by name; the first by default;
    - `check`: compare with onnxruntime on random inputs now, and on your inputs in every call.

    No file executes code: nothing is unpickled, and sizes are checked before memory is taken.

    >>> save(model, "digits.safetensors")
    >>> certify(load("digits.safetensors"), digits, norm=2).radius
    """
    file = read_path(path)
    kind = file.suffix.lower()
    given = {"frames": frames, "inputs": inputs, "batch_axis": batch_axis, "output": output}
    named = [name for name, value in given.items() if value is not None]
    if kind != ".onnx" and named:
        raise ValueError(f"{' and '.join(named)} given, but {file.name} is no ONNX file; leave them out")
    with torch.device("cpu"):
        return _loaded(file, kind, frames=frames, inputs=inputs, batch_axis=batch_axis, output=output, check=check)


def _loaded(file: Path, kind: str, **options: Any) -> nn.Module | Network:
    if kind == ".onnx":
        from popqorn.readers.onnx.network import read_onnx

        return read_onnx(file, **options)
    if kind == ".safetensors":
        return load_own(file)
    if kind == ".pt2":
        return load_program(file)
    if kind in (".pt", ".pth", ".pkl", ".ckpt", ".bin", ".joblib"):
        raise ValueError(
            f"path: {file.name} is a pickle, which may execute code and does not say what it computes; build your "
            "module, load its weights with torch.load(path, weights_only=True), and pass the module itself, or popqorn.save it"
        )
    raise ValueError(f"path: {file.name} is of no kind that can be read; pass a .onnx, .safetensors or .pt2 file")


def save(model: nn.Module, path: Any) -> None:
    """Write a `SequenceClassifier`, architecture and weights, to one `.safetensors` file, which `load` reads again.

    >>> save(model, "digits.safetensors")
    """
    save_own(model, _as_path(path))


def read_path(path: Any) -> Path:
    """A file that is there and is what it says."""
    file = _as_path(path)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ValueError(f"path: {str(file)!r} {what}; pass a .onnx, .safetensors or .pt2 file")
    with file.open("rb") as opened:
        start = opened.read(len(GIT_LFS))
    if not start:
        raise ValueError(f"path: {str(file)!r} is empty; download it again")
    if start == GIT_LFS:
        raise ValueError(f"path: {str(file)!r} is a pointer of git-lfs, not the file itself; fetch it with git lfs pull")
    return file


def _as_path(path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise ValueError(f"path is {path!r}; pass the name of a file") from None
