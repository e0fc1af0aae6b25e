"""Frames that may not move: what depends on them alone is a constant, and bounds are what they would be without knowing that."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn import radii
from popqorn.bounds import chunks
from popqorn.bounds.inner import relax
from popqorn.radii import _guess
from popqorn.readers.classifier import tape_of
from popqorn.relax.methods import METHODS
from popqorn.search import Guess
from sets import around

FRAMES, FEATURES, HIDDEN, CLASSES = 5, 3, 4, 3
MODELS = {
    "rnn": lambda: popqorn.SequenceClassifier(nn.RNN(FEATURES, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)),
    "lstm": lambda: popqorn.SequenceClassifier(nn.LSTM(FEATURES, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)),
    "gru": lambda: popqorn.SequenceClassifier(nn.GRU(FEATURES, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)),
    "deep": lambda: popqorn.SequenceClassifier(
        nn.LSTM(FEATURES, HIDDEN, 2, batch_first=True), nn.Sequential(nn.Linear(HIDDEN, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    ),
    "both ways": lambda: popqorn.SequenceClassifier(
        nn.GRU(FEATURES, HIDDEN, batch_first=True, bidirectional=True), nn.Linear(2 * HIDDEN, CLASSES), pooling="mean"
    ),
    "projected": lambda: popqorn.SequenceClassifier(
        nn.LSTM(FEATURES, HIDDEN, proj_size=2, batch_first=True), nn.Linear(2, CLASSES)
    ),
}


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.joint])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("moving", [(0,), (4,), (1, 3)])
def test_bounds_do_not_depend_on_knowing_what_stands_still(kind: str, method: str, moving: tuple[int, ...]) -> None:
    tape = tape_of(MODELS[kind]().eval(), FRAMES, dtype=torch.float64, device=torch.device("cpu"))
    center = torch.randn(3, FRAMES, FEATURES, dtype=torch.float64)
    eps = torch.tensor([0.0, 0.1, 1.0], dtype=torch.float64)
    rows = torch.randn(1, 6, CLASSES, dtype=torch.float64)
    allowed = around(center, eps, popqorn.Ball(2, frames=list(moving)))
    assert allowed.still == frozenset(range(FRAMES)) - set(moving)
    knowing = relax(tape, allowed, METHODS[method])
    plain = relax(tape, replace(allowed, still=frozenset()), METHODS[method])
    torch.testing.assert_close(knowing.lower(rows), plain.lower(rows), rtol=1e-6, atol=1e-6)
    assert len(knowing.relaxations) < len(plain.relaxations) or kind == "both ways" or 0 in moving


@pytest.mark.parametrize("chunk_rows", [4, 7])
@pytest.mark.parametrize("masks", [[(0,), (0,)], [(1, 3), (3,)], [(4,), (2,)]])
def test_chunks_take_the_values_of_their_own_samples(chunk_rows: int, masks: list[tuple[int, ...]]) -> None:
    """Values of still frames are the sample's own, whichever chunk it is in, and whatever the other samples may do."""
    for kind in ("rnn", "gru"):
        tape = tape_of(MODELS[kind]().eval(), FRAMES, dtype=torch.float64, device=torch.device("cpu"))
        center = 3 * torch.randn(6, FRAMES, FEATURES, dtype=torch.float64)
        moving = torch.zeros(6, FRAMES, dtype=torch.bool)
        for sample in range(6):
            moving[sample, list(masks[sample % 2])] = True
        rows = torch.randn(6, 5, CLASSES, dtype=torch.float64)
        allowed = around(center, torch.linspace(0.01, 0.5, 6, dtype=torch.float64), popqorn.Ball(2, frames=moving))
        assert allowed.still
        whole = relax(tape, allowed, METHODS["planes"], chunk_rows).lower(rows)
        for sample in range(6):
            index = torch.tensor([sample])
            alone = relax(tape, allowed.select(index), METHODS["planes"]).lower(rows[index])
            torch.testing.assert_close(whole[index], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["rnn", "both ways"])
def test_sensitivity_is_what_certify_finds_for_each_frame(kind: str) -> None:
    model = decided_by_single_frames(kind)
    inputs = torch.randn(2, FRAMES, FEATURES)
    radii = popqorn.sensitivity(model, inputs, norm=2, tolerance=1e-3).radius
    for frame in range(FRAMES):
        alone = popqorn.certify(model, inputs, frames=[frame], norm=2).radius
        torch.testing.assert_close(radii[:, frame], alone, rtol=2e-3, atol=0)


