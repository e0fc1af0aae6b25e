"""Models as the command line is given them."""

import importlib
from pathlib import Path
from typing import Any

from torch import nn

from popqorn.files.load import load


def read_given_model(given: Any) -> Any:
    """A model out of a file, or made by a function of the user's, `package.module:factory`; any other thing is the model."""
    if not isinstance(given, str | Path):
        return given
    if ":" not in str(given) or Path(given).exists():
        return load(given)
    name, _, factory = str(given).partition(":")
    try:
        return getattr(importlib.import_module(name), factory)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model is {given!r}, but {error}; pass package.module:factory, importable from here") from error


def read_trainable(given: str) -> nn.Module:
    """A module with weights of its own."""
    model = read_given_model(given)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is {given!r}, a {type(model).__name__}, whose weights cannot be trained; pass a .safetensors file of "
            "popqorn.save, or package.module:factory"
        )
    return model
