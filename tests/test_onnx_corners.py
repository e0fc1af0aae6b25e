"""Operators of ONNX at the edge of what they say: read as onnxruntime runs them, or refused."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from onnx_models import Case, apart, drawn, ints, saved
from popqorn.readers.onnx import read_onnx

NO_AXIS = "<noop_with_empty_axes: int = 1>"
READ = {
    **{
        f"{kind} of no axis": Case(f"y = {kind} {NO_AXIS} (x)", opset=18)
        for kind in ("ReduceSum", "ReduceMax", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp")
    },
    "ReduceLogSum of no axis": Case(f"a = Exp(x) y = ReduceLogSum {NO_AXIS} (a)", opset=18),
    "ReduceLogSumExp of one entry": Case("y = ReduceLogSumExp(x, axes)", ("N", 2, 1), {"axes": ints(-1)}, opset=18),
    "MaxPool ceil, no window behind the last entry": Case(
        "y = MaxPool <kernel_shape: ints = [2], strides: ints = [2], pads: ints = [0, 1], ceil_mode: int = 1> (x)", ("N", 2, 4)
    ),
    "GroupNormalization": Case(
        "y = GroupNormalization <num_groups: int = 2> (x, s, b)", ("N", 4, 3), weights={"s": (4,), "b": (4,)}, opset=21
    ),
    "Dropout behind a softmax": Case("a = Softmax(x) y = Dropout(a)"),
    "Dropout that is told not to train": Case(
        "a = Softmax(x) y = Dropout(a, r, t)", weights={"r": np.full((), 0.5, np.float32), "t": np.array(False)}
    ),
}
REFUSED = {
    "Dropout in training behind a softmax": (
        Case("a = Softmax(x) y = Dropout(a, r, t)", weights={"r": np.full((), 0.5, np.float32), "t": np.array(True)}),
        "Dropout in training mode",
    ),
    "the mask of Dropout behind a softmax": (
        Case("a = Softmax(x) b, y = Dropout(a)", outputs="bool[A] y"),
        "'y' is the mask of Dropout",
    ),
    "a maximum of padding": (
        Case("y = MaxPool <kernel_shape: ints = [2], pads: ints = [2, 2]> (x)", ("N", 2, 4)),
        "windows that lie wholly in the padding",
    ),
    "a mean of padding": (
        Case("y = AveragePool <kernel_shape: ints = [2], pads: ints = [2, 2]> (x)", ("N", 2, 4)),
        "windows that lie wholly in the padding",
    ),
    "GroupNormalization of version 18": (
        Case("y = GroupNormalization <num_groups: int = 2> (x, s, b)", ("N", 4, 3), {"s": (2,), "b": (2,)}, opset=18),
        "deprecated",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_tape_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    network = read_onnx(saved(tmp_path, READ[name]))
    assert apart(network, drawn(network)) < 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_construct(name: str, tmp_path: Path) -> None:
    case, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        read_onnx(saved(tmp_path, case), check=False)
