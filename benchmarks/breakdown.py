"""Where the time of a certified radius goes, and how near the backward walk comes to the machine's matrix products.

    python benchmarks/breakdown.py [--samples 100]

All numbers of one table come from one run: shares of the time, and the walk's GFLOP/s beside those of one large matrix product.
Writes `benchmarks/results/breakdown.json`.
"""

import argparse
import json
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import networks
import public
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import popqorn
from popqorn import task as tasks
from popqorn.bounds import inner
from popqorn.regions.ball import BallSet
from popqorn.relax.methods import Method

RESULTS = Path(__file__).parent / "results"
TRIES = 5
SIZES = (("rnn", 7, 64), ("lstm", 4, 32), ("lstm", 7, 128), ("lstm", 4, 256), ("gru", 7, 64), ("gru", 7, 128))
CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """Seconds spent in each stage while the context is open. Stages nest: concretising happens inside the walk."""
    seconds: dict[str, float] = defaultdict(float)
    stages: list[tuple[Any, str, str]] = [
        (Method, "relax", "relaxation"),
        (inner, "walk_back", "walk"),
        (BallSet, "part", "concretise"),
        (inner, "propagate", "interval"),
        (inner.RelaxedTape, "lower", "margin"),
        (tasks, "relax", "relax_tape"),
        (tasks, "first_order", "first order"),
    ]

    def timed(function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                seconds[stage] += time.perf_counter() - started

        return call

    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in stages]
    for owner, name, stage in stages:
        setattr(owner, name, timed(getattr(owner, name), stage))
    try:
        yield seconds
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def matrix_speed(size: int = 1536) -> float:
    """GFLOP/s of one large float64 matrix product, the best of a few."""
    left, right = torch.randn(2, size, size, dtype=torch.float64)
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best / 1e9


def random_network(kind: str, frames: int, hidden: int) -> popqorn.SequenceClassifier:
    torch.manual_seed(0)
    return popqorn.SequenceClassifier(CELLS[kind](784 // frames, hidden), nn.Linear(hidden, 10))


def measure(kind: str, frames: int, hidden: int, samples: int, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """One row of the table: a whole certification, and one evaluation of all samples at their radii timed by stage."""
    model = random_network(kind, frames, hidden)
    inputs, _ = public.digits(frames, samples)
    labels = model.double()(inputs).argmax(-1)
    options = {"labels": labels, "targets": (labels + 1) % 10, "norm": 2, "dtype": dtype}
    with stopwatch() as whole:
        found = popqorn.certify(model, inputs, **options)
    spec = popqorn.Decision(labels, options["targets"])
    asked = tasks.Question.read(model, inputs, lengths=None, region=popqorn.Ball(2), spec=spec, dtype=dtype)
    (task,) = asked.tasks

    def evaluate() -> None:
        for index in task.blocks():
            task.select(index).prove(found.radius[index])

    with FlopCounterMode(display=False) as counter:
        evaluate()
    tries = []
    for _ in range(TRIES):
        peak = matrix_speed()
        with stopwatch() as seconds:
            started = time.perf_counter()
            evaluate()
            total = time.perf_counter() - started
        tries.append((total, peak, seconds))
    total, _, seconds = sorted(tries, key=lambda entry: entry[0])[TRIES // 2]  # the median: the machine is noisy
    return {
        "network": f"{kind} {frames}x{hidden}",
        "samples": samples,
        "dtype": str(dtype).removeprefix("torch."),
        "ms_per_radius": 1000 * found.seconds / samples,
        "evaluations": float(found.evaluations.double().mean()),
        "search": 1 - (whole["relax_tape"] + whole["margin"]) / found.seconds,
        "relaxation": seconds["relaxation"] / total,
        "walk": (seconds["walk"] - seconds["concretise"]) / total,
        "concretise": seconds["concretise"] / total,
        "walk_gflops": counter.get_total_flops() / (seconds["walk"] - seconds["concretise"]) / 1e9,
        "matrix_gflops": median(peak for _, peak, _ in tries),
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def compare_dtypes(samples: int) -> None:
    """float32 beside float64 on a trained network: time, and how far the radii move."""
    model = networks.network("lstm", 4, 32)
    inputs, labels = public.digits(4, samples)
    options = {"labels": labels, "targets": (labels + 1) % 10, "norm": 2, "tolerance": 1e-5}
    double = popqorn.certify(model, inputs, **options)
    single = popqorn.certify(model, inputs, dtype=torch.float32, **options)
    right = double.radius > 0
    moved = (single.radius.double()[right] / double.radius[right] - 1).abs()
    print(
        f"float32 on lstm 4x32: {double.seconds / single.seconds:.2f} times as fast as float64; "
        f"radii move by {float(moved.median()):.1e} (median), {float(moved.max()):.1e} (most)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--only")
    options = parser.parse_args()
    torch.set_num_threads(2)
    rows = []
    print(
        "one radius: milliseconds, evaluations, share of the search itself; one evaluation: shares of relaxations,\n"
        "backward walks and norms, GFLOP/s of the walk beside one large matrix product; peak memory"
    )
    print(
        f"{'network':12} {'samples':>7} {'ms/radius':>9} {'evals':>5} {'search':>6} {'relax':>6} {'walk':>6} {'norms':>6} "
        f"{'GFLOP/s':>8} {'matmul':>7} {'share':>6} {'GB':>5}"
    )
    for kind, frames, hidden in SIZES:
        if options.only not in (None, f"{kind}_{frames}x{hidden}"):
            continue
        samples = options.samples if hidden < 128 else max(4, options.samples // 5)
        row = measure(kind, frames, hidden, samples)
        rows.append(row)
        print(
            f"{row['network']:12} {samples:7} {row['ms_per_radius']:9.1f} {row['evaluations']:5.1f} {row['search']:6.1%} "
            f"{row['relaxation']:6.1%} {row['walk']:6.1%} {row['concretise']:6.1%} {row['walk_gflops']:8.1f} "
            f"{row['matrix_gflops']:7.1f} {row['walk_gflops'] / row['matrix_gflops']:6.1%} {row['peak_memory_gb']:5.2f}",
            flush=True,
        )
    if options.only is None:
        compare_dtypes(options.samples)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "breakdown.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
