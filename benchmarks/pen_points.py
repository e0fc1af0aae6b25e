"""Attacks on single pen points (two features) beside a scan over 720 directions that knows nothing of them.

    python benchmarks/pen_points.py [--digits 20]

Trains the LSTM of the stroke experiment, lets one point of every digit move in dx and dy (p = 2) and compares the radius that
`popqorn.attack` finds with the least distance at which the scan meets another decision.
"""

import argparse
import math

import public
import torch
from networks import pen
from torch import Tensor

import popqorn
from popqorn.experiments import data
from popqorn.experiments.training import decisions

DIRECTIONS = 720
STEP = 1.03  # between the distances of the scan
ROWS = 20_000


@torch.no_grad()
def scanned(model: popqorn.SequenceClassifier, inputs: Tensor, point: int, most: float) -> float:
    """The least distance up to `most` at which one of the directions leads to another decision; inf if none does."""
    label = int(model(inputs).argmax())
    angle = torch.arange(DIRECTIONS, dtype=inputs.dtype) * (2 * math.pi / DIRECTIONS)
    ways = torch.stack([angle.cos(), angle.sin()], dim=-1)
    distance = most * 0.02
    while distance <= most:
        sizes = distance * STEP ** torch.arange(max(1, ROWS // DIRECTIONS))
        moved = inputs.repeat(len(sizes) * DIRECTIONS, 1, 1)
        moved[:, point, :2] += (sizes[:, None, None] * ways).reshape(-1, 2)
        other = (model(moved).argmax(-1) != label).view(len(sizes), DIRECTIONS).any(-1)
        if other.any():
            return float(sizes[int(other.to(torch.uint8).argmax())])
        distance = float(sizes[-1]) * STEP
    return math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=20)
    parser.add_argument("--method", default=None, help="of the attack; by default that of popqorn.attack")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model, test = pen(), data.strokes(public.DATA, "test")
    found = [torch.from_numpy(item) for item in test.items[:200]]
    right = (decisions(model, found) == torch.from_numpy(test.labels[:200])).nonzero().squeeze(1).tolist()
    double = model.double()
    ratios = []
    print(f"{'digit':>5} {'point':>5} {'of':>3} {'attack':>9} {'scan':>9} {'ratio':>6}")
    for number in right[: options.digits]:
        inputs = found[number].double().unsqueeze(0)
        point = int(torch.randint(inputs.shape[1], (1,)))
        scale = torch.zeros(inputs.shape[1:])
        scale[point, :2] = 1
        reached = float(popqorn.attack(double, inputs, region=popqorn.Ball(2, scale=scale), method=options.method).radius)
        least = scanned(double, inputs, point, min(1.05 * reached, 300.0))
        ratios.append(1.0 if math.isinf(least) else reached / least)
        print(f"{number:5} {point:5} {inputs.shape[1]:3} {reached:9.4f} {least:9.4f} {ratios[-1]:6.3f}", flush=True)
    print(f"{len(ratios)} points: attack / scan at most {max(ratios):.3f}, mean {sum(ratios) / len(ratios):.3f}")


if __name__ == "__main__":
    main()
