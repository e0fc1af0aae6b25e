"""What it costs that a model is any module: certify on traced modules beside the same networks as a `SequenceClassifier`.

    python benchmarks/readers.py [--samples 200]

Both are timed in turns, each as often as the other, reading included; the ratio is that of the least times. Then: how long a
model of 50 frames takes to be read.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import popqorn
from popqorn.readers.models import read_model

FEATURES, CLASSES, FRAMES = 56, 10, 50
ROUNDS = 3


class Traced(nn.Module):
    """What a `SequenceClassifier` computes, as a module of one's own."""

    def __init__(self, rnn: nn.RNNBase, head: nn.Linear) -> None:
        super().__init__()
        self.rnn = rnn
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.rnn(inputs)[0][:, -1])


class Loop(nn.Module):
    """A cell in a loop over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(FEATURES, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        states = None
        for frame in inputs.unbind(1):
            states = self.cell(frame, states)
        return self.head(states[0])


class ByHand(nn.Module):
    """An LSTM written out, gate by gate."""

    def __init__(self) -> None:
        super().__init__()
        self.from_input, self.from_hidden = nn.Linear(FEATURES, 128), nn.Linear(32, 128)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        h = c = inputs.new_zeros(len(inputs), 32)
        for t in range(inputs.shape[1]):
            i, f, g, o = (self.from_input(inputs[:, t]) + self.from_hidden(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h)


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    print(f"{'network':>12} {'SequenceClassifier':>19} {'traced':>8} {'ratio':>6} {'radii apart':>12}")
    networks: dict[str, tuple[nn.RNNBase, int]] = {
        "rnn_7x64": (nn.RNN(FEATURES, 64, batch_first=True), 7),
        "lstm_4x32": (nn.LSTM(FEATURES, 32, batch_first=True), 4),
        "gru_7x64": (nn.GRU(FEATURES, 64, batch_first=True), 7),
    }
    read_model(nn.Linear(2, 2))
    popqorn.certify(nn.Linear(2, 2), torch.zeros(1, 2))  # torch.export is imported
    for name, (rnn, frames) in networks.items():
        head = nn.Linear(rnn.hidden_size, CLASSES)
        models = popqorn.SequenceClassifier(rnn, head).eval(), Traced(rnn, head).eval()
        inputs = torch.rand(options.samples, frames, FEATURES)
        radii = [popqorn.certify(model, inputs).radius for model in models]
        took = [[seconds(partial(popqorn.certify, model, inputs)) for model in models] for _ in range(ROUNDS)]
        known, traced = (min(column) for column in zip(*took, strict=True))
        apart = float((radii[1] / radii[0] - 1).abs().max())
        print(f"{name:>12} {known:>17.2f} s {traced:>6.2f} s {traced / known:>6.3f} {apart:>12.1e}")
    print(f"\nreading a model of {FRAMES} frames")
    inputs = torch.rand(1, FRAMES, FEATURES)
    layers = nn.LSTM(FEATURES, 32, batch_first=True)
    for module in (Traced(layers, nn.Linear(32, CLASSES)), Loop(), ByHand()):
        network = read_model(module.eval())
        (group,) = network.sequences(inputs, None, torch.float64)
        print(f"{type(module).__name__:>12} {seconds(partial(network.reading, group, decides=True)):>6.2f} s")


if __name__ == "__main__":
    main()
