"""The paper's 64 GPU-hours on two cores: 1,000 MNIST digits, random targets, p = 2, per network.

    python benchmarks/paper_speed.py [--samples 1000] [--only lstm_4x32] [--readme]

The paper took 4 hours on 16 GPUs for the 4-frame LSTM and a day for the 14-frame one. Prints a table, writes
`benchmarks/results/paper_speed.json`, and with `--readme` puts the table into README.md.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import networks
import public
import torch

import popqorn

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = 250
PAPER = {"lstm_4x32": "4 h on 16 GPUs", "lstm_14x32": "a day on 16 GPUs"}


@dataclass(frozen=True)
class Task:
    """One network of the table, and how many seconds 1,000 digits may take."""

    kind: str
    frames: int
    hidden: int
    limit: float

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.frames}x{self.hidden}"


TASKS = (Task("rnn", 7, 64, 30), Task("lstm", 4, 32, 120), Task("gru", 7, 64, 300), Task("lstm", 14, 32, 900))


@dataclass(frozen=True)
class Timing:
    """What certifying one network took."""

    network: str
    samples: int
    seconds: float
    limit: float
    evaluations: float
    mean_radius: float


def random_targets(labels: torch.Tensor) -> torch.Tensor:
    """A class other than the label for every digit, the same on every machine."""
    generator = torch.Generator().manual_seed(0)
    return (labels + torch.randint(1, 10, labels.shape, generator=generator)) % 10


def measure(task: Task, samples: int) -> Timing:
    model = networks.network(task.kind, task.frames, task.hidden)
    inputs, labels = public.digits(task.frames, samples)
    targets = random_targets(labels)
    radii, evaluations = [], []
    started = time.perf_counter()
    for index in torch.arange(samples).split(BLOCK):
        found = popqorn.certify(model, inputs[index], labels=labels[index], targets=targets[index], norm=2)
        right = found.evaluations > 0
        radii.append(found.radius[right])
        evaluations.append(found.evaluations[right])
        print(f"\r{task.name}: {int(index[-1]) + 1} of {samples}, {time.perf_counter() - started:.0f} s", end="", flush=True)
    seconds = time.perf_counter() - started
    print("\r" + " " * 60, end="\r")
    mean_evaluations = float(torch.cat(evaluations).double().mean())
    return Timing(task.name, samples, seconds, task.limit * samples / 1000, mean_evaluations, float(torch.cat(radii).mean()))


def write_readme(timings: list[Timing]) -> None:
    """Put the table between its two marks in README.md."""
    lines = ["| network | digits | seconds | ms per radius | evaluations | the paper |", "| --- | --- | --- | --- | --- | --- |"]
    for row in timings:
        kind, size = row.network.split("_")
        name = f"{kind.upper()}, {size.replace('x', ' frames x ')}"
        each = 1000 * row.seconds / row.samples
        paper = PAPER.get(row.network, "")
        lines.append(f"| {name} | {row.samples} | {row.seconds:.0f} | {each:.0f} | {row.evaluations:.1f} | {paper} |")
    path = ROOT / "README.md"
    before, _, rest = path.read_text().partition("<!-- speed -->\n")
    _, _, after = rest.partition("<!-- /speed -->")
    path.write_text(before + "<!-- speed -->\n" + "\n".join(lines) + "\n<!-- /speed -->" + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--only", choices=[task.name for task in TASKS])
    options = parser.parse_args()
    torch.set_num_threads(2)
    timings = []
    print(f"{'network':12} {'samples':>7} {'seconds':>8} {'limit':>6} {'ms/radius':>9} {'evaluations':>11} {'mean radius':>11}")
    for task in TASKS:
        if options.only in (None, task.name):
            row = measure(task, options.samples)
            timings.append(row)
            each = 1000 * row.seconds / row.samples
            print(
                f"{row.network:12} {row.samples:7} {row.seconds:8.1f} {row.limit:6.0f} {each:9.1f} "
                f"{row.evaluations:11.2f} {row.mean_radius:11.5f}",
                flush=True,
            )
    if options.readme:
        write_readme(timings)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "paper_speed.json").write_text(json.dumps([asdict(row) for row in timings], indent=1))


if __name__ == "__main__":
    main()
