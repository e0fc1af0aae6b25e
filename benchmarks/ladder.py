"""The ladder of methods on public models: how much of the attacked radius each certifies, and what it costs.

    python benchmarks/ladder.py [--digits 3] [--models NAME ...] [--seconds 30] [--page]

One thread, p = inf, the first correct digits, targets as in the reference radii. Goes on where it was stopped
(`benchmarks/results/ladder.jsonl`). `--page` draws the figures of docs/tightness.md and writes its tables.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import public
import torch
from networks import pen
from tightness import correct

import popqorn
from popqorn.bounds.inner import operands_to_bound, relax
from popqorn.bounds.joint.bounds import Joint
from popqorn.experiments import data
from popqorn.relax.methods import METHODS
from popqorn.task import Question, read_spec

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "results" / "ladder.jsonl"
FIGURES = ROOT / "docs"
PAGE = ROOT / "docs" / "tightness.md"
MODELS = ("rnn_04f_032h", "mnist_04f_032h_1l", "mnist_04f_032h_2l", "rnn_07f_032h", "mnist_07f_032h_1l", "lstm_14f_032h")
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "interval": {"method": "interval"},
    "constants": {"method": "constants"},
    "lines": {"method": "lines"},
    "planes": {"method": "planes"},
    "tight 1": {"method": "tight", "effort": 1},
    "tight 2": {"method": "tight", "effort": 2},
    "tight 3": {"method": "tight", "effort": 3},
}
TOLERANCE = 5e-3
PEN_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Step:
    """One radius: of a digit, by a method, in so many seconds of processor time, beside the attacked one."""

    model: str
    digit: int
    method: str
    radius: float
    seconds: float
    attacked: float


def steps() -> list[Step]:
    return [Step(**json.loads(line)) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def measure(name: str, count: int, seconds: float) -> None:
    model, inputs, labels, targets, index = correct(name, count)
    done = {(step.model, step.digit, step.method) for step in steps()}
    for number, digit in enumerate(index.tolist()):
        one = slice(number, number + 1)
        given: dict[str, Any] = {"labels": labels[one], "targets": targets[one]}
        attacked = float(popqorn.attack(model, inputs[one], method="best", **given).radius)
        for method, options in METHOD_OPTIONS.items():
            if (name, digit, method) in done:
                continue
            limit = {"seconds": seconds} if method == "tight 3" else {}
            started = time.process_time()
            radius = float(popqorn.certify(model, inputs[one], tolerance=TOLERANCE, **given, **options, **limit).radius)
            step = Step(name, digit, method, radius, time.process_time() - started, attacked)
            with KEPT.open("a") as file:
                file.write(json.dumps(asdict(step)) + "\n")
            print(f"{name:20} {digit:4} {method:9} {radius:.5f} of {attacked:.5f}, {step.seconds:7.2f} s", flush=True)


def inflation(name: str) -> dict[str, list[float]]:
    """How much wider the boxes of operands are than to first order, frame by frame, at the radius of planes: the mean."""
    model, inputs, labels, targets, _ = correct(name, 1)
    eps = popqorn.certify(model, inputs, labels=labels, targets=targets).radius
    asked = read_spec(None, labels, targets)
    task = Question.read(model, inputs, lengths=None, region=popqorn.Ball(), spec=asked).tasks[0]
    joint = Joint.around(task.tape, task.allowed.at(eps), prove=False, memory={})
    relaxed = {
        "planes": relax(task.tape, task.allowed.at(eps), METHODS["planes"]),
        "tight": relax(task.tape, task.allowed.at(eps), METHODS["tight"], joint=joint),
    }
    widest = max(task.tape.nodes[position].width for position in operands_to_bound(task.tape))
    places = [place for place in sorted(operands_to_bound(task.tape)) if task.tape.nodes[place].width == widest]
    found = {}
    for method, each in relaxed.items():
        ratios = [(each.boxes[place].upper - each.boxes[place].lower) / 2 / joint.widths[place] for place in places]
        found[method] = [float(ratio.mean()) for ratio in ratios]
    return found


def pen_steps() -> list[tuple[float, float]]:
    """Share of the attacked radius that splitting certifies after so many seconds: twelve points before a digit's end."""
    model, drawn = pen().double(), data.strokes(public.DATA, "test")
    inputs = torch.from_numpy(drawn.items[0]).double().unsqueeze(0)
    scale = torch.zeros(inputs.shape[1:])
    scale[-12, :2] = 1
    region = popqorn.Ball(2, scale=scale)
    attacked = popqorn.attack(model, inputs, region=region, method="best").radius
    plain = popqorn.certify(model, inputs, region=region)
    shares = [(plain.seconds, float(plain.radius / attacked))]
    for seconds in PEN_SECONDS:
        found = popqorn.certify(model, inputs, region=region, method="split", seconds=seconds)
        shares.append((found.seconds, float(found.radius / attacked)))
    return shares


