"""Which axis of an ONNX file's input is the batch: what is taken for samples must be samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import popqorn
from onnx_models import Case, made, saved
from popqorn.readers.onnx.network import read_onnx

WEIGHTS: dict[str, Any] = {"w": (1, 9, 2), "r": (1, 9, 3)}


def _gru(dims: Sequence[int | str], *, batch_first: bool) -> Case:
    """The final state of a GRU, `[batch, 3]`."""
    turn = "[1, 0, 2]" if batch_first else "[0, 1, 2]"
    body = f"f = Transpose <perm: ints = {turn}> (x) o, e = GRU <hidden_size: int = 3> (f, w, r) y = Squeeze(e, zero)"
    return Case(body, dims, {**WEIGHTS, "zero": torch.zeros(1, dtype=torch.long).numpy()})


def _named(model: onnx.ModelProto, *names: str | int) -> onnx.ModelProto:
    """The same with the names of its output's axes."""
    described = model.graph.output[0]
    described.CopyFrom(onnx.helper.make_tensor_value_info(described.name, onnx.TensorProto.FLOAT, names))
    return model


def test_a_letter_does_not_outrank_the_recurrence(tmp_path: Path) -> None:
    inputs = torch.randn(2, 5, 2)
    lettered = read_onnx(saved(tmp_path, _gru(("a", "b", 2), batch_first=True)))
    assert lettered.inputs.axis == 0
    told = read_onnx(saved(tmp_path, _gru(("batch", "time", 2), batch_first=True)))
    assert torch.equal(popqorn.certify(lettered, inputs).radius, popqorn.certify(told, inputs).radius)


def test_a_letter_does_not_outrank_the_name_of_an_axis_of_the_output(tmp_path: Path) -> None:
    case = Case("a = Tanh(x) y = ReduceMean <axes: ints = [1], keepdims: int = 0> (a)", ("a", "b", 2))
    assert read_onnx(saved(tmp_path, _named(made(case), "a", 2))).inputs.axis == 0


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(("batch_first", "wrong"), [(True, 1), (False, 0)])
def test_an_axis_that_the_recurrence_contradicts_is_refused(batch_first: bool, wrong: int, check: bool, tmp_path: Path) -> None:
    path = saved(tmp_path, _gru(("P", "Q", 2), batch_first=batch_first))
    message = f"batch_axis is {wrong}, but the recurrence .* has its batch on axis {1 - wrong}; pass batch_axis={1 - wrong}"
    with pytest.raises(ValueError, match=message):
        read_onnx(path, batch_axis=wrong, check=check)
    assert read_onnx(path, batch_axis=1 - wrong, check=check).inputs.axis == 1 - wrong


def test_a_name_that_the_recurrence_contradicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the name of axis 1 says that it is the batch, but .* pass batch_axis=0"):
        read_onnx(saved(tmp_path, _gru(("time", "batch", 2), batch_first=True)))


def test_an_output_that_does_not_count_the_samples_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, Case("a = Tanh(x) y = ReduceMean <axes: ints = [1], keepdims: int = 0> (a)", ("P", "Q", 2)))
    with pytest.raises(ValueError, match=r"shape \[5, 2\] for one sample and \[5, 2\] for 3: .* pass batch_axis="):
        read_onnx(path, batch_axis=1)
    assert read_onnx(path, batch_axis=0).inputs.axis == 0


@pytest.mark.parametrize("dims", [("batch", 4), ("batch", "P", "Q")])
def test_a_file_that_mixes_samples_is_told_so(dims: tuple[int | str, ...], tmp_path: Path) -> None:
    path = saved(tmp_path, Case("m = ReduceMean <axes: ints = [0]> (x) y = Sub(x, m)", dims))
    inputs = torch.randn(2, *([4] if len(dims) == 2 else [3, 2]))
    with pytest.raises(ValueError, match=r"depends on the other samples, .* batch_axis= if the batch is another axis"):
        popqorn.certify(read_onnx(path), inputs)


def test_samples_that_are_joined_behind_each_other_are_apart(tmp_path: Path) -> None:
    case = Case("y = Reshape(x, s)", ("batch", 4, 3), {"s": torch.tensor([-1, 3]).numpy()})
    network = read_onnx(saved(tmp_path, case))
    assert network(torch.randn(2, 4, 3)).shape == (2, 4, 3)


@pytest.mark.parametrize("over_the_batch", [False, True])
def test_a_softmax_is_left_off_over_the_classes_only(over_the_batch: bool, tmp_path: Path) -> None:
    turned = "a = Transpose <perm: ints = [1, 0]> (t)" if over_the_batch else "a = Identity(t)"
    case = Case(f"t = MatMul(x, w) {turned} y = Softmax(a)", ("N", 3), {"w": (3, 4)})
    network = read_onnx(saved(tmp_path, case), check=False)
    (group,) = network.sequences(torch.randn(2, 3), None, torch.float64)
    assert network.reading(group, decides=True).left_off == (None if over_the_batch else "softmax")
