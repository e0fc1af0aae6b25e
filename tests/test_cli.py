"""The command line as a stranger would use it."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import popqorn
from popqorn import bundled
from popqorn.cli import app

runner = CliRunner()


def test_demo_prints_a_table_and_writes_a_picture(tmp_path: Path) -> None:
    result = runner.invoke(app, ["demo", "--model", "rnn", "--samples", "3", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    rows = re.findall(r"│\s+(\d)\s+│\s+(\d)\s+│\s+(\d)\s+│\s+([\d.]+)\s+│\s+([\d.]+)\s+│\s+([\d.]+)", result.output)
    assert len(rows) == 3
    for *_, at_inf, at_two, at_one in rows:
        assert 0 < float(at_inf) < float(at_two) < float(at_one)
    picture = (tmp_path / "new" / "sensitivity.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000


def test_unknown_model_is_named(tmp_path: Path) -> None:
    result = runner.invoke(app, ["demo", "--model", "transformer", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "transformer" in result.output
    with pytest.raises(ValueError, match="kind is 'transformer'"):
        bundled.load_model("transformer")


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output.strip() == popqorn.__version__
    assert runner.invoke(app, []).exit_code in (0, 2)


@pytest.mark.parametrize("kind", bundled.KINDS)
def test_bundled_networks_read_the_bundled_digits(kind: str) -> None:
    inputs, labels = bundled.load_digits()
    assert inputs.shape == (100, 4, 196)
    assert bundled.test_accuracy(kind) >= 0.95
    decisions = bundled.load_model(kind).double()(inputs).argmax(-1)
    assert (decisions == labels).double().mean() >= 0.95
