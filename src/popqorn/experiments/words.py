"""Experiment III and its appendix: which words decide the class of a question or of a news title."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import popqorn
from popqorn.experiments import data, frames
from popqorn.experiments.networks import Architecture, Split, Trained, trained
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.training import Recipe
from popqorn.runs.store import Row

SAMPLES, QUICK_SAMPLES = 500, 20
HIDDEN = 32
VOCABULARY = 10_000  # words that may be put in another's place: the most frequent
NEIGHBOURS = 10
LONGEST = 12  # words in a sentence of a quick run


@dataclass(frozen=True)
class Corpus:
    """One text data set: how it is read and how its classifier is trained."""

    name: str
    read: Callable[[Path, str], data.Texts]
    recipe: Recipe


QUESTIONS = Corpus("questions", data.questions, Recipe(epochs=15, batch=32, learning_rate=3e-3, weight_decay=1e-4))
NEWS = Corpus("news", data.news, Recipe(epochs=6, batch=64, learning_rate=3e-3, weight_decay=1e-5))


@dataclass(frozen=True)
class Vocabulary:
    """Word vectors `[words + 1, features]`; the last row, zeros, stands for every word that is not there."""

    embeddings: data.Embeddings
    vectors: Tensor

    @staticmethod
    def read(folder: Path) -> "Vocabulary":
        embeddings = data.glove(folder)
        return Vocabulary(embeddings, torch.from_numpy(embeddings.vectors))

    @property
    def frequent(self) -> Tensor:
        """The vectors of the most frequent words, those that may be put in another's place."""
        return self.vectors[: min(VOCABULARY, self.embeddings.unknown)]

    def split(self, texts: data.Texts) -> Split:
        rows = [torch.from_numpy(self.embeddings.rows(words)) for words in texts.words]
        return Split([self.vectors[row] for row in rows], torch.from_numpy(texts.labels))

    def nearest(self, word: Tensor, count: int) -> tuple[list[str], Tensor]:
        """The `count` words of the vocabulary nearest to a vector, itself left out."""
        distances = torch.linalg.vector_norm(self.frequent - word, dim=-1)
        distances[distances == 0] = torch.inf
        index = distances.argsort()[:count]
        return [self.embeddings.words[place] for place in index.tolist()], self.vectors[index]


def network(corpus: Corpus, vocabulary: Vocabulary, setup: Setup) -> Trained:
    """The classifier of a corpus: an LSTM over word vectors."""
    training = corpus.read(setup.data, "train")
    architecture = Architecture("lstm", vocabulary.vectors.shape[1], HIDDEN, len(training.classes))

    def splits() -> tuple[Split, Split]:
        return vocabulary.split(training), vocabulary.split(corpus.read(setup.data, "test"))

    return trained(setup, f"{corpus.name}_lstm", architecture, corpus.recipe, splits)


def run(corpus: Corpus, results: Results, setup: Setup) -> None:
    """Fill the tables `networks` and `frames` for sentences of the test set."""
    vocabulary = Vocabulary.read(setup.data)
    model, accuracy = network(corpus, vocabulary, setup)
    results.note("networks", {"network": f"LSTM, {HIDDEN} hidden", "accuracy": accuracy})
    texts = corpus.read(setup.data, "test")
    sentences = vocabulary.split(texts)

    def swapped(sample: int, row: Row) -> Row:
        words = list(texts.words[sample])
        about = {"words": words, "label": texts.classes[row["label"]], "decision": texts.classes[row["decision"]]}
        if row["radii"] is None:
            return about
        return {
            **about,
            "swaps": [_swaps(model, vocabulary, sentences.inputs[sample], place, texts) for place in range(len(words))],
        }

    chosen = usable(texts, LONGEST if setup.quick else None)[: setup.samples]
    frames.measure(results, setup, model, sentences.inputs, sentences.labels, chosen, swapped)


def run_questions(results: Results, setup: Setup) -> None:
    run(QUESTIONS, results, setup)


def run_news(results: Results, setup: Setup) -> None:
    run(NEWS, results, setup)


def usable(texts: data.Texts, longest: int | None = None) -> list[int]:
    """Sentences of at least four words, so that three can be told from the others."""
    return [number for number, words in enumerate(texts.words) if 4 <= len(words) <= (longest or len(words))]


@torch.no_grad()
def _swaps(
    model: popqorn.SequenceClassifier, vocabulary: Vocabulary, sentence: Tensor, place: int, texts: data.Texts
) -> dict[str, str]:
    """What the nearest words, one by one in the place of one word, make of the decision; nothing is near an unknown word."""
    if not sentence[place].any():
        return {}
    names, vectors = vocabulary.nearest(sentence[place], NEIGHBOURS)
    changed = sentence.repeat(len(names), 1, 1)
    changed[:, place] = vectors
    decisions = model(changed).argmax(-1).tolist()
    return {name: texts.classes[decision] for name, decision in zip(names, decisions, strict=True)}
