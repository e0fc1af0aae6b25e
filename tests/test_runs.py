"""Runs: every sample one row, killed, shared or at fault as they may be."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.cloudpickle
import torch
from torch import nn

import popqorn
from popqorn.runs.engine import Done
from popqorn.runs.engines import read_engine
from popqorn.runs.local import Local, Processes
from popqorn.runs.plan import Plan
from popqorn.runs.run import prepare
from popqorn.runs.store import Row, Store
from popqorn.runs.worker import Batch, Worker

CLASSES, FRAMES, FEATURES = 3, 4, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file and a data file of 24 samples."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("run")
    popqorn.save(popqorn.SequenceClassifier(nn.LSTM(FEATURES, 4), nn.Linear(4, CLASSES)), folder / "model.safetensors")
    inputs = torch.randn(24, FRAMES, FEATURES)
    np.savez(folder / "data.npz", x=inputs.numpy(), y=np.arange(24) % CLASSES)
    return folder


def given(folder: Path) -> tuple[str, str]:
    return str(folder / "model.safetensors"), str(folder / "data.npz")


def rows(run: popqorn.Run) -> list[Row]:
    """Without their seconds."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows]


def test_rows_are_what_the_library_says(folder: Path, tmp_path: Path) -> None:
    model, data = popqorn.load(given(folder)[0]), np.load(given(folder)[1])
    inputs, labels = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    plan = Plan(norm=2.0, batch=7)
    found = rows(popqorn.run(*given(folder), plan, store=tmp_path / "s"))
    proven = popqorn.certify(model, inputs, labels=labels, norm=2.0)
    assert [row["radius"] for row in found] == pytest.approx(proven.radius.tolist(), rel=1e-3)
    assert [row["decision"] for row in found] == model(inputs).argmax(-1).tolist()
    assert [row["label"] for row in found] == labels.tolist()
    assert [row["status"] for row in found] == [status.name.lower() for status in proven.status]
    assert "misclassified" in {row["status"] for row in found}
    held = rows(popqorn.run(*given(folder), replace(plan, command="verify", eps=0.05), store=tmp_path / "s"))
    proven_at = popqorn.verify(model, inputs, 0.05, labels=labels, norm=2.0).certified.tolist()
    assert [row["radius"] > 0 for row in held] == proven_at
    both = rows(popqorn.run(*given(folder), replace(plan, command="bracket"), store=tmp_path / "s"))
    reached = rows(popqorn.run(*given(folder), replace(plan, command="attack"), store=tmp_path / "s"))
    assert all(row["radius"] <= row["attacked"] for row in both if row["status"] == "certified")
    assert [row["attacked"] for row in both] == pytest.approx([row["attacked"] for row in reached], rel=0.2)


def test_frames_of_both_sides(folder: Path, tmp_path: Path) -> None:
    found = rows(popqorn.run(*given(folder), Plan("sensitivity", norm=2.0), store=tmp_path / "s", samples=5))
    for row in found:
        if row["status"] == "misclassified":
            assert set(row["frames"]) == {0.0}
        else:
            assert len(row["frames"]) == len(row["frames_attacked"]) == FRAMES
            assert all(low <= high for low, high in zip(row["frames"], row["frames_attacked"], strict=True))
            assert row["radius"] == min(row["frames"])
    assert any(row["status"] != "misclassified" for row in found)


def test_a_run_goes_on_where_it_was_and_repeats_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(popqorn.run(*given(folder), Plan(batch=5), store=tmp_path / "whole"))
    asked: list[int] = []
    ask = Plan.ask

    def counted(self: Plan, model: Any, inputs: Sequence[Any], labels: Any) -> list[Row]:
        asked.append(len(inputs))
        if sum(asked) > 15:
            raise KeyboardInterrupt
        return ask(self, model, inputs, labels)

    monkeypatch.setattr(Plan, "ask", counted)
    with pytest.raises(KeyboardInterrupt):
        popqorn.run(*given(folder), Plan(batch=5), store=tmp_path / "s")
    monkeypatch.setattr(Plan, "ask", ask)
    told: list[tuple[int, int, int]] = []
    found = popqorn.run(
        *given(folder), Plan(batch=3), store=tmp_path / "s", tell=lambda done, all_of, new: told.append((done, all_of, len(new)))
    )
    assert told == [(18, 24, 3), (21, 24, 3), (24, 24, 3)], "fifteen were done before"
    assert [row["radius"] for row in rows(found)] == pytest.approx([row["radius"] for row in whole], rel=1e-3)
    assert found.missing == []


