"""A step of certified training beside a plain step: seconds of one core and ratios, from one run.

python benchmarks/training.py [--batch 256] [--rounds 30]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import popqorn

NETWORKS = {
    "LSTM 4x32": (nn.LSTM, 4, 196),
    "LSTM 14x32": (nn.LSTM, 14, 56),
    "GRU 4x32": (nn.GRU, 4, 196),
    "RNN 4x32": (nn.RNN, 4, 196),
}


def plain_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), labels)


def seconds(step: Callable[[], Tensor], model: nn.Module, rounds: int) -> float:
    """Of one core, for one step with its gradients, the least of several: what else runs does not count."""
    optimiser = torch.optim.Adam(model.parameters())
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        optimiser.zero_grad()
        step().backward()
        optimiser.step()
        taken.append(time.process_time() - started)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'network':12} {'plain':>9} {'adversarial':>12} {'certified':>10}   times plain")
    for name, (kind, frames, features) in NETWORKS.items():
        torch.manual_seed(0)
        model = popqorn.SequenceClassifier(kind(features, 32), nn.Linear(32, 10))
        inputs, labels = torch.rand(options.batch, frames, features), torch.randint(10, (options.batch,))
        certified_loss = partial(popqorn.training.certified_loss, model, inputs, labels, 0.02)
        steps = [partial(plain_loss, model, inputs, labels), partial(certified_loss, strength=0.0), certified_loss]
        plain, adversarial, certified = (seconds(step, model, options.rounds) for step in steps)
        print(f"{name:12} {1e3 * plain:6.1f} ms {1e3 * adversarial:9.1f} ms {1e3 * certified:7.1f} ms   {certified / plain:.1f}")


if __name__ == "__main__":
    main()
