"""Peak memory of one evaluation at a size where a naive walk would not fit: 56 frames x 128 hidden x 32 samples, no option set.

python benchmarks/memory.py [--frames 56] [--hidden 128] [--samples 32]
"""

import argparse
import resource
import time

import torch
from torch import nn

import popqorn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=56)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--samples", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.LSTM(784 // options.frames, options.hidden), nn.Linear(options.hidden, 10))
    inputs = torch.rand(options.samples, options.frames, 784 // options.frames, dtype=torch.float64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    started = time.perf_counter()
    found = popqorn.verify(model, inputs, 1e-4, norm=2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    size = f"LSTM {options.frames} frames x {options.hidden} hidden x {options.samples} samples"
    print(
        f"{size}: {int(found.certified.sum())} certified at 1e-4 in {time.perf_counter() - started:.0f} s, "
        f"peak memory {peak:.2f} GB ({before:.2f} GB before)"
    )


if __name__ == "__main__":
    main()
