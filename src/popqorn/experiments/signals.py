"""Beyond the paper: which moments decide how a spoken digit is heard, and how a heart beat is judged."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from popqorn.experiments import data, frames
from popqorn.experiments.networks import Architecture, Split, trained
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.training import Recipe
from popqorn.runs.store import Row

SAMPLES, QUICK_SAMPLES = 300, 12
HIDDEN = 32
RATE, WINDOW, HOP, BANDS = 8000, 256, 200, 20
SPEECH_RECIPE = Recipe(epochs=25, batch=32, learning_rate=5e-3, weight_decay=1e-5)
ECG_RECIPE = Recipe(epochs=5, batch=100, learning_rate=3e-3, weight_decay=1e-4)
LONGEST = 16  # frames of a recording in a quick run
BEAT_FRAMES, BEAT_SAMPLES = 14, 84
BEAT_CLASSES = ("N (normal)", "V (ventricular)")


def log_mel(wave: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log energies of a waveform `[samples, 1]` in `BANDS` mel bands, a frame every 25 ms: `[frames, BANDS]`."""
    samples = np.pad(wave[:, 0], (0, max(0, WINDOW - len(wave))))
    starts = np.arange(0, len(samples) - WINDOW + 1, HOP)
    windows = samples[starts[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW)
    energies = np.abs(np.fft.rfft(windows, axis=1)) ** 2
    return np.log(energies @ _mel_filters().T + 1e-6).astype(np.float32)


@cache
def _mel_filters() -> NDArray[np.float64]:
    """Triangles over the frequencies of a window, equally spaced in mel: `[BANDS, WINDOW / 2 + 1]`."""
    frequencies = np.fft.rfftfreq(WINDOW, 1 / RATE)
    highest = 2595 * np.log10(1 + RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, BANDS + 2) / 2595) - 1)
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    return np.clip(np.minimum((frequencies - low) / (middle - low), (high - frequencies) / (high - middle)), 0, None)


def recordings(folder: Path) -> Callable[[str], Split]:
    """The spoken digits of a split as bands, which have mean 0 and deviation 1 over the training set."""

    @cache
    def bands(name: str) -> tuple[list[NDArray[np.float32]], Tensor]:
        read = data.speech(folder, name)
        return [log_mel(item) for item in read.items], torch.from_numpy(read.labels)

    @cache
    def split(name: str) -> Split:
        training = np.concatenate(bands("train")[0])
        mean, deviation = training.mean(0), training.std(0)
        items, labels = bands(name)
        return Split([torch.from_numpy((item - mean) / deviation) for item in items], labels)

    return split


def beats(folder: Path) -> Callable[[str], Split]:
    """The heart beats of a split."""

    @cache
    def split(name: str) -> Split:
        read = data.heart_beats(folder, name, BEAT_FRAMES)
        return Split(torch.from_numpy(np.stack(read.items)), torch.from_numpy(read.labels))

    return split


def run_speech(results: Results, setup: Setup) -> None:
    """Fill the tables `networks` and `frames` for spoken digits."""
    split = recordings(setup.data)
    architecture = Architecture("lstm", BANDS, HIDDEN, 10)
    model, accuracy = trained(setup, "speech_lstm", architecture, SPEECH_RECIPE, lambda: (split("train"), split("test")))
    results.note("networks", {"network": f"LSTM, {HIDDEN} hidden", "accuracy": accuracy})
    test = split("test")
    chosen = _spread_over_classes(test, LONGEST if setup.quick else None)[: setup.samples]

    def picture(sample: int, row: Row) -> Row:
        return {"picture": [[round(value, 3) for value in frame] for frame in test.inputs[sample].tolist()]}

    frames.measure(results, setup, model, test.inputs, test.labels, chosen, picture)


def run_ecg(results: Results, setup: Setup) -> None:
    """Fill the tables `networks` and `frames` for heart beats of patients the network has not seen."""

    split = beats(setup.data)
    architecture = Architecture("lstm", BEAT_SAMPLES // BEAT_FRAMES, HIDDEN, len(BEAT_CLASSES))
    model, accuracy = trained(setup, "ecg_lstm", architecture, ECG_RECIPE, lambda: (split("train"), split("test")))
    results.note("networks", {"network": f"LSTM, {HIDDEN} hidden", "accuracy": accuracy})
    test = split("test")

    def trace(sample: int, row: Row) -> Row:
        about = {"label": BEAT_CLASSES[row["label"]], "decision": BEAT_CLASSES[row["decision"]]}
        return {**about, "trace": [[round(value, 4) for value in frame] for frame in test.inputs[sample].tolist()]}

    frames.measure(results, setup, model, test.inputs, test.labels, _spread_over_classes(test)[: setup.samples], trace)


def _spread_over_classes(split: Split, longest: int | None = None) -> list[int]:
    """All samples (of at most `longest` frames), one of every class in turn, drawn from all over the set."""
    order = torch.randperm(len(split.labels), generator=torch.Generator().manual_seed(0)).tolist()
    kept = [number for number in order if longest is None or len(split.inputs[number]) <= longest]
    turns: dict[int, int] = {}
    places = []
    for number in kept:
        label = int(split.labels[number])
        turns[label] = turns.get(label, -1) + 1
        places.append((turns[label], label, number))
    return [number for _, _, number in sorted(places)]
