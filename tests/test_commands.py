"""The command line from a model file and a data file to rows and a page."""

import csv
import json
import math
import re
import shlex
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

import popqorn
from popqorn.cli import app
from popqorn.report import own
from popqorn.report.evidence import Evidence
from popqorn.report.own import as_data
from popqorn.report.page import Proven, number
from popqorn.runs.plan import Plan
from popqorn.runs.store import Store

SCHEMAS = Path(popqorn.__file__).parent / "report"
FRAMES, FEATURES = 3, 2
runner = CliRunner()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.onnx and data.npz, as the examples of all help texts name them."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.LSTM(FEATURES, 4), nn.Linear(4, 2))
    inputs = torch.randn(6, FRAMES, FEATURES)
    popqorn.save(model, folder / "model.safetensors")
    names: Any = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (inputs[:1],), str(folder / "model.onnx"), dynamo=False, **names)
    np.savez(folder / "data.npz", x=inputs.numpy(), y=model(inputs).argmax(-1).numpy())
    return folder


@pytest.fixture
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    return tmp_path


def call(*words: str, code: int = 0) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def validated(content: Any, name: str) -> None:
    jsonschema.validate(content, json.loads((SCHEMAS / name).read_text()))


@pytest.mark.parametrize("command", [command for command in get_command(app).commands if command != "experiment"])
def test_the_example_of_every_help_text_runs(here: Path, command: str) -> None:
    if command == "report":
        call("certify", "model.onnx", "data.npz")
    told = call(command, "--help")
    (example,) = re.findall(r"Example: popqorn (.*?)(?: [╭│]|$)", told)
    words = shlex.split(re.split(r"\s*[╭│]", example)[0])
    assert words[0] == command
    result = runner.invoke(app, words)
    assert result.exit_code == ("not met" in result.output), result.output
    if "--out" in words:
        assert (here / words[words.index("--out") + 1]).stat().st_size > 0


def test_rows_a_log_the_settings_and_the_schema(here: Path) -> None:
    told = call("certify", "model.onnx", "data.npz", "--norm", "2", "--out", "r.jsonl", "--require", "1e-6")
    assert "6 samples, 0 done before" in told
    assert "Proven to 1e-06: 6 of 6" in told
    rows = [json.loads(line) for line in Path("r.jsonl").read_text().splitlines()]
    for row in rows:
        validated(row, "row.schema.json")
    assert list(rows[0])[:6] == ["sample", "label", "decision", "radius", "status", "seconds"]
    (config,), (log,) = here.glob("popqorn-runs/*.toml"), here.glob("popqorn-runs/*.log")
    assert Plan.of(Plan.read(config)) == Plan(norm=2.0)
    assert "6 of 6 done" in log.read_text()
    again = call("certify", "model.onnx", "data.npz", "--config", str(config), "--out", "again.csv")
    assert "6 done before" in again
    with Path("again.csv").open() as file:
        assert [float(row["radius"]) for row in csv.DictReader(file)] == [row["radius"] for row in rows]
    assert "0 done before" in call("certify", "model.onnx", "data.npz", "--config", str(config), "--norm", "inf"), "options win"


