"""Data files as people have them: arrays, tables with a row per frame or per sample, lines of text."""

import csv
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn.reading import fingerprint, read_tensor

LARGEST = 2**33  # bytes of numbers
LABELS = ("y", "label")
SAMPLE = "sample"
KINDS = "an .npz or .npy file of arrays, a .csv or .parquet table, or a .txt file of sentences"


@dataclass(frozen=True)
class Fault:
    """What stands in place of a sample that cannot be read: it fails, the others do not."""

    reason: str


Sample = Tensor | str | Fault
Label = int | tuple[int, ...] | None  # a class, one for every step, or what stands beside a fault


@dataclass(frozen=True)
class Samples:
    """One entry per sample: `[frames, features]` (or whatever shape the model takes), or a sentence; and what `y` says of it, if
    there is one.
    """

    inputs: Sequence[Sample]
    said: Sequence[Any] | None
    name: str = "data"

    def __len__(self) -> int:
        return len(self.inputs)

    @cached_property
    def labels(self) -> Sequence[Label] | None:
        """`said` as class numbers; one per sample, or one per step."""
        if self.said is None:
            return None
        each = enumerate(zip(self.inputs, self.said, strict=True))
        return [None if isinstance(one, Fault) else _label(said, one, sample, self.name) for sample, (one, said) in each]

    def unlabelled(self) -> "Samples":
        """For questions that need no labels, whatever `y` holds."""
        return replace(self, said=None)

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


def together(samples: Sequence[Sample]) -> Tensor | list[str]:
    """Samples of one shape, as the library takes them."""
    faults = [one.reason for one in samples if isinstance(one, Fault)]
    if faults:
        raise ValueError(faults[0])
    arrays = [one for one in samples if isinstance(one, Tensor)]
    if not arrays:
        return [str(one) for one in samples]
    stacked = torch.stack(arrays)
    # Numbers of images and sensors are often stored as bytes; token ids (one axis each) stay what they are.
    return stacked if stacked.is_floating_point() or stacked.dim() == 2 else stacked.double()


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
    except UnicodeDecodeError as error:
        raise ValueError(f"data: {path.name} is no UTF-8 text ({error}); save it as UTF-8") from error
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
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return _samples(found, None, None, path.name)
        with found as file:
            if "x" not in file.files:
                held = ", ".join(sorted(file.files)) or "nothing"
                raise ValueError(f"data: {path.name} holds {held}; it must hold x, and may hold y, lengths")
            labels, lengths = (file[name] if name in file.files else None for name in ("y", "lengths"))
            return _samples(file["x"], labels, lengths, path.name)
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ValueError(
            f"data: {path.name} holds Python objects, and nothing is unpickled here; pass arrays of numbers, sequences of "
            "different lengths padded, with lengths"
        ) from None


def _samples(inputs: Any, labels: Any, lengths: Any, name: str) -> Samples:
    """One tensor per sample, without its padding."""
    if isinstance(inputs, np.ndarray | Tensor) and inputs.ndim < 2:
        raise ValueError(f"data: x of {name} has shape {tuple(inputs.shape)}; pass [samples, frames, features]")
    rows = [one if isinstance(one, str) else read_tensor(one, f"data: sample {place}") for place, one in enumerate(inputs)]
    if any(isinstance(row, Tensor) and row.is_complex() for row in rows):
        raise ValueError(f"data: x of {name} holds complex numbers; pass real ones")
    for what, column in (("y", labels), ("lengths", lengths)):
        if column is not None and len(column) != len(rows):
            raise ValueError(f"data: {name} has {len(rows)} samples, but {what} has {len(column)} entries; pass one per sample")
    if lengths is not None:
        rows = [row[: _length(length, row, place, name)] for place, (row, length) in enumerate(zip(rows, lengths, strict=True))]
    return Samples(rows, labels, name)


def _length(length: Any, row: Any, sample: int, name: str) -> int:
    number = _whole(length)
    if number is None or not 0 < number <= len(row):
        raise ValueError(
            f"data: lengths of {name} hold {length} for sample {sample}, which has {len(row)} frames; pass 1 to {len(row)}"
        )
    return number


def _label(said: Any, one: Sample, sample: int, name: str) -> Label:
    """A class number, or one for every step."""
    entries = np.asarray(said)
    numbers = [_whole(entry) for entry in entries.reshape(-1)]
    per_step = entries.ndim == 1 and entries.size > 1
    if entries.ndim > 1 or entries.size == 0 or (per_step and isinstance(one, Tensor) and len(numbers) < len(one)):
        raise ValueError(f"data: y of {name} has shape {entries.shape} for sample {sample}; pass [samples], or [samples, frames]")
    if any(number is None or number < 0 for number in numbers):
        raise ValueError(
            f"data: the label of sample {sample} of {name} is {entries.tolist()!r}; labels are class numbers, 0 and up: number "
            "the classes, or leave y out"
        )
    classes = [int(number) for number in numbers if number is not None]
    return tuple(classes[: len(one)] if isinstance(one, Tensor) else classes) if per_step else classes[0]


def _whole(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None


# ---- tables --------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Samples:
    with path.open(newline="", encoding="utf-8-sig") as file:
        heading, *rows = list(csv.reader(file)) or [[]]
    if len(heading) == 1 and ";" in heading[0]:
        raise ValueError(f"data: {path.name} is separated by semicolons; save it with commas, and points in its numbers")
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
    """With a column `sample`, rows are frames; without, a row is a sample without frames. All columns but these are features.

    `faults` says which rows are none, and why; cells that are no numbers are added to it.
    """
    if not columns:
        raise ValueError(f"data: {name} has no rows; it needs a heading and a row per frame or sample")
    heading = [column.strip() for column in heading]
    known = [column for column in heading if column.lower() in (SAMPLE, *LABELS)]
    of = next((column for column in known if column.lower() == SAMPLE), None)
    label = next((column for column in known if column.lower() in LABELS), None)
    if len(set(heading)) < len(heading) or len(known) > (of is not None) + (label is not None):
        raise ValueError(f"data: {name} has the columns {', '.join(heading)}; a name, or a label, twice: leave one out")
    if all(_whole(column) is not None for column in heading):
        raise ValueError(f"data: {name} begins with {', '.join(heading)}; the first line names the columns, add it")
    named = dict(zip(heading, columns, strict=True))
    features = [column for column in heading if column not in (of, label)]
    values = np.array([_numbers(name, column, named[column], faults) for column in features]).T
    places: dict[str, list[int]] = {}
    for place in range(len(values)):
        places.setdefault(str(place if of is None else named[of][place]), []).append(place)
    rows: list[Sample] = []
    for some in places.values():
        reason = next((faults[place] for place in some if place in faults), None)
        array = torch.from_numpy(values[some])
        rows.append(Fault(reason) if reason is not None else array.squeeze(0) if of is None else array)
    return Samples(rows, None if label is None else [named[label][some[0]] for some in places.values()], name)


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
    """A sentence per line; or class number, tab, sentence, in every line. Blank lines do not count."""
    lines = [(number, line) for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1) if line.strip()]
    if not any("\t" in line for _, line in lines):
        return Samples([line for _, line in lines], None, path.name)
    cells = [line.split("\t", 1) for _, line in lines]
    for (number, _), cell in zip(lines, cells, strict=True):
        if len(cell) < 2 or _whole(cell[0]) is None:
            raise ValueError(
                f"data: line {number} of {path.name} begins with no class number and a tab, though lines have tabs; number the "
                "classes, in every line or in none"
            )
    return Samples([text for _, text in cells], [int(label) for label, _ in cells], path.name)
