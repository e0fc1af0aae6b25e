"""Results on disk: rows in SQLite, written as soon as they are known.

A row is kept under a key: the hash of everything that decides it (model, sample, settings). A run that was killed goes on where
it was, and two runs on one store share what they have in common: the same row may be written twice, and is kept once.
"""

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
VERSION = 1
PATIENCE = 60.0  # seconds that a write waits for another process's
AT_ONCE = 500  # keys in one question; SQLite allows a few more
FAILED = "failed"
REMEDIES = {  # by what SQLite says
    "not a database": "pass the file of another run, or a new name, as --store",
    "full": "make room on the disk: what was written before stands, and the same command goes on from there",
    "readonly": "you may not write there; pass another --store",
    "unable to open": "is it a folder, or may you not write there? Pass another --store",
    "locked": "another process has held it for a minute: wait for it, the same command goes on from here",
}
SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, about TEXT NOT NULL, begun REAL NOT NULL);
CREATE TABLE IF NOT EXISTS entries
    (place INTEGER PRIMARY KEY, run TEXT NOT NULL, tag TEXT NOT NULL, key TEXT NOT NULL, UNIQUE (run, tag));
CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, row TEXT NOT NULL, failed INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Store:
    """A file of rows. Every call opens it anew: a store can be handed to another process, and outlives a kill at any moment.

    A run has entries: each a tag (which sample, of which table) and the key under which its row is, or will be.
    """

    path: Path

    @staticmethod
    def open(path: Path) -> "Store":
        """Begin, or go on with, the file; one of another version is left alone, and an error says so."""
        store = Store(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"store: {str(path.parent)!r} cannot be made ({error.strerror}); pass another --store") from error
        with store._connected() as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            kept = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone() if "meta" in tables else None
            version = kept[0] if kept else None if tables - {"meta"} else str(VERSION)
            if version == str(VERSION):
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
                connection.execute("INSERT OR IGNORE INTO meta VALUES ('version', ?)", (str(VERSION),))
                connection.executescript(SCHEMA)
        if version is None:
            raise ValueError(f"store: {str(path)!r} is a database of another program; pass another --store")
        if version != str(VERSION):
            raise ValueError(
                f"store: {str(path)!r} is of version {version}, and this popqorn writes version {VERSION}; pass another --store, "
                "or read it with the popqorn that wrote it"
            )
        return store

    @staticmethod
    def read(path: Path) -> "Store":
        """A file that is there already."""
        if not path.is_file():
            raise FileNotFoundError(f"store: {str(path)!r} does not exist; pass one that a run wrote")
        return Store.open(path)

    def begin(self, run: str, about: Mapping[str, Any]) -> None:
        """Say what a run is; one that is begun again becomes the newest."""
        with self._connected() as connection:
            connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (run, _text(about), time.time()))

    def plan(self, run: str, entries: Iterable[tuple[Row, str]]) -> None:
        """Say what a run will hold when it is done: tags and keys; what was planned before stays."""
        texts = ((run, _text(tag), key) for tag, key in entries)
        with self._connected() as connection:
            connection.executemany("INSERT OR IGNORE INTO entries (run, tag, key) VALUES (?, ?, ?)", texts)

    def done(self, keys: Sequence[str]) -> set[str]:
        """Which of the keys have a row already, samples that failed aside."""
        found: set[str] = set()
        with self._connected() as connection:
            for start in range(0, len(keys), AT_ONCE):
                some = keys[start : start + AT_ONCE]
                places = ",".join("?" * len(some))
                kept = connection.execute(f"SELECT key FROM results WHERE NOT failed AND key IN ({places})", some)
                found.update(key for (key,) in kept)
        return found

    def add(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Keep rows under their keys: all of them at once, or (killed half way) none. A failure replaces nothing known."""
        texts = [(key, _text(row), row.get("status") == FAILED) for key, row in rows]
        known = "ON CONFLICT (key) DO UPDATE SET row = excluded.row, failed = excluded.failed WHERE failed OR NOT excluded.failed"
        with self._connected() as connection:
            connection.executemany(f"INSERT INTO results VALUES (?, ?, ?) {known}", texts)

    def runs(self) -> dict[str, Row]:
        """What each run is, the newest first."""
        with self._connected() as connection:
            found = connection.execute("SELECT run, about FROM runs ORDER BY begun DESC, rowid DESC")
            return {run: _restored(json.loads(about)) for run, about in found}

    def rows(self, run: str) -> Iterator[Row]:
        """The rows of a run that are there, with their tags, in the order in which they were planned."""
        asked = "SELECT tag, row FROM entries JOIN results USING (key) WHERE run = ? ORDER BY place"
        with self._connected() as connection:
            for tag, row in connection.execute(asked, (run,)):
                yield _restored({**json.loads(tag), **json.loads(row)})

    def planned(self, run: str) -> list[Row]:
        """The tags of a run."""
        with self._connected() as connection:
            asked = connection.execute("SELECT tag FROM entries WHERE run = ? ORDER BY place", (run,))
            return [_restored(json.loads(tag)) for (tag,) in asked]

    def missing(self, run: str) -> list[Row]:
        """The tags of a run that have no row yet."""
        asked = "SELECT tag FROM entries LEFT JOIN results USING (key) WHERE run = ? AND row IS NULL ORDER BY place"
        with self._connected() as connection:
            return [_restored(json.loads(tag)) for (tag,) in connection.execute(asked, (run,))]

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            remedy = next((remedy for sign, remedy in REMEDIES.items() if sign in str(error)), "what was written before stands")
            raise OSError(f"store: {str(self.path)!r} cannot be used ({error}); {remedy}") from error


def key_of(value: Any) -> str:
    """The hash of plain values."""
    return hashlib.sha256(json.dumps(_stored(value), sort_keys=True).encode()).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(_stored(value))


def _stored(value: Any) -> Any:
    """JSON has no infinite numbers: they are text."""
    if isinstance(value, Mapping):
        return {name: _stored(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_stored(entry) for entry in value]
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"]) if value.keys() == {"float"} else {name: _restored(entry) for name, entry in value.items()}
    return [_restored(entry) for entry in value] if isinstance(value, list) else value
