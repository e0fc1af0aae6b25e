"""The experiments, end to end on toy data: all outputs are there, a stopped run goes on, bad input is named."""

import csv
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import popqorn
import toy_data
from popqorn.cli import app
from popqorn.experiments import certifiable, frames, mnist, relaxations, signals, strokes, tasks, words
from popqorn.experiments.networks import Architecture, Split, trained
from popqorn.experiments.registry import EXPERIMENTS
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.tracking import silent
from popqorn.experiments.training import Recipe, accuracy, batches, stacked, train
from popqorn.report.frames import rank_correlation
from popqorn.report.registry import REPORTS
from popqorn.report.words import Swaps, rival, sensitive_words, verdict
from popqorn.runs.store import Store

runner = CliRunner()
QUICKLY = Recipe(epochs=12, batch=20, learning_rate=2e-2)
OUTPUTS = {
    "mnist": ("table.csv", "samples.csv", "brackets.png", "radii.png"),
    "relaxations": ("relaxations.csv", "pairs.csv", "relaxations.png"),
    "strokes": ("samples.csv", "contact_sheet.png", "position.png"),
    "questions": ("words.csv", "kinds.csv", "parts.csv", "samples.csv", "sentences.png"),
    "news": ("words.csv", "kinds.csv", "parts.csv", "samples.csv", "sentences.png"),
    "speech": ("samples.csv", "spectrograms.png", "position.png"),
    "ecg": ("samples.csv", "beats.png", "position.png"),
    "training": ("training.csv", "fronts.png"),
}


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data.write(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks, trained in a moment, and attacks that soon give up."""
    monkeypatch.setattr("popqorn.attacks.pgd.ROUNDS", 2)
    monkeypatch.setattr("popqorn.attacks.cw.STEPS", 30)
    monkeypatch.setattr(mnist, "RECIPE", QUICKLY)
    monkeypatch.setattr(mnist, "QUICK", (mnist.Network("rnn", 2, 4),))
    monkeypatch.setattr(relaxations, "QUICK", (mnist.Network("lstm", 2, 4),))
    monkeypatch.setattr(strokes, "RECIPE", QUICKLY)
    monkeypatch.setattr(strokes, "ARCHITECTURE", Architecture("lstm", 4, 8, 10))
    for corpus in ("QUESTIONS", "NEWS"):
        monkeypatch.setattr(words, corpus, replace(getattr(words, corpus), recipe=QUICKLY))
    monkeypatch.setattr(words, "HIDDEN", 4)
    monkeypatch.setattr("popqorn.report.words.OFTEN", 1)
    monkeypatch.setattr(words, "NEIGHBOURS", 3)
    monkeypatch.setattr(signals, "HIDDEN", 8)
    monkeypatch.setattr(signals, "BEAT_FRAMES", 3)
    toy = replace(certifiable.RECIPE, epochs=2, batch=20, learning_rate=2e-2)
    digits = replace(
        certifiable.CASES[0], task=tasks.digits(2), recipe=toy, rest=certifiable.OTHERS[2:], tight=(certifiable.PLAINLY,)
    )
    texts = replace(certifiable.CASES[-1], recipe=toy, rest=certifiable.at_strengths(0.1))
    monkeypatch.setattr(certifiable, "QUICK", (digits, texts))
    monkeypatch.setattr(certifiable, "HIDDEN", 4)
    monkeypatch.setattr(certifiable, "TIGHT", 1)
    monkeypatch.setattr(signals, "SPEECH_RECIPE", QUICKLY)
    monkeypatch.setattr(signals, "ECG_RECIPE", QUICKLY)


def run(name: str, toys: Path, out: Path, *more: str) -> Any:
    return runner.invoke(app, ["experiment", name, "--data", str(toys), "--out", str(out), "--quick", "--samples", "2", *more])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_leaves_page_tables_and_figures(name: str, toys: Path, tmp_path: Path, small: None) -> None:
    result = run(name, toys, tmp_path)
    assert result.exit_code == 0, result.output
    folder = tmp_path / f"{name}-quick"
    page = (folder / "index.html").read_text()
    assert "http" not in re.sub(r"https?://www.w3.org\S*", "", page), "the page must not ask for anything outside itself"
    assert "0</b><span>attacks" in page or name == "relaxations", "no attack inside a certified radius"
    assert (folder / "report.md").read_text().startswith("# ")
    for output in OUTPUTS[name]:
        content = (folder / output).read_bytes()
        assert (
            content.startswith(b"\x89PNG")
            if output.endswith(".png")
            else len(list(csv.reader(content.decode().splitlines()))) > 1
        )
    for row in Results.read(folder).rows("radii") if name == "mnist" else []:
        assert 0 < row["certified"] < min(row["best"], row["cw"])
    before = list(Store.read(folder / "results.sqlite").rows(name))
    again = run(name, toys, tmp_path)
    assert again.exit_code == 0
    assert list(Store.read(folder / "results.sqlite").rows(name)) == before, "what is done is not done again"
    (folder / "index.html").unlink()
    assert runner.invoke(app, ["report", str(folder)]).exit_code == 0
    assert (folder / "index.html").exists()


def test_every_experiment_has_a_report() -> None:
    assert set(EXPERIMENTS) == set(REPORTS) == set(OUTPUTS)


def test_a_stopped_run_keeps_its_rows_and_goes_on(
    toys: Path, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    sensitivity = popqorn.sensitivity

    def interrupted(*given: Any, **named: Any) -> Any:
        measured.append(1)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return sensitivity(*given, **named)

    monkeypatch.setattr(popqorn, "sensitivity", interrupted)
    stopped = run("ecg", toys, tmp_path)
    assert stopped.exit_code == 3
    assert "goes on from there" in " ".join(stopped.output.split())
    rows = Results.read(tmp_path / "ecg-quick").rows("frames")
    assert len(rows) == 1
    partly = runner.invoke(app, ["report", str(tmp_path / "ecg-quick")])
    assert partly.exit_code == 0, "a report of what is done so far"
    page = (tmp_path / "ecg-quick" / "index.html").read_text()
    assert "Missing: 1 rows of frames (samples" in page, "and it says what is not"
    assert run("ecg", toys, tmp_path).exit_code == 0
    assert "Missing" not in (tmp_path / "ecg-quick" / "index.html").read_text()
    finished = Results.read(tmp_path / "ecg-quick").rows("frames")
    assert finished[:1] == rows
    assert len(finished) == 2


def test_training_that_was_stopped_goes_on_to_the_same_network(tmp_path: Path) -> None:
    inputs, labels = torch.randn(40, 3, 2), torch.randint(2, (40,))
    recipe, architecture = Recipe(epochs=4, batch=10), Architecture("rnn", 2, 3, 2)
    torch.manual_seed(0)
    whole = train(architecture.build(), inputs, labels, recipe)

    def stop(done: int, total: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    torch.manual_seed(0)
    kept = tmp_path / "network.epochs"
    with pytest.raises(KeyboardInterrupt):
        train(architecture.build(), inputs, labels, recipe, stop, kept)
    counted: list[int] = []
    torch.manual_seed(0)
    again = train(architecture.build(), inputs, labels, recipe, lambda done, total: counted.append(done), kept)
    assert counted == list(range(9, 17)), "two epochs were kept"
    counted.clear()
    train(architecture.build(), inputs, labels, recipe, lambda done, total: counted.append(done), kept)
    assert not counted, "a training that has ended is not lost while its network is not saved"
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    kept.write_bytes(b"something else")
    with pytest.raises(ValueError, match="delete it to begin anew"):
        train(architecture.build(), inputs, labels, recipe, kept=kept)


def test_a_log_file_is_told_as_it_goes(toys: Path, tmp_path: Path, small: None) -> None:
    output = run("ecg", toys, tmp_path).output
    assert re.search(r"training \S+: 50 %", output)
    assert "radius of every frame: 100 %" in output


def test_results_of_other_settings_are_left_alone(toys: Path, tmp_path: Path, small: None) -> None:
    assert run("ecg", toys, tmp_path).exit_code == 0
    folder = tmp_path / "ecg-quick"
    Store.read(folder / "results.sqlite").begin("ecg", {**Results.read(folder).about, "popqorn": "0.0.1"})
    refused = run("ecg", toys, tmp_path)
    assert refused.exit_code == 2
    assert "popqorn '0.0.1'" in refused.output
    assert "--fresh" in refused.output
    assert "Traceback" not in refused.output
    assert run("ecg", toys, tmp_path, "--fresh").exit_code == 0


def test_the_example_of_the_help_text_is_one_that_is_tested() -> None:
    told = " ".join(re.sub("[│╭╮╰╯─]", " ", runner.invoke(app, ["experiment", "--help"]).output).split())
    assert "Example: popqorn experiment strokes --data DIR --quick" in told


def test_bad_arguments_are_named(toys: Path, tmp_path: Path) -> None:
    unknown = runner.invoke(app, ["experiment", "imagenet"])
    assert unknown.exit_code == 2
    assert "imagenet" in unknown.output
    missing = run("mnist", tmp_path / "nowhere", tmp_path)
    assert missing.exit_code == 2
    assert "mnist.npz" in missing.output
    assert "yann.lecun.com" in missing.output
    nothing = runner.invoke(app, ["report", str(tmp_path)])
    assert nothing.exit_code == 2
    assert "results.sqlite" in nothing.output


# ---- results ------------------------------------------------------------------------------------------------------------------


def test_tables_groups_and_what_is_left_of_them(tmp_path: Path) -> None:
    results = Results.open(tmp_path, {"experiment": "mnist"})
    groups = [{"norm": 2.0}, {"norm": math.inf}]
    results.plan("radii", [4, 5, 6], groups)
    results.plan("radii", [4, 5, 6], groups)
    results.add("radii", groups[1], [(5, {"radius": math.inf}), (4, {"radius": 0.5})])
    results.note("networks", {"name": "lstm"})
    results.note("networks", {"name": "lstm"})
    assert results.rows("networks") == [{"name": "lstm"}]
    assert results.rows("radii") == [
        {"norm": math.inf, "sample": 4, "radius": 0.5},
        {"norm": math.inf, "sample": 5, "radius": math.inf},
    ]
    assert results.todo("radii", [4, 5, 6], norm=math.inf) == [6]
    assert results.missing() == [("radii", groups[0], [4, 5, 6]), ("radii", groups[1], [6])]
    Results.forget(tmp_path)
    assert not list(tmp_path.iterdir())


def test_unreadable_results_are_named(tmp_path: Path) -> None:
    (tmp_path / "results.sqlite").write_text("nonsense" * 200)
    with pytest.raises(OSError, match=r"results\.sqlite"):
        Results.read(tmp_path)
    for name, told in (("chess", "chess"), ("strokes", "holds no radii yet"), ("relaxations", "holds no radii yet")):
        Results.forget(tmp_path)
        Results.open(tmp_path, {"experiment": name})
        assert told in runner.invoke(app, ["report", str(tmp_path)]).output
    Results.forget(tmp_path)
    Store.open(tmp_path / "results.sqlite")
    with pytest.raises(ValueError, match="holds no experiment"):
        Results.read(tmp_path)


# ---- training ----------------------------------------------------------------------------------------------------------------


def test_batches_hold_every_sample_once_and_one_length_each() -> None:
    lengths = [3, 5, 3, 3, 4, 5, 3]
    inputs = [torch.full((length, 2), float(number)) for number, length in enumerate(lengths)]
    parts = batches(inputs, 2)
    assert sorted(number for part in parts for number in part.tolist()) == list(range(7))
    for part in parts:
        assert len({lengths[number] for number in part.tolist()}) == 1
        assert stacked(inputs, part)[:, 0, 0].tolist() == [float(number) for number in part.tolist()]


def test_networks_are_kept_and_told_apart(tmp_path: Path) -> None:
    inputs = [torch.full((length, 1), value) for value in (-1.0, 1.0) for length in (2, 3) for _ in range(10)]
    split = Split(inputs, torch.tensor([0] * 20 + [1] * 20))
    setup = Setup(tmp_path, tmp_path / "networks", 1, True, silent)
    architecture = Architecture("rnn", 1, 3, 2)
    first = trained(setup, "toy", architecture, QUICKLY, lambda: (split, split))
    assert first.accuracy == accuracy(first.model, *split) == 1.0

    def never() -> Any:
        raise AssertionError("trained twice")

    second = trained(setup, "toy", architecture, QUICKLY, never)
    assert second.accuracy == 1.0
    assert torch.equal(first.model(inputs[0][None]), second.model(inputs[0][None]))
    with pytest.raises(AssertionError, match="twice"):
        trained(setup, "toy", architecture, replace(QUICKLY, epochs=1), never)
    (path,) = (tmp_path / "networks").iterdir()  # and nothing unfinished beside it
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="delete it to train it again"):
        trained(setup, "toy", architecture, QUICKLY, never)


def test_training_with_momentum_learns_too() -> None:
    inputs = torch.randn(200, 3, 2)
    labels = (inputs.sum((1, 2)) > 0).long()
    model = train(Architecture("lstm", 2, 8, 2).build(), inputs, labels, Recipe(15, 20, 0.3, 1e-4, momentum=0.9))
    assert accuracy(model, inputs, labels) > 0.9


# ---- statistics --------------------------------------------------------------------------------------------------------------


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 10, 11, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert np.isnan(rank_correlation([1], [1]))


def test_the_swap_statistic_finds_a_planted_effect() -> None:
    """The first three words have the least radii and any swap of them changes the decision; others never do."""

    def sentence(planted: bool) -> dict[str, Any]:
        outcomes = [{"near": "B" if (place < 3) == planted else "A"} for place in range(6)]
        return {"words": list("abcdef"), "radii": [1.0, 1.1, 1.2, 2, 3, 4], "swaps": outcomes, "decision": "A"}

    found = Swaps.of([sentence(True)] * 5, sensitive_words)
    assert (found.chosen, found.others) == (1.0, 0.0)
    assert "this supports" in verdict([sentence(True)] * 5)
    assert "this refutes" in verdict([sentence(False)] * 5)
    assert "neither" in verdict([sentence(True), sentence(False)])
    assert "no swaps" in verdict([])
    assert "100 % of the underlined words are among the first three" in rival([sentence(True)])


def test_pairs_within_a_radius_are_counted_once() -> None:
    vectors = torch.tensor([[0.0], [1.0], [1.5], [10.0]], dtype=torch.float64)
    assert relaxations.pairs_within(vectors, 1.2) == 2
    assert relaxations.pairs_within(torch.arange(2500, dtype=torch.float64)[:, None], 1.0) == 2499


def test_the_most_sensitive_frames_are_those_of_least_radius() -> None:
    assert frames.most_sensitive([3.0, 0.5, 2.0, 0.1, 9.0]) == [1, 2, 3]


def test_mel_bands_follow_the_pitch() -> None:
    time = np.arange(4000) / signals.RATE
    peaks = [
        int(signals.log_mel(np.sin(2 * np.pi * pitch * time).astype(np.float32)[:, None]).mean(0).argmax())
        for pitch in (200, 800, 3000)
    ]
    assert peaks == sorted(set(peaks))
    assert signals.log_mel(np.zeros((10, 1), dtype=np.float32)).shape == (1, signals.BANDS)


# ---- the real data -----------------------------------------------------------------------------------------------------------


def test_a_network_of_the_experiments_reaches_its_accuracy(data: Path, tmp_path: Path) -> None:
    """The quickest to train; the others' accuracies are in the tables of their experiments."""
    setup = Setup(data, tmp_path, 1, True, silent)
    assert words.network(words.QUESTIONS, words.Vocabulary.read(data), setup).accuracy >= 0.88
