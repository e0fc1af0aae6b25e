"""Data files as people have them."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
import torch

from popqorn.runs.data import Fault, read_data

X = np.arange(24.0).reshape(4, 3, 2)


def test_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=np.array([0, 1, 2, 3]), lengths=[3, 2, 1, 3])
    read = read_data(tmp_path / "a.npz")
    assert [len(one) for one in read.inputs] == [3, 2, 1, 3]
    assert read.labels == [0, 1, 2, 3]
    np.save(tmp_path / "a.npy", X)
    plain = read_data(str(tmp_path / "a.npy"))
    assert plain.labels is None
    assert torch.equal(torch.stack(list(plain.inputs)), torch.from_numpy(X))
    assert read_data((X, [0, 1, 2, 3])).stacked()[1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables(tmp_path: Path, kind: str) -> None:
    """A row per frame with a column `sample`, or a row per sample."""
    frames = {"sample": ["b", "b", "a", "b"], "u": [1.0, 2.0, 3.0, 4.0], "v": [5.0, 6.0, 7.0, 8.0], "label": [1, 1, 0, 1]}
    read = read_data(_table(tmp_path / f"frames.{kind}", frames))
    assert [one.tolist() for one in read.inputs] == [[[1, 5], [2, 6], [4, 8]], [[3, 7]]]
    assert read.labels == [1, 0]
    samples = read_data(_table(tmp_path / f"samples.{kind}", {" u": [1.0, 2.0], "v": [5.0, 6.0], "Y": [3, 4]}))
    assert [one.tolist() for one in samples.inputs] == [[1, 5], [2, 6]], "a row without frames"
    assert samples.labels == [3, 4]
    holes = read_data(_table(tmp_path / f"holes.{kind}", {"u": [1.0, None], "v": [2.0, 3.0]}))
    assert torch.isnan(torch.stack(list(holes.inputs))).flatten().tolist() == [False, False, True, False]


def _table(path: Path, columns: dict[str, list[object]]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(columns), path)
    else:
        rows = [["" if entry is None else str(entry) for entry in row] for row in zip(*columns.values(), strict=True)]
        rows = [list(columns), *rows]
        path.write_text("".join(",".join(row) + "\n" for row in rows))
    return path


def test_rows_at_fault_are_marked_and_the_others_read(tmp_path: Path) -> None:
    """In place of a sample stands what is wrong with it."""
    (tmp_path / "t.csv").write_text("sample,u,v,y\na,1,2,0\nb,3,x,1\nb,3,4,1\nc,5,6,1,7\nd,7,8,1\n")
    read = read_data(tmp_path / "t.csv")
    assert [isinstance(one, Fault) for one in read.inputs] == [False, True, True, False]
    assert read.labels == [0, None, None, 1]
    assert "line 3 of t.csv has 'x' in column 'v'" in str(read.inputs[1])
    assert "line 5 of t.csv has 5 columns" in str(read.inputs[2])
    with pytest.raises(ValueError, match="line 3"):
        read.stacked()


def test_text(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("what is it\n\nwhere is it\n")
    assert list(read_data(tmp_path / "t.txt").inputs) == ["what is it", "where is it"]
    (tmp_path / "l.txt").write_text("1\twhat is it\n0\twhere\n")
    assert read_data(tmp_path / "l.txt").labels == [1, 0]


def test_labels_of_steps(tmp_path: Path) -> None:
    """One per step, padded as the inputs are; where no decision is asked about, `y` may be anything."""
    np.savez(tmp_path / "a.npz", x=X, y=[[0, 1, 2], [1, 1, -1], [2, 0, 0], [0, 0, 0]], lengths=[3, 3, 3, 3])
    with pytest.raises(ValueError, match=r"sample 1 of a\.npz is \[1, 1, -1\]"):
        _ = read_data(tmp_path / "a.npz").labels
    np.savez(tmp_path / "a.npz", x=X, y=[[0, 1, 2], [1, 1, 0], [2, 0, 0], [0, 0, 0]], lengths=[3, 2, 1, 3])
    assert read_data(tmp_path / "a.npz").labels == [(0, 1, 2), (1, 1), (2,), (0, 0, 0)]
    np.savez(tmp_path / "a.npz", x=X, y=np.zeros((4, 1)))
    assert read_data(tmp_path / "a.npz").labels == [0, 0, 0, 0]
    assert read_data((X, [0.5] * 4)).unlabelled().labels is None


def test_hashes_tell_samples_and_labels_apart() -> None:
    hashes = read_data((np.stack([X[0], X[0], X[0] + 1e-12, X[0].T.reshape(3, 2)]), [0, 1, 0, 0])).hashes()
    assert len(set(hashes)) == 4
    assert read_data((X, None)).hashes() == read_data(X).hashes()


BAD = {
    "none.npz": (None, "does not exist"),
    "a.xlsx": (b"", "no kind that can be read"),
    "cut.npz": (b"PK\x03\x04 cut off", "cannot be read"),
    "cut.npy": (b"\x93NUMPY\x01\x00", "cannot be read"),
    "empty.csv": (b"u,v\n", "no rows"),
    "word.csv": (b"u,v\n1,two\n3,four\n", "column 'v'"),
    "half.csv": (b"u,y\n1,0.5\n", "label of sample 0"),
    "word_label.csv": (b"u,y\n1,cat\n", "number the classes"),
    "both.csv": (b"u,y,label\n1,0,1\n", "a label, twice"),
    "twice.csv": (b"u,u\n1,0\n", "twice"),
    "semi.csv": (b"u;y\n1;0\n", "semicolons"),
    "headless.csv": (b"1,2\n3,4\n", "names the columns"),
    "tabs.txt": (b"0\twhat\nwhere\n", "line 2 of tabs.txt"),
    "named.txt": (b"loc\twhat\n", "line 1 of named.txt"),
    "nan.csv": (b"u,y\n1,nan\n", "label of sample 0"),
    "bytes.txt": (b"\xff\xfe\xfa", "save it as UTF-8"),
    "cut.parquet": (b"PAR1 cut", "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        _ = read_data(tmp_path / name).labels
    assert name in str(caught.value)


def test_bad_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", images=X)
    np.savez(tmp_path / "few.npz", x=X, y=[0, 1])
    np.savez(tmp_path / "objects.npz", x=np.array([[1], [1, 2]], dtype=object))
    np.save(tmp_path / "flat.npy", np.arange(3.0))
    np.savez(tmp_path / "complex.npz", x=X * 1j)
    for length in (4, 0, -1, 1.5):
        np.savez(tmp_path / "long.npz", x=X, lengths=[3, 3, length, 3])
        with pytest.raises(ValueError, match=f"lengths of long.npz hold {length} for sample 2, which has 3 frames"):
            read_data(tmp_path / "long.npz")
    for labels in (np.zeros((4, 2)), np.zeros((4, 1, 1))):
        np.savez(tmp_path / "shape.npz", x=X, y=labels)
        with pytest.raises(ValueError, match=r"pass \[samples\], or \[samples, frames\]"):
            _ = read_data(tmp_path / "shape.npz").labels
    for name, message in {
        "other": "holds images",
        "few": "4 samples, but y has 2",
        "complex": "complex numbers",
        "objects": "nothing is unpickled",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_data(tmp_path / f"{name}.npz")
    with pytest.raises(ValueError, match="shape"):
        read_data(tmp_path / "flat.npy")
    with pytest.raises(ValueError, match="training needs y"):
        read_data(X).stacked()
    with pytest.raises(ValueError, match="different shapes"):
        read_data(([X[0], X[1][:2]], [0, 1])).stacked()
