"""What knowing the range of the inputs is worth: certified accuracy of the public MNIST LSTMs with and without `clip=(0, 1)`.

    python benchmarks/clip.py [--samples 100]

Untargeted, p = inf, `planes`; then the cost of a range in other norms: the time of one `verify`, as a ratio in one run.
"""

import argparse
import math
import time

import public
import torch

import popqorn

SIZES = {"mnist_04f_032h_1l": (0.011, 0.014, 0.017), "mnist_07f_032h_1l": (0.008, 0.011, 0.014)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(f"{'model':18} {'clip':>6} {'right':>5}  certified at eps")
    for name, sizes in SIZES.items():
        model = public.load_model(name)
        inputs, labels = public.digits(public.frames_of(name), options.samples)
        for clip in (None, (0, 1)):
            found = popqorn.curve(model, inputs, sizes, labels=labels, region=popqorn.Ball(clip=clip))
            counts = "  ".join(f"{eps:g}: {int(count)}" for eps, count in zip(sizes, found.proven.sum(0).tolist(), strict=True))
            print(f"{name:18} {clip!s:>6} {round(found.accuracy * options.samples):5}  {counts}")
    print(f"{'norm':>6} {'seconds':>8} {'clipped':>8} {'ratio':>6}   one verify of the same digits")
    for norm in (math.inf, 1, 1.5, 2, 3):
        seconds = []
        for clip in (None, (0, 1)):
            started = time.perf_counter()
            popqorn.verify(model, inputs, 0.01, labels=labels, region=popqorn.Ball(norm, clip=clip))
            seconds.append(time.perf_counter() - started)
        print(f"{norm:6g} {seconds[0]:8.2f} {seconds[1]:8.2f} {seconds[1] / seconds[0]:6.1f}")


if __name__ == "__main__":
    main()
