"""Readers of the experiments' data: the compact and the original formats agree, and bad files are named with their origin."""

import gzip
import io
import struct
import tarfile
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from popqorn.experiments import data as sets
from popqorn.experiments import sources

READERS: dict[str, Callable[[Path], Any]] = {
    "mnist": lambda folder: sets.mnist(folder, "test"),
    "strokes": lambda folder: sets.strokes(folder, "test"),
    "questions": lambda folder: sets.questions(folder, "test"),
    "news": lambda folder: sets.news(folder, "test"),
    "glove": sets.glove,
    "speech": lambda folder: sets.speech(folder, "test"),
    "ecg": lambda folder: sets.heart_beats(folder, "test"),
}
SOURCES = {
    "mnist": sources.MNIST,
    "strokes": sources.STROKES,
    "questions": sources.QUESTIONS,
    "news": sources.NEWS,
    "glove": sources.GLOVE,
    "speech": sources.SPEECH,
    "ecg": sources.ECG,
}
each_set = pytest.mark.parametrize("name", READERS)


@each_set
def test_a_missing_file_is_named_with_its_origin(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    for folder, found in ((tmp_path / "nowhere", "no such folder"), (tmp_path, "holds")):
        with pytest.raises(FileNotFoundError, match=found) as error:
            READERS[name](folder)
        assert source.files[0] in str(error.value)
        assert source.origin in str(error.value)
        assert "POPQORN_DATA" in str(error.value)


@each_set
def test_a_wrong_file_is_named_with_what_was_found(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    (tmp_path / source.folder).mkdir()
    for file in (*source.files[:1], "TREC_10.label", "tagmynews_test.tsv"):
        (tmp_path / source.folder / file).write_bytes(b"not what it says\n")
    with pytest.raises(ValueError, match="17 bytes") as error:
        READERS[name](tmp_path)
    assert source.origin in str(error.value)
    assert ", found " in str(error.value)


def test_files_that_belong_together_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train_5500.label").write_text("DESC:manner How ?\n")
    with pytest.raises(FileNotFoundError, match=r"no TREC_10\.label"):
        sets.questions(tmp_path, "test")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"no t10k-images-idx3-ubyte\.gz beside"):
        sets.mnist(tmp_path, "test")


def idx(array: Any) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def test_idx_files_hold_what_the_npz_file_does(tmp_path: Path) -> None:
    images, labels = np.random.default_rng(0).integers(0, 256, (5, 28, 28)), np.arange(5)
    original, compact = tmp_path / "original", tmp_path / "compact"
    for folder in (original, compact):
        folder.mkdir()
    for stem in ("train", "t10k"):
        (original / f"{stem}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (original / f"{stem}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    np.savez(compact / "mnist.npz", x_test=images.astype(np.uint8), y_test=labels.astype(np.uint8))
    first, second = sets.mnist(original, "test"), sets.mnist(compact, "test")
    np.testing.assert_array_equal(first.images, second.images)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert first.as_frames(4).shape == (5, 4, 196)
    (original / "t10k-images-idx3-ubyte.gz").write_bytes(idx(images)[:-2000])
    with pytest.raises(ValueError, match=r"t10k-images.*expected sha256 8d422c7b"):
        sets.mnist(original, "test")


def test_stroke_texts_hold_what_the_npz_file_does(tmp_path: Path) -> None:
    digits = [np.array([[3, 4, 0, 0], [1, -1, 1, 0], [0, 0, 1, 1]]), np.array([[5, 6, 1, 1]])]
    folder = tmp_path / "texts" / "sequences"
    folder.mkdir(parents=True)
    (folder / "testlabels.txt").write_text("7\n1\n")
    for number, rows in enumerate(digits):
        lines = [" ".join(map(str, [0] * 10 + row.tolist())) for row in rows]
        (folder / f"testimg-{number}-targetdata.txt").write_text("\n".join(lines) + "\n")
    archived = tmp_path / "archive"
    archived.mkdir()
    with tarfile.open(archived / "sequences.tar.gz", "w:gz") as archive:
        archive.add(folder, "sequences")
    compact = tmp_path / "compact"
    compact.mkdir()
    np.savez(
        compact / "mnist_strokes.npz",
        points_test=np.concatenate(digits).astype(np.int8),
        offsets_test=np.array([0, 3, 4]),
        y_test=np.array([7, 1]),
    )
    for place in (tmp_path / "texts", archived, compact):
        found = sets.strokes(place, "test")
        assert found.labels.tolist() == [7, 1]
        for item, rows in zip(found.items, digits, strict=True):
            np.testing.assert_array_equal(item, rows)


def test_glove_texts_hold_what_the_npz_file_does(tmp_path: Path) -> None:
    text = "the 0.5 -1.0\nof 0.25 2.0\nrare 1.0 1.0\n"
    places = [tmp_path / name for name in ("npz", "text", "zip")]
    for place in places:
        place.mkdir()
    vectors = np.array([[0.5, -1.0], [0.25, 2.0], [1.0, 1.0]], dtype=np.float16)
    np.savez(places[0] / "glove_6b_100d_subset.npz", words=np.array("the\nof\nrare"), vectors=vectors)
    (places[1] / "glove.6B.100d.txt").write_text(text)
    with zipfile.ZipFile(places[2] / "glove.6B.zip", "w") as archive:
        archive.writestr("glove.6B.100d.txt", text)
    for place in places:
        found = sets.glove(place, most=2)
        assert found.words == ("the", "of")
        assert found.rows(["of", "rare", "the"]).tolist() == [1, found.unknown, 0]
        np.testing.assert_allclose(found.vectors, [[0.5, -1.0], [0.25, 2.0], [0.0, 0.0]])


def test_recordings_hold_what_the_npz_file_does(tmp_path: Path) -> None:
    waves = [np.array([0, 16384, -32768], dtype=np.int16), np.array([1, 2], dtype=np.int16)]
    folder = tmp_path / "files" / "recordings"
    folder.mkdir(parents=True)
    for number, samples in zip((0, 7), waves, strict=True):
        content = io.BytesIO()
        with wave.open(content, "wb") as file:
            file.setparams((1, 2, 8000, len(samples), "NONE", ""))
            file.writeframes(samples.tobytes())
        (folder / f"3_someone_{number}.wav").write_bytes(content.getvalue())
    compact = tmp_path / "compact"
    compact.mkdir()
    np.savez(compact / "fsdd.npz", audio=np.concatenate(waves), offsets=[0, 3, 5], label=[3, 3], index=[0, 7])
    for place in (tmp_path / "files", compact):
        test, train = sets.speech(place, "test"), sets.speech(place, "train")
        np.testing.assert_array_equal(test.items[0][:, 0], [0, 0.5, -1])
        assert len(test.items) == len(train.items) == 1
        assert test.labels.tolist() == [3]


def test_words_are_cut_as_the_vectors_expect() -> None:
    assert sets.tokens("What's the U.S. capital, in 1990?") == ("what", "'s", "the", "u.s.", "capital", ",", "in", "1990", "?")


def test_the_data_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POPQORN_DATA", str(tmp_path))
    assert sets.default_folder() == tmp_path
    monkeypatch.delenv("POPQORN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sets.default_folder() == tmp_path / "popqorn" / "data"


def test_the_real_files_are_what_they_should_be(data: Path) -> None:
    images = sets.mnist(data, "test")
    assert images.images.shape == (10_000, 28, 28)
    assert images.images.max() == 1
    pens = sets.strokes(data, "test")
    assert len(pens.items) == 10_000
    assert (pens.labels == images.labels).all()
    assert [len(sets.questions(data, split).words) for split in ("train", "test")] == [5452, 500]
    assert [len(sets.news(data, split).words) for split in ("train", "test")] == [22217, 9794]
    table = sets.glove(data)
    assert table.vectors.shape == (26034, 100)
    spoken = [sets.speech(data, split) for split in ("train", "test")]
    assert [len(split.items) for split in spoken] == [2700, 300]
    beats = sets.heart_beats(data, "test")
    assert beats.items[0].shape == (14, 6)
    assert np.bincount(beats.labels).tolist() == [8797, 3219]
    for source in SOURCES.values():
        path = source.find(data)
        assert sources.sha256(path) == source.sha256[path.name]
