"""What planes are worth: the mean radius of every method on LSTMs and GRUs of 4, 7 and 14 frames (the paper's appendix B.1).

python benchmarks/relaxations.py [--samples 10] [--hidden 32]
"""

import argparse

import networks
import public
import torch

import popqorn

METHODS = ("planes", "lines", "constants", "interval")


def mean_radii(
    kind: str, frames: int, hidden: int, samples: int, *, digits: int = 60_000, tolerance: float = 1e-3
) -> dict[str, float]:
    """Mean certified radius (p = 2, targets as in the reference protocol) per method over digits the network gets right."""
    model = networks.network(kind, frames, hidden, digits=digits)
    inputs, labels = public.digits(frames, 2 * samples)
    right = (model.double()(inputs).argmax(-1) == labels).nonzero().squeeze(1)[:samples]
    targets = (labels + 1 + torch.arange(len(labels)) % 9) % 10
    chosen = {"labels": labels[right], "targets": targets[right], "norm": 2, "tolerance": tolerance}
    return {method: float(popqorn.certify(model, inputs[right], method=method, **chosen).radius.mean()) for method in METHODS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(2)
    print("mean certified radius, p = 2;  x: planes over lines")
    print(f"{'cell':5} {'frames':>6} " + " ".join(f"{method:>10}" for method in METHODS) + f" {'x':>8}")
    for kind in ("lstm", "gru"):
        for frames in (4, 7, 14):
            means = mean_radii(kind, frames, options.hidden, options.samples)
            numbers = " ".join(f"{means[method]:10.5f}" for method in METHODS)
            print(f"{kind:5} {frames:6} {numbers} {means['planes'] / means['lines']:8.1f}", flush=True)


if __name__ == "__main__":
    main()
