"""Splitting: what a search says of both sides is true."""

import math
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn import branches
from popqorn.branches import ByForms
from popqorn.status import Status
from test_soundness import CLASSES, FEATURES, FRAMES, random_inputs, random_model

each_norm = pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, math.inf])


def scanned(model: popqorn.SequenceClassifier, inputs: Tensor, frame: int, directions: int = 720) -> float:
    """The least distance at which a direction of the first two features leads to another decision."""
    label = int(model(inputs).argmax())
    angle = torch.arange(directions, dtype=torch.float64) * (2 * math.pi / directions)
    ways = torch.stack([angle.cos(), angle.sin()], dim=-1)
    for distance in 0.002 * 1.01 ** torch.arange(1100, dtype=torch.float64):
        moved = inputs.repeat(directions, 1, 1)
        moved[:, frame, :2] += distance * ways
        if (model(moved).argmax(-1) != label).any():
            return float(distance)
    return math.inf


def pointed(frames: int, frame: int, norm: float = 2) -> popqorn.Ball:
    scale = torch.zeros(frames, FEATURES)
    scale[frame, :2] = 1
    return popqorn.Ball(norm, scale=scale)


EXACT = {"rnn": 0, "lstm": 0, "gru": 0, "bidirectional lstm": 1}  # a sample of each that can be broken


@pytest.mark.parametrize("name", EXACT)
def test_a_finished_search_is_exact(name: str) -> None:
    torch.manual_seed(3)
    model, inputs = random_model(name, spread=1.2), random_inputs()[[EXACT[name]]]
    region = pointed(FRAMES, 1)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=60, tolerance=0.02)
    planes = popqorn.certify(model, inputs, region=region, tolerance=0.02)
    labels = model(inputs).argmax(-1)
    assert (found.radius >= planes.radius).all()
    assert found.refuted is not None
    assert found.counterexamples is not None
    scan = scanned(model, inputs, 1)
    assert found.status == (Status.EXACT,)
    assert 0.96 * scan <= float(found.radius) <= float(found.refuted) <= 1.05 * scan
    assert float(found.radius) <= scan
    assert int(model(found.counterexamples).argmax()) != int(labels)
    assert float((found.counterexamples - inputs).norm()) == pytest.approx(float(found.refuted), rel=1e-9)


def test_both_sides_of_a_size_are_decided() -> None:
    torch.manual_seed(3)
    model, inputs = random_model("lstm", spread=1.2), random_inputs()[:1]
    region = pointed(FRAMES, 1)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=20, tolerance=0.02)
    assert found.status == (Status.EXACT,)
    assert found.refuted is not None
    inside = popqorn.verify(model, inputs, 0.97 * found.radius, region=region, method="split", seconds=20)
    assert inside.status == (Status.CERTIFIED,)
    assert (inside.margins > 0).all()
    planes = popqorn.verify(model, inputs, 0.97 * found.radius, region=region)
    assert planes.status == (Status.NOT_CERTIFIED,)
    outside = popqorn.verify(model, inputs, 1.01 * found.refuted, region=region, method="split", seconds=20)
    assert outside.status == (Status.BROKEN,)
    assert outside.counterexamples is not None
    sizes = [0.5 * float(found.radius), 0.97 * float(found.radius), 1.01 * float(found.refuted)]
    curve = popqorn.curve(model, inputs, sizes, region=region, method="split", seconds=20)
    assert curve.proven.tolist() == [[True, True, False]]


def test_margins_of_split_radii_hold() -> None:
    torch.manual_seed(3)
    model, inputs = random_model("gru", spread=1.2), random_inputs()[:1]
    found = popqorn.certify(model, inputs, region=pointed(FRAMES, 0), method="split", seconds=3)
    angle = torch.rand(2000, dtype=torch.float64) * 2 * math.pi
    moved = inputs.repeat(2000, 1, 1)
    reached = float(found.radius) * torch.rand(2000, 1, dtype=torch.float64).sqrt()
    moved[:, 0, :2] += reached * torch.stack([angle.cos(), angle.sin()], dim=-1)
    logits = model(moved)
    label = int(model(inputs).argmax())
    margins = logits[:, label : label + 1] - logits
    margins[:, label] = math.inf
    assert (margins >= found.margins - 1e-12).all()
    assert (found.margins > 0).all()


@pytest.mark.parametrize("clip", [None, (-2.0, 2.0)])
@each_norm
def test_no_attack_succeeds_inside_a_split_radius(norm: float, clip: tuple[float, float] | None) -> None:
    model, inputs = random_model("lstm"), random_inputs()[:1].clamp(-2, 2)
    region = popqorn.Ball(norm, frames=[0, 2], scale=torch.tensor([[1, 0.5, 0, 0], [1, 1, 1, 1], [0, 0, 2, 0]]), clip=clip)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=0.5, tolerance=0.01)
    reached = popqorn.attack(model, inputs, region=region, restarts=2)
    assert (found.radius <= reached.radius).all()
    assert (found.radius >= popqorn.certify(model, inputs, region=region, tolerance=0.01).radius).all()


