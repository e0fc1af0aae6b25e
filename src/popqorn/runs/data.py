"""Data files as people have them: arrays, tables with a row per frame or per sample, lines of text."""

import csv
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn.reading import fingerprint

LARGEST = 2**33  # bytes of numbers
LABELS = ("y", "label")
SAMPLE = "sample"
KINDS = "an .npz or .npy file of arrays, a .csv or .parquet table, or a .txt file of sentences"


@dataclass(frozen=True)
class Fault:
    """What stands in place of a sample that cannot be read: it fails, the others do not."""

    reason: str


Sample = Tensor | str | Fault


@dataclass(frozen=True)
class Samples:
    """One entry per sample: `[frames, features]` (or whatever shape the model takes), or a sentence; and its label, if known."""

    inputs: Sequence[Sample]
    labels: Sequence[int | None] | None

    def __len__(self) -> int:
        return len(self.inputs)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels as two tensors, for training."""
        if self.labels is None:
            raise ValueError("data holds no labels; training needs y, one class number per sample")
        faults = [one.reason for one in self.inputs if isinstance(one, Fault)]
        if faults:
            raise ValueError(f"data: {faults[0]}; mend it")
        arrays = [one for one in self.inputs if isinstance(one, Tensor)]
        if len({one.shape for one in arrays}) != 1 or len(arrays) < len(self):
            raise ValueError("data holds samples of different shapes; training needs arrays of one shape, pad them")
        return torch.stack(arrays), torch.tensor(self.labels)

    def hashes(self) -> list[str]:
        """What tells every sample and its label from others."""
        labels = [None] * len(self) if self.labels is None else self.labels
        return [f"{_hash(one)}:{label}" for one, label in zip(self.inputs, labels, strict=True)]


def _hash(one: Sample) -> str:
    return fingerprint([one]) if isinstance(one, Tensor) else repr(one)


def read_data(data: Any) -> Samples:
    """The samples of a file (see docs/runs.md), of arrays `x` or `(x, y)`, or as they are."""
    if isinstance(data, Samples):
        return data
    if isinstance(data, str | Path):
        return _read_file(Path(data))
    inputs, labels = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    return _samples(inputs, labels, None, "data")


def _read_file(path: Path) -> Samples:
    readers: dict[str, Callable[[Path], Samples]] = {
        ".npz": _read_arrays,
        ".npy": _read_arrays,
        ".csv": _read_csv,
        ".parquet": _read_parquet,
        ".txt": _read_lines,
    }
    if path.suffix.lower() not in readers:
        raise ValueError(f"data: {path.name} is of no kind that can be read; pass {KINDS}")
    if not path.is_file():
        raise ValueError(f"data: {str(path)!r} does not exist; pass {KINDS}")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"data: {path.name} has {path.stat().st_size} bytes, more than memory is taken for; split it")
    try:
        return readers[path.suffix.lower()](path)
    except (zipfile.BadZipFile, EOFError, csv.Error, ValueError, OSError) as error:
        if str(error).startswith("data: "):
            raise
        raise ValueError(
            f"data: {path.name} cannot be read ({error}); it may be cut off, or of another kind: pass {KINDS}"
        ) from error


# ---- arrays --------------------------------------------------------------------------------------------------------------


def _read_arrays(path: Path) -> Samples:
    if path.suffix.lower() == ".npz":
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > LARGEST:
            raise ValueError(f"data: {path.name} would take {size} bytes; split it")
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return _samples(found, None, None, path.name)
    with found as file:
        if "x" not in file.files:
            raise ValueError(
                f"data: {path.name} holds {', '.join(sorted(file.files)) or 'nothing'}; it must hold x, and may hold y, lengths"
            )
        labels, lengths = (file[name] if name in file.files else None for name in ("y", "lengths"))
        return _samples(file["x"], labels, lengths, path.name)


def _samples(inputs: Any, labels: Any, lengths: Any, name: str) -> Samples:
    """One tensor per sample, without its padding."""
    if isinstance(inputs, np.ndarray | Tensor) and inputs.ndim < 2:
        raise ValueError(f"data: x of {name} has shape {tuple(inputs.shape)}; pass [samples, frames, features]")
    rows = [one if isinstance(one, str) else torch.as_tensor(one) for one in inputs]
    for what, column in (("y", labels), ("lengths", lengths)):
        if column is not None and len(column) != len(rows):
            raise ValueError(f"data: {name} has {len(rows)} samples, but {what} has {len(column)} entries; pass one per sample")
    if lengths is not None:
        rows = [row[: int(length)] for row, length in zip(rows, lengths, strict=True)]
    if labels is None:
        return Samples(rows, None)
    return Samples(rows, [_whole(label, sample, name) for sample, label in enumerate(labels)])


def _whole(label: Any, sample: int, name: str) -> int:
    try:
        number = float(label)
    except (TypeError, ValueError):
        number = float("nan")
    if not number.is_integer() or number < 0:
        raise ValueError(f"data: the label of sample {sample} of {name} is {label!r}; labels are class numbers, leave others out")
    return int(number)


# ---- tables --------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Samples:
    with path.open(newline="", encoding="utf-8-sig") as file:
        heading, *rows = list(csv.reader(file)) or [[]]
    faults = {}
    for place, row in enumerate(rows):
        if len(row) != len(heading):
            faults[place] = f"line {place + 2} of {path.name} has {len(row)} columns, and the heading has {len(heading)}"
            rows[place] = (row + [""] * len(heading))[: len(heading)]
    return _table(path.name, heading, list(zip(*rows, strict=True)) if rows else [], faults)


def _read_parquet(path: Path) -> Samples:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("data: .parquet files need pyarrow; pip install 'popqorn[tables]'") from None
    table = parquet.read_table(path)
    return _table(path.name, table.column_names, [column.to_pylist() for column in table.columns], {})


def _table(name: str, heading: Sequence[str], columns: Sequence[Sequence[Any]], faults: dict[int, str]) -> Samples:
    """With a column `sample`, rows are frames; without, a row is a sample of one frame. All columns but these are features.

    `faults` says which rows are none, and why; cells that are no numbers are added to it.
    """
    if not columns:
        raise ValueError(f"data: {name} has no rows; it needs a heading and a row per frame or sample")
    named = dict(zip(heading, columns, strict=True))
    label = next((column for column in LABELS if column in named), None)
    features = [column for column in heading if column not in (SAMPLE, label)]
    values = np.array([_numbers(name, column, named[column], faults) for column in features]).T
    of = [str(place) for place in range(len(values))] if SAMPLE not in named else [str(entry) for entry in named[SAMPLE]]
    places: dict[str, list[int]] = {}
    for place, sample in enumerate(of):
        places.setdefault(sample, []).append(place)
    rows: list[Sample] = []
    labels: list[int | None] = []
    for number, some in enumerate(places.values()):
        reason = next((faults[place] for place in some if place in faults), None)
        rows.append(torch.from_numpy(values[some]) if reason is None else Fault(reason))
        labels.append(None if label is None or reason is not None else _whole(named[label][some[0]], number, name))
    return Samples(rows, None if label is None else labels)


def _numbers(name: str, column: str, entries: Sequence[Any], faults: dict[int, str]) -> list[float]:
    """Empty cells are NaN: their samples fail, the others do not."""
    numbers, wrong = [], {}
    for place, entry in enumerate(entries):
        try:
            numbers.append(float("nan") if entry in ("", None) else float(entry))
        except (TypeError, ValueError):
            numbers.append(float("nan"))
            wrong[place] = f"line {place + 2} of {name} has {entry!r} in column {column!r}, which is no number"
    if len(wrong) == len(entries):
        raise ValueError(f"data: column {column!r} of {name} is not numbers ({entries[0]!r}); leave it out")
    faults.update(wrong | faults)
    return numbers


# ---- text ----------------------------------------------------------------------------------------------------------------


def _read_lines(path: Path) -> Samples:
    """A sentence per line; or class number, tab, sentence, in every line."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    cells = [line.split("\t", 1) for line in lines]
    if lines and all(len(cell) == 2 and cell[0].strip().isdigit() for cell in cells):
        return Samples([text for _, text in cells], [int(label) for label, _ in cells])
    return Samples(lines, None)
