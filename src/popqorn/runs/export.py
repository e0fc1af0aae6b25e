"""Rows as files that other programs read."""

import csv
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from popqorn.runs.store import Row

FIRST = ("sample", "label", "decision", "radius", "status", "seconds")
KINDS = (".csv", ".jsonl", ".parquet")


def check_suffix(path: Path, others: Sequence[str] = ()) -> None:
    if path.suffix.lower() not in (*KINDS, *others):
        raise ValueError(f"out: {path.name} ends in {path.suffix!r}; end it in one of {', '.join((*KINDS, *others))}")


def export(rows: Iterable[Row], path: Path, first: Sequence[str] = FIRST) -> None:
    """Write rows as the suffix says: `.csv`, `.jsonl` or `.parquet`; the columns `first` come first."""
    check_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = list(rows)
    names = [*first, *dict.fromkeys(name for row in table for name in row if name not in first)]
    unfinished = path.with_name(path.name + ".part")
    try:
        {".csv": _csv, ".jsonl": _lines, ".parquet": _parquet}[path.suffix.lower()](table, names, unfinished)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(f"out: {str(path)!r} cannot be written ({error.strerror or error}); the store has all rows") from error


def _csv(rows: list[Row], names: list[str], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in rows)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _lines(rows: list[Row], names: list[str], path: Path) -> None:
    """Infinite and missing numbers are null, as JSON has none."""
    path.write_text("".join(json.dumps({name: _plain(row.get(name)) for name in names}) + "\n" for row in rows))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parquet(rows: list[Row], names: list[str], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("out: .parquet files need pyarrow; pip install 'popqorn[tables]'") from None
    parquet.write_table(pyarrow.table({name: [row.get(name) for row in rows] for name in names}), path)
