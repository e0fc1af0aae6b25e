"""The store: rows once, whatever happens to those who write them."""

import math
import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from popqorn.runs.export import export
from popqorn.runs.store import AT_ONCE, VERSION, Store, key_of


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "deep" / "s.sqlite")
    row = {"radius": math.inf, "status": "certified", "frames": [0.5, math.nan, -math.inf], "label": None, "words": ["a", "'"]}
    store.begin("run", {"eps": math.inf})
    store.plan("run", [({"sample": 0}, "a"), ({"sample": 1}, "b"), ({"sample": 2}, "a")])
    store.add([("a", row)])
    first, third = store.rows("run")
    assert (first["sample"], third["sample"]) == (0, 2), "equal samples share a row"
    assert first["radius"] == math.inf
    assert math.isnan(first["frames"][1])
    assert {name: first[name] for name in ("label", "words", "status")} == {
        "label": None,
        "words": ["a", "'"],
        "status": "certified",
    }
    assert store.missing("run") == [{"sample": 1}]
    assert store.runs() == {"run": {"eps": math.inf}}


def test_failures_are_tried_again_and_replace_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s.sqlite")
    store.add([("a", {"status": "failed", "error": "?"}), ("b", {"status": "certified", "radius": 1.0})])
    assert store.done(["a", "b", "c"]) == {"b"}
    store.add([("b", {"status": "failed"}), ("a", {"status": "certified", "radius": 2.0})])
    store.plan("run", [({"sample": 0}, "a"), ({"sample": 1}, "b")])
    assert [row["radius"] for row in store.rows("run")] == [2.0, 1.0]


def test_many_keys_are_asked_about_in_parts(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s.sqlite")
    keys = [f"{place}" for place in range(2 * AT_ONCE + 1)]
    store.add((key, {"status": "certified"}) for key in keys)
    assert store.done(keys) == set(keys)


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s.sqlite")
    for name in ("a", "b", "a"):
        store.begin(name, {})
    assert list(store.runs()) == ["a", "b"]


def test_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = Store.open(path)
    store.add([("a", {"status": "certified"})])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = ?", (str(VERSION + 1),))
    with pytest.raises(ValueError, match=r"version 2.*another --store"):
        Store.open(path)
    with pytest.raises(ValueError, match="version"):
        Store.read(path)
    assert store.done(["a"]) == {"a"}


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("not a database at all" * 100)
    with pytest.raises(OSError, match=r"text\.sqlite.*not a database.*a new name"):
        Store.open(tmp_path / "text.sqlite")
    with pytest.raises(FileNotFoundError, match=r"none\.sqlite"):
        Store.read(tmp_path / "none.sqlite")
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    before = (tmp_path / "other.sqlite").read_bytes()
    with pytest.raises(ValueError, match="of another program"):
        Store.open(tmp_path / "other.sqlite")
    assert (tmp_path / "other.sqlite").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="another --store"):
        Store.open(tmp_path / "file" / "s.sqlite")


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path / "s.sqlite")
    store.add([("a", {"status": "certified"})])
    connect = sqlite3.connect

    def small(*given: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*given, **named)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(OSError, match="room on the disk"):
        store.add([(f"b{place}", {"status": "certified", "text": "x" * 5000}) for place in range(50)])
    monkeypatch.undo()
    assert store.done(["a", "b0"]) == {"a"}, "all rows of a call, or none"


def test_two_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s.sqlite")
    keys = [f"{place}" for place in range(200)]
    store.plan("run", (({"sample": place}, key) for place, key in enumerate(keys)))
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(store, keys)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert [row["radius"] for row in store.rows("run")] == list(range(200))


def _write(store: Store, keys: list[str]) -> None:
    for key in keys:
        store.add([(key, {"status": "certified", "radius": int(key)})])


def test_keys_tell_settings_apart_and_not_their_order() -> None:
    assert key_of({"a": 1, "b": math.inf}) == key_of({"b": math.inf, "a": 1})
    assert len({key_of(value) for value in ([1], [1.5], ["1"], [math.inf], [None], [[1]])}) == 6


def test_rows_as_files(tmp_path: Path) -> None:
    import csv
    import json

    import pyarrow.parquet as parquet

    rows = [
        {"sample": 0, "label": 1, "decision": 1, "radius": 0.25, "status": "certified", "seconds": 0.1},
        {"sample": 1, "label": None, "decision": None, "status": "failed", "error": 'NaN, "here"', "seconds": None},
        {"sample": 2, "label": 0, "decision": 0, "radius": math.inf, "status": "unbounded", "seconds": 0.2, "frames": [1.0, 2.0]},
    ]
    for suffix in (".csv", ".jsonl", ".parquet"):
        export(rows, tmp_path / f"rows{suffix}")
    with (tmp_path / "rows.csv").open() as file:
        found = list(csv.DictReader(file))
    assert list(found[0])[:6] == ["sample", "label", "decision", "radius", "status", "seconds"]
    assert found[1]["error"] == 'NaN, "here"'
    assert json.loads(found[2]["frames"]) == [1.0, 2.0]
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert (lines[0]["radius"], lines[1]["radius"], lines[2]["radius"]) == (0.25, None, None)
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["radius"] for row in table] == [0.25, None, math.inf]
    with pytest.raises(ValueError, match=r"xlsx.*\.parquet"):
        export(rows, tmp_path / "rows.xlsx")
