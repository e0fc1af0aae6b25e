"""Runs: every sample one row, killed, shared or at fault as they may be."""

import copy
import importlib
import math
import os
import pickle
import random
import signal
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
from popqorn.runs.ask import ask
from popqorn.runs.engine import Done
from popqorn.runs.engines import read_engine
from popqorn.runs.identity import identity
from popqorn.runs.local import Local, Processes, _context
from popqorn.runs.plan import Plan
from popqorn.runs.run import prepare
from popqorn.runs.store import Row, Store, key_of
from popqorn.runs.worker import Batch, Worker, without

CLASSES, FRAMES, FEATURES = 3, 4, 2
MANY = Plan(norm=2.0, batch=5)


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
    proven_at = popqorn.verify(model, inputs, 0.05, labels=labels, norm=2.0)
    assert [row["radius"] > 0 for row in held] == proven_at.certified.tolist()
    assert [row["margin"] for row in held] == pytest.approx(proven_at.margins.amin(-1).tolist(), rel=1e-6)
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


def test_parts_of_a_batch_keep_their_inputs_and_labels() -> None:
    inputs = tuple(torch.full((2, 2), float(value)) for value in range(3))
    batch = Batch(("a", "b", "c"), (4, 5, 6), inputs, (0, 1, 2))
    left, one = without(batch, {"a"}), batch.one(2)
    assert (left.keys, left.samples, left.labels) == (("b", "c"), (5, 6), (1, 2))
    assert [float(each[0, 0]) for each in left.inputs] == [1, 2]
    assert (one.keys, one.samples, one.labels, float(one.inputs[0][0, 0])) == (("c",), (6,), (2,), 2)  # type: ignore[index]


def test_a_run_goes_on_where_it_was_and_repeats_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(popqorn.run(*given(folder), Plan(batch=5), store=tmp_path / "whole"))
    asked: list[int] = []

    def counted(plan: Plan, model: Any, inputs: Sequence[Any], labels: Any) -> list[Row]:
        asked.append(len(inputs))
        if sum(asked) > 15:
            raise KeyboardInterrupt
        return ask(plan, model, inputs, labels)

    monkeypatch.setattr("popqorn.runs.worker.ask", counted)
    with pytest.raises(KeyboardInterrupt):
        popqorn.run(*given(folder), Plan(batch=5), store=tmp_path / "s")
    monkeypatch.undo()
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
    alone = popqorn.run(given(folder)[0], inputs, Plan("sensitivity"), store=tmp_path / "s", samples=[0, 1])
    assert not alone.meets(0.0), "frames that move one at a time"
    store = Store.open(tmp_path / "t")
    store.begin("run", {})
    store.plan("run", [({"sample": 0}, "a"), ({"sample": 1}, "b")])
    for status, meets in STATUSES.items():
        store.add([("a", {"status": status, "radius": 1.0})])
        store.add([("b", {"status": "certified", "radius": 1.0})])
        assert popqorn.Run(store, "run", {}).meets(1.0) == meets, status
    store.add([("a", {"status": "certified", "radius": math.nan})])
    assert not popqorn.Run(store, "run", {}).meets(0.0), "what is no number proves nothing"
    store.add([("a", {"status": "certified", "radius": 1.0})])
    store.plan("run", [({"sample": 2}, "c")])
    assert not popqorn.Run(store, "run", {}).meets(0.0), "one is missing"
    inputs[3, 0, 0] = math.nan
    assert not popqorn.run(given(folder)[0], inputs, store=tmp_path / "s").meets(0.0), "what failed proves nothing"


STATUSES = {
    **dict.fromkeys(("certified", "exact", "unbounded", "out_of_evaluations"), True),
    **dict.fromkeys(("misclassified", "violated", "not_certified", "differs", "broken", "unbroken"), False),
}