def test_exit_codes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("certify", "model.onnx", "data.npz")
    call(*given, "--require", "1e-6", code=0)
    call(*given, "--require", "1e6", code=1)
    call(*given, "--norm", "0.5", code=2)
    call("certify", "none.onnx", "data.npz", code=2)

    def stopped(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("popqorn.runs.worker.ask", stopped)
    assert "goes on from there" in call(*given, "--norm", "1", code=3)


def test_a_sample_at_fault_is_named_and_the_page_says_so(here: Path) -> None:
    inputs = np.random.default_rng(0).normal(size=(5, FRAMES, FEATURES)).astype(np.float32)
    inputs[3] = np.nan
    np.savez("holes.npz", x=inputs)
    told = call("certify", "model.onnx", "holes.npz", "--out", "r.csv")
    assert "sample 3 failed" in told
    with Path("r.csv").open() as file:
        assert [row["status"] == "failed" for row in csv.DictReader(file)] == [False, False, False, True, False]
    assert "not met: 4 of 5" in call("report", "--require", "1e-9", code=1)
    (page,) = here.glob("popqorn-runs/report-*/index.html")
    assert "NaN" in page.read_text()


def test_the_page(here: Path) -> None:
    call("certify", "model.onnx", "data.npz")
    told = call("report", "--require", "1e-6", "--out", "page")
    assert "Requirement met: 6 of 6" in told
    names = {path.name for path in Path("page").iterdir()}
    assert {"index.html", "report.md", "report.json", "samples.csv", "accuracy.png", "brackets.png"} <= names
    page = Path("page/index.html").read_text()
    places = [
        page.index(f"{n}. {title}") for n, title in enumerate(("Domain", "Stability", "Sensitivity", "Relevance", "Reachab"), 1)
    ]
    assert places == sorted(places)
    assert "http" not in re.sub(r"https?://(www\.w3\.org|purl\.org|creativecommons\.org|matplotlib\.org)\S*", "", page)
    data = json.loads(Path("page/report.json").read_text())
    validated(data, "report.schema.json")
    told = re.findall(r'data-tip="sample (\d): certified ([^,]*), attacked', page)
    certified = {str(row["sample"]): number(row["certified"]) for row in data["samples"]}
    assert dict(told) == certified, "brackets tell whose they are"
    assert [float(radius) for _, radius in told] == sorted(float(radius) for radius in certified.values())
    assert data["requirement"] == {"eps": 1e-6, "proven": 6, "broken": 0, "met": True}
    assert all(row["certified"] <= row["attacked"] for row in data["samples"] if row["attacked"] is not None)
    assert len(data["sensitivity"]) == 5
    curve = data["accuracy"]["curve"]
    assert all(at["certified"] <= at["attacked"] for at in curve)
    again = call("report", "--require", "1e-6", "--out", "page")
    assert "attack:" not in again, "nothing is asked twice"


def test_a_page_of_what_there_is(here: Path) -> None:
    call("certify", "model.onnx", "data.npz")
    call("report", "--as-is", "--out", "page")
    page = Path("page/index.html").read_text()
    assert "No requirement was given" in page
    assert "were not attacked" in page
    validated(json.loads(Path("page/report.json").read_text()), "report.schema.json")
    assert "holds no runs" in call("report", str(Store.open(here / "empty.sqlite").path), code=2)
    assert "does not exist" in call("report", "nowhere", code=2)
    call("attack", "model.onnx", "data.npz", "--store", "other.sqlite")
    assert "certify" in call("report", "other.sqlite", "--as-is", code=2)


def test_a_model_that_changed_is_refused(here: Path) -> None:
    call("certify", "model.safetensors", "data.npz")
    torch.manual_seed(1)
    popqorn.save(popqorn.SequenceClassifier(nn.LSTM(FEATURES, 4), nn.Linear(4, 2)), "model.safetensors")
    assert "model (model.safetensors): changed since" in call("report", code=2)
    call("certify", "model.safetensors", "data.npz")
    np.savez("data.npz", x=np.zeros((6, FRAMES, FEATURES)), y=np.zeros(6, int))
    assert "data (data.npz): changed since" in call("report", code=2)


def test_the_largest_proof_and_the_best_attack_count(here: Path) -> None:
    for method in ("interval", "planes", "constants"):
        found = popqorn.run("model.onnx", "data.npz", Plan(method=method), store="s.sqlite")
    best = popqorn.run("model.onnx", "data.npz", Plan(), store="s.sqlite")
    popqorn.run("model.onnx", "data.npz", Plan(norm=1.0), store="s.sqlite")
    evidence = Evidence.of(Store.read(Path("s.sqlite")), found.name)
    assert evidence.lower(evidence.samples) == [row["radius"] for row in best.rows]
    assert as_data(evidence, None)["accuracy"]["clean"] == 1.0
    assert evidence.violations == []


def test_the_page_is_about_the_samples_of_its_run(here: Path) -> None:
    """Proofs of other samples, of other claims, and of other versions count for nothing."""
    inputs, labels = (np.load("data.npz")[name] for name in ("x", "y"))
    plan = Plan(norm=2.0)
    whole = popqorn.run("model.onnx", "data.npz", plan, store="s.sqlite")
    order = sorted(whole.rows, key=lambda row: row["radius"])
    chosen, require = [order[0]["sample"], order[-1]["sample"]], order[1]["radius"]
    some = popqorn.run("model.onnx", "data.npz", plan, store="s.sqlite", samples=chosen)
    popqorn.run("model.onnx", "data.npz", Plan("attack", norm=2.0), store="s.sqlite", samples=chosen)
    store = Store.read(Path("s.sqlite"))
    found = Evidence.of(store, some.name)
    assert sorted(found.samples) == sorted(chosen)
    asked = as_data(found, require)["requirement"]
    assert (asked["proven"], asked["met"]) == (1, False)
    assert not some.meets(require)
    assert found.attacked.keys() == set(chosen)
    alone = {"within": Plan(within=0.1, norm=2.0), "clip": Plan(norm=2.0, clip=(-9.0, 9.0)), "norm": Plan()}
    for name, other in alone.items():
        assert not Evidence.of(store, popqorn.run("model.onnx", "data.npz", other, store="s.sqlite").name).attacked, name
    moved = popqorn.run("model.onnx", (inputs + 0.01, labels), plan, store="s.sqlite")
    assert not Evidence.of(store, moved.name).attacked, "other data"
    for version, radius in (("0.0.9", 99.0), (some.about["popqorn"], 98.0)):
        store.begin("planted", {**some.about, "popqorn": version})
        store.plan("planted", [({"sample": chosen[0]}, f"planted {version}")])
        store.add([(f"planted {version}", {"status": "certified", "radius": radius, "decision": 0, "label": 0})])
        assert (max(Evidence.of(store, some.name).lower(chosen)) >= 98) == (version == some.about["popqorn"])


def test_a_planted_attack_is_told(here: Path) -> None:
    run = popqorn.run("model.onnx", "data.npz", Plan("bracket"), store="s.sqlite")
    store, rows = Store.read(Path("s.sqlite")), list(run.rows)
    store.begin("planted", {**run.about, "plan": {**run.about["plan"], "command": "attack"}})
    for sample, share in ((0, 0.5), (1, 0.9), (1, 0.7)):
        store.plan("planted", [({"sample": sample}, f"planted {sample}")])
        store.add([(f"planted {sample}", {"status": "broken", "attacked": share * rows[sample]["radius"], "reached": 1})])
    found = Evidence.of(store, run.name)
    assert found.violations == [0, 1]
    assert found.upper([1])[0] == pytest.approx(0.7 * rows[1]["radius"])
    assert 0 in found.broken(0.6 * rows[0]["radius"])
    assert 0 not in found.broken(0.4 * rows[0]["radius"])
    assert "a fault, please report it" in own.report(found, None).lead


def test_what_failed_is_neither_proven_nor_broken(here: Path) -> None:
    inputs = np.load("data.npz")["x"]
    inputs[2] = np.nan
    run = popqorn.run("model.onnx", inputs, Plan("bracket"), store="s.sqlite")
    found = Evidence.of(Store.read(Path("s.sqlite")), run.name)
    assert (found.lower([2]), found.upper([2])) == ([0.0], [math.inf])
    assert as_data(found, None)["accuracy"]["clean"] == pytest.approx(5 / 6)


def test_proven_sizes_are_never_shown_larger() -> None:
    for value in (0.65261, 0.70965, 123456.7, 1e-9, 0.1, 0.0):
        assert 0.99 * value <= float(number(Proven(value))) <= value
    assert number(Proven(math.inf)) == "inf"
    assert number(0.65261) == "0.653"


def test_a_page_of_exchanged_words_and_of_models_that_are_no_files(here: Path) -> None:
    """What cannot be completed is left out."""
    Path("own_text.py").write_text(TEXT_MODEL)
    sys.path.insert(0, str(here))
    Path("words.json").write_text('{"a": ["b"]}')
    Path("texts.txt").write_text("a b\nb b a\n")
    call("certify", "own_text:make", "texts.txt", "--synonyms", "words.json")
    call("report", "--out", "page")
    assert "Words may be exchanged" in Path("page/index.html").read_text()
    Path("words.json").write_text('{"a": ["c"]}')
    call("certify", "own_text:make", "texts.txt", "--synonyms", "words.json", "--store", "other.sqlite")
    Path("words.json").write_text('{"a": ["b", "c"]}')
    assert "synonyms (words.json): changed since" in call("report", "other.sqlite", code=2)
    sys.path.remove(str(here))
    popqorn.run(popqorn.load("model.safetensors"), "data.npz", store="third.sqlite")
    call("report", "third.sqlite", "--out", "page")


TEXT_MODEL = """
import popqorn
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(3, 4), nn.Linear(4, 2)

    def forward(self, tokens):
        return self.head(torch.tanh(self.words(tokens)).mean(1))


def make():
    torch.manual_seed(0)
    return popqorn.TextClassifier(str.split, ["a", "b", "c"], Net())
"""


def test_a_curve_as_rows_and_as_a_picture(here: Path) -> None:
    call("curve", "model.onnx", "data.npz", "--out", "curve.png")
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    call("curve", "model.onnx", "data.npz", "--out", "curve.csv")
    with Path("curve.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert list(rows[0]) == ["size", "certified", "unbroken"]
    assert all(row["certified"] <= row["unbroken"] for row in rows)
    assert "curve.txt" in call("curve", "model.onnx", "data.npz", "--out", "curve.txt", code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["certify", "model.onnx", "none.npz"], "none.npz"),
        (["certify", "model.onnx", "data.npz", "--out", "r.xlsx"], "r.xlsx"),
        (["certify", "model.onnx", "data.npz", "--engine", "slurm"], "slurm"),
        (["certify", "model.onnx", "data.npz", "--config", "none.toml"], "none.toml"),
        (["verify", "model.onnx", "data.npz"], "pass --eps"),
        (["certify", "data.npz", "data.npz"], "data.npz"),
        (["certify", "no.module:make", "data.npz"], "importable"),
        (["certify", "model.onnx", "data.npz", "--scale", "1,two"], "pass std, or numbers"),
        (["certify", "model.onnx", "data.npz", "--require", "nan"], "require is nan"),
        (["certify", "model.onnx", "data.npz", "--frame", "7"], "every sample failed"),
        (["certify", "model.onnx", "data.npz", "--out", "bad[z].txt"], "bad[z].txt"),
        (["attack", "model.onnx", "data.npz", "--require", "0.1"], "attacks prove nothing"),
        (["verify", "model.onnx", "data.npz", "--eps", "0.1", "--require", "0.2"], "--eps 0.2"),
        (["certify", "model.onnx", "data.npz", "--most", "1"], "pass synonyms"),
        (["certify", "model.onnx", "data.npz", "--inequalities", "data.npz"], "rows and offset"),
        (["sensitivity", "model.onnx", "data.npz", "--synonyms", "words.json"], "synonyms"),
    ],
)
def test_bad_calls_are_named(here: Path, words: list[str], message: str) -> None:
    assert message in call(*words, code=2)


def test_a_folder_that_may_not_be_written(here: Path) -> None:
    Path("closed").write_text("a file, not a folder")
    told = call("certify", "model.onnx", "data.npz", "--store", "closed/s.sqlite", code=2)
    assert "another --store" in told
