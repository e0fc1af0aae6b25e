"""What the public functions promise beyond soundness: the search, the statuses, the options."""

import math
from itertools import pairwise
from pathlib import Path

import networks
import pytest
import torch
from relaxations import mean_radii
from torch import Tensor, nn

import popqorn
from popqorn import Status, bundled, search
from popqorn.task import Task


@pytest.fixture(scope="module")
def lstm() -> popqorn.SequenceClassifier:
    return bundled.load_model("lstm")


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    return bundled.load_digits(6)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_radius_is_the_edge_of_what_can_be_proven(kind: str, digits: tuple[Tensor, Tensor]) -> None:
    inputs, labels = digits
    model = bundled.load_model(kind)
    for tolerance in (1e-1, 1e-3):
        found = popqorn.certify(model, inputs, labels=labels, norm=2, tolerance=tolerance)
        assert popqorn.verify(model, inputs, found.radius, labels=labels, norm=2).certified.all()
        beyond = popqorn.verify(model, inputs, found.radius * (1 + 2 * tolerance), labels=labels, norm=2)
        assert not beyond.certified.any()
        assert found.evaluations.double().mean() <= 9
    torch.testing.assert_close(found.margins, popqorn.verify(model, inputs, found.radius, labels=labels, norm=2).margins)


def test_untargeted_radius_is_the_least_over_targets(lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor]) -> None:
    inputs, labels = digits[0][:2], digits[1][:2]
    found = popqorn.certify(lstm, inputs, labels=labels, norm=2, per_target=True)
    assert found.target_radius is not None
    assert found.target_radius.shape == (2, 10)
    assert found.target_radius.gather(1, labels.unsqueeze(1)).isinf().all()
    torch.testing.assert_close(found.target_radius.amin(1), found.radius, rtol=2e-3, atol=0)
    target = (labels + 1) % 10
    alone = popqorn.certify(lstm, inputs, labels=labels, targets=target, norm=2)
    torch.testing.assert_close(found.target_radius.gather(1, target.unsqueeze(1)).squeeze(1), alone.radius, rtol=2e-3, atol=0)
    assert torch.equal(alone.targets, target)
    assert found.targets is None


def test_misclassified_samples_say_so(lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor]) -> None:
    inputs, labels = digits
    wrong = labels.clone()
    wrong[1] = (wrong[1] + 1) % 10
    found = popqorn.certify(lstm, inputs, labels=wrong)
    assert found.status[1] is Status.MISCLASSIFIED
    assert found.radius[1] == 0
    assert found.evaluations[1] == 0
    assert all(status is Status.CERTIFIED for number, status in enumerate(found.status) if number != 1)
    assert not popqorn.verify(lstm, inputs, 0.0, labels=wrong).certified[1]
    assert (popqorn.sensitivity(lstm, inputs[:2], labels=wrong[:2]).radius[1] == 0).all()


def test_default_labels_are_the_decisions(lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor]) -> None:
    inputs, _ = digits
    found = popqorn.certify(lstm, inputs)
    assert torch.equal(found.labels, lstm.double()(inputs).argmax(-1))
    lstm.float()


def test_frames_may_be_indices_or_masks(lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor]) -> None:
    inputs, _ = digits
    by_index = popqorn.certify(lstm, inputs, frames=[1, -1]).radius
    mask = torch.tensor([False, True, False, True])
    assert torch.equal(popqorn.certify(lstm, inputs, frames=mask).radius, by_index)
    each = mask.repeat(len(inputs), 1)
    each[0] = torch.tensor([True, False, False, False])
    mixed = popqorn.certify(lstm, inputs, frames=each.numpy()).radius
    torch.testing.assert_close(mixed[1:], by_index[1:], rtol=2e-3, atol=0)
    alone = popqorn.sensitivity(lstm, inputs[:1], norm=math.inf, tolerance=1e-3).radius
    torch.testing.assert_close(mixed[:1], alone[:, 0], rtol=2e-3, atol=0)
    assert (popqorn.certify(lstm, inputs).radius < by_index).all()


