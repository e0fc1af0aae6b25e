"""How the time of one bound evaluation grows with frames, hidden size, samples and classes; with fitted exponents.

    python benchmarks/scaling.py

Prints the points, writes `benchmarks/results/scaling.json` and the figure `docs/scaling.png`.
"""

import json
import time
from pathlib import Path

import matplotlib
import numpy as np
import torch
from torch import nn

import popqorn

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
BASE = {"frames": 4, "hidden": 32, "samples": 8, "classes": 10}
CURVES = {
    "frames": (4, 7, 14, 28, 56),
    "hidden": (32, 64, 128, 256, 512),
    "samples": (1, 10, 100, 1000),
    "classes": (2, 10, 100, 1000),
}


def seconds(frames: int, hidden: int, samples: int, classes: int) -> float:
    """One `verify` of an LSTM on sequences of 784 numbers, p = 2; the better of two."""
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.LSTM(784 // frames, hidden), nn.Linear(hidden, classes)).double()
    inputs = torch.rand(samples, frames, 784 // frames, dtype=torch.float64)
    best = float("inf")
    for _ in range(2):
        started = time.perf_counter()
        popqorn.verify(model, inputs, 0.01, norm=2)
        best = min(best, time.perf_counter() - started)
        if best > 10:
            break
    return best


def main() -> None:
    torch.set_num_threads(2)
    seconds(**BASE)
    found = {}
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    for axis, (name, values) in zip(axes, CURVES.items(), strict=True):
        base = {**BASE, "samples": 2} if name == "hidden" else BASE
        times = [seconds(**{**base, name: value}) for value in values]
        half = len(values) // 2
        exponent = float(np.polyfit(np.log(values[half:]), np.log(times[half:]), 1)[0])
        found[name] = {"values": values, "seconds": times, "exponent": exponent}
        points = ", ".join(f"{value}: {second:.3g} s" for value, second in zip(values, times, strict=True))
        print(f"{name:8} {points};  exponent {exponent:.2f}", flush=True)
        axis.loglog(values, times, "o-")
        axis.set_xlabel(f"{name}  (exponent {exponent:.2f})")
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("seconds per evaluation")
    figure.suptitle("LSTM, float64, two cores; 4 frames x 32 hidden x 8 samples (hidden: 2) x 10 classes", fontsize=9)
    figure.savefig(ROOT / "docs" / "scaling.png", dpi=120)
    (ROOT / "benchmarks" / "results").mkdir(exist_ok=True)
    (ROOT / "benchmarks" / "results" / "scaling.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
