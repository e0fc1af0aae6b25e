"""Results on disk: one JSON line per sample, written as soon as it is known, so that a run can stop anywhere and go on later."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ABOUT = "about.json"
PLAN = "plan"  # a table like the others


@dataclass(frozen=True)
class Store:
    """A folder of tables. `about` says which experiment it is and everything that decides its numbers."""

    folder: Path
    about: Row

    @staticmethod
    def open(folder: Path, about: Row) -> "Store":
        """Begin, or go on with, the results in `folder`; those of other settings are left alone, and an error says so."""
        path = folder / ABOUT
        if path.exists():
            before = Store.read(folder).about
            changed = [name for name in {**before, **about} if before.get(name) != about.get(name)]
            if changed:
                was = ", ".join(f"{name} {before.get(name)!r} (now {about.get(name)!r})" for name in sorted(changed))
                raise ValueError(
                    f"{str(folder)!r} holds results of other settings: {was}. Pass another --out, or --fresh to begin anew"
                )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(about, indent=2) + "\n")
        return Store(folder, about)

    @staticmethod
    def read(folder: Path) -> "Store":
        """The results in `folder`."""
        path = folder / ABOUT
        if not path.is_file():
            raise FileNotFoundError(
                f"{str(folder)!r} holds no results (there is no {ABOUT} in it); pass one that `popqorn experiment` wrote"
            )
        try:
            about = json.loads(path.read_text())
            if not isinstance(about, dict) or "experiment" not in about:
                raise ValueError("it names no experiment")
        except ValueError as error:
            raise ValueError(f"{str(path)!r} cannot be read ({error}); delete the folder to begin anew") from error
        return Store(folder, about)

    @staticmethod
    def forget(folder: Path) -> None:
        """Delete the rows of earlier results, and nothing else."""
        for path in (folder / ABOUT, *folder.glob("*.jsonl")):
            path.unlink(missing_ok=True)

    def rows(self, table: str) -> list[Row]:
        """All rows of a table; a line that was cut off while it was written is left out."""
        path = self.folder / f"{table}.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().split("\n")
        found = []
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                found.append(json.loads(line))
            except ValueError as error:
                if number == len(lines):  # no newline after it
                    break
                raise ValueError(f"{str(path)!r}, line {number}, is not a row of results ({error}); delete that line") from error
        return found

    def append(self, table: str, rows: Iterable[Row]) -> None:
        """Add rows, at once and whole."""
        path = self.folder / f"{table}.jsonl"
        if path.exists():
            kept = path.read_bytes()
            end = kept.rfind(b"\n") + 1
            if end != len(kept):  # a line that was cut off
                path.write_bytes(kept[:end])
        with path.open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    def note(self, table: str, row: Row) -> None:
        """Add a row, unless it is there already."""
        if row not in self.rows(table):
            self.append(table, [row])

    def plan(self, table: str, samples: Sequence[int], groups: Sequence[Row]) -> None:
        """Say what the table will hold when it is done: every sample, in every group."""
        self.note(PLAN, {"table": table, "samples": list(samples), "groups": list(groups)})

    def missing(self) -> list[tuple[str, Row, list[int]]]:
        """What was planned and is not there, as of a run that was stopped: table, group, samples."""
        planned = ((plan["table"], group, plan["samples"]) for plan in self.rows(PLAN) for group in plan["groups"])
        absent = [(table, group, self.todo(table, samples, **group)) for table, group, samples in planned]
        return [(table, group, samples) for table, group, samples in absent if samples]

    def todo(self, table: str, samples: Iterable[int], **of: Any) -> list[int]:
        """Which of the samples are not in the table yet, among the rows with the given values."""
        done = {row["sample"] for row in self.rows(table) if all(row.get(name) == value for name, value in of.items())}
        return [sample for sample in samples if sample not in done]