def test_sensitivity_is_the_radius_of_single_frames(lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor]) -> None:
    inputs, _ = digits
    found = popqorn.sensitivity(lstm, inputs[:2], tolerance=1e-4).radius
    assert found.shape == (2, 4)
    for frame in range(4):
        single = popqorn.certify(lstm, inputs[:2], norm=2, frames=[frame], tolerance=1e-4).radius
        torch.testing.assert_close(found[:, frame], single, rtol=3e-4, atol=0)


def test_chunks_change_nothing_but_memory(lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor]) -> None:
    inputs, _ = digits
    whole = popqorn.bounds(lstm, inputs, 0.01)
    for chunk_rows in (40, 1000):
        chunked = popqorn.bounds(lstm, inputs[:3], 0.01, chunk_rows=chunk_rows)
        torch.testing.assert_close(chunked.lower, whole.lower[:3], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(chunked.upper, whole.upper[:3], rtol=1e-9, atol=1e-9)


def test_float32_proves_a_little_less_and_says_so(lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor]) -> None:
    inputs, _ = digits
    double, single = (popqorn.certify(lstm, inputs, dtype=dtype) for dtype in (torch.float64, torch.float32))
    assert single.radius.dtype == torch.float32
    assert (double.settings["dtype"], single.settings["dtype"]) == ("float64", "float32")
    assert (single.radius < double.radius).all()
    assert (single.radius > 0.97 * double.radius).all()


def test_constant_network_is_certified_at_every_eps() -> None:
    head = nn.Linear(3, 2)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([1.0, 0.0]))
    found = popqorn.certify(popqorn.SequenceClassifier(nn.GRU(2, 3), head), torch.randn(2, 3, 2))
    assert set(found.status) == {Status.UNBOUNDED}
    assert (found.radius > 1e5).all()


def test_a_tie_is_not_certified() -> None:
    head = nn.Linear(3, 2)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    found = popqorn.certify(popqorn.SequenceClassifier(nn.RNN(2, 3), head), torch.randn(1, 3, 2))
    assert found.status == (Status.NOT_CERTIFIED,)
    assert found.radius.tolist() == [0.0]