def test_samples_that_are_listed_keep_their_numbers(folder: Path, tmp_path: Path) -> None:
    whole = {row["sample"]: row for row in rows(popqorn.run(*given(folder), store=tmp_path / "s"))}
    told: list[int] = []
    some = popqorn.run(*given(folder), store=tmp_path / "s", samples=[7, 3], tell=lambda done, total, new: told.append(len(new)))
    assert rows(some) == [whole[7], whole[3]]
    assert not told, "they were known"


# ---- what may happen, and what must hold -------------------------------------------------------------------------------------


def test_shares_of_the_size(folder: Path, tmp_path: Path) -> None:
    """`std`: each feature's standard deviation in the data; or numbers."""
    model, data = popqorn.load(given(folder)[0]), np.load(given(folder)[1])
    inputs, labels = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    share = inputs.double().flatten(0, 1).std(0, correction=0)
    whole = popqorn.run(*given(folder), Plan(scale="std"), store=tmp_path / "s")
    assert whole.about["plan"]["scale"] == pytest.approx(share.tolist())
    proven = popqorn.certify(model, inputs, labels=labels, region=popqorn.Ball(scale=share.expand(FRAMES, -1)))
    assert [row["radius"] for row in whole.rows] == pytest.approx(proven.radius.tolist(), rel=1e-3)
    same = popqorn.run(*given(folder), Plan(scale=tuple(share.tolist())), store=tmp_path / "s")
    assert same.name == whole.name
    (row,) = popqorn.run(*given(folder), Plan(scale=(1.0, 2.0, 3.0)), store=tmp_path / "s", samples=1).rows
    assert "scale has 3 numbers" in row["error"]
    (row,) = popqorn.run(*given(folder), Plan("sensitivity", scale=(1.0, 0.0)), store=tmp_path / "s", samples=[1]).rows
    assert all(low <= high for low, high in zip(row["frames"], row["frames_attacked"], strict=True))


def test_a_label_for_every_step(tmp_path: Path) -> None:
    model, inputs = popqorn.SequenceClassifier(nn.GRU(2, 3), nn.Linear(3, 2), pooling=None), torch.randn(4, 3, 2)
    labels = model(inputs).argmax(-1)
    labels[1, 2] = 1 - labels[1, 2]
    found = list(popqorn.run(model, (inputs, labels), store=tmp_path / "s").rows)
    assert [row["status"] == "misclassified" for row in found] == [False, True, False, False]
    assert found[1]["label"] == labels[1].tolist()
    proven = popqorn.certify(model, inputs, labels=labels)
    assert [row["radius"] for row in found] == pytest.approx(proven.radius.tolist(), rel=1e-3)


def test_labels_may_be_anything_where_no_decision_is_asked_about(tmp_path: Path) -> None:
    model, inputs = popqorn.SequenceClassifier(nn.GRU(2, 3), nn.Linear(3, 1)), torch.randn(4, 3, 2)
    found = list(popqorn.run(model, (inputs, torch.randn(4)), Plan(within=0.1), store=tmp_path / "s").rows)
    assert all(row["status"] == "certified" and row["label"] is None for row in found)


def test_samples_of_one_frame(tmp_path: Path) -> None:
    """Rows of a table without frames are what `certify` takes as `[batch, features]`."""
    model, inputs = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(5, 2)
    found = popqorn.run(model, inputs, Plan("bracket", scale="std", norm=2.0), store=tmp_path / "s")
    share = inputs.double().std(0, correction=0).unsqueeze(0)
    proven = popqorn.certify(model, inputs, region=popqorn.Ball(2, scale=share))
    assert [row["radius"] for row in found.rows] == pytest.approx(proven.radius.tolist(), rel=1e-3)
    assert all(row["radius"] <= row["attacked"] for row in found.rows)