def test_other_settings_samples_and_weights_are_other_rows(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "s"
    model, data = popqorn.load(given(folder)[0]), np.load(given(folder)[1])["x"]
    runs = [popqorn.run(model, data[:3], plan, store=store) for plan in (Plan(), Plan(norm=2.0), Plan(tolerance=0.1))]
    changed = popqorn.load(given(folder)[0])
    with torch.no_grad():
        changed.head.bias += 0.01
    runs.append(popqorn.run(changed, data[:3], store=store))
    runs.append(popqorn.run(model, data[:3] + 1e-3, store=store))
    assert len({run.name for run in runs}) == 5
    assert len({tuple(row["radius"] for row in run.rows) for run in runs}) == 5
    assert popqorn.run(model, data[:3], Plan(batch=2), store=store).name == runs[0].name, "the batch decides nothing"
    told: list[int] = []
    popqorn.run(model, data[:6], store=store, tell=lambda done, total, new: told.append(len(new)))
    assert sum(told) == 3, "more samples: the first are known"


def test_meeting_a_requirement(folder: Path, tmp_path: Path) -> None:
    inputs = np.load(given(folder)[1])["x"]
    found = popqorn.run(given(folder)[0], inputs, store=tmp_path / "s")
    least = min(row["radius"] for row in found.rows)
    assert found.meets(least)
    assert not found.meets(least * 1.001)
    inputs[3, 0, 0] = math.nan
    assert not popqorn.run(given(folder)[0], inputs, store=tmp_path / "s").meets(0.0), "what failed proves nothing"


def test_samples_that_are_listed_keep_their_numbers(folder: Path, tmp_path: Path) -> None:
    whole = {row["sample"]: row for row in rows(popqorn.run(*given(folder), store=tmp_path / "s"))}
    told: list[int] = []
    some = popqorn.run(*given(folder), store=tmp_path / "s", samples=[7, 3], tell=lambda done, total, new: told.append(len(new)))
    assert rows(some) == [whole[7], whole[3]]
    assert not told, "they were known"


# ---- samples at fault --------------------------------------------------------------------------------------------------------


def test_samples_at_fault_are_named_and_the_others_done(folder: Path, tmp_path: Path) -> None:
    good = np.load(given(folder)[1])["x"][:6]
    inputs: list[Any] = [*good]
    inputs[1] = np.full_like(good[0], math.nan)
    inputs[4] = np.zeros((FRAMES, FEATURES + 1), np.float32)
    found = list(popqorn.run(given(folder)[0], inputs, store=tmp_path / "s").rows)
    assert [row["status"] for row in found].count("failed") == 2
    assert "NaN" in found[1]["error"]
    assert str(FEATURES) in found[4]["error"]
    whole = list(popqorn.run(given(folder)[0], good, store=tmp_path / "other").rows)
    assert [found[i]["radius"] for i in (0, 2, 3, 5)] == pytest.approx([whole[i]["radius"] for i in (0, 2, 3, 5)], rel=1e-3)
    inputs[1] = good[1]
    mended = list(popqorn.run(given(folder)[0], inputs, store=tmp_path / "s").rows)
    assert mended[1]["status"] == "certified"


def test_bad_runs_are_named(folder: Path, tmp_path: Path) -> None:
    model, data = given(folder)
    for call, message in (
        (lambda: Plan("prove"), "command"),
        (lambda: Plan("verify"), "eps is None"),
        (lambda: Plan(eps=0.1), "eps is 0.1"),
        (lambda: Plan(dtype="float16"), "dtype"),
        (lambda: Plan(norm=0.5), "norm"),
        (lambda: Plan(batch=0), "batch"),
        (lambda: Plan(method="guess"), "method"),
        (lambda: popqorn.run(model, data, engine="slurm"), "engine is 'slurm'"),
        (lambda: popqorn.run(model, np.zeros((0, 4, 2))), "no samples"),
        (lambda: popqorn.run("none.onnx", data), "none.onnx"),
        (lambda: Processes(0), "workers"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_plan_as_a_file(tmp_path: Path) -> None:
    plan = Plan("verify", norm=2.0, clip=(0.0, 1.0), frames=(1, 2), eps=0.125, total=True, seconds=2.5, method="split")
    plan.write(tmp_path / "run.toml")
    assert Plan.of(Plan.read(tmp_path / "run.toml")) == plan
    Plan().write(tmp_path / "run.toml")
    assert Plan.of(Plan.read(tmp_path / "run.toml")) == Plan()
    for text, message in (("norm = ", "cannot be read"), ("radius = 2", "radius, which are no settings")):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(ValueError, match=message):
            Plan.read(tmp_path / "bad.toml")


# ---- engines -----------------------------------------------------------------------------------------------------------------


def test_processes_give_the_same_rows(folder: Path, tmp_path: Path) -> None:
    plan = Plan(norm=2.0, batch=4)
    here = rows(popqorn.run(*given(folder), plan, store=tmp_path / "here"))
    there = rows(popqorn.run(*given(folder), plan, store=tmp_path / "there", engine="processes", workers=2))
    assert here == there


@dataclass(frozen=True)
class Deadly(Worker):
    """Kills its process at a sample, as often as there are files to say so."""

    folder: Path = Path()
    sample: int = 5

    def rows(self, batch: Batch) -> list[tuple[str, Row]]:
        left = sorted(self.folder.glob("death*"))
        if self.sample in batch.samples and left:
            left[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().rows(batch)


@pytest.mark.parametrize(("engine", "deaths"), [("processes", 1), ("processes", 10), ("ray", 1)])
def test_a_worker_that_dies_is_replaced(folder: Path, tmp_path: Path, engine: str, deaths: int) -> None:
    """Nothing is lost; a sample that takes every worker down is marked, and the others are done."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for death in range(deaths):
        (tmp_path / f"death{death}").touch()
    plan = Plan(norm=2.0, batch=4)
    whole = rows(popqorn.run(*given(folder), plan, store=tmp_path / "whole"))
    prepared = prepare(*given(folder), plan, store=tmp_path / "s")
    replace(prepared, worker=Deadly(prepared.worker.model, plan, tmp_path)).work(read_engine(engine, 2))
    found = rows(prepared.run)
    assert len(list(tmp_path.glob("death*"))) < deaths
    for path in tmp_path.glob("death*"):
        path.unlink()
    lost = [row["sample"] for row in found if row["status"] == "failed"]
    assert lost == ([] if deaths == 1 else [4, 5, 6, 7])
    assert [row for row in found if row["sample"] not in lost] == [row for row in whole if row["sample"] not in lost]
    assert rows(popqorn.run(*given(folder), plan, store=tmp_path / "s")) == whole


@dataclass(frozen=True)
class Backwards:
    """An engine of one's own."""

    workers: int = 1

    def work(self, worker: Worker, batches: Sequence[Batch], fresh: Callable[[Batch], Batch]) -> Iterator[Done]:
        yield from Local().work(worker, batches[::-1], fresh)


def test_an_engine_of_ones_own(folder: Path, tmp_path: Path) -> None:
    plan = Plan(batch=5)
    mine = popqorn.run(*given(folder), plan, engine=Backwards(), store=tmp_path / "a")
    assert rows(mine) == rows(popqorn.run(*given(folder), plan, store=tmp_path / "b"))


# ---- kills -------------------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, torch, popqorn
torch.set_num_threads(1)
popqorn.run(sys.argv[1], sys.argv[2], popqorn.Plan(norm=2.0, batch=4), store=sys.argv[3])
"""


@pytest.fixture(scope="module")
def many(folder: Path) -> tuple[str, str]:
    torch.manual_seed(1)
    np.savez(folder / "many.npz", x=torch.randn(200, FRAMES, FEATURES).numpy())
    return given(folder)[0], str(folder / "many.npz")


def begin(many: tuple[str, str], store: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *many, str(store)])


def test_killed_at_twenty_moments(many: tuple[str, str], tmp_path: Path) -> None:
    """The run goes on every time, and ends with what an undisturbed run finds."""
    whole = rows(popqorn.run(*many, Plan(norm=2.0, batch=4), store=tmp_path / "whole"))
    store, moments, kept = tmp_path / "s", random.Random(0), 0
    for _ in range(20):
        process = begin(many, store)
        deadline = time.monotonic() + 60
        while not (store.exists() and _count(store) > kept) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert _count(store) >= kept, "nothing that was written is lost"
        kept = _count(store)
    found = popqorn.run(*many, Plan(norm=2.0, batch=4), store=store)
    assert kept < 200, "the last kill came before the end"
    assert rows(found) == whole
    assert len(whole) == 200


def _count(path: Path) -> int:
    try:
        store = Store.read(path)
    except OSError:
        return 0
    return sum(1 for run in store.runs() for _ in store.rows(run))


def test_two_runs_on_one_store(many: tuple[str, str], tmp_path: Path) -> None:
    whole = rows(popqorn.run(*many, Plan(norm=2.0, batch=4), store=tmp_path / "whole"))
    both = [begin(many, tmp_path / "s") for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    (name,) = Store.read(tmp_path / "s").runs()
    found = popqorn.run(*many, Plan(norm=2.0, batch=4), store=tmp_path / "s")
    assert found.name == name
    assert rows(found) == whole
