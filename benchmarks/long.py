"""Long sequences: seconds of one `verify`, and how much of the radius is left by walks that end at stations.

    python benchmarks/long.py [--frames 50 100 200 1000] [--norm 2] [--ratio] [--sensitivity]

LSTMs that tell waves of three lengths apart, trained for a minute; 64 hidden units, 16 at 1,000 frames. `--ratio` also searches
the radius with and without stations (minutes, at 200 frames and more hours: without them the time is quadratic).
"""

import argparse
import importlib
import resource
import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn

import popqorn
from popqorn.bounds.stations import Plan

FEATURES, CLASSES = 6, 3
inner = importlib.import_module("popqorn.bounds.inner")


def waves(count: int, frames: int) -> tuple[Tensor, Tensor]:
    """Noisy waves of two, four or six periods."""
    labels = torch.randint(0, CLASSES, (count,))
    time_of = torch.linspace(0, 1, frames).view(1, -1, 1) * (2 + 2 * labels).view(-1, 1, 1)
    shift = torch.rand(count, 1, 1) + 0.11 * torch.arange(FEATURES)
    return 0.8 * torch.sin(2 * torch.pi * (time_of + shift)) + 0.1 * torch.randn(count, frames, FEATURES), labels


def trained(frames: int, hidden: int, steps: int) -> popqorn.SequenceClassifier:
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.LSTM(FEATURES, hidden), nn.Linear(hidden, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        inputs, labels = waves(64, frames)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, nargs="*", default=[50, 100, 200, 1000])
    parser.add_argument("--norm", type=float, default=2.0)
    parser.add_argument("--ratio", action="store_true")
    parser.add_argument("--sensitivity", action="store_true")
    options = parser.parse_args()
    print(f"{'frames':>6} {'hidden':>6} {'radius':>9} {'seconds':>8} {'whole walks':>11} {'ratio':>6} {'GB':>5}")
    for frames in options.frames:
        hidden = 16 if frames >= 1000 else 64
        model = trained(frames, hidden, 500 if frames < 1000 else 20)
        inputs = waves(1, frames)[0]
        eps = 0.01 if frames < 1000 else 0.001
        once = partial(popqorn.verify, model, inputs, eps, norm=options.norm)
        seconds = min(timed(once) for _ in range(2))
        radius = whole = ratio = float("nan")
        if options.ratio:
            radius = float(popqorn.certify(model, inputs, norm=options.norm, tolerance=0.01).radius)
            with patch.object(inner, "plan_of", Plan):
                whole = timed(once)
                ratio = radius / float(popqorn.certify(model, inputs, norm=options.norm, tolerance=0.01).radius)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{frames:6} {hidden:6} {radius:9.4f} {seconds:8.2f} {whole:11.2f} {ratio:6.3f} {held:5.2f}", flush=True)
    if options.sensitivity:
        model, inputs = trained(100, 64, 500), waves(1, 100)[0]
        print(f"sensitivity, 100 frames x 64: {timed(lambda: popqorn.sensitivity(model, inputs)):.0f} s", flush=True)


if __name__ == "__main__":
    main()
