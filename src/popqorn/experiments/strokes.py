"""Experiment II: which pen strokes decide how a drawn digit is read."""

from collections import Counter
from functools import cache

import torch

from popqorn.experiments import data, frames
from popqorn.experiments.networks import Architecture, Split, trained
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.training import Recipe
from popqorn.runs.store import Row

SAMPLES, QUICK_SAMPLES = 200, 8
ARCHITECTURE = Architecture("lstm", data.PEN_FEATURES, 32, 10)
RECIPE = Recipe(epochs=10, learning_rate=5e-3, weight_decay=1e-5)


def run(results: Results, setup: Setup) -> None:
    """Fill the tables `networks` and `frames` for test digits as the pen drew them."""

    @cache
    def split(name: str) -> Split:
        read = data.strokes(setup.data, name)
        return Split([torch.from_numpy(item) for item in read.items], torch.from_numpy(read.labels))

    model, accuracy = trained(setup, "strokes_lstm", ARCHITECTURE, RECIPE, lambda: (split("train"), split("test")))
    results.note("networks", {"network": "LSTM, 32 hidden", "accuracy": accuracy})
    digits = split("test")
    chosen = shortest(digits, setup.samples) if setup.quick else list(range(setup.samples))

    def drawn(sample: int, row: Row) -> Row:
        return {"points": digits.inputs[sample].tolist()}

    frames.measure(results, setup, model, digits.inputs, digits.labels, chosen, drawn)


def shortest(digits: Split, samples: int) -> list[int]:
    """The shortest digits, the classes in turn."""
    taken: Counter[int] = Counter()
    turns = []
    for length, number in sorted((len(digits.inputs[number]), number) for number in range(len(digits.labels))):
        label = int(digits.labels[number])
        turns.append((taken[label], length, number))
        taken[label] += 1
    return [number for _, _, number in sorted(turns)[:samples]]
