"""The public networks and reference radii, as models, digits and rows."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import popqorn

_SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("POPQORN_DATA", _SHARED / "data"))
REFERENCE = Path(os.environ.get("POPQORN_REFERENCE", _SHARED / "reference"))


@dataclass(frozen=True)
class Row:
    """A radius that another program certified (or, of class `upper`, an eps at which an attack succeeded)."""

    model: str
    norm: float
    index: int
    label: int
    target: int
    program: str
    method: str
    kind: str
    eps: float


def rows(kind: str, programs: tuple[str, ...] | None = None) -> list[Row]:
    """All rows of one class, in file order; of the given programs only, if any are named."""
    found = []
    for entry in json.loads((REFERENCE / "radii.json").read_text()):
        if entry["class"] == kind and (programs is None or entry["program"] in programs):
            fields = {name: entry[name] for name in ("model", "index", "label", "target", "program", "method", "eps")}
            norm = math.inf if entry["norm"] == "inf" else float(entry["norm"])
            found.append(Row(kind=kind, norm=norm, **fields))
    return found


def load_model(name: str) -> popqorn.SequenceClassifier:
    """`mnist_FFf_HHHh_Ll` (PROVER's LSTMs) or `rnn_FFf_HHHh` (vanilla tanh RNNs)."""
    frames, hidden, *layers = (int(part.rstrip("fhl")) for part in name.split("_")[1:])
    if name.startswith("rnn"):
        path, prefix = REFERENCE / "models" / f"{name}.pt", "rnn."
        rnn: nn.RNN | nn.LSTM = nn.RNN(784 // frames, hidden)
    else:
        path, prefix = DATA / "models_prover" / f"{name}.pt", "lstm."
        rnn = nn.LSTM(784 // frames, hidden, *layers)
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    rnn.load_state_dict({key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)})
    head = nn.Linear(hidden, 10)
    head.load_state_dict({key.removeprefix("linear."): value for key, value in state.items() if key.startswith("linear.")})
    return popqorn.SequenceClassifier(rnn, head).eval()


def frames_of(name: str) -> int:
    return int(name.split("_")[1].rstrip("f"))


def digits(frames: int, count: int, split: str = "test") -> tuple[Tensor, Tensor]:
    """The first `count` MNIST digits as sequences `[count, frames, 784 / frames]` in [0, 1], and their labels."""
    with np.load(DATA / "mnist" / "mnist.npz") as file:
        images, labels = file[f"x_{split}"][:count], file[f"y_{split}"][:count]
    return torch.from_numpy(images).double().reshape(count, frames, -1) / 255, torch.from_numpy(labels).long()
