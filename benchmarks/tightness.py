"""What joint bounds (`method="tight"`) are worth: radii beside those of planes and of every other program, and their time.

    python benchmarks/tightness.py [--samples 5] [--only ratios others accuracy batches efforts] [--models NAME ...]
                                   [--effort 1 2 3]

One thread, one digit at a time: the first correct digits of the public models, targets as in the reference radii; a bundled GRU
and an LSTM of 14 frames, trained here once. `ratios` prints tight / planes and the seconds of both; `others` every row of every
other program on the same digits; `accuracy` how many of the first 100 digits are certified inside [0, 1], untargeted;
`batches` the time of a batch of 20 beside that of single digits; `efforts` radii and seconds of several efforts.
"""

import argparse
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import public
import torch
from networks import network
from torch import Tensor

import popqorn
from popqorn import bundled

TOLERANCE = 5e-3
NORMS = {
    "mnist_04f_032h_1l": (math.inf, 2.0, 1.0),
    "mnist_07f_032h_1l": (math.inf, 2.0),
    "mnist_04f_032h_2l": (math.inf, 2.0),
    "rnn_04f_032h": (math.inf, 2.0, 1.0),
    "rnn_07f_032h": (math.inf, 2.0, 1.0),
    "gru_04f_032h (bundled)": (math.inf, 2.0),
    "lstm_14f_032h": (math.inf,),
}
OWN: dict[str, tuple[int, Callable[[], popqorn.SequenceClassifier]]] = {
    "gru_04f_032h (bundled)": (4, lambda: bundled.load_model("gru")),
    "lstm_14f_032h": (14, lambda: network("lstm", 14, 32)),
}
ACCURACY = {"mnist_04f_032h_1l": 0.017, "mnist_07f_032h_1l": 0.014}


@dataclass(frozen=True)
class Digit:
    """One digit of the test set, and its radii and seconds by both methods."""

    index: int
    planes: float
    tight: float
    planes_seconds: float
    tight_seconds: float


def loaded(name: str) -> tuple[int, popqorn.SequenceClassifier]:
    if name in OWN:
        frames, load = OWN[name]
        return frames, load()
    return public.frames_of(name), public.load_model(name)


def correct(name: str, count: int) -> tuple[popqorn.SequenceClassifier, Tensor, Tensor, Tensor, Tensor]:
    """A model, its first correct digits, their labels, targets and places in the test set."""
    frames, model = loaded(name)
    inputs, labels = public.digits(frames, 4 * count + 10)
    with torch.no_grad():
        right = (model(inputs.to(next(model.parameters()))).argmax(-1) == labels).nonzero().squeeze(1)[:count]
    return model, inputs[right], labels[right], (labels[right] + 1 + right % 9) % 10, right


def measured(name: str, norm: float, samples: int) -> list[Digit]:
    model, inputs, labels, targets, places = correct(name, samples)
    found = []
    for number, place in enumerate(places.tolist()):
        one = slice(number, number + 1)
        asked = {"labels": labels[one], "targets": targets[one], "norm": norm, "tolerance": TOLERANCE}
        planes, tight = (popqorn.certify(model, inputs[one], method=method, **asked) for method in ("planes", "tight"))
        found.append(Digit(place, float(planes.radius), float(tight.radius), planes.seconds, tight.seconds))
        print(
            f"{name:24} {norm:5g} {place:5} {float(planes.radius):9.5f} {float(tight.radius):9.5f}"
            f" {float(tight.radius / planes.radius):7.3f} {planes.seconds:8.2f} {tight.seconds:8.2f}",
            flush=True,
        )
    return found


def ratios(names: list[str], samples: int) -> dict[tuple[str, float], list[Digit]]:
    print(f"{'model':24} {'norm':>5} {'digit':>5} {'planes':>9} {'tight':>9} {'ratio':>7} {'s':>8} {'s tight':>8}")
    table = {(name, norm): measured(name, norm, samples) for name in names for norm in NORMS[name]}
    print(f"\n{'model':24} {'norm':>5} {'mean':>7} {'least':>7} {'most':>7} {'seconds':>8} {'over planes':>12}")
    for (name, norm), digits in table.items():
        gains = [digit.tight / digit.planes for digit in digits]
        seconds, plain = (statistics.mean(getattr(digit, f"{each}_seconds") for digit in digits) for each in ("tight", "planes"))
        print(
            f"{name:24} {norm:5g} {statistics.mean(gains):7.3f} {min(gains):7.3f} {max(gains):7.3f} {seconds:8.1f}"
            f" {seconds / plain:12.0f}",
            flush=True,
        )
    return table


