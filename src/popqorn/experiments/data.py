"""The data sets of the experiments, read from files the user has; nothing is downloaded, nothing is executed.

Every reader takes the folder of all data sets and accepts the compact npz files as well as the original formats. A file that is
missing or is not what it should be is named, with where it comes from and what was found instead.
"""

import gzip
import json
import os
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from popqorn.experiments.sources import ECG, GLOVE, MNIST, NEWS, QUESTIONS, SPEECH, STROKES, SYNONYMS, Source

NEWS_CLASSES = ("sport", "world", "us", "business", "health", "entertainment", "sci_tech")
QUESTION_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
TOKEN = re.compile(r"(?:[a-z]\.){2,}|'s\b|[a-z0-9]+|[^\sa-z0-9]")
PEN_FEATURES = 4


@dataclass(frozen=True)
class Images:
    """Grey images in [0, 1], `[samples, 28, 28]`, and their labels."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def as_frames(self, frames: int) -> NDArray[np.float32]:
        """Whole rows, cut into `frames` slices."""
        return self.images.reshape(len(self.images), frames, -1)


@dataclass(frozen=True)
class Sequences:
    """Sequences of different lengths, each `[length, features]`, and their labels."""

    items: tuple[NDArray[np.float32], ...]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Texts:
    """Sentences as lists of words, their labels, and the names of the classes."""

    words: tuple[tuple[str, ...], ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Embeddings:
    """Word vectors `[words, features]`, most frequent first; the row of a word that is not there is `unknown`, a zero vector."""

    words: tuple[str, ...]
    vectors: NDArray[np.float32]
    index: dict[str, int]

    @property
    def unknown(self) -> int:
        return len(self.words)

    def rows(self, words: Sequence[str]) -> NDArray[np.int64]:
        return np.array([self.index.get(word, self.unknown) for word in words], dtype=np.int64)


def default_folder() -> Path:
    """`POPQORN_DATA`, else a folder in the user's cache."""
    if "POPQORN_DATA" in os.environ:
        return Path(os.environ["POPQORN_DATA"])
    return user_cache_path("popqorn") / "data"


# ---- readers -----------------------------------------------------------------------------------------------------------------


def mnist(data: Path, split: str) -> Images:
    """MNIST, `split` `"train"` or `"test"`, from mnist.npz or the four idx files."""
    path = MNIST.find(data)
    if path.suffix == ".npz":
        with MNIST.reading(path), np.load(path, allow_pickle=False) as file:
            images, labels = file[f"x_{split}"], file[f"y_{split}"]
            _expect(images.ndim == 3 and images.shape[1:] == (28, 28), f"x_{split} has shape {images.shape}")
    else:
        stem = "train" if split == "train" else "t10k"
        images = _idx(path.parent / f"{stem}-images-idx3-ubyte.gz")
        labels = _idx(path.parent / f"{stem}-labels-idx1-ubyte.gz")
    return Images(images.astype(np.float32) / 255, labels.astype(np.int64))


def _idx(path: Path) -> NDArray[np.uint8]:
    if not path.exists():
        raise FileNotFoundError(
            f"MNIST: no {path.name} beside the other idx files in {str(path.parent)!r}; get it from {MNIST.origin}"
        )
    with MNIST.reading(path), gzip.open(path, "rb") as file:
        zero, kind, dimensions = struct.unpack(">HBB", file.read(4))
        _expect(zero == 0 and kind == 8, f"its first bytes are {zero:#x} {kind:#x}, not those of an idx file of bytes")
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        content = np.frombuffer(file.read(), dtype=np.uint8)
        _expect(content.size == int(np.prod(shape)), f"it holds {content.size} values, its header promises {shape}")
        return content.reshape(shape)


def strokes(data: Path, split: str) -> Sequences:
    """Pen sequences `(dx, dy, end of stroke, end of digit)`, from the npz file or de Jong's text files."""
    path = STROKES.find(data)
    if path.suffix == ".npz":
        with STROKES.reading(path), np.load(path, allow_pickle=False) as file:
            points, offsets = file[f"points_{split}"].astype(np.float32), file[f"offsets_{split}"]
            _expect(points.shape[1:] == (PEN_FEATURES,), f"points_{split} has shape {points.shape}")
            items = tuple(points[start:stop] for start, stop in pairwise(offsets))
            return Sequences(items, file[f"y_{split}"].astype(np.int64))
    with STROKES.reading(path), _texts(path) as read:
        labels = np.array(read(f"{split}labels.txt").split(), dtype=np.int64)
        _expect(len(labels) > 0, f"{split}labels.txt is empty")
        items = tuple(_pen_rows(read(f"{split}img-{number}-targetdata.txt")) for number in range(len(labels)))
    return Sequences(items, labels)


def _pen_rows(text: str) -> NDArray[np.float32]:
    """De Jong's target data: ten label columns, then dx, dy, end of stroke, end of digit."""
    rows = np.array([line.split() for line in text.splitlines() if line.strip()], dtype=np.float32)
    _expect(rows.ndim == 2 and rows.shape[1] >= PEN_FEATURES, f"a row has {rows.shape[-1]} columns")
    return rows[:, -PEN_FEATURES:]


@contextmanager
def _texts(path: Path) -> Iterator[Callable[[str], str]]:
    """Members by their file name, from a folder or a tar file (which is never extracted)."""
    if path.is_dir():
        yield lambda name: (path / name).read_text()
        return
    with tarfile.open(path) as archive:
        members = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}

        def read(name: str) -> str:
            file = archive.extractfile(members[name])
            assert file is not None
            return file.read().decode()

        yield read


