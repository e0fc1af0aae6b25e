"""The results of an experiment: tables of rows in one store, written as soon as they are known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from popqorn.runs.store import Row, Store, key_of

FILE = "results.sqlite"
TABLE, SAMPLE = "table", "sample"


@dataclass(frozen=True)
class Results:
    """A folder with the store of one experiment. `about` says which, and everything that decides its numbers."""

    folder: Path
    about: Row

    @staticmethod
    def open(folder: Path, about: Row) -> "Results":
        """Begin, or go on with, the results in `folder`; those of other settings are left alone, and an error says so."""
        if not (folder / FILE).exists():
            Store.open(folder / FILE).begin(about["experiment"], about)
        before = Results.read(folder).about
        changed = [name for name in {**before, **about} if before.get(name) != about.get(name)]
        if changed:
            was = ", ".join(f"{name} {before.get(name)!r} (now {about.get(name)!r})" for name in sorted(changed))
            raise ValueError(
                f"{str(folder)!r} holds results of other settings: {was}. Pass another --out, or --fresh to begin anew"
            )
        return Results(folder, about)

    @staticmethod
    def read(folder: Path) -> "Results":
        """The results in `folder`."""
        if not (folder / FILE).is_file():
            raise FileNotFoundError(
                f"{str(folder)!r} holds no results (there is no {FILE} in it); pass one that `popqorn experiment` wrote"
            )
        for about in Store.read(folder / FILE).runs().values():
            if "experiment" in about:
                return Results(folder, about)
        raise ValueError(f"{str(folder / FILE)!r} holds no experiment; delete it to begin anew")

    @staticmethod
    def forget(folder: Path) -> None:
        """Delete the rows of earlier results, and nothing else."""
        for path in folder.glob(f"{FILE}*"):
            path.unlink()

    def rows(self, table: str) -> list[Row]:
        """All rows of a table, in the order in which they were planned."""
        found = [row for row in self._store.rows(self._run) if row[TABLE] == table]
        return [{name: value for name, value in row.items() if name != TABLE} for row in found]

    def note(self, table: str, row: Row) -> None:
        """Add a row of its own, unless it is there already."""
        tag = {TABLE: table, **row}
        self._store.plan(self._run, [(tag, key_of(tag))])
        self._store.add([(key_of(tag), {})])

    def plan(self, table: str, samples: Sequence[int], groups: Sequence[Row]) -> None:
        """Say what the table will hold when it is done: every sample, in every group."""
        tags = [{TABLE: table, **group, SAMPLE: sample} for group in groups for sample in samples]
        self._store.plan(self._run, ((tag, key_of(tag)) for tag in tags))

    def add(self, table: str, group: Row, rows: Iterable[tuple[int, Row]]) -> None:
        """Keep the rows of some samples that were planned."""
        self._store.add((key_of({TABLE: table, **group, SAMPLE: sample}), row) for sample, row in rows)

    def missing(self) -> list[tuple[str, Row, list[int]]]:
        """What was planned and is not there, as of a run that was stopped: table, group, samples."""
        absent: list[tuple[str, Row, list[int]]] = []
        for tag in self._store.missing(self._run):
            group = {name: value for name, value in tag.items() if name not in (TABLE, SAMPLE)}
            if not absent or absent[-1][:2] != (tag[TABLE], group):
                absent.append((tag[TABLE], group, []))
            absent[-1][2].append(tag[SAMPLE])
        return absent

    def todo(self, table: str, samples: Iterable[int], **group: Any) -> list[int]:
        """Which of the samples are not in the table yet, in this group."""
        keys = {sample: key_of({TABLE: table, **group, SAMPLE: sample}) for sample in samples}
        done = self._store.done(list(keys.values()))
        return [sample for sample, key in keys.items() if key not in done]

    @property
    def _store(self) -> Store:
        return Store(self.folder / FILE)

    @property
    def _run(self) -> str:
        return str(self.about["experiment"])
