"""On public models, our radii reach those of every other program of the same class, and stay below every attack."""

from itertools import groupby
from pathlib import Path

import public
import pytest
import torch
from reference import TOLERANCE, our_radii

import popqorn


@pytest.mark.usefixtures("data")
def test_radii_reach_every_plain_program(reference: Path) -> None:
    rows = public.rows("plain", ("POPQORN", "auto_LiRPA", "PROVER"))
    assert len(rows) > 100
    short = [(row, radius) for row, radius in zip(rows, our_radii(rows), strict=True) if radius < row.eps * (1 - 2 * TOLERANCE)]
    assert not short, short


@pytest.mark.usefixtures("data")
def test_minimum_area_lines_equal_auto_lirpa_on_vanilla_networks(reference: Path) -> None:
    rows = [row for row in public.rows("plain", ("auto_LiRPA",)) if row.model.startswith("rnn")]
    for row, radius in zip(rows, our_radii(rows), strict=True):
        assert radius == pytest.approx(row.eps, rel=2 * TOLERANCE)


@pytest.mark.usefixtures("data")
def test_radii_stay_below_every_attack(reference: Path) -> None:
    rows = [row for row in public.rows("upper") if row.index < 3]
    for row, radius in zip(rows, our_radii(rows, tolerance=1e-2), strict=True):
        assert 0 < radius < row.eps, row


@pytest.mark.usefixtures("data")
def test_weak_methods_reproduce_the_papers(reference: Path) -> None:
    """POPQORN's constants to 1 %; its 1-D lines are never beaten by less than what their wider sigmoid lines lose."""
    for method, name in (("constants", "lstm_const"), ("lines", "lstm_line")):
        rows = [row for row in public.rows("weak", ("POPQORN",)) if row.method == name]
        for row, radius in zip(rows, our_radii(rows, method), strict=True):
            assert radius >= row.eps * 0.985, row
            assert radius <= row.eps * 1.25, row


@pytest.mark.usefixtures("data")
def test_our_attack_reaches_every_published_one(reference: Path) -> None:
    rows = sorted((row for row in public.rows("upper") if row.index < 4), key=lambda row: (row.model, row.norm))
    for (model, norm), group in groupby(rows, key=lambda row: (row.model, row.norm)):
        entries = list(group)
        inputs, _ = public.digits(public.frames_of(model), 4)
        found = popqorn.attack(
            public.load_model(model),
            inputs[[row.index for row in entries]],
            labels=[row.label for row in entries],
            targets=[row.target for row in entries],
            norm=norm,
        )
        assert (found.radius <= 1.05 * torch.tensor([row.eps for row in entries])).all(), (model, norm)
