"""Models and data as the command line is given them."""

import importlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from popqorn.files.load import load


def read_trainable(given: str) -> nn.Module:
    """A module with weights of its own: out of a file, or made by a function of the user's, `package.module:factory`."""
    if ":" in given and not Path(given).exists():
        name, _, factory = given.partition(":")
        try:
            model = getattr(importlib.import_module(name), factory)()
        except (ImportError, AttributeError) as error:
            raise ValueError(f"model is {given!r}, but {error}; pass package.module:factory, importable from here") from error
    else:
        model = load(given)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is {given!r}, a {type(model).__name__}, whose weights cannot be trained; pass a .safetensors file of "
            "popqorn.save, or package.module:factory"
        )
    return model


def read_samples_file(path: Path) -> tuple[Tensor, Tensor]:
    """`x` and `y` of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files) if isinstance(file, np.lib.npyio.NpzFile) else set()
            if not {"x", "y"} <= names:
                raise ValueError(f"data: {path.name} holds {', '.join(sorted(names)) or 'one array'}; it must hold x and y")
            return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    except (BadZipFile, EOFError) as error:
        raise ValueError(f"data: {path.name} cannot be read ({error}); pass an .npz file with x and y") from error