def questions(data: Path, split: str) -> Texts:
    """TREC questions and their six coarse classes, from the label files."""
    path = QUESTIONS.find(data).parent / ("train_5500.label" if split == "train" else "TREC_10.label")
    lines = _lines(QUESTIONS, path, "latin-1")
    with QUESTIONS.reading(path):
        pairs = [line.split(" ", 1) for line in lines]
        labels = [QUESTION_CLASSES.index(pair[0].split(":")[0]) for pair in pairs]
        return Texts(tuple(tokens(pair[1]) for pair in pairs), np.array(labels, dtype=np.int64), QUESTION_CLASSES)


def news(data: Path, split: str) -> Texts:
    """TagMyNews titles and their seven classes."""
    path = NEWS.find(data).parent / f"tagmynews_{split}.tsv"
    lines = _lines(NEWS, path, "utf-8")
    with NEWS.reading(path):
        pairs = [line.split("\t") for line in lines]
        labels = [NEWS_CLASSES.index(pair[0]) for pair in pairs]
        return Texts(tuple(tokens(pair[1]) for pair in pairs), np.array(labels, dtype=np.int64), NEWS_CLASSES)


def tokens(text: str) -> tuple[str, ...]:
    """Lower-case words, numbers, dotted abbreviations and punctuation marks."""
    return tuple(TOKEN.findall(text.lower()))


def glove(data: Path, most: int = 400_000) -> Embeddings:
    """GloVe vectors, the `most` frequent words; from the npz subset, the text file or the zip file."""
    path = GLOVE.find(data)
    with GLOVE.reading(path):
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                words, vectors = str(file["words"]).split("\n")[:most], file["vectors"][:most].astype(np.float32)
        else:
            words, vectors = _glove_text(path, most)
        _expect(len(words) == len(vectors) > 0, f"{len(words)} words, {len(vectors)} vectors")
    vectors = np.concatenate([vectors, np.zeros_like(vectors[:1])])
    return Embeddings(tuple(words), vectors, {word: row for row, word in enumerate(words)})


def _glove_text(path: Path, most: int) -> tuple[list[str], NDArray[np.float32]]:
    words, rows = [], []
    with zipfile.ZipFile(path).open("glove.6B.100d.txt") if path.suffix == ".zip" else path.open("rb") as file:
        for line in file:
            word, *numbers = line.decode().rstrip().split(" ")
            words.append(word)
            rows.append(np.array(numbers, dtype=np.float32))
            if len(words) == most:
                break
    return words, np.stack(rows)


def synonyms(data: Path) -> dict[str, list[str]]:
    """For every word those that may stand in its place."""
    path = SYNONYMS.find(data)
    with SYNONYMS.reading(path):
        read = json.loads(path.read_text(encoding="utf-8"))
        _expect(isinstance(read, dict) and all(isinstance(others, list) for others in read.values()), "it lists no words")
    return {str(word): [str(other) for other in others] for word, others in read.items()}


def speech(data: Path, split: str) -> Sequences:
    """Spoken digits as waveforms `[samples, 1]` at 8 kHz in [-1, 1]; recordings 0 to 4 by each speaker are the test set."""
    path = SPEECH.find(data)
    with SPEECH.reading(path):
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                audio, offsets, labels, number = file["audio"], file["offsets"], file["label"], file["index"]
            waves = [audio[start:stop] for start, stop in pairwise(offsets)]
        else:
            waves, labels, number = _wav_folder(path)
    chosen = np.flatnonzero((number < 5) == (split == "test"))
    items = tuple(waves[row].astype(np.float32)[:, None] / 32768 for row in chosen)
    return Sequences(items, labels[chosen].astype(np.int64))


def _wav_folder(path: Path) -> tuple[list[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Files `digit_speaker_index.wav`."""
    import wave

    waves, labels, number = [], [], []
    for file in sorted(path.glob("*.wav")):
        digit, _, index = file.stem.split("_")
        with wave.open(str(file), "rb") as recording:
            waves.append(np.frombuffer(recording.readframes(recording.getnframes()), dtype="<i2"))
        labels.append(int(digit))
        number.append(int(index))
    _expect(len(waves) > 0, "it holds no wav files")
    return waves, np.array(labels), np.array(number)


def heart_beats(data: Path, split: str, frames: int = 14) -> Sequences:
    """Heart beats in mV as `[frames, 84 / frames]`, normal (0) against ventricular (1); the two splits share no patient."""
    path = ECG.find(data)
    with ECG.reading(path), np.load(path, allow_pickle=False) as file:
        beats, labels, test = file["beats"], file["label"], file["test"]
        _expect(beats.ndim == 2 and beats.shape[1] % frames == 0, f"beats have shape {beats.shape}")
    chosen = np.flatnonzero((test == (split == "test")) & np.isin(labels, (0, 2)))
    items = beats[chosen].reshape(len(chosen), frames, -1).astype(np.float32) / 800
    return Sequences(tuple(items), (labels[chosen] == 2).astype(np.int64))


def _lines(source: Source, path: Path, encoding: str) -> list[str]:
    if not path.exists():
        raise FileNotFoundError(f"{source.name}: no {path.name} in {str(path.parent)!r}; get it from {source.origin}")
    with source.reading(path):
        lines = [line for line in path.read_text(encoding=encoding).splitlines() if line.strip()]
        _expect(len(lines) > 0, "it is empty")
    return lines


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
