"""Results keep what they hold, say what it means, and refuse files that are not theirs."""

import dataclasses
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn import Certificate, Status, bundled
from popqorn import result as results

pytestmark = pytest.mark.shapes


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    inputs, labels = bundled.load_digits(3)
    labels[2] = (labels[2] + 1) % 10
    return popqorn.certify(bundled.load_model("rnn"), inputs, labels=labels, targets=(labels + 3) % 10, per_target=True)


def small() -> tuple[popqorn.SequenceClassifier, Tensor]:
    torch.manual_seed(0)
    return popqorn.SequenceClassifier(nn.RNN(3, 4), nn.Linear(4, 3)).double(), torch.randn(3, 4, 3, dtype=torch.float64)


CALLS: dict[str, Callable[..., Any]] = {
    "certify": popqorn.certify,
    "certify of other lengths": lambda model, inputs: popqorn.certify(model, inputs, lengths=[4, 2, 3]),
    "certify of an interval": lambda model, inputs: popqorn.certify(
        model, inputs, region=popqorn.Box(inputs - 0.1, inputs + 0.1)
    ),
    "sensitivity": lambda model, inputs: popqorn.sensitivity(model, inputs, lengths=[4, 2, 3]),
    "verify": lambda model, inputs: popqorn.verify(model, inputs, 0.01, spec=popqorn.Tolerance(0.1)),
    "bounds": lambda model, inputs: popqorn.bounds(model, inputs, 0.01),
    "curve": lambda model, inputs: popqorn.curve(model, inputs, [0.01, 0.1], attacked="fgsm"),
    "attack": lambda model, inputs: popqorn.attack(model, inputs, method="fgsm"),
    "clever": lambda model, inputs: popqorn.clever(model, inputs, batches=3, samples=4),
}


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return first.dtype == second.dtype and bool(((first == second) | ((first != first) & (second != second))).all())
    return bool(first == second)


@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize("call", CALLS)
def test_every_result_comes_back_as_it_was_saved(call: str, suffix: str, tmp_path: Path) -> None:
    found = CALLS[call](*small())
    found.save(tmp_path / f"result{suffix}")
    back = type(found).load(str(tmp_path / f"result{suffix}"))
    for field in dataclasses.fields(found):
        assert same(getattr(back, field.name), getattr(found, field.name)), field.name


def test_to_dict_is_plain_json(certificate: Certificate) -> None:
    read = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert read["radius"] == certificate.radius.tolist()
    assert read["status"] == [str(status) for status in certificate.status]
    assert read["margins"][0][int(certificate.labels[0])] is None
    assert read["settings"]["region"]["norm"] == "inf"
    assert math.isclose(read["seconds"], certificate.seconds)


def test_every_status_has_a_remedy() -> None:
    assert len({status.remedy for status in Status}) == len(Status)
    assert all(len(status.remedy) > 20 for status in Status)


def test_settings_hold_what_decides_the_numbers() -> None:
    model, inputs = small()
    scale = torch.rand(3, 4, 3)
    found = popqorn.verify(
        model, inputs, 0.01, region=popqorn.Ball(2, scale=scale, clip=(-9, 9)), spec=popqorn.Tolerance([1, 2, 3])
    )
    region, spec = found.settings["region"], found.settings["spec"]
    assert (region["kind"], region["norm"], region["clip"], region["total"]) == ("Ball", 2.0, [-9, 9], False)
    assert torch.equal(torch.tensor(region["scale"]), scale)
    assert spec == {"kind": "Tolerance", "delta": [1, 2, 3]}
    assert found.settings["method"] == "planes"
    again = popqorn.verify(model, inputs, 0.02)
    assert again.settings["weights"] == found.settings["weights"]
    assert again.settings["inputs"] == found.settings["inputs"]
    with torch.no_grad():
        model.head.bias[0] += 1e-9
    changed = popqorn.verify(model, inputs + 1e-12, 0.02)
    assert changed.settings["weights"] != found.settings["weights"]
    assert changed.settings["inputs"] != found.settings["inputs"]


def test_large_arrays_are_named_by_their_hash() -> None:
    table = torch.randn(2000, 6)
    tokens = torch.tensor([[1, 2]])
    settings = [
        popqorn.verify(
            popqorn.SequenceClassifier(nn.RNN(6, 3), nn.Linear(3, 2)),
            table[tokens],
            region=popqorn.Words(table, tokens, {word: range(word, word + many) for word in range(1000)}),
        ).settings["region"]
        for many in (20, 21)
    ]
    assert settings[0]["table"] == settings[1]["table"]
    assert settings[0]["table"]["shape"] == [2000, 6]
    assert settings[0]["neighbours"]["sha256"] != settings[1]["neighbours"]["sha256"]
    assert settings[0]["tokens"] == [[1, 2]]


# ---- files that are not theirs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize("kept", [0, 10, 300, -40])
def test_truncated_file_is_named(certificate: Certificate, tmp_path: Path, kept: int, suffix: str) -> None:
    path = tmp_path / f"proof{suffix}"
    certificate.save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"path: .*proof\..*truncated"):
        Certificate.load(path)


def test_foreign_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "other.npz", radius=np.zeros(3))
    (tmp_path / "text.npz").write_text("not a certificate")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "newer.json").write_text('{"format": "popqorn-certificate-99"}')
    np.savez(tmp_path / "pickled.npz", about=np.array([{"format": "x"}], dtype=object))
    popqorn.verify(*small(), 0.1).save(tmp_path / "verification.npz")
    for name in ("other.npz", "text.npz", "list.json", "newer.json", "pickled.npz", "verification.npz"):
        with pytest.raises(ValueError, match="not a readable Certificate"):
            Certificate.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Certificate.load(tmp_path / "absent.npz")


def test_a_file_with_a_list_where_an_array_belongs_is_refused(certificate: Certificate, tmp_path: Path) -> None:
    certificate.save(tmp_path / "proof.json")
    read = json.loads((tmp_path / "proof.json").read_text())
    read["radius"] = [1.0, 2.0, 3.0]
    (tmp_path / "proof.json").write_text(json.dumps(read))
    with pytest.raises(ValueError, match="list where an array belongs"):
        Certificate.load(tmp_path / "proof.json")


def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LARGEST_FILE", 2**26)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("radius.npy", "w") as entry:
        for _ in range(2):
            entry.write(bytes(2**26))
    assert (tmp_path / "bomb.npz").stat().st_size < results.LARGEST_FILE // 100
    with pytest.raises(ValueError, match="more than any result"):
        Certificate.load(tmp_path / "bomb.npz")