def test_a_box_may_be_proven_as_a_whole() -> None:
    torch.manual_seed(0)
    model, inputs = random_model("lstm", spread=0.3), random_inputs()[:1]
    width = torch.zeros(FRAMES, FEATURES)
    width[1, :2] = 2.0
    region = popqorn.Box(inputs[0] - width, inputs[0] + 2 * width)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=10)
    planes = popqorn.certify(model, inputs, region=region)
    assert float(planes.radius) < 1
    assert (found.status, float(found.radius)) == ((Status.UNBOUNDED,), 1.0)
    assert popqorn.verify(model, inputs, region=region, method="split", seconds=10).certified.all()


def test_what_changes_nothing_has_no_end() -> None:
    model, inputs = random_model("lstm"), random_inputs()[:1]
    with torch.no_grad():
        model.rnn.weight_ih_l0[:, :2] = 0
    found = popqorn.certify(model, inputs, region=pointed(FRAMES, 0), method="split", seconds=5)
    assert found.status == (Status.UNBOUNDED,)


def test_time_is_kept_and_what_planes_prove_is_never_lost() -> None:
    model, inputs = random_model("stacked lstm"), random_inputs()[:2]
    region = popqorn.Ball(2, frames=[0])
    plain = popqorn.certify(model, inputs, region=region)
    started = time.perf_counter()
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=0.01)
    assert time.perf_counter() - started < plain.seconds + 30
    assert (found.radius >= plain.radius).all()
    assert found.settings["seconds"] == 0.01


def test_frames_are_split_where_there_is_time() -> None:
    torch.manual_seed(3)
    model = popqorn.SequenceClassifier(nn.RNN(1, 6), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    inputs = torch.randn(2, 3, 1, dtype=torch.float64)
    plain = popqorn.sensitivity(model, inputs, tolerance=0.05)
    found = popqorn.sensitivity(model, inputs, tolerance=0.05, seconds=5)
    assert plain.refuted is None
    assert found.refuted is not None
    assert found.counterexamples is not None
    assert (found.radius >= plain.radius).all()
    assert (found.radius > 1.2 * plain.radius).any()
    assert (found.radius <= found.refuted).all()
    assert any(Status.EXACT in row for row in found.status)
    labels = model(inputs).argmax(-1)
    for sample in range(2):
        for frame in range(3):
            if found.refuted[sample, frame].isfinite():
                moved = inputs[sample].clone()
                moved[frame] = found.counterexamples[sample, frame]
                assert int(model(moved.unsqueeze(0)).argmax()) != int(labels[sample])


def test_a_stopped_search_returns_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = random_model("lstm"), random_inputs()[:2]
    steps = ByForms.step
    calls = []

    def interrupted(self: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        steps(self)

    monkeypatch.setattr(ByForms, "step", interrupted)
    found = popqorn.certify(model, inputs, region=pointed(FRAMES, 0), method="split", seconds=1)
    assert (found.radius >= popqorn.certify(model, inputs, region=pointed(FRAMES, 0)).radius).all()
    assert found.status == (Status.STOPPED, Status.STOPPED)


def test_bounds_that_are_no_numbers_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = random_model("lstm"), random_inputs()[:1]
    real = branches.lower_bounds

    def broken(*given: Any) -> Any:
        found = real(*given)
        return replace(found, lower=torch.full_like(found.lower, math.nan))

    monkeypatch.setattr(branches, "lower_bounds", broken)
    found = popqorn.verify(model, inputs, 5.0, region=pointed(FRAMES, 0), method="split", seconds=0.2)
    assert not bool(found.certified)


def test_wrong_decisions_are_not_split() -> None:
    model, inputs = random_model("rnn"), random_inputs()[:1]
    wrong = (model(inputs).argmax(-1) + 1) % CLASSES
    found = popqorn.certify(model, inputs, labels=wrong, region=pointed(FRAMES, 0), method="split", seconds=5)
    assert found.status == (Status.MISCLASSIFIED,)
    assert found.seconds < 4


def test_progress_counts_both_searches() -> None:
    told: list[tuple[int, int]] = []
    model, inputs = random_model("rnn"), random_inputs()[:2]
    popqorn.certify(
        model,
        inputs,
        region=pointed(FRAMES, 0),
        method="split",
        seconds=0.05,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (4, 4)


REFUSED = {
    "too many features": (lambda model, x: popqorn.certify(model, x, method="split"), "at most 6 moving features"),
    "bounds": (lambda model, x: popqorn.bounds(model, x, 0.1, method="split"), "method is 'split', which proves what must hold"),
    "seconds": (lambda model, x: popqorn.certify(model, x, frames=[0], method="split", seconds=-1), "seconds is -1"),
    "wide frames": (
        lambda model, x: popqorn.sensitivity(
            popqorn.SequenceClassifier(nn.RNN(9, 2), nn.Linear(2, 2)), torch.rand(1, 2, 9), seconds=1
        ),
        "at most 6 moving features",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_split_is_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(random_model("rnn"), random_inputs())


def test_words_are_not_split() -> None:
    table, tokens = torch.rand(5, FEATURES, dtype=torch.float64), torch.tensor([[0, 1, 2]])
    region = popqorn.Words(table, tokens, {0: [1], 1: [2]})
    with pytest.raises(ValueError, match="moving features of a Ball or a Box"):
        popqorn.certify(random_model("rnn"), table[tokens], region=region, method="split")
