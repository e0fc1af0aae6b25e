"""The command line as a stranger would use it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
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


def test_a_model_file_is_robustified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.GRU(2, 4), nn.Linear(4, 2))
    labels = torch.randint(2, (120,))
    inputs = torch.randn(120, 3, 2) * 0.3 + (2 * labels - 1).view(-1, 1, 1)
    popqorn.save(model, tmp_path / "model.safetensors")
    np.savez(tmp_path / "data.npz", x=inputs.numpy(), y=labels.numpy())
    given = ["robustify", str(tmp_path / "model.safetensors"), str(tmp_path / "data.npz"), "--batch", "10", "--epochs", "12"]
    out = tmp_path / "robust.safetensors"
    result = runner.invoke(app, [*given, "--eps", "0.2", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "<- kept" in result.output
    found = popqorn.load(out)
    assert isinstance(found, popqorn.SequenceClassifier)
    assert popqorn.verify(found, inputs, 0.2, labels=labels).certified.double().mean() > 0.8
    assert not list(tmp_path.glob("*.epochs"))
    wrong = runner.invoke(app, [*given, "--eps", "-1", "--out", str(out)])
    assert wrong.exit_code == 2
    assert "eps holds -1" in wrong.output


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("nothing.safetensors", "data.npz", "does not exist"),
        ("no.such.module:make", "data.npz", "importable from here"),
        ("model.safetensors", "missing.npz", "missing.npz"),
        ("model.safetensors", "other.npz", "it must hold x"),
        ("model.safetensors", "broken.npz", "cannot be read"),
    ],
)
def test_what_cannot_be_robustified_is_named(
    model: str, data: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    popqorn.save(popqorn.SequenceClassifier(nn.GRU(2, 4), nn.Linear(4, 2)), "model.safetensors")
    np.savez("data.npz", x=np.zeros((4, 3, 2), np.float32), y=np.zeros(4, np.int64))
    np.savez("other.npz", images=np.zeros(3))
    Path("broken.npz").write_bytes(b"PK\x03\x04 and no more")
    result = runner.invoke(app, ["robustify", model, data, "--eps", "0.1"])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
