"""ONNX files that strangers published: read as onnxruntime runs them, certified, bounded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import popqorn

pytest.importorskip("onnxruntime")

from onnx_models import apart, drawn
from popqorn.readers.onnx import read_onnx


@pytest.fixture
def public_file(data: Path) -> Callable[[str], Path]:
    def find(name: str) -> Path:
        path = data / "models_public" / name
        if not path.is_file():
            pytest.skip(f"needs {name}, looked for in {path.parent}; set POPQORN_DATA to the folder of the data")
        return path

    return find


STATE = {"input_3": np.zeros((1, 2, 128, 2), np.float32)}


@pytest.mark.parametrize(
    ("name", "options"), [("pose_gru", {}), ("aircraft_lstm", {}), ("earth_lstm", {}), ("dtln_1", {"inputs": STATE})]
)
def test_public_file_equals_onnxruntime(name: str, options: dict[str, Any], public_file: Callable[[str], Path]) -> None:
    network = read_onnx(public_file(f"{name}.onnx"), **options)
    assert network.inputs.axis == 0
    assert apart(network, torch.rand_like(drawn(network, 2, 20))) < 1e-5


def test_public_classifier_is_certified(public_file: Callable[[str], Path]) -> None:
    network = read_onnx(public_file("pose_gru.onnx"))
    with np.load(public_file("pose_test.npz")) as file:
        inputs, labels = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    right = network(inputs).argmax(-1) == labels
    assert float(right.float().mean()) > 0.97
    some = inputs[right][:2, -4:]
    decided = network(some).argmax(-1)
    certificate = popqorn.certify(network, some, tolerance=0.05)
    assert (certificate.radius > 0).all()
    assert certificate.settings["left_off"] == "softmax"
    for _ in range(20):
        moved = some + certificate.radius[:, None, None] * (torch.rand_like(some) * 2 - 1).sign()
        assert (network(moved).argmax(-1) == decided).all()


@pytest.mark.parametrize(("name", "options"), [("aircraft_lstm", {}), ("earth_lstm", {}), ("dtln_1", {"inputs": STATE})])
def test_bounds_of_public_file_hold(name: str, options: dict[str, Any], public_file: Callable[[str], Path]) -> None:
    network = read_onnx(public_file(f"{name}.onnx"), **options)
    inputs = torch.rand_like(drawn(network, 1))
    found = popqorn.bounds(network, inputs, eps=0.001, method="lines" if name == "earth_lstm" else "interval")
    for _ in range(10):
        outputs = network(inputs + 0.001 * (torch.rand_like(inputs) * 2 - 1).sign()).double().reshape(found.lower.shape)
        size = float(outputs.abs().max())
        assert ((found.lower <= outputs + 1e-5 * size) & (outputs <= found.upper + 1e-5 * size)).all()
