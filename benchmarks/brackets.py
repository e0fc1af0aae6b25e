"""What is still open: attacked / certified radius of Experiment I's networks of 32 hidden units, by planes and by joint bounds.

    python benchmarks/brackets.py [--samples 50] [--norm 2] [--networks lstm_4x32 ...] [--page]

Random targets, as in the experiment. Goes on where it was stopped (`benchmarks/results/brackets.jsonl`); `--page` writes the
table into docs/results/mnist.md.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import public
import torch

import popqorn
from popqorn.experiments.mnist import NETWORKS, Digits, Network
from popqorn.experiments.networks import Split
from popqorn.experiments.setup import Setup
from popqorn.experiments.tracking import silent
from popqorn.experiments.training import stacked

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "benchmarks" / "results" / "brackets.jsonl"
PAGE = ROOT / "docs" / "results" / "mnist.md"
MARKS = "<!-- brackets -->", "<!-- /brackets -->"
TOLERANCE = 5e-3
BLOCK = 10


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def measure(network: Network, digits: Digits, setup: Setup, norm: float, samples: int) -> None:
    """One row per digit that is decided rightly, block by block."""
    model, _ = digits.network(network, setup)
    split: Split = digits.split(digits.test, network.frames)
    done = {row["digit"] for row in rows() if (row["network"], row["norm"]) == (network.name, norm)}
    for block in torch.arange(samples).split(BLOCK):
        if int(block[0]) in done:
            continue
        images = stacked(split.inputs, block)
        given = {"labels": split.labels[block], "targets": digits.targets[block], "norm": norm}
        attacked = popqorn.attack(model, images, method="best", **given)
        plain = popqorn.certify(model, images, tolerance=TOLERANCE, **given)
        tight = popqorn.certify(model, images, tolerance=TOLERANCE, method="tight", **given)
        columns = zip(block.tolist(), attacked.radius.tolist(), plain.radius.tolist(), tight.radius.tolist(), strict=True)
        seconds = {"planes": plain.seconds / len(block), "tight": tight.seconds / len(block)}
        with ROWS.open("a") as file:
            for digit, reached, low, high in columns:
                row = {"network": network.name, "norm": norm, "digit": digit, "attacked": reached, "planes": low, "tight": high}
                file.write(json.dumps({**row, "seconds": seconds}) + "\n")
        print(f"{network.name} {norm:g}: {int(block[-1]) + 1} of {samples}, {seconds['tight']:.1f} s per digit", flush=True)


def table() -> list[str]:
    """Medians over the digits that are decided rightly."""
    lines = [
        "| network | norm | digits | tight / planes (mean) | attacked / certified by planes (median) | by tight (median) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    order = {network.name: place for place, network in enumerate(NETWORKS)}
    for name, norm in sorted({(row["network"], row["norm"]) for row in rows()}, key=lambda each: (order[each[0]], -each[1])):
        right = [row for row in rows() if (row["network"], row["norm"]) == (name, norm) and row["planes"] > 0]
        gain = statistics.mean(row["tight"] / row["planes"] for row in right)
        broken = [row for row in right if math.isfinite(row["attacked"])]
        before, after = (statistics.median(row["attacked"] / row[method] for row in broken) for method in ("planes", "tight"))
        lines.append(f"| {name} | {norm:g} | {len(right)} | {gain:.2f} | {before:.2f} | **{after:.2f}** |")
    return lines


def write_page() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(MARKS[0] + "\n")
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(before + MARKS[0] + "\n" + "\n".join(table()) + "\n" + MARKS[1] + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--norm", type=float, default=2.0)
    small = [network.name for network in NETWORKS if network.hidden == 32]
    parser.add_argument("--networks", nargs="*", default=small, choices=[network.name for network in NETWORKS])
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    digits = Digits.read(public.DATA)
    setup = Setup(data=public.DATA, networks=ROWS.parent / "networks", samples=0, quick=False, track=silent)
    for network in sorted(
        (each for each in NETWORKS if each.name in options.networks), key=lambda each: (each.frames, each.kind)
    ):
        measure(network, digits, setup, options.norm, options.samples)
    print("\n".join(table()))
    if options.page:
        write_page()


if __name__ == "__main__":
    main()
