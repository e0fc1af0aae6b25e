"""On public models, our radii reach those of every other program of the same class, and stay below every attack."""

from itertools import groupby
from pathlib import Path

import public
import pytest
import torch
from reference import TOLERANCE

import popqorn


def proven(rows: list[public.Row], share: float, method: str = "planes") -> list[bool]:
    """Whether each row's decision is proven at `share` times its eps: a search would say no more."""
    found = [False] * len(rows)
    order = sorted(range(len(rows)), key=lambda number: (rows[number].model, rows[number].norm))
    for (model, norm), numbers in groupby(order, key=lambda number: (rows[number].model, rows[number].norm)):
        group = list(numbers)
        inputs, _ = public.digits(public.frames_of(model), 1 + max(rows[number].index for number in group))
        verified = popqorn.verify(
            public.load_model(model),
            inputs[[rows[number].index for number in group]],
            [share * rows[number].eps for number in group],
            labels=[rows[number].label for number in group],
            targets=[rows[number].target for number in group],
            norm=norm,
            method=method,
        )
        for number, certified in zip(group, verified.certified.tolist(), strict=True):
            found[number] = certified
    return found


@pytest.mark.usefixtures("data")
def test_radii_reach_every_plain_program(reference: Path) -> None:
    rows = public.rows("plain", ("POPQORN", "auto_LiRPA", "PROVER"))
    assert len(rows) > 100
    short = [row for row, reached in zip(rows, proven(rows, 1 - 2 * TOLERANCE), strict=True) if not reached]
    assert not short, short


@pytest.mark.usefixtures("data")
def test_minimum_area_lines_equal_auto_lirpa_on_vanilla_networks(reference: Path) -> None:
    rows = [row for row in public.rows("plain", ("auto_LiRPA",)) if row.model.startswith("rnn")]
    assert all(proven(rows, 1 - 2 * TOLERANCE))
    assert not any(proven(rows, 1 + 2 * TOLERANCE))


@pytest.mark.usefixtures("data")
def test_tight_bounds_pass_optimised_programs_and_planes_by_a_quarter(reference: Path) -> None:
    """On one small network; the others take longer (`benchmarks/tightness.py`)."""
    rows = [row for row in public.rows("optimised") if row.model == "rnn_04f_032h"]
    hardest = {row.index: max((other for other in rows if other.index == row.index), key=lambda other: other.eps) for row in rows}
    assert len(hardest) == 5
    assert all(proven(list(hardest.values()), 1.0, "tight"))
    plain = [row for row in public.rows("plain", ("auto_LiRPA",)) if row.model == "rnn_04f_032h" and row.norm == 2]
    assert all(proven(plain, 1.25, "tight"))  # whose radii are those of planes


@pytest.mark.usefixtures("data")
def test_radii_stay_below_every_attack(reference: Path) -> None:
    rows = [row for row in public.rows("upper") if row.index < 6]
    assert not any(proven(rows, 1.0))
    assert all(proven(rows, 0.01))


@pytest.mark.usefixtures("data")
def test_weak_methods_reproduce_the_papers(reference: Path) -> None:
    """POPQORN's constants to 1 %; its 1-D lines are never beaten by less than what their wider sigmoid lines lose."""
    for method, name in (("constants", "lstm_const"), ("lines", "lstm_line")):
        rows = [row for row in public.rows("weak", ("POPQORN",)) if row.method == name]
        assert all(proven(rows, 0.985, method))
        assert not any(proven(rows, 1.25, method))


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
