"""Certificates keep what they hold, and refuse files that are not theirs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import popqorn
from popqorn import Certificate, bundled


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    inputs, labels = bundled.load_digits(3)
    labels[2] = (labels[2] + 1) % 10
    return popqorn.certify(bundled.load_model("rnn"), inputs, labels=labels, targets=(labels + 3) % 10, per_target=True)


@pytest.mark.parametrize("name", ["proof.npz", "proof.cert"])
def test_saved_certificate_comes_back_whole(certificate: Certificate, tmp_path: Path, name: str) -> None:
    certificate.save(tmp_path / name)
    back = Certificate.load(tmp_path / name)
    for field in ("radius", "margins", "evaluations", "labels", "targets", "target_radius"):
        assert torch.equal(getattr(back, field), getattr(certificate, field)), field
    assert back.status == certificate.status
    assert back.seconds == certificate.seconds
    assert back.settings == certificate.settings


def test_untargeted_certificate_comes_back_whole(tmp_path: Path) -> None:
    certificate = popqorn.certify(bundled.load_model("rnn"), bundled.load_digits(2).inputs)
    certificate.save(str(tmp_path / "proof"))
    back = Certificate.load(str(tmp_path / "proof"))
    assert back.targets is None
    assert back.target_radius is None
    assert torch.equal(back.radius, certificate.radius)


def test_to_dict_is_plain_json(certificate: Certificate) -> None:
    read = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert read["radius"] == certificate.radius.tolist()
    assert read["status"] == [str(status) for status in certificate.status]
    assert read["margins"][0][int(certificate.labels[0])] is None
    assert read["settings"]["norm"] == "inf"
    assert math.isclose(read["seconds"], certificate.seconds)


@pytest.mark.parametrize("kept", [0, 10, 300, -40])
def test_truncated_file_is_named(certificate: Certificate, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "proof.npz"
    certificate.save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"path: .*proof\.npz.*truncated"):
        Certificate.load(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", radius=np.zeros(3))
    (tmp_path / "text.npz").write_text("not a certificate")
    np.savez(tmp_path / "pickled.npz", about=np.array([{"format": "x"}], dtype=object))
    about = np.frombuffer(json.dumps({"format": "popqorn-certificate-99"}).encode(), dtype=np.uint8)
    empty = {name: np.zeros(0) for name in ("radius", "margins", "evaluations", "labels")}
    np.savez(tmp_path / "newer.npz", about=about, **empty)
    for name in ("other.npz", "text.npz", "pickled.npz", "newer.npz"):
        with pytest.raises(ValueError, match="not a readable certificate"):
            Certificate.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Certificate.load(tmp_path / "absent.npz")
