"""Where the data sets of the experiments come from, which files hold them, and what is said of a file that does not."""

import hashlib
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def sha256(path: Path) -> str:
    """The checksum of a file; of a folder, of nothing."""
    if not path.is_file():
        return hashlib.sha256().hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
SYNONYMS = Source(
    "synonyms",
    "synonyms",
    ("counterfitted_neighbors.json",),
    "https://github.com/robinjia/certified-word-sub (data/counterfitted_neighbors.json)",
    {"counterfitted_neighbors.json": "8329ac4a92f1badfb13b9915682e5985ffdb810ac3206c953c18da1d5bc231a7"},
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
