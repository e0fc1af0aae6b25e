"""The table of questions: every region, every spec, and networks to ask about. A new region or spec is one line here."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import popqorn
from popqorn.regions.region import Region
from popqorn.specs.spec import Spec

BATCH, FRAMES, FEATURES, HIDDEN, CLASSES = 3, 3, 3, 5, 3
WORDS = 12


def table() -> Tensor:
    """Word vectors in [0, 1]: words, then two near-synonyms of each."""
    generator = torch.Generator().manual_seed(5)
    words = torch.rand(WORDS, FEATURES, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, WORDS, FEATURES, generator=generator, dtype=torch.float64)
    return torch.cat([words, *(words + 0.05 * noise).clamp(0, 1)])


def tokens() -> Tensor:
    return torch.arange(BATCH * FRAMES).reshape(BATCH, FRAMES) % WORDS


def inputs() -> Tensor:
    """Sentences of the table, so that every region fits them."""
    return table()[tokens()]


def synonyms() -> dict[int, list[int]]:
    return {word: [word + WORDS, word + 2 * WORDS] for word in range(WORDS) if word % 4 != 3}


REGIONS: dict[str, Callable[[], Region]] = {
    "ball inf": lambda: popqorn.Ball(),
    "ball 1": lambda: popqorn.Ball(1),
    "ball 2, some frames": lambda: popqorn.Ball(2, frames=[0, 2]),
    "ball 3, scaled": lambda: popqorn.Ball(3, scale=torch.linspace(0, 2, FRAMES * FEATURES).reshape(FRAMES, FEATURES)),
    "ball inf, clipped": lambda: popqorn.Ball(clip=(0, 1)),
    "ball 1, clipped": lambda: popqorn.Ball(1, clip=(0, 1)),
    "ball 2, clipped": lambda: popqorn.Ball(2, clip=(0, torch.ones(FEATURES))),
    "ball 2, total": lambda: popqorn.Ball(2, total=True),
    "ball 1.5, total, clipped": lambda: popqorn.Ball(1.5, total=True, clip=(0, 1)),
    "box": lambda: popqorn.Box(inputs() - 0.6, inputs() + torch.linspace(0, 1, FEATURES)),
    "words": lambda: popqorn.Words(table(), tokens(), synonyms()),
    "at most two words": lambda: popqorn.Words(table(), tokens(), synonyms(), most=2),
}
SPECS: dict[str, Callable[[], Spec]] = {
    "decision": lambda: popqorn.Decision(),
    "tolerance": lambda: popqorn.Tolerance(0.3),
    "tolerance of each output": lambda: popqorn.Tolerance([0.2, 0.5, 0.9]),
    "property": lambda: popqorn.Property([[1.0, -1.0, 0.0], [0.0, 0.5, 0.5]], [1.5, 2.0]),
}


def network(kind: str = "lstm") -> popqorn.SequenceClassifier:
    """A network whose answers depend on its inputs; `kind` may also be a tagger, or pool its outputs."""
    torch.manual_seed(2)
    cells = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU, "tagger": nn.RNN, "max": nn.RNN, "mean": nn.RNN}
    pooling = {"tagger": None, "max": "max", "mean": "mean"}.get(kind, "last")
    model = popqorn.SequenceClassifier(cells[kind](FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES), pooling).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
        model.head.bias.zero_()
    return model.eval()
