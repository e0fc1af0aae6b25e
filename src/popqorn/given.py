"""Models as the command line is given them."""

import importlib
from pathlib import Path
from typing import Any

from torch import nn

from popqorn.files.load import load
from popqorn.readers.network import Network


def read_given_model(given: Any) -> Any:
    """A model out of a file, or made by a function of the user's, `package.module:factory`; any other thing is the model."""
    if not isinstance(given, str | Path):
        return given
    if ":" not in str(given) or Path(given).exists():
        path = Path(given)
        if path.suffix == ".py":
            raise ValueError(f"model is {str(given)!r}; name a function in it: {'.'.join(path.with_suffix('').parts)}:FUNCTION")
        return load(given)
    name, _, factory = str(given).partition(":")
    try:
        found = getattr(importlib.import_module(name), factory)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model is {given!r}, but {error}; pass package.module:factory, importable from here") from error
    if isinstance(found, nn.Module | Network):
        return found
    try:
        return found()
    except Exception as error:  # whatever the user's own code raises
        raise ValueError(
            f"model is {given!r}, but calling it raised {type(error).__name__}: {error}; name a function without arguments that "
            "returns the model, or the model itself"
        ) from error


def read_trainable(given: str) -> nn.Module:
    """A module with weights of its own."""
    model = read_given_model(given)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is {given!r}, a {type(model).__name__}, whose weights cannot be trained; pass a .safetensors file of "
            "popqorn.save, or package.module:factory"
        )
    return model
