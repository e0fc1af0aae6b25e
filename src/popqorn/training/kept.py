"""Training that was stopped goes on where it was: what an epoch ends with, in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def keep(path: Path, parts: Mapping[str, Any], epochs: int, also: Mapping[str, Any] | None = None) -> None:
    """Save the states of all parts, the random numbers' too, after so many epochs; a file is there as a whole or not at all."""
    state = {name: part.state_dict() for name, part in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".saving")
    torch.save({**state, "epochs": epochs, "chance": torch.get_rng_state(), "also": dict(also or {})}, unfinished)
    unfinished.replace(path)


def resume(path: Path, parts: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Put everything back as the last epoch left it; how many epochs are done, and what was kept beside."""
    try:
        state = torch.load(path, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["chance"])
        return int(state["epochs"]), dict(state["also"])
    except Exception as error:  # torch lets through whatever a file of something else makes it run into
        raise ValueError(f"{str(path)!r} does not hold an unfinished training ({error}); delete it to begin anew") from error