def test_linear_network_is_bounded_exactly() -> None:
    """A relu RNN that stays positive is linear: radius = margin / sum of dual norms."""
    rnn = nn.RNN(3, 4, nonlinearity="relu").double()
    model = popqorn.SequenceClassifier(rnn, nn.Linear(4, 2)).double()
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.copy_(parameter.abs())
        rnn.bias_ih_l0 += 10.0
        inputs = torch.rand(5, 3, 3, dtype=torch.float64)
        logits = model(inputs)
        model.head.bias[0] -= (logits[:, 0] - logits[:, 1])[0] - 1.0
    inputs.requires_grad_()
    logits = model(inputs)
    margin = (logits[:, 0] - logits[:, 1]).abs()
    (gradient,) = torch.autograd.grad(margin.sum(), inputs)
    for norm, dual in ((1, math.inf), (2, 2), (math.inf, 1)):
        expected = margin / torch.linalg.vector_norm(gradient, ord=dual, dim=-1).sum(-1)
        found = popqorn.certify(model, inputs.detach(), norm=norm, tolerance=1e-6).radius
        close = expected < 5  # further out the activations may turn off
        torch.testing.assert_close(found[close], expected.detach()[close], rtol=1e-5, atol=0)
        assert close.any()


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(("kind", "frames"), [("lstm", (4, 7)), ("gru", (4, 7))])
def test_more_frames_collapse_the_weak_methods(
    kind: str, frames: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`constants <= lines <= planes` in the mean, and the gap widens with the number of frames (paper, B.1)."""
    monkeypatch.setattr(networks, "KEPT", tmp_path)
    gaps = []
    for count in frames:
        means = mean_radii(kind, count, 10, 3, digits=6_000, tolerance=0.05)
        assert means["interval"] <= means["constants"] <= means["lines"] <= means["planes"], means
        gaps.append(means["planes"] / means["lines"])
    assert all(1.15 * fewer < more for fewer, more in pairwise(gaps)), gaps


def test_inputs_may_be_arrays_and_modules_may_train(digits: tuple[Tensor, Tensor]) -> None:
    inputs, labels = digits
    model = bundled.load_model("gru").train()
    as_array = popqorn.certify(model, inputs.numpy(), labels=labels.numpy()).radius
    as_lists = popqorn.certify(model, inputs.float(), labels=labels.tolist()).radius
    torch.testing.assert_close(as_array, as_lists, rtol=2e-3, atol=0)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


# ---- what is not proven is not claimed ---------------------------------------------------------------------------------------


def test_nan_proves_nothing(
    lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, labels = digits
    monkeypatch.setattr(Task, "prove", lambda self, eps: torch.full_like(self.margins.offset, math.nan))
    monkeypatch.setattr(search, "MAX_EVALUATIONS", 4)
    found = popqorn.certify(lstm, inputs, labels=labels)
    assert set(found.status) == {Status.NOT_CERTIFIED}
    assert (found.radius == 0).all()
    assert set(popqorn.verify(lstm, inputs, 0.1, labels=labels).status) == {Status.NOT_CERTIFIED}
    assert not popqorn.curve(lstm, inputs, [0.1, 0.2], labels=labels).proven.any()


def test_a_margin_of_zero_is_no_proof(
    lstm: popqorn.SequenceClassifier, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, labels = digits
    monkeypatch.setattr(Task, "prove", lambda self, eps: torch.zeros_like(self.margins.offset))
    monkeypatch.setattr(search, "MAX_EVALUATIONS", 4)
    assert not popqorn.verify(lstm, inputs, 0.1, labels=labels).certified.any()
    assert (popqorn.certify(lstm, inputs, labels=labels).radius == 0).all()
    assert set(popqorn.curve(lstm, inputs, [0.1, 0.2], labels=labels).status) == {Status.NOT_CERTIFIED}


def test_a_tie_is_not_certified_even_where_nothing_moves() -> None:
    head = nn.Linear(4, 3)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    model = popqorn.SequenceClassifier(nn.LSTM(3, 4), head).double()
    inputs = torch.zeros(1, 3, 3)
    for region in (popqorn.Ball(clip=(0, 0)), popqorn.Box(0, 0), popqorn.Words(torch.zeros(1, 3), [[0, 0, 0]], {})):
        assert popqorn.certify(model, inputs, region=region).status == (Status.NOT_CERTIFIED,)
        assert popqorn.verify(model, inputs, 0.0, region=region).status == (Status.NOT_CERTIFIED,)


def test_unbounded_means_the_whole_region() -> None:
    """Between half and all of a box, the radius is a radius."""
    model, inputs = bundled.load_model("rnn"), bundled.load_digits(1).inputs
    radius = float(popqorn.certify(model, inputs).radius)
    most = popqorn.certify(model, inputs, region=popqorn.Box(inputs - radius / 0.8, inputs + radius / 0.8))
    assert most.status == (Status.CERTIFIED,)
    assert float(most.radius) == pytest.approx(0.8, rel=3e-3)
    clipped = popqorn.certify(model, inputs, region=popqorn.Ball(frames=[3], clip=(inputs[0] - 1e-3, inputs[0] + 1e-3)))
    assert clipped.status == (Status.UNBOUNDED,)


def test_models_built_in_inference_mode_are_read(digits: tuple[Tensor, Tensor]) -> None:
    with torch.inference_mode():
        model = popqorn.SequenceClassifier(nn.RNN(196, 4), nn.Linear(4, 3))
    assert popqorn.verify(model, digits[0], 1e-3).margins.shape == (6, 3)
