"""Appendix B.1: what better relaxations are worth, in radii on MNIST and in word pairs for the question classifier."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import popqorn
from popqorn.experiments import words
from popqorn.experiments.mnist import Digits, Network
from popqorn.experiments.networks import Split
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.training import stacked
from popqorn.experiments.work import fill, unstopped
from popqorn.runs.store import Row

METHODS = ("planes", "lines", "constants", "interval")
NETWORKS = tuple(Network(kind, frames, 32) for kind in ("lstm", "gru") for frames in (4, 7, 14))
QUICK = NETWORKS[:4]  # all LSTMs, one GRU
SAMPLES, QUICK_SAMPLES = 100, 4
BLOCK = 20
TOLERANCE = 1e-2
PAIRS_AT_ONCE = 1000


def run(results: Results, setup: Setup) -> None:
    """Fill the tables `networks`, `radii` (targeted, p = 2) and `pairs`."""
    _digits(results, setup)
    _word_pairs(results, setup)


def _digits(results: Results, setup: Setup) -> None:
    digits = Digits.read(setup.data)
    chosen = QUICK if setup.quick else NETWORKS
    for number, network in enumerate(chosen, start=1):
        model, accuracy = digits.network(network, setup)
        results.note("networks", {"network": network.name, "accuracy": accuracy})
        certified = partial(_certified, model, digits.split(digits.test, network.frames), digits.targets)
        title = f"{network.name} ({number} of {len(chosen)})"
        groups = [{"network": network.name, "method": method} for method in METHODS]
        fill(results, "radii", range(setup.samples), certified, setup.track, title, groups=groups, block=BLOCK)


def _certified(model: popqorn.SequenceClassifier, digits: Split, targets: Tensor, group: Row, some: list[int]) -> list[Row]:
    index = torch.tensor(some)
    found = popqorn.certify(
        model,
        stacked(digits.inputs, index),
        labels=digits.labels[index],
        targets=targets[index],
        norm=2,
        method=group["method"],
        tolerance=TOLERANCE,
    )
    each = zip(unstopped(found).status, found.radius.tolist(), strict=True)
    return [{"status": str(status), "radius": radius, "seconds": found.seconds / len(some)} for status, radius in each]


def _word_pairs(results: Results, setup: Setup) -> None:
    """Per question and method the radius of every word, and how many words of the vocabulary lie within it."""
    vocabulary = words.Vocabulary.read(setup.data)
    model, accuracy = words.network(words.QUESTIONS, vocabulary, setup)
    results.note("networks", {"network": "questions_lstm", "accuracy": accuracy})
    texts = words.QUESTIONS.read(setup.data, "test")
    sentences = vocabulary.split(texts)
    vectors = vocabulary.frequent.double()

    def certified(group: Row, some: list[int]) -> list[Row]:
        (sample,) = some
        sentence, label = sentences.inputs[sample], sentences.labels[sample : sample + 1]
        found = popqorn.sensitivity(
            model, sentence.unsqueeze(0), labels=label, norm=2, method=group["method"], tolerance=TOLERANCE
        )
        radii = unstopped(found).radius[0]
        distances = torch.cdist(sentence.double(), vectors)
        within = (distances <= radii.unsqueeze(1)) & (distances > 0)
        return [{"right": bool((radii > 0).any()), "radii": radii.tolist(), "substitutes": int(within.sum())}]

    chosen = words.usable(texts, words.LONGEST)[: setup.samples]
    fill(results, "pairs", chosen, certified, setup.track, "questions", groups=[{"method": method} for method in METHODS])
    for method in METHODS:
        rows = [row for row in results.rows("pairs") if row["method"] == method and row["right"]]
        if rows:
            mean = sum(sum(row["radii"]) for row in rows) / sum(len(row["radii"]) for row in rows)
            pairs = pairs_within(vectors, mean)
            results.note("vocabulary", {"method": method, "questions": len(rows), "radius": mean, "pairs": pairs})


def pairs_within(vectors: Tensor, radius: float) -> int:
    """How many pairs of (different) vectors are at most `radius` apart."""
    count = 0
    for start, some in _pieces(vectors):
        distances = torch.cdist(some, vectors[start:])
        count += int((distances.triu(1) > 0).logical_and(distances <= radius).sum())
    return count


def _pieces(vectors: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(vectors), PAIRS_AT_ONCE):
        yield start, vectors[start : start + PAIRS_AT_ONCE]
