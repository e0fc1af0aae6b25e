"""Single frames by splitting: how much of the truth is proven, and how much more than planes prove.

    python benchmarks/split.py [--digits 20] [--last 3] [--early 2] [--beats 4] [--seconds 10]

Pen points: every digit's last ten points and some before, each moving alone in dx and dy (p = 2); beside the certified radius
stands the least distance at which a scan over 720 directions meets another decision. Heart beats: single frames of six samples.
"""

import argparse
import math
import statistics

import numpy as np
import public
import torch
from networks import beats, pen
from pen_points import scanned
from torch import Tensor

import popqorn
from popqorn.experiments import data, signals
from popqorn.experiments.training import decisions

LAST = 10


def chosen(frames: int, number: int, last: int, early: int) -> list[int]:
    """Some of the last ten points and some of those before, spread evenly, others for every digit."""
    generator = torch.Generator().manual_seed(number)
    late = frames - LAST + torch.randperm(min(LAST, frames), generator=generator)[:last]
    before = torch.randperm(max(frames - LAST, 0), generator=generator)[:early]
    return sorted([*before.tolist(), *late.tolist()])


def one_point(model: popqorn.SequenceClassifier, inputs: Tensor, point: int, seconds: float) -> tuple[float, float, float, str]:
    """The radius by planes, by splitting, the scan's, and what the second means."""
    scale = torch.zeros(inputs.shape[1:])
    scale[point, :2] = 1
    region = popqorn.Ball(2, scale=scale)
    planes = float(popqorn.certify(model, inputs, region=region).radius)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=seconds)
    most = float(found.refuted) if found.refuted is not None and found.refuted.isfinite().all() else 300.0
    return planes, float(found.radius), scanned(model, inputs, point, min(1.05 * most, 300.0)), found.status[0].name


def pen_points(digits: int, last: int, early: int, seconds: float) -> None:
    model, test = pen(), data.strokes(public.DATA, "test")
    drawn = [torch.from_numpy(item) for item in test.items[:200]]
    right = (decisions(model, drawn) == torch.from_numpy(test.labels[:200])).nonzero().squeeze(1).tolist()
    double = model.double()
    truth: list[float] = []
    gains: list[float] = []
    print(f"{'digit':>5} {'point':>5} {'left':>4} {'planes':>9} {'split':>9} {'scan':>9} {'split/scan':>10}  status")
    for number in right[:digits]:
        inputs = drawn[number].double().unsqueeze(0)
        frames = inputs.shape[1]
        for point in chosen(frames, number, last, early):
            planes, radius, scan, status = one_point(double, inputs, point, seconds)
            gains.append(radius / planes)
            share = radius / scan if math.isfinite(scan) else math.nan
            if frames - point <= LAST and math.isfinite(scan):
                truth.append(share)
            print(
                f"{number:5} {point:5} {frames - point:4} {planes:9.4f} {radius:9.4f} {scan:9.4f} {share:10.3f}  {status}",
                flush=True,
            )
    print(f"split / scan over {len(truth)} of the last ten points: mean {statistics.mean(truth):.3f}, least {min(truth):.3f}")
    mean, middle = statistics.mean(gains), statistics.median(gains)
    print(f"split / planes over {len(gains)} points: mean {mean:.1f}, median {middle:.1f}, least {min(gains):.2f}", flush=True)


def heart_beats(count: int, seconds: float) -> None:
    model, read = beats(), data.heart_beats(public.DATA, "test", signals.BEAT_FRAMES)
    inputs, labels = torch.from_numpy(np.stack(read.items[:400])), torch.from_numpy(read.labels[:400])
    right = (decisions(model, inputs) == labels).nonzero().squeeze(1)[:count]
    plain = popqorn.sensitivity(model.double(), inputs[right].double()).radius
    found = popqorn.sensitivity(model, inputs[right].double(), seconds=seconds)
    gains = found.radius / plain
    print(f"{'frame':>5} {'planes':>8} {'split':>8} {'ratio':>6}   means over {len(right)} heart beats")
    for frame in range(gains.shape[1]):
        columns = (part[:, frame].mean() for part in (plain, found.radius, gains))
        print(f"{frame:5} " + " ".join(f"{float(value):8.4f}" for value in columns))
    print(
        f"split / planes over {gains.numel()} frames: mean {float(gains.mean()):.3f}, least {float(gains.min()):.3f}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=20)
    parser.add_argument("--last", type=int, default=3, help="points of every digit out of the last ten")
    parser.add_argument("--early", type=int, default=2, help="points of every digit before those")
    parser.add_argument("--beats", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.digits:
        pen_points(options.digits, options.last, options.early, options.seconds)
    if options.beats:
        heart_beats(options.beats, options.seconds)


if __name__ == "__main__":
    main()
