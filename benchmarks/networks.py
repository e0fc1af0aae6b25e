"""MNIST networks of any size for the benchmarks, trained once and kept in `benchmarks/results/networks`."""

from pathlib import Path

import public
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import popqorn
from popqorn.experiments.training import Recipe, train

KEPT = Path(__file__).parent / "results" / "networks"
CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def network(kind: str, frames: int, hidden: int, *, epochs: int = 3, digits: int = 60_000) -> popqorn.SequenceClassifier:
    """A classifier of MNIST digits cut into `frames` slices."""
    model = popqorn.SequenceClassifier(CELLS[kind](784 // frames, hidden), nn.Linear(hidden, 10))
    path = KEPT / f"{kind}_{frames}x{hidden}_{epochs}_{digits}.safetensors"
    if path.exists():
        model.load_state_dict(load_file(path))
        return model.eval()
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(CELLS[kind](784 // frames, hidden), nn.Linear(hidden, 10))
    inputs, labels = public.digits(frames, digits, "train")
    train(model, inputs.float(), labels, Recipe(epochs))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), path)
    return model
