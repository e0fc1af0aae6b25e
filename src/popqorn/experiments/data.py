"""The data sets of the experiments, read from files the user has; nothing is downloaded, nothing is executed.

Every reader takes the folder of all data sets and accepts the compact npz files as well as the original formats. A file that is
missing or is not what it should be is named, with where it comes from and what was found instead.
"""

import gzip
import hashlib
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

NEWS_CLASSES = ("sport", "world", "us", "business", "health", "entertainment", "sci_tech")
QUESTION_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
TOKEN = re.compile(r"(?:[a-z]\.){2,}|'s\b|[a-z0-9]+|[^\sa-z0-9]")
PEN_FEATURES = 4


@dataclass(frozen=True)
class Source:
    """One public data set: the files that hold it (any one of the alternatives), where they come from, and checksums if known."""

    name: str
    folder: str
    files: tuple[str, ...]
    origin: str
    sha256: dict[str, str]

    def find(self, data: Path) -> Path:
        """The first of the files that is there."""
        for name in self.files:
            for path in (data / self.folder / name, data / name):
                if path.exists():
                    return path
        expected = " or ".join(f"{self.folder}/{name}" for name in self.files)
        found = self._found(data)
        raise FileNotFoundError(
            f"{self.name}: no {expected} in {str(data)!r} ({found}). Get it from {self.origin}; "
            "then pass its folder with --data or set POPQORN_DATA"
        )

    def _found(self, data: Path) -> str:
        if not data.is_dir():
            return "there is no such folder"
        inside = data / self.folder if (data / self.folder).is_dir() else data
        names = sorted(path.name for path in inside.iterdir())
        return f"{inside.name} holds {', '.join(names[:8]) or 'nothing'}{', ...' if len(names) > 8 else ''}"

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turn whatever goes wrong while reading `path` into an error that says which file, and what it should be."""
        try:
            yield
        except (
            ValueError,
            KeyError,
            IndexError,
            EOFError,
            OSError,
            struct.error,
            zipfile.BadZipFile,
            tarfile.TarError,
            UnicodeDecodeError,
        ) as error:
            size, digest = path.stat().st_size, sha256(path)
            wanted = self.sha256.get(path.name)
            checksum = (
                f"; expected sha256 {wanted[:16]}..., found {digest[:16]}..." if wanted else f"; found sha256 {digest[:16]}..."
            )
            raise ValueError(
                f"{self.name}: {str(path)!r} ({size} bytes) cannot be read ({error}){checksum}. "
                f"It may be truncated or another file; get it again from {self.origin}"
            ) from error


MNIST = Source(
    "MNIST",
    "mnist",
    ("mnist.npz", "train-images-idx3-ubyte.gz"),
    "https://yann.lecun.com/exdb/mnist (four idx.gz files) or any copy of mnist.npz",
    {
        "mnist.npz": "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)
STROKES = Source(
    "MNIST strokes",
    "mnist_strokes",
    ("mnist_strokes.npz", "sequences.tar.gz", "sequences"),
    "https://github.com/edwin-de-jong/mnist-digits-stroke-sequence-data (sequences.tar.gz, or its folder of text files)",
    {"mnist_strokes.npz": "56e9319f17f7ec71127aa2cfcb79b2b2183958a5087bdd8b179d9e128db66201"},
)
QUESTIONS = Source(
    "TREC questions",
    "trec",
    ("train_5500.label",),
    "https://cogcomp.seas.upenn.edu/Data/QA/QC (train_5500.label and TREC_10.label)",
    {
        "train_5500.label": "8bd6e79493f43bbd22c364587366a1dced54e1e31259eaa92721a0f526031116",
        "TREC_10.label": "86ad53c8fc9d397ab2f4be7c967d8efb470b260140557d3e57afad69d1b88b76",
    },
)
NEWS = Source(
    "TagMyNews",
    "tagmynews",
    ("tagmynews_train.tsv",),
    "http://acube.di.unipi.it/tmn-dataset, as two files label<TAB>title: tagmynews_train.tsv and tagmynews_test.tsv",
    {
        "tagmynews_train.tsv": "06733a2e991253e0e8f73b53b51a28f7ad7dbbe8f95aaf744cf451fbf98d58c9",
        "tagmynews_test.tsv": "2193e7ddcceccadb32f58768a75271a4bc7963b2565a122b781bdc910f961d1e",
    },
)
GLOVE = Source(
    "GloVe",
    "glove",
    ("glove_6b_100d_subset.npz", "glove.6B.100d.txt", "glove.6B.zip"),
    "https://nlp.stanford.edu/projects/glove (glove.6B.zip)",
    {"glove_6b_100d_subset.npz": "12edae6c44dc1f2ca44719f300a86331d8d594e08cb5bbcc4ce5200fd65873c8"},
)
SPEECH = Source(
    "Free Spoken Digit Dataset",
    "fsdd",
    ("fsdd.npz", "recordings"),
    "https://github.com/Jakobovski/free-spoken-digit-dataset (its folder recordings/ of wav files)",
    {"fsdd.npz": "94d2e319c8c6c8debc1aeaae23f288d371e3294a34cba0af121bb5f6063d4b73"},
)
ECG = Source(
    "MIT-BIH heart beats",
    "ecg_mitbih",
    ("ecg_mitbih_beats.npz",),
    "https://physionet.org/content/mitdb, cut into beats: 84 samples at 120 Hz around each R mark (keys beats, label, test)",
    {"ecg_mitbih_beats.npz": "515d6112b8603a4c3b03cbec66a26328b62fd6ce475b14f2d5832d78d2ca632a"},
)


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


def sha256(path: Path) -> str:
    """The checksum of a file; of a folder, of nothing."""
    if not path.is_file():
        return hashlib.sha256().hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
