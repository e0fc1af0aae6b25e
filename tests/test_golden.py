"""Radii do not move by accident: they are what an earlier, slower version of the program found, to 1e-6."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from write_golden import radii

ROWS = json.loads((Path(__file__).parent / "golden.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['kind']}-{row['method']}-{row['norm']}")
def test_radii_are_the_golden_ones(row: dict[str, str]) -> None:
    assert radii(row["kind"], float(row["norm"]), row["method"]) == pytest.approx(row["radius"], rel=1e-6)
