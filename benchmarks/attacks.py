"""The attacks beside the published ones, and their cost.

    python benchmarks/attacks.py [--samples 100] [--method best] [--skip-reference | --skip-timing]

First every row of class `upper` in the reference radii (PGD on the public LSTMs and RNNs) beside ours; then the time of
`--samples` digits in three norms on the 4-frame LSTM. Writes `benchmarks/results/attacks.json`.
"""

import argparse
import json
import math
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import networks
import paper_speed
import public
import torch

import popqorn

RESULTS = Path(__file__).parent / "results"


def compare(method: str) -> list[dict[str, Any]]:
    """Our radius over the published one, row by row; and the certified radius over ours."""
    found = []
    print(f"{'model':18} {'norm':>4} {'rows':>4} {'ours / theirs':>13} {'most':>6} {'certified / ours':>16} {'seconds':>7}")
    rows = sorted(public.rows("upper"), key=lambda row: (row.model, row.norm))
    for (model, norm), group in groupby(rows, key=lambda row: (row.model, row.norm)):
        entries = list(group)
        inputs, _ = public.digits(public.frames_of(model), 1 + max(row.index for row in entries))
        inputs = inputs[[row.index for row in entries]]
        options = {"labels": [row.label for row in entries], "targets": [row.target for row in entries], "norm": norm}
        network = public.load_model(model)
        attacked = popqorn.attack(network, inputs, method=method, **options)
        certified = popqorn.certify(network, inputs, **options)
        ratio = attacked.radius / torch.tensor([row.eps for row in entries])
        least = certified.radius / attacked.radius
        found.append({"model": model, "norm": str(norm), "ratio": ratio.tolist(), "certified": least.tolist()})
        print(
            f"{model:18} {norm:4g} {len(entries):4} {float(ratio.mean()):13.4f} {float(ratio.max()):6.3f} "
            f"{float(least.max()):16.3f} {attacked.seconds:7.1f}",
            flush=True,
        )
    ratios = torch.tensor([value for row in found for value in row["ratio"]])
    print(f"{len(ratios)} rows: ours / theirs mean {float(ratios.mean()):.4f}, most {float(ratios.max()):.4f}")
    return found


def timing(method: str, samples: int) -> list[dict[str, Any]]:
    """Every norm on the trained 4-frame LSTM of `paper_speed.py`."""
    model = networks.network("lstm", 4, 32)
    inputs, labels = public.digits(4, samples)
    targets = paper_speed.random_targets(labels)
    found = []
    started = time.perf_counter()
    for norm in (1, 2, math.inf):

        def progress(done: int, total: int, norm: float = norm) -> None:
            print(f"\rp = {norm:g}: {done} of {total}, {time.perf_counter() - started:.0f} s", end="", flush=True)

        result = popqorn.attack(model, inputs, labels=labels, targets=targets, norm=norm, method=method, progress=progress)
        right = result.radius > 0
        found.append({"norm": str(norm), "seconds": result.seconds, "mean_radius": float(result.radius[right].mean())})
        print(f"\rp = {norm:g}: {samples} digits in {result.seconds:.1f} s, mean radius {found[-1]['mean_radius']:.5f}")
    print(f"three norms: {sum(row['seconds'] for row in found):.1f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--method", default="best")
    parser.add_argument("--skip-reference", action="store_true")
    parser.add_argument("--skip-timing", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(2)
    results = {}
    if not options.skip_reference:
        results["reference"] = compare(options.method)
    if not options.skip_timing:
        results["timing"] = timing(options.method, options.samples)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "attacks.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
