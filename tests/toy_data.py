"""Small data sets in the formats of the real ones, with patterns that a network learns in seconds."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

WORDS = ("who", "wrote", "this", "book", "where", "is", "the", "river", "what", "does", "it", "mean", "?", "team", "wins", "cup")


def write(folder: Path) -> Path:
    """All data sets below `folder`."""
    generator = np.random.default_rng(0)
    for write_one in (_mnist, _strokes, _texts, _glove, _speech, _ecg):
        write_one(folder, generator)
    return folder


def _mnist(folder: Path, generator: np.random.Generator) -> None:
    arrays = {}
    for split, count in (("train", 400), ("test", 20)):
        labels = np.arange(count) % 10
        images = generator.integers(0, 40, (count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[:, 2 * label : 2 * label + 4] += 200
        arrays |= {f"x_{split}": images.clip(0, 255).astype(np.uint8), f"y_{split}": labels.astype(np.uint8)}
    _save(folder / "mnist" / "mnist.npz", arrays)


def _strokes(folder: Path, generator: np.random.Generator) -> None:
    arrays = {}
    for split, count in (("train", 300), ("test", 40)):
        points, offsets, labels = [], [0], np.arange(count) % 10
        for label in labels:
            length = int(generator.integers(4, 7))
            rows = np.zeros((length, 4), dtype=np.int8)
            rows[:, 0], rows[:, 1] = label - 4, 1 - label % 3
            rows[2, 2] = rows[-1, 2] = rows[-1, 3] = 1
            points.append(rows)
            offsets.append(offsets[-1] + length)
        arrays |= {f"points_{split}": np.concatenate(points), f"offsets_{split}": np.array(offsets), f"y_{split}": labels}
    _save(folder / "mnist_strokes" / "mnist_strokes.npz", arrays)


def _texts(folder: Path, generator: np.random.Generator) -> None:
    questions = ("HUM:ind Who wrote this book ?", "LOC:other Where is the river ?", "DESC:def What does it mean , unheardof ?")
    titles = ("sport\tTeam wins the cup", "world\tWhere is this river", "us\tWhat does the book mean")
    for name, lines in (("trec/train_5500.label", 40 * questions), ("trec/TREC_10.label", 5 * questions)):
        _text(folder / name, lines)
    for name, lines in (("tagmynews/tagmynews_train.tsv", 40 * titles), ("tagmynews/tagmynews_test.tsv", 5 * titles)):
        _text(folder / name, lines)


def _glove(folder: Path, generator: np.random.Generator) -> None:
    vectors = generator.normal(size=(len(WORDS), 8)).astype(np.float16)
    _save(folder / "glove" / "glove_6b_100d_subset.npz", {"words": np.array("\n".join(WORDS)), "vectors": vectors})
    near = {"book": ["cup", "river"], "team": ["cup"], "wrote": ["wins", "unheardof"], "unheardof": ["book"]}
    _text(folder / "synonyms" / "counterfitted_neighbors.json", [json.dumps(near)])


def _speech(folder: Path, generator: np.random.Generator) -> None:
    waves, offsets, labels, number = [], [0], [], []
    for index in range(20):
        for digit in range(10):
            length = int(generator.integers(900, 1300))
            tone = np.sin(2 * np.pi * (200 + 350 * digit) * np.arange(length) / 8000)
            waves.append((8000 * tone + 100 * generator.normal(size=length)).astype(np.int16))
            offsets.append(offsets[-1] + length)
            labels.append(digit)
            number.append(index)
    arrays = {"audio": np.concatenate(waves), "offsets": np.array(offsets), "label": np.array(labels), "index": np.array(number)}
    _save(folder / "fsdd" / "fsdd.npz", arrays)


def _ecg(folder: Path, generator: np.random.Generator) -> None:
    labels = np.tile([0, 2], 150)
    time = np.linspace(-0.3, 0.4, 84)
    widths = np.where(labels == 0, 0.02, 0.1)[:, None]
    beats = 800 * np.exp(-((time / widths) ** 2)) + 20 * generator.normal(size=(len(labels), 84))
    arrays = {"beats": beats.astype(np.int16), "label": labels, "test": np.arange(len(labels)) >= 260}
    _save(folder / "ecg_mitbih" / "ecg_mitbih_beats.npz", arrays)


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def _text(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