def test_inequalities(folder: Path, tmp_path: Path) -> None:
    model, inputs = popqorn.load(given(folder)[0]), torch.from_numpy(np.load(given(folder)[1])["x"])
    rows, offset = np.eye(CLASSES)[:1], np.array([3.0])
    np.savez(tmp_path / "claim.npz", rows=rows, offset=offset)
    plan = Plan(inequalities=str(tmp_path / "claim.npz"))
    found = popqorn.run(given(folder)[0], inputs, plan, store=tmp_path / "s")
    held = popqorn.certify(model, inputs, spec=popqorn.Property(rows, offset))
    assert [row["radius"] for row in found.rows] == pytest.approx(held.radius.tolist(), rel=1e-3)
    np.savez(tmp_path / "claim.npz", rows=rows, offset=offset + 1)
    assert popqorn.run(given(folder)[0], inputs, plan, store=tmp_path / "s").name != found.name, "the file has changed"


def test_words_that_may_be_exchanged(tmp_path: Path) -> None:
    words, sentences = ["<unk>", "a", "b", "c", "d"], ["a b c", "c d", "d d a b"]
    reader = popqorn.TextClassifier(str.split, words, nn.Sequential(nn.Embedding(5, 3), Last(nn.LSTM(3, 4, batch_first=True), 2)))
    (tmp_path / "words.json").write_text('{"a": ["b"], "c": ["d"], "d": ["c", "b"]}')
    plan = Plan(synonyms=str(tmp_path / "words.json"))
    found = popqorn.run(reader, sentences, plan, store=tmp_path / "s")
    exchanged = reader.exchanges(sentences, {"a": ["b"], "c": ["d"], "d": ["c", "b"]})
    assert [row["radius"] for row in found.rows] == popqorn.certify(reader, sentences, region=exchanged).radius.tolist()
    most = popqorn.run(reader, sentences, Plan("verify", synonyms=plan.synonyms, most=1), store=tmp_path / "s")
    one = reader.exchanges(sentences, {"a": ["b"], "c": ["d"], "d": ["c", "b"]}, most=1)
    assert [row["status"] == "certified" for row in most.rows] == popqorn.verify(reader, sentences, region=one).certified.tolist()
    (row,) = popqorn.run(Last(nn.LSTM(3, 4, batch_first=True), 2), np.zeros((1, 2, 3)), plan, store=tmp_path / "s").rows
    assert "takes no sentences" in row["error"]


class Last(nn.Module):
    """The output of a layer at the last frame, through a head."""

    def __init__(self, rnn: nn.LSTM, classes: int, scale: float = 1.0) -> None:
        super().__init__()
        self.rnn, self.head, self.scale = rnn, nn.Linear(rnn.hidden_size, classes), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.head(self.rnn(x)[0][:, -1])


# ---- one model is told from another ------------------------------------------------------------------------------------------

PROBE = torch.zeros(3, 2)


def of(model: Any, probe: Any = PROBE) -> str:
    return identity(model, model, probe)


def test_models_of_equal_weights_are_told_apart() -> None:
    """What is no weight decides as much: pooling, constants, order, modules used twice, the vocabulary of a reader."""
    model = popqorn.SequenceClassifier(nn.LSTM(2, 3), nn.Linear(3, 2))
    mean = popqorn.SequenceClassifier(model.rnn, model.head, pooling="mean")
    mine, square, act = Last(nn.LSTM(2, 3, batch_first=True), 2), nn.Linear(2, 2), nn.Tanh()
    scaled = copy.deepcopy(mine)
    scaled.scale = np.float32(2.0)  # type: ignore[assignment]
    networks = [model, mean, mine, scaled, nn.Sequential(square, act, square), nn.Sequential(square, act), Negated(square)]
    found = [of(each) for each in networks]
    embedded = nn.Sequential(nn.Embedding(3, 2), mine)
    readers = [popqorn.TextClassifier(str.split, words, embedded) for words in (["a", "b"], ["b", "a"])]
    found += [of(reader, "a b") for reader in readers]
    assert len(set(found)) == len(found)
    again = copy.deepcopy(mine)
    again.train()
    assert of(again) == of(mine)
    with torch.no_grad():
        again.head.bias += 1
    assert of(again) != of(mine)