# ---- the page ----------------------------------------------------------------------------------------------------------------


def measured() -> list[str]:
    return [name for name in MODELS if any(step.model == name for step in steps())]


def means(name: str) -> dict[str, tuple[float, float]]:
    """Share of the attacked radius and seconds, by method."""
    found = {}
    for method in METHOD_OPTIONS:
        own = [step for step in steps() if (step.model, step.method) == (name, method)]
        if own:
            shares = [step.radius / step.attacked for step in own]
            found[method] = statistics.mean(shares), statistics.mean(step.seconds for step in own)
    return found


def table() -> list[str]:
    lines = ["| model | digits | " + " | ".join(METHOD_OPTIONS) + " |", "| --- | --- |" + " --- |" * len(METHOD_OPTIONS)]
    for name in measured():
        found, count = means(name), len({step.digit for step in steps() if step.model == name})
        cells = [f"{found[method][0]:.3f} ({found[method][1]:.2g} s)" if method in found else "" for method in METHOD_OPTIONS]
        lines.append(f"| {name} | {count} | " + " | ".join(cells) + " |")
    return lines


def draw_shares() -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    for name in measured():
        found = means(name)
        style = "s--" if name.startswith("rnn") else "o-"
        axes[0].plot(list(found), [share for share, _ in found.values()], style, label=name)
        axes[1].plot([seconds for _, seconds in found.values()], [share for share, _ in found.values()], style, label=name)
    axes[0].set_ylabel("certified / attacked radius (p = inf)")
    axes[0].set_ylim(0, 1)
    axes[0].tick_params(axis="x", rotation=30)
    axes[1].set_xscale("log")
    axes[1].set_xlabel("seconds per radius (one thread)")
    axes[1].set_ylim(0, 1)
    axes[1].legend(fontsize=7)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(FIGURES / "ladder.png", dpi=120)


def draw_inflation() -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
    for name in (name for name in measured() if not name.endswith("2l")):
        found = inflation(name)
        frames = range(1, len(found["planes"]) + 1)
        (line,) = axes[0].plot(frames, found["planes"], "o-", label=name)
        axes[0].plot(frames, found["tight"], "x--", color=line.get_color())
    axes[0].set_xlabel("frame (solid: planes, dashed: tight)")
    axes[0].set_ylabel("width of boxes / first order")
    axes[0].legend(fontsize=7)
    shares = pen_steps()
    axes[1].plot([seconds for seconds, _ in shares], [share for _, share in shares], "o-")
    axes[1].set_xlabel("seconds: planes, then split (a pen point, 12 frames to the end)")
    axes[1].set_ylabel("certified / attacked radius (p = 2)")
    axes[1].set_ylim(0, 1.02)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(FIGURES / "inflation.png", dpi=120)


def write_page() -> None:
    start, end = "<!-- ladder -->", "<!-- /ladder -->"
    before, _, rest = PAGE.read_text().partition(start + "\n")
    _, _, after = rest.partition(end)
    PAGE.write_text(before + start + "\n" + "\n".join(table()) + "\n" + end + after)
    draw_shares()
    draw_inflation()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of effort 3")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        measure(name, options.digits, options.seconds)
    print("\n".join(table()))
    if options.page:
        write_page()


if __name__ == "__main__":
    main()
