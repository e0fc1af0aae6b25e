"""Long calls: they say how far they are, what they will cost, and a call that is stopped returns what is done."""

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import popqorn
from popqorn import Status, bundled
from popqorn import search as searching
from popqorn.attacks import methods, run
from popqorn.bounds import chunks
from popqorn.task import Task
from questions import REGIONS, inputs, network

CALLS: dict[str, Callable[..., Any]] = {
    "certify": popqorn.certify,
    "certify every target": lambda *given, **more: popqorn.certify(*given, per_target=True, **more),
    "sensitivity": popqorn.sensitivity,
    "verify": lambda *given, **more: popqorn.verify(*given, 0.05, **more),
    "bounds": lambda *given, **more: popqorn.bounds(*given, 0.05, **more),
    "curve": lambda *given, **more: popqorn.curve(*given, [0.01, 0.05], **more),
    "attack": lambda *given, **more: popqorn.attack(*given, restarts=1, **more),
    "clever": lambda *given, **more: popqorn.clever(*given, batches=3, samples=4, **more),
    "words": lambda *given, **more: popqorn.certify(*given, region=words(), **more),
    "tight": lambda *given, **more: popqorn.certify(*given, method="tight", tolerance=0.1, **more),
    "tight words": lambda *given, **more: popqorn.certify(*given, region=words(), method="tight", **more),
    "tight frames, split": lambda *given, **more: popqorn.sensitivity(
        *given, method="tight", seconds=0.01, tolerance=0.1, **more
    ),
}


def words() -> popqorn.Words:
    region = REGIONS["words"]()
    assert isinstance(region, popqorn.Words)
    return region


@pytest.mark.parametrize("call", CALLS)
def test_progress_ends_where_it_said_it_would(call: str) -> None:
    steps: list[tuple[int, int]] = []
    CALLS[call](network("rnn"), inputs(), progress=lambda done, total: steps.append((done, total)))
    assert steps
    assert len({total for _, total in steps}) == 1
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1]


def test_progress_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    popqorn.certify(network("rnn"), inputs(), progress=True)
    shown = capsys.readouterr()
    assert "certify: 3 of 3" in shown.err
    assert shown.err.endswith("\n")
    assert not shown.out
    popqorn.certify(network("rnn"), inputs())
    assert not capsys.readouterr().err