class Negated(nn.Module):
    """The weights of a layer in another function."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -self.layer(x)


def test_a_changed_helper_in_another_file_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_helper.py").write_text("SIGN = 1.0\n")
    (tmp_path / "own_net.py").write_text(
        "import own_helper\nimport torch\nfrom torch import nn\n\nclass Net(nn.Linear):\n    def forward(self, x):\n"
        "        return own_helper.SIGN * super().forward(x).sum(1)\n\ndef make():\n    torch.manual_seed(0)\n"
        "    return Net(2, 2)\n"
    )
    inputs = np.zeros((2, 3, 2))
    first = popqorn.run("own_net:make", inputs, store=tmp_path / "s")
    monkeypatch.setattr(importlib.import_module("own_helper"), "SIGN", -1.0)
    assert popqorn.run("own_net:make", inputs, store=tmp_path / "s").name != first.name


def test_a_worker_with_another_model_answers_nothing(folder: Path, tmp_path: Path) -> None:
    """A file that was replaced after the run began, or a factory without a seed: no row stands under the wrong model."""
    file = tmp_path / "m.safetensors"
    file.write_bytes(Path(given(folder)[0]).read_bytes())
    prepared = prepare(str(file), given(folder)[1], MANY, store=tmp_path / "s", samples=3)
    torch.manual_seed(5)
    popqorn.save(popqorn.SequenceClassifier(nn.LSTM(FEATURES, 4), nn.Linear(4, CLASSES)), file)
    elsewhere = pickle.loads(pickle.dumps(prepared.worker))
    replace(prepared, worker=elsewhere).work(Local())
    assert all("another than when the run began" in row["error"] for row in prepared.run.rows)


def test_files_are_told_apart_byte_by_byte(folder: Path, tmp_path: Path) -> None:
    first = tmp_path / "a.safetensors"
    first.write_bytes(Path(given(folder)[0]).read_bytes())
    model, probe = popqorn.load(first), torch.zeros(FRAMES, FEATURES)
    assert identity(first, model, probe) == identity(given(folder)[0], model, probe)
    first.write_bytes(first.read_bytes() + b" ")
    assert identity(first, model, probe) != identity(given(folder)[0], model, probe)


# ---- samples at fault --------------------------------------------------------------------------------------------------------


def test_samples_at_fault_are_named_and_the_others_done(folder: Path, tmp_path: Path) -> None:
    good = np.load(given(folder)[1])["x"][:6]
    inputs: list[Any] = [*good]
    inputs[1] = np.full_like(good[0], math.nan)
    inputs[4] = np.zeros((FRAMES, FEATURES + 1), np.float32)
    found = list(popqorn.run(given(folder)[0], inputs, store=tmp_path / "s").rows)
    assert [row["status"] for row in found].count("failed") == 2
    assert "NaN" in found[1]["error"]
    assert [row["radius"] is None for row in found] == [number in (1, 4) for number in range(6)]
    assert str(FEATURES) in found[4]["error"]
    whole = list(popqorn.run(given(folder)[0], good, store=tmp_path / "other").rows)
    assert [found[i]["radius"] for i in (0, 2, 3, 5)] == pytest.approx([whole[i]["radius"] for i in (0, 2, 3, 5)], rel=1e-3)
    lines = ["sample,u,v", *(f"{number},{u},{v}" for number, one in enumerate(good) for u, v in one.tolist())]
    lines[1 + 3 * FRAMES] = "3,0.1"
    (tmp_path / "x.csv").write_text("\n".join(lines))
    table = list(popqorn.run(given(folder)[0], tmp_path / "x.csv", store=tmp_path / "s").rows)
    assert [row["status"] == "failed" for row in table] == [number == 3 for number in range(6)]
    assert table[3]["error"] == "line 14 of x.csv has 2 columns, and the heading has 3"
    inputs[1] = good[1]
    mended = list(popqorn.run(given(folder)[0], inputs, store=tmp_path / "s").rows)
    assert mended[1]["status"] == "certified"


def test_whatever_a_model_raises_marks_the_sample(tmp_path: Path) -> None:
    def split(sentence: str) -> list[str]:
        return {"a b": ["a", "b"], "b": ["b"]}[sentence]

    reader = popqorn.TextClassifier(
        split, ["a", "b"], nn.Sequential(nn.Embedding(2, 3), Last(nn.LSTM(3, 4, batch_first=True), 2))
    )
    found = list(popqorn.run(reader, ["a b", "c", "b"], store=tmp_path / "s").rows)
    assert [row["status"] for row in found] == ["certified", "failed", "certified"]


def test_a_sample_at_fault_is_told_by_the_number_it_has_in_the_data(folder: Path, tmp_path: Path) -> None:
    inputs = np.zeros((3, FRAMES, FEATURES))
    inputs[2] = 7.0
    row = list(popqorn.run(given(folder)[0], inputs, Plan(clip=(0.0, 1.0)), store=tmp_path / "s").rows)[2]
    assert row["status"] == "failed"
    assert "sample 2" in row["error"]


def test_samples_are_chosen_by_number(folder: Path, tmp_path: Path) -> None:
    some = popqorn.run(*given(folder), store=tmp_path / "s", samples=np.array([3, 1, 3]))
    assert [row["sample"] for row in some.rows] == [3, 1]
    assert some.about["samples"] == 2
    for samples, message in (
        ([24], "samples holds 24"),
        ([-1], "samples holds -1"),
        ([], "none"),
        (0, "samples is 0"),
        (["a"], "samples is"),
    ):
        with pytest.raises(ValueError, match=message):
            popqorn.run(*given(folder), store=tmp_path / "s", samples=samples)


def test_equal_questions_share_their_rows() -> None:
    """However their numbers are written."""
    assert Plan(norm="l2", clip=(0, 1)) == Plan(norm=2, clip=(0.0, 1.0))  # type: ignore[arg-type]
    assert Plan(seed=1).decides() == Plan().decides(), "certify takes no seed"
    assert Plan("attack", seed=1).decides() != Plan("attack").decides()


def test_every_setting_decides() -> None:
    """But for the size of a batch, a plan that differs in anything asks another question."""
    other = {"norm": 2.0, "clip": (0.0, 1.0), "total": True, "frames": (1,), "scale": (1.0, 2.0), "eps": 0.2, "within": 0.1}
    other |= {"method": "lines", "tolerance": 0.1, "dtype": "float32", "device": "meta"}
    plan = Plan("verify", eps=0.1)
    found = [plan.decides(), *(replace(plan, **{name: value}).decides() for name, value in other.items())]
    found.append(Plan("verify", eps=0.1, method="tight", effort=2).decides())
    found += [Plan("verify", eps=0.1, method="tight", effort=3, seconds=seconds).decides() for seconds in (1.0, 2.0)]
    assert len(set(map(key_of, found))) == len(found)
    assert replace(plan, batch=3).decides() == plan.decides()


def test_bad_runs_are_named(folder: Path, tmp_path: Path) -> None:
    model, data = given(folder)
    for call, message in (
        (lambda: Plan("prove"), "command"),
        (lambda: Plan("verify"), "eps is not given"),
        (lambda: Plan(eps=0.1), "eps is 0.1"),
        (lambda: Plan("verify", eps=math.nan), "eps is nan"),
        (lambda: Plan(within=-1.0), "within is -1"),
        (lambda: Plan(clip=(1.0, 0.0)), "clip is"),
        (lambda: Plan(scale=(0.0, 0.0)), "scale is"),
        (lambda: Plan(tolerance=0.0), "tolerance is 0"),
        (lambda: Plan("sensitivity", frames=(1,)), "asks every frame alone"),
        (lambda: Plan(device="nowhere"), "device is 'nowhere', which is not there"),
        (lambda: Plan(synonyms="none.json"), "synonyms: 'none.json'"),
        (lambda: popqorn.run("nets/m.py", data), "nets.m:FUNCTION"),
        (lambda: popqorn.run("math:sqrt", data), "calling it raised TypeError"),
        (lambda: Plan(dtype="float16"), "dtype"),
        (lambda: Plan(norm=0.5), "norm"),
        (lambda: Plan(batch=0), "batch"),
        (lambda: Plan(method="guess"), "method"),
        (lambda: popqorn.run(model, data, engine="slurm"), "engine is 'slurm'"),
        (lambda: popqorn.run(model, np.zeros((0, 4, 2))), "holds no sample"),
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
    plan = MANY
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
    replace(prepared, worker=Deadly(prepared.worker.model, plan, folder=tmp_path)).work(read_engine(engine, 2))
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


def test_a_worker_travels_without_its_model(folder: Path) -> None:
    """Every process reads the file itself."""
    worker = Worker(given(folder)[0], MANY)
    size = len(pickle.dumps(worker))
    worker.load()
    assert len(pickle.dumps(worker)) == size < 2000


def test_actors_that_never_come_up_are_not_waited_for(folder: Path, tmp_path: Path) -> None:
    """More are asked for than the cluster has: those that are there do the work."""
    plan = Plan(norm=2.0, batch=4)
    with_all = rows(popqorn.run(*given(folder), plan, store=tmp_path / "s", engine="ray", workers=2))
    assert with_all == rows(popqorn.run(*given(folder), plan, store=tmp_path / "t", engine="ray", workers=5))
    with pytest.raises(ValueError, match="no GPU"):
        _ = read_engine("ray", None, None, "cuda").workers
    with pytest.raises(ValueError, match="pass 'cuda'"):
        read_engine("ray", 1, None, "cuda:1")


def test_an_engine_of_ones_own(folder: Path, tmp_path: Path) -> None:
    plan = Plan(batch=5)
    mine = popqorn.run(*given(folder), plan, engine=Backwards(), store=tmp_path / "a")
    assert rows(mine) == rows(popqorn.run(*given(folder), plan, store=tmp_path / "b"))


# ---- kills -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(folder: Path) -> tuple[str, str]:
    torch.manual_seed(1)
    np.savez(folder / "many.npz", x=torch.randn(200, FRAMES, FEATURES).numpy())
    return given(folder)[0], str(folder / "many.npz")


@pytest.fixture(scope="module")
def undisturbed(many: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return rows(popqorn.run(*many, MANY, store=tmp_path_factory.mktemp("whole") / "s"))


def begin(many: tuple[str, str], store: Path) -> Any:
    """The run in a process of its own."""
    process = _context().Process(target=popqorn.run, args=(*many, MANY), kwargs={"store": store})
    process.start()
    return process


def test_killed_at_twenty_moments(many: tuple[str, str], undisturbed: list[Row], tmp_path: Path) -> None:
    """The run goes on every time, and ends with what an undisturbed run finds."""
    store, moments, kept = tmp_path / "s", random.Random(0), 0
    for _ in range(20):
        process = begin(many, store)
        deadline = time.monotonic() + 60
        while not (store.exists() and _count(store) > kept) and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.05)
        process.kill()
        process.join()
        assert _count(store) >= kept, "nothing that was written is lost"
        kept = _count(store)
    found = popqorn.run(*many, MANY, store=store)
    assert kept < 200, "the last kill came before the end"
    assert rows(found) == undisturbed
    assert len(undisturbed) == 200


def _count(path: Path) -> int:
    try:
        store = Store.read(path)
    except OSError:
        return 0
    return sum(1 for run in store.runs() for _ in store.rows(run))


def test_two_runs_on_one_store(many: tuple[str, str], undisturbed: list[Row], tmp_path: Path) -> None:
    both = [begin(many, tmp_path / "s") for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    (name,) = Store.read(tmp_path / "s").runs()
    found = popqorn.run(*many, MANY, store=tmp_path / "s")
    assert found.name == name
    assert rows(found) == undisturbed
