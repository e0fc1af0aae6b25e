"""What networks of certified training learn: samples to train on, to hold back and to test, and how inputs may move."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import popqorn
from popqorn.experiments import data, signals
from popqorn.experiments.networks import Architecture, Split
from popqorn.experiments.training import Sequences
from popqorn.experiments.ways import any_ball
from popqorn.experiments.words import QUESTIONS, Vocabulary
from popqorn.regions.region import Region

VALIDATION = 0.1  # of the training set: held back, to choose strengths by


@dataclass(frozen=True)
class Task:
    """Samples, and the region around any of their inputs."""

    training: Split
    held: Split
    test: Split
    around: Callable[[Sequences], Region] = any_ball

    def architecture(self, kind: str, hidden: int) -> Architecture:
        return Architecture(kind, self.training.inputs[0].shape[-1], hidden, 1 + int(self.training.labels.max()))


@cache
def digits(frames: int) -> Callable[[Path], Task]:
    """Images of digits, cut into slices of whole rows."""

    def split(folder: Path, name: str) -> Split:
        images = data.mnist(folder, name)
        return Split(torch.from_numpy(images.as_frames(frames)), torch.from_numpy(images.labels))

    return lambda folder: _task(lambda name: split(folder, name))


def heart_beats(folder: Path) -> Task:
    """Normal against ventricular beats; those of the test set are of patients the network has not seen."""
    return _task(signals.beats(folder))


def spoken_digits(folder: Path) -> Task:
    return _task(signals.recordings(folder))


def questions(folder: Path) -> Task:
    """Six classes of questions, in which words may be exchanged for synonyms."""
    vocabulary = Vocabulary.read(folder)
    synonyms = Synonyms.read(vocabulary, folder)
    return _task(lambda name: vocabulary.split(QUESTIONS.read(folder, name)), synonyms.around)


def _task(split: Callable[[str], Split], around: Callable[[Sequences], Region] = any_ball) -> Task:
    training, test = split("train"), split("test")
    order = torch.randperm(len(training.labels), generator=torch.Generator().manual_seed(0))
    held, used = order.tensor_split([int(VALIDATION * len(order))])
    return Task(some_of(training, used), some_of(training, held), test, around)


def some_of(split: Split, index: Tensor) -> Split:
    """Some samples, in this order."""
    inputs = split.inputs
    chosen = inputs[index] if isinstance(inputs, Tensor) else [inputs[number] for number in index.tolist()]
    return Split(chosen, split.labels[index])


@dataclass(frozen=True)
class Synonyms:
    """Which words may stand in which others' place, found by their vectors; the first of several words with one vector counts."""

    table: Tensor
    rows: Mapping[bytes, int]
    neighbours: Mapping[int, list[int]]

    @staticmethod
    def read(vocabulary: Vocabulary, folder: Path) -> "Synonyms":
        index = vocabulary.embeddings.index
        pairs = data.synonyms(folder).items()
        near = {index[word]: [index[other] for other in others if other in index] for word, others in pairs if word in index}
        rows: dict[bytes, int] = {}
        for number, vector in enumerate(vocabulary.vectors):
            rows.setdefault(vector.numpy().tobytes(), number)
        return Synonyms(vocabulary.vectors, rows, near)

    def around(self, inputs: Sequences) -> Region:
        """Every word of these sentences may be exchanged for its synonyms."""
        tokens = [[self.rows[word.numpy().tobytes()] for word in sentence] for sentence in inputs]
        near = {word: self.neighbours.get(word, []) for sentence in tokens for word in sentence}
        return popqorn.Words(self.table, [torch.tensor(sentence) for sentence in tokens], near)