def stop_after(count: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("call", [call for call in CALLS if call != "curve"])
def test_a_stopped_call_returns_what_is_done(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MOST_ENTRIES", 1)
    monkeypatch.setattr(chunks, "FRAME_ENTRIES", 1)
    monkeypatch.setattr(run, "BLOCK", 1)
    model = network("rnn")
    whole = CALLS[call](model, inputs())
    found = CALLS[call](model, inputs(), progress=stop_after(1))
    assert found.stopped
    assert not whole.stopped
    if call in ("certify", "words"):
        done = torch.tensor([status is not Status.STOPPED for status in found.status])
        assert 0 < done.sum() < 3
        torch.testing.assert_close(found.radius[done], whole.radius[done])
        assert (found.radius <= whole.radius * (1 + 1e-9)).all()
    if call == "verify":
        assert found.certified.sum() == 1
        assert found.margins[1:].isnan().any()


def test_a_stop_between_the_searches_is_told() -> None:
    """After the radii of all samples, before those of every target or step."""
    for kind, option in (("rnn", "per_target"), ("tagger", "per_step")):
        found = popqorn.certify(network(kind), inputs(), **{option: True}, progress=stop_after(4))
        assert found.stopped
        each = found.target_radius if option == "per_target" else found.step_radius
        assert each is not None
        assert each.isnan().any()
        assert (found.radius > 0).all()


def test_a_stopped_attack_keeps_what_it_found() -> None:
    """`best` runs one attack after the other; what the first ones found is not lost."""
    model = network("rnn")

    def stopped(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "cw", stopped)
        found = popqorn.attack(model, inputs(), method="best")
    alone = torch.minimum(*(popqorn.attack(model, inputs(), method=method).radius for method in ("scan", "fgsm")))
    torch.testing.assert_close(found.radius, alone)
    assert found.success.any()


def test_a_curve_whose_attack_is_stopped_has_no_attacked_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(methods.MOVING, "pgd", stopped)
    found = popqorn.curve(network("rnn"), inputs(), [0.01, 0.02], attacked=True)
    assert found.stopped
    assert found.attacked is None
    assert found.unbroken is None
    again = popqorn.curve(network("rnn"), inputs(), [0.01], attacked=True, progress=stop_after(3))
    assert again.stopped
    assert again.attacked is None


def test_a_stopped_bracket_does_not_go_on() -> None:
    found = popqorn.bracket(network("rnn"), inputs(), progress=stop_after(1))
    assert found.stopped
    assert found.attack is None
    assert found.upper.isinf().all()
    assert "certified" in str(found)
    assert found.to_dict()["attack"] is None


def test_a_stop_while_misclassified_samples_are_counted_stays_inside() -> None:
    model = network("rnn")
    wrong = (model(inputs()).argmax(-1) + 1) % 3
    for call in ("attack", "clever", "curve", "certify"):
        assert CALLS[call](model, inputs(), labels=wrong, progress=stop_after(1)) is not None


def test_stopped_bounds_are_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MOST_ENTRIES", 1)
    found = popqorn.bounds(network("rnn"), inputs(), 0.05, progress=stop_after(1))
    whole = popqorn.bounds(network("rnn"), inputs(), 0.05)
    assert torch.equal(found.lower[0], whole.lower[0])
    assert (found.lower[1:] == -math.inf).all()
    assert (found.upper[1:] == math.inf).all()
    assert found.stopped


def test_an_interrupt_inside_a_search_keeps_the_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was proven before the interrupt stays: radius, and the margins of that radius."""
    model = network("rnn")
    calls = []
    original = Task.prove

    def interrupted(self: Task, eps: torch.Tensor) -> torch.Tensor:
        calls.append(eps)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return original(self, eps)

    with monkeypatch.context() as patch:
        patch.setattr(Task, "prove", interrupted)
        found = popqorn.certify(model, inputs(), tolerance=1e-6)
    assert set(found.status) == {Status.STOPPED}
    assert (found.radius > 0).any()
    assert found.evaluations.tolist() == [3, 3, 3]
    proof = popqorn.verify(model, inputs(), found.radius)
    torch.testing.assert_close(found.margins, proof.margins)
    assert proof.certified.all()


def test_a_stopped_curve_counts_what_was_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = network("rnn"), [0.001 * 2**power for power in range(9)]
    whole = popqorn.curve(model, inputs(), sizes)
    calls = []
    original = Task.prove

    def interrupted(self: Task, eps: torch.Tensor) -> torch.Tensor:
        calls.append(eps)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return original(self, eps)

    monkeypatch.setattr(Task, "prove", interrupted)
    found = popqorn.curve(model, inputs(), sizes, attacked=True)
    assert found.stopped
    assert found.attacked is None
    assert found.proven.any()
    assert (whole.proven | ~found.proven).all()


def test_a_search_that_runs_out_of_evaluations_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MAX_EVALUATIONS", 2)
    found = popqorn.certify(network("rnn"), inputs(), tolerance=1e-9)
    assert set(found.status) == {Status.OUT_OF_EVALUATIONS}
    assert (found.radius > 0).all()
    assert "raise tolerance" in found.status[0].remedy


def test_curve_is_what_verify_says_at_every_size() -> None:
    model, (digits, labels) = bundled.load_model("rnn"), bundled.load_digits(12)
    sizes = [0.1, 0.0, 0.03, 0.06]
    found = popqorn.curve(model, digits, sizes, labels=labels, norm=2, attacked="fgsm")
    for place, eps in enumerate(sizes):
        proof = popqorn.verify(model, digits, eps, labels=labels, norm=2)
        assert torch.equal(found.proven[:, place], proof.certified)
        assert found.certified[place] == proof.certified.double().mean()
    assert 0 < found.certified[3] < found.certified[1]
    assert found.attacked is not None
    assert (found.certified <= found.attacked).all()
    assert found.accuracy == float((model(digits.float()).argmax(-1) == labels).double().mean())
    assert found.certified[1] == found.accuracy
    assert len(str(found).splitlines()) == 5
    counted = popqorn.curve(network("rnn"), inputs(), [1, 2], region=words())
    assert (counted.certified[0] >= counted.certified[1]).all()


def test_cost_is_known_beforehand() -> None:
    """Within a factor of four, without type checks in the way of the measurement; and in order."""
    model = popqorn.SequenceClassifier(nn.LSTM(8, 64), nn.Linear(64, 4))
    given = torch.randn(12, 6, 8)
    one = popqorn.estimate_cost(model, given, call="verify")
    started = time.perf_counter()
    popqorn.verify(model, given, 1e-4)
    took = time.perf_counter() - started
    assert took / 4 < one.seconds < 4 * took
    every = popqorn.estimate_cost(model, given, call="sensitivity")
    search = popqorn.estimate_cost(model, given)
    assert one.evaluations == 12
    assert one.flops < search.flops < every.flops
    assert "GFLOP" in str(search)
    assert one.memory > 0


def test_cost_of_something_large_is_known_at_once() -> None:
    model = popqorn.SequenceClassifier(nn.LSTM(20, 96), nn.Linear(96, 10))
    started = time.perf_counter()
    cost = popqorn.estimate_cost(model, torch.randn(1000, 60, 20), norm=2)
    assert time.perf_counter() - started < 20
    assert cost.seconds > 300
