"""What the machinery of runs costs: rows through the store, and what several processes gain.

    python benchmarks/runs.py [--rows 100000] [--samples 100]

The first part writes rows of a cheap question and reads them back; the second certifies digits by the bundled LSTM with one
process and with two, one thread each, in one run.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # of every process

import torch

import popqorn
from popqorn import bundled
from popqorn.runs.engine import Engine
from popqorn.runs.local import Processes
from popqorn.runs.run import prepare
from popqorn.runs.store import Store, key_of

BATCH = 16


def memory() -> float:
    """The most that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rows_through_the_store(count: int, folder: Path) -> None:
    store = Store.open(folder / "rows.sqlite")
    keys = [key_of(place) for place in range(count)]
    store.plan("run", (({"sample": place}, key) for place, key in enumerate(keys)))
    row = {"label": 1, "decision": 1, "radius": 0.125, "status": "certified", "margin": 1e-9, "difference": 0.0, "seconds": 0.01}
    started, before = time.perf_counter(), memory()
    for start in range(0, count, BATCH):
        some = keys[start : start + BATCH]
        assert not store.done(some)
        store.add((key, row) for key in some)
        if start % (count // 4) < BATCH:
            print(f"{start:8} rows, {time.perf_counter() - started:6.1f} s, {memory():.0f} MB at most", flush=True)
    written = time.perf_counter() - started
    started = time.perf_counter()
    found = sum(1 for _ in store.rows("run"))
    read = time.perf_counter() - started
    print(
        f"{found} rows: {1000 * written / count:.3f} ms a row to write, {1000 * read / count:.3f} ms to read, "
        f"memory {before:.0f} -> {memory():.0f} MB"
    )


def processes(samples: int, folder: Path) -> None:
    model = folder / "lstm.safetensors"
    popqorn.save(bundled.load_model("lstm"), model)
    digits, labels = bundled.load_digits(samples)
    seconds = {}
    for workers in (1, 2):
        engine: Engine = Processes(workers)
        prepared = prepare(str(model), (digits, labels.tolist()), popqorn.Plan(batch=8), store=folder / f"{workers}.sqlite")
        ticks = [time.perf_counter()]
        prepared.work(engine, lambda done, total, rows, ticks=ticks: ticks.append(time.perf_counter()))
        seconds[workers] = ticks[-1] - ticks[0]
        print(f"processes -n {workers}: {samples} digits in {seconds[workers]:.1f} s, start included", flush=True)
    print(f"processes -n 2: {seconds[1] / seconds[2]:.2f} times -n 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows_through_the_store(options.rows, Path(folder))
        processes(options.samples, Path(folder))


if __name__ == "__main__":
    main()
