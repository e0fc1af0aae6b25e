"""Appendix B.1: what better relaxations are worth, in radii on MNIST and in word pairs for the question classifier."""

from collections.abc import Iterator

import torch
from torch import Tensor

import popqorn
from popqorn.experiments import words
from popqorn.experiments.mnist import Digits, Network
from popqorn.experiments.setup import Setup
from popqorn.experiments.store import Store

METHODS = ("planes", "lines", "constants", "interval")
NETWORKS = tuple(Network(kind, frames, 32) for kind in ("lstm", "gru") for frames in (4, 7, 14))
SAMPLES, QUICK_SAMPLES = 100, 4
BLOCK = 20
TOLERANCE = 1e-2
PAIRS_AT_ONCE = 1000


def run(store: Store, setup: Setup) -> None:
    """Fill the tables `networks`, `radii` (targeted, p = 2) and `pairs`."""
    _digits(store, setup)
    _word_pairs(store, setup)


def _digits(store: Store, setup: Setup) -> None:
    digits = Digits.read(setup.data)
    for number, network in enumerate(NETWORKS, start=1):
        model, accuracy = digits.network(network, setup)
        store.note("networks", {"network": network.name, "accuracy": accuracy})
        inputs, labels = digits.split(digits.test, network.frames)
        assert isinstance(inputs, Tensor)
        todo = {method: store.todo("radii", range(setup.samples), network=network.name, method=method) for method in METHODS}
        total = len(METHODS) * setup.samples
        done = total - sum(map(len, todo.values()))
        with setup.track(f"{network.name} ({number} of {len(NETWORKS)})", total) as at:
            for method, missing in todo.items():
                for start in range(0, len(missing), BLOCK):
                    index = torch.tensor(missing[start : start + BLOCK])
                    found = popqorn.certify(
                        model,
                        inputs[index],
                        labels=labels[index],
                        targets=digits.targets[index],
                        norm=2,
                        method=method,
                        tolerance=TOLERANCE,
                    )
                    about = {"network": network.name, "kind": network.kind, "frames": network.frames, "method": method}
                    seconds = found.seconds / len(index)
                    store.append(
                        "radii",
                        [
                            {**about, "sample": sample, "status": str(status), "radius": radius, "seconds": seconds}
                            for sample, status, radius in zip(index.tolist(), found.status, found.radius.tolist(), strict=True)
                        ],
                    )
                    done += len(index)
                    at(done)


def _word_pairs(store: Store, setup: Setup) -> None:
    """Per question and method the radius of every word, and how many words of the vocabulary lie within it."""
    vocabulary = words.Vocabulary.read(setup.data)
    model, accuracy = words.network(words.QUESTIONS, vocabulary, setup)
    store.note("networks", {"network": "questions_lstm", "accuracy": accuracy})
    texts = words.QUESTIONS.read(setup.data, "test")
    sentences = vocabulary.split(texts)
    chosen = words.usable(texts, words.LONGEST)[: setup.samples]
    todo = {method: store.todo("pairs", chosen, method=method) for method in METHODS}
    total = len(METHODS) * len(chosen)
    done = total - sum(map(len, todo.values()))
    with setup.track("questions", total) as at:
        for method, missing in todo.items():
            for sample in missing:
                sentence, label = sentences.inputs[sample].unsqueeze(0), sentences.labels[sample : sample + 1]
                radii = popqorn.sensitivity(model, sentence, labels=label, norm=2, method=method, tolerance=TOLERANCE)[0]
                distances = torch.cdist(sentence[0].double(), vocabulary.frequent.double())
                within = int(((distances <= radii.unsqueeze(1)) & (distances > 0)).sum())
                right = bool((radii > 0).any())
                row = {"method": method, "sample": sample, "right": right, "radii": radii.tolist(), "substitutes": within}
                store.append("pairs", [row])
                done += 1
                at(done)
    for method in METHODS:
        rows = [row for row in store.rows("pairs") if row["method"] == method and row["right"]]
        if rows:
            mean = sum(sum(row["radii"]) for row in rows) / sum(len(row["radii"]) for row in rows)
            pairs = pairs_within(vocabulary.frequent.double(), mean)
            store.note("vocabulary", {"method": method, "questions": len(rows), "radius": mean, "pairs": pairs})


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