def decided_by_single_frames(kind: str) -> popqorn.SequenceClassifier:
    """A decision that a single frame can change: searches that never fail are long, and all alike."""
    model = MODELS[kind]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0 if name.startswith("head") and name.endswith("bias") else 3)
    return model


def test_groups_of_frames_do_not_change_radii(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = decided_by_single_frames("gru"), torch.randn(2, FRAMES, FEATURES)
    whole = popqorn.sensitivity(model, inputs, norm=2, tolerance=1e-2).radius
    monkeypatch.setattr(chunks, "FRAME_ENTRIES", 1)
    each = popqorn.sensitivity(model, inputs, norm=2, tolerance=1e-2).radius
    finite = whole < 100
    assert finite.any()
    torch.testing.assert_close(each[finite], whole[finite], rtol=2e-2, atol=0)


def test_guesses_lie_on_the_line_between_known_neighbours() -> None:
    """Of the radii's logarithms or of their shares of what is linear, whichever is flatter; without neighbours nothing."""
    radius, linear = torch.full((2, 9), torch.nan).double(), torch.ones(2, 9).double()
    nothing = _guess(radius, linear, torch.tensor([0, 8]), 0.01)
    assert not nothing.near.any()
    radius[:, 0], radius[:, 8] = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0])
    found = _guess(radius, linear, torch.tensor([4, 6]), 0.01)  # first both samples' frame 4, then both samples' frame 6
    torch.testing.assert_close(found.size, torch.tensor([2**0.5, 2.0, 2**0.75, 2.0]).double())
    radius[0, 8], linear[0, 8], linear[0, 4] = 4.0, 4.0, 3.0
    found = _guess(radius, linear, torch.tensor([4, 7]), 0.01)
    torch.testing.assert_close(found.size[0], torch.tensor(3.0).double())
    radius[0, 2] = 1.0
    near = _guess(radius, linear, torch.tensor([1]), 0.01)
    assert near.factor[0] == pytest.approx(math.exp(0.015))
    assert near.size[0] == pytest.approx(1.0)


def test_every_frame_is_in_one_group_whatever_their_order() -> None:
    for frames, entries in ((1, 1), (5, 2), (9, 40), (40, 1), (100, 1), (101, 3)):
        groups = list(chunks.frame_groups(frames, entries, torch.device("cpu")))
        assert sorted(torch.cat(groups).tolist()) == list(range(frames))
        assert all(len(group) <= -(-chunks.FRAME_ENTRIES // entries) for group in groups)
        assert all((group.diff() > 0).all() for group in groups)


def test_radii_of_frames_do_not_depend_on_where_searches_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = decided_by_single_frames("gru"), torch.randn(2, FRAMES, FEATURES)
    usual = popqorn.sensitivity(model, inputs, norm=2, tolerance=1e-2)
    for wrong in (0.3, 1.0, 4.0):
        somewhere = Guess(usual.radius.nan_to_num(posinf=1.0)[:, :1] * wrong, torch.full((2, 1), 1.02).double())

        def guess(radius: Tensor, linear: Tensor, frames: Tensor, tolerance: float, at: Guess = somewhere) -> Guess:
            return Guess(at.size.expand(-1, len(frames)).T.flatten(), at.factor.expand(-1, len(frames)).T.flatten())

        monkeypatch.setattr(radii, "_guess", guess)
        found = popqorn.sensitivity(model, inputs, norm=2, tolerance=1e-2)
        finite = usual.radius < 100
        assert finite.any()
        torch.testing.assert_close(found.radius[finite], usual.radius[finite], rtol=2e-2, atol=0)
        assert (found.radius[~finite] > 50).all()


def test_attacks_never_succeed_within_a_single_frames_radius() -> None:
    """The frames around the moving one are constants to the proof; they are real to the model."""
    for kind in ("lstm", "both ways"):
        model, inputs = MODELS[kind]().eval(), torch.randn(2, FRAMES, FEATURES)
        labels = model(inputs).argmax(-1)
        radius = popqorn.certify(model, inputs, labels=labels, frames=[3], norm=2).radius
        reached = popqorn.attack(model, inputs, labels=labels, frames=[3], norm=2, method="pgd").radius
        assert (reached >= radius).all(), kind
