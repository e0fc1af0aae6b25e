"""`docs/extending.md` runs as it stands, and its region and spec pass what every other one passes."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import questions
import test_questions

pytestmark = pytest.mark.shapes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page defines, run from top to bottom."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "extending"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    return names


def test_the_page_says_what_is_so(page: dict[str, Any]) -> None:
    assert (page["drift"].radius >= page["ball"].radius * (1 - 2e-3)).all()
    assert (page["drift"].radius < page["attacked"].radius).all()
    assert (page["ranked"].radius <= page["decided"].radius * (1 + 2e-3)).all()
    moved = page["attacked"].adversarial - page["readings"].double()
    torch.testing.assert_close(moved, moved[:, :1].expand_as(moved))
    assert page["drift"].settings["region"] == {"kind": "Drift"}


def test_drift_and_ranking_go_through_the_table(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REGIONS", "SPECS"):
        for key, make in page[name].items():
            monkeypatch.setitem(getattr(questions, name), key, make)
    asked = [*itertools.product(["rnn"], ["decision", "tolerance", "ranking"], ["drift"]), ("rnn", "ranking", "ball inf")]
    for kind, spec, region in asked:
        test_questions.test_nothing_breaks_what_was_certified(kind, spec, region)
        test_questions.test_verify_proves_at_a_size_what_certify_found(region, spec)
    test_questions.test_bounds_hold_every_output("drift", "lstm", "planes")


def test_least_over_drifts_is_attained(page: dict[str, Any]) -> None:
    from sets import around

    inputs: Tensor = questions.inputs()
    allowed = around(inputs, 0.3, page["Drift"]())
    forms = torch.randn(3, 4, 3, 3, dtype=torch.float64)
    found = allowed.least({k: allowed.part(k, forms[:, :, k]) for k in range(3)})
    for row in range(4):
        reached = (forms[:, row] * (allowed.lowest(forms[:, row]) - inputs)).flatten(1).sum(-1)
        torch.testing.assert_close(found[:, row], reached)


def test_what_cannot_be_held_to_single_frames_says_so(page: dict[str, Any]) -> None:
    import popqorn

    with pytest.raises(NotImplementedError, match="DriftSet cannot be held to single frames"):
        popqorn.sensitivity(questions.network("rnn"), questions.inputs(), region=page["Drift"]())