def others(table: dict[tuple[str, float], list[Digit]]) -> None:
    """Every row of another program on a digit that was measured."""
    ours = {(name, norm, digit.index): digit.tight for (name, norm), digits in table.items() for digit in digits}
    found: dict[tuple[str, float, str, str], list[float]] = defaultdict(list)
    for row in [row for kind in ("plain", "optimised", "weak") for row in public.rows(kind)]:
        if (row.model, row.norm, row.index) in ours:
            found[row.model, row.norm, row.program, row.method].append(ours[row.model, row.norm, row.index] / row.eps)
    print(f"\n{'model':20} {'norm':>5} {'program':17} {'method':24} {'rows':>4} {'least':>7} {'mean':>7}   tight / theirs")
    for (name, norm, program, method), values in sorted(found.items(), key=str):
        print(f"{name:20} {norm:5g} {program:17} {method:24} {len(values):4} {min(values):7.3f} {statistics.mean(values):7.3f}")
    every = [value for values in found.values() for value in values]
    if every:
        print(f"{len(every)} rows, least {min(every):.3f}, {sum(value <= 1 for value in every)} not passed", flush=True)


def accuracy(names: list[str], samples: int) -> None:
    """Certified among the first digits at one size, inside [0, 1]."""
    print(f"\n{'model':20} {'eps':>6} {'right':>5} {'planes':>6} {'tight':>6} {'seconds':>8}")
    for name in (name for name in names if name in ACCURACY):
        model, eps = public.load_model(name), ACCURACY[name]
        inputs, labels = public.digits(public.frames_of(name), samples)
        asked = {"labels": labels, "region": popqorn.Ball(clip=(0, 1))}
        plain = popqorn.verify(model, inputs, eps, **asked)
        with torch.no_grad():
            right = model(inputs.to(next(model.parameters()))).argmax(-1) == labels
        left = (right & ~plain.certified).nonzero().squeeze(1)
        started, proven = time.perf_counter(), int(plain.certified.sum())
        for number in left.tolist():
            one = slice(number, number + 1)
            tight = popqorn.verify(model, inputs[one], eps, labels=labels[one], region=asked["region"], method="tight")
            proven += int(tight.certified)
        seconds = time.perf_counter() - started
        print(f"{name:20} {eps:6g} {int(right.sum()):5} {int(plain.certified.sum()):6} {proven:6} {seconds:8.0f}", flush=True)


def batches(names: list[str], single: dict[tuple[str, float], list[Digit]]) -> None:
    print(f"\n{'model':24} {'one at a time':>14} {'20 at once':>11} {'ratio':>6}   seconds per radius, p = inf")
    for name in names:
        if (name, math.inf) in single:
            model, inputs, labels, targets, _ = correct(name, 20)
            found = popqorn.certify(model, inputs, labels=labels, targets=targets, method="tight", tolerance=TOLERANCE)
            alone, together = statistics.mean(digit.tight_seconds for digit in single[name, math.inf]), found.seconds / 20
            print(f"{name:24} {alone:14.2f} {together:11.2f} {alone / together:6.2f}", flush=True)


def efforts(names: list[str], samples: int, wanted: list[int]) -> None:
    """Radii by effort, relative to the first one given, and the seconds of each."""
    columns = "".join(f" {f'effort {effort}':>10} {'ratio':>7} {'s':>7}" for effort in wanted)
    print(f"\n{'model':24} {'norm':>5} {'digit':>5}{columns}")
    for name, norm in ((each, norm) for each in names for norm in NORMS[each]):
        model, inputs, labels, targets, places = correct(name, samples)
        for number, place in enumerate(places.tolist()):
            one = slice(number, number + 1)
            asked = {"labels": labels[one], "targets": targets[one], "norm": norm, "tolerance": TOLERANCE, "method": "tight"}
            found = [popqorn.certify(model, inputs[one], effort=effort, **asked) for effort in wanted]
            first = float(found[0].radius)
            told = "".join(f" {float(each.radius):10.6f} {float(each.radius) / first:7.4f} {each.seconds:7.1f}" for each in found)
            print(f"{name:24} {norm:5g} {place:5}{told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--digits", type=int, default=100, help="of `accuracy`")
    parser.add_argument("--only", nargs="+", default=["ratios", "others", "accuracy", "batches"])
    parser.add_argument("--models", nargs="+", default=list(NORMS))
    parser.add_argument("--effort", nargs="+", type=int, default=[1, 2], help="of `efforts`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = ratios(options.models, options.samples) if set(options.only) & {"ratios", "others", "batches"} else {}
    if "others" in options.only:
        others(table)
    if "accuracy" in options.only:
        accuracy(options.models, options.digits)
    if "efforts" in options.only:
        efforts(options.models, options.samples, options.effort)
    if "batches" in options.only:
        batches(options.models, table)


if __name__ == "__main__":
    main()
