"""ONNX files: read as onnxruntime runs them, certified as the torch modules they were exported from, or refused by name."""

import logging
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import popqorn

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx_models import (  # noqa: E402
    CNN,
    COMPUTING,
    CONTROL,
    MLP,
    MOVING,
    RECURRENT,
    Case,
    apart,
    drawn,
    gru_of,
    ints,
    lstm_node,
    lstm_written_out,
    made,
    recurrent,
    saved,
    with_function,
)
from popqorn.readers.onnx import OnnxNetwork, read_onnx  # noqa: E402


def assert_sound(network: OnnxNetwork, inputs: Tensor, eps: float = 0.1) -> None:
    """What onnxruntime gives at points of the region, its corners among them, lies within the bounds."""
    found = popqorn.bounds(network, inputs, eps=eps)
    for kind in range(12):
        moved = torch.rand_like(inputs) * 2 - 1
        outputs = network(inputs + eps * (moved if kind < 6 else moved.sign())).double().reshape(found.lower.shape)
        assert (found.lower <= outputs + 1e-4).all()
        assert (outputs <= found.upper + 1e-4).all()


def radii(model: Any, inputs: Tensor, **options: Any) -> Tensor:
    return popqorn.certify(model, inputs, tolerance=1e-2, **options).radius


# ---- what is read equals what onnxruntime runs ---------------------------------------------------------------------------------

EVERY = {**COMPUTING, **MOVING, **CONTROL, **RECURRENT, "MLP": MLP, "CNN": CNN, "LSTM written out": lstm_written_out()}
BOUNDED = [
    "Mul and Div",
    "MatMul of two",
    "Conv with uneven pads",
    "ConvTranspose",
    "MaxPool ceil",
    "LayerNormalization",
    "Softmax of version 11",
    "a mask of -inf",
    "Where with a constant",
    "Pad",
    "Loop",
    "RNN Relu",
    "LSTM Relu",
    "LSTM HardSigmoid",
    "GRU reset first",
    "GRU Relu reset after",
    "MLP",
    "CNN",
    "LSTM written out",
]


@pytest.mark.parametrize("name", EVERY)
def test_tape_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    network = read_onnx(saved(tmp_path, EVERY[name]))
    assert apart(network, drawn(network)) < 1e-5


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_at_sampled_points(name: str, tmp_path: Path) -> None:
    network = read_onnx(saved(tmp_path, EVERY[name]))
    assert_sound(network, drawn(network, 2))


@pytest.mark.parametrize("version", range(7, 24))
def test_all_versions_of_the_operators(version: int, tmp_path: Path) -> None:
    body = (
        "f = Transpose <perm: ints = [1, 0, 2]> (x) o, e = LSTM <hidden_size: int = 3> (f, w, r, b) "
        "q = Transpose <perm: ints = [1, 0, 2]> (e) n = Flatten(q) g = Gemm(n, v, c) p = Relu(g) y = Softmax <axis: int = 1> (p)"
    )
    weights = {"w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24), "v": (3, 4), "c": (4,)}
    network = read_onnx(saved(tmp_path, Case(body, ("N", 4, 2), weights, opset=version)))
    assert apart(network, drawn(network)) < 1e-5


def test_function_of_the_model_is_written_out(tmp_path: Path) -> None:
    network = read_onnx(saved(tmp_path, with_function()))
    assert {node.op_type for node in network.program.graph.node} == {"Tanh", "Add"}
    assert apart(network, drawn(network)) < 1e-5


def test_initial_states_may_depend_on_the_inputs(tmp_path: Path) -> None:
    case = recurrent("LSTM", states=", , h, z")
    mean = "a = ReduceMean <axes: ints = [1], keepdims: int = 0> (x)"
    before = f"{mean} d = MatMul(a, u) h = Unsqueeze(d, k) s = Shape(h) z = Expand(t, s)"
    weights = {**case.weights, "u": (2, 3), "k": ints(0), "t": (1, 1, 3)}
    body = case.body.replace("h = Reduce", "j = Reduce").replace("(h)", "(j)")
    network = read_onnx(saved(tmp_path, Case(f"{before} {body}", case.dims, weights, opset=14)))
    assert apart(network, drawn(network)) < 1e-5
    assert_sound(network, drawn(network, 2))


def test_sequence_lens_of_all_frames_are_read(tmp_path: Path) -> None:
    case = recurrent("GRU", states=", lens")
    path = saved(tmp_path, Case(case.body, case.dims, case.weights, opset=14, inputs=", int32[N] lens"))
    network = read_onnx(path, inputs={"lens": [4]})
    assert apart(network, drawn(network)) < 1e-5
    with pytest.raises(TypeError, match=r"GRU with sequence_lens \[3\] for 4 frames"):
        read_onnx(path, inputs={"lens": [3]})


def test_external_data_is_read(tmp_path: Path) -> None:
    inside = read_onnx(saved(tmp_path, lstm_node()))
    model = made(lstm_node())
    onnx.save(model, tmp_path / "far.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size > 0
    network = read_onnx(tmp_path / "far.onnx")
    inputs = drawn(network)
    torch.testing.assert_close(network(inputs), inside(inputs), rtol=0, atol=0)


def test_final_softmax_is_left_off_only_for_decisions(tmp_path: Path) -> None:
    network = read_onnx(saved(tmp_path, MLP))
    inputs = drawn(network)
    (group,) = network.sequences(inputs, None, torch.float64)
    deciding, whole = (network.reading(group, decides=decides) for decides in (True, False))
    assert (deciding.left_off, whole.left_off) == ("softmax", None)
    torch.testing.assert_close(deciding.finished(deciding.tape(group.values)), whole.tape(group.values))
    assert popqorn.certify(network, inputs).settings["left_off"] == "softmax"
    steps = read_onnx(saved(tmp_path, Case("y = Softmax <axis: int = 1> (x)")))  # over steps: it changes decisions
    (group,) = steps.sequences(drawn(steps), None, torch.float64)
    assert steps.reading(group, decides=True).left_off is None


def test_wide_softmax_is_no_obstacle_to_decisions(tmp_path: Path) -> None:
    network = read_onnx(saved(tmp_path, Case("t = Tanh(x) y = Softmax(t)", ("N", 200))))
    assert popqorn.verify(network, drawn(network), eps=1e-6).certified.all()


def test_half_precision_is_read(tmp_path: Path) -> None:
    model = made(MLP)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    network = read_onnx(saved(tmp_path, model))
    assert apart(network, drawn(network)) < 1e-2


def test_without_onnxruntime_the_tape_answers(tmp_path: Path) -> None:
    path = saved(tmp_path, MLP)
    checked, alone = read_onnx(path), read_onnx(path, check=False)
    inputs = drawn(alone)
    assert alone.session is None
    torch.testing.assert_close(alone(inputs), checked(inputs).double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(radii(alone, inputs), radii(checked, inputs), rtol=1e-9, atol=0)


def test_lengths_and_batches_are_read_as_for_modules(tmp_path: Path) -> None:
    rnn, head = nn.GRU(2, 3), nn.Linear(3, 2)
    network = read_onnx(saved(tmp_path, gru_of(rnn, head)), frames=3)
    sequences = [torch.randn(length, 2) for length in (2, 4, 2)]
    together = popqorn.bounds(network, sequences, eps=0.1).lower
    for place, sequence in enumerate(sequences):
        alone = popqorn.bounds(network, sequence[None], eps=0.1).lower
        torch.testing.assert_close(together[place : place + 1], alone, rtol=1e-9, atol=0)


# ---- radii equal those of torch ------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], layers: int, both: bool, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(2, 3, layers, batch_first=True, bidirectional=both, **options)
        self.head = nn.Linear(6 if both else 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


CELLS: dict[str, tuple[type[nn.RNNBase], dict[str, str]]] = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "LSTM": (nn.LSTM, {}),
    "GRU": (nn.GRU, {}),
}


class Several(nn.Module):
    """Every cell, plain, or stacked and in both directions: one file, one output each."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        stacked = {name: layers if name != "relu" else 1 for name in CELLS}  # which differs from tanh in nothing else
        self.parts = nn.ModuleDict(
            {name: Recurrent(kind, stacked[name], layers > 1, **how) for name, (kind, how) in CELLS.items()}
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part(x) for part in self.parts.values())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[Several, Path]]:
    """Modules and their files, by either of torch's exporters, each written once."""
    folder = tmp_path_factory.mktemp("exported")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)

    @cache
    def export(exporter: str, layers: int) -> tuple[Several, Path]:
        torch.manual_seed(layers)
        module, path = Several(layers).eval(), folder / f"{exporter}{layers}.onnx"
        named: dict[str, Any] = {"input_names": ["x"], "output_names": [f"{cell} logits" for cell in CELLS], "verbose": False}
        how = {"dynamic_shapes": ({0: "batch"},)} if exporter == "dynamo" else {"dynamic_axes": {"x": {0: "batch", 1: "time"}}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, (torch.randn(1, 2, 2),), str(path), dynamo=exporter == "dynamo", **named, **how)
        return module, path

    return export


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("exporter", "layers"), [("dynamo", 2), ("legacy", 1), ("legacy", 2)])
def test_exported_module_has_the_radii_of_the_module(
    exporter: str, layers: int, cell: str, exported: Callable[[str, int], tuple[Several, Path]]
) -> None:
    several, path = exported(exporter, layers)
    network, module, inputs = read_onnx(path, output=f"{cell} logits"), several.parts[cell], torch.randn(1, 2, 2)
    assert apart(network, inputs) < 1e-5
    torch.testing.assert_close(network(inputs), module(inputs).detach(), rtol=1e-5, atol=1e-5)
    method = "planes" if layers == 1 else "lines"
    torch.testing.assert_close(radii(network, inputs, method=method), radii(module, inputs, method=method), rtol=1e-6, atol=0)


def test_frames_before_the_batch_are_turned(tmp_path: Path) -> None:
    rnn, head = nn.GRU(2, 3), nn.Linear(3, 2)
    network = read_onnx(saved(tmp_path, gru_of(rnn, head)))
    assert network.inputs.axis == 1
    inputs = torch.randn(1, 3, 2)
    module = popqorn.SequenceClassifier(nn.GRU(2, 3, batch_first=True), head)
    module.rnn.load_state_dict(rnn.state_dict())
    torch.testing.assert_close(network(inputs), module(inputs).detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(radii(network, inputs), radii(module, inputs), rtol=1e-6, atol=0)


def test_written_out_lstm_has_the_radii_of_the_node(tmp_path: Path) -> None:
    one, many = (read_onnx(saved(tmp_path, case)) for case in (lstm_node(), lstm_written_out()))
    inputs = drawn(one, 2)
    torch.testing.assert_close(radii(many, inputs), radii(one, inputs), rtol=1e-6, atol=0)


def test_reverse_has_the_radii_of_turned_inputs(tmp_path: Path) -> None:
    case = lstm_node()
    there = read_onnx(saved(tmp_path, case))
    turned = case.body.replace("hidden_size: int = 3", 'hidden_size: int = 3, direction: string = "reverse"')
    back = read_onnx(saved(tmp_path, Case(turned, case.dims, case.weights)))
    inputs = drawn(there, 2)
    torch.testing.assert_close(radii(back, inputs), radii(there, inputs.flip(1)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_batch_first_layout_equals_the_other(kind: str, tmp_path: Path) -> None:
    both: dict[str, Any] = {"directions": 2, "direction": "bidirectional"}
    usual = read_onnx(saved(tmp_path, recurrent(kind, **both)))
    path = saved(tmp_path, recurrent(kind, layout=1, **both))
    with pytest.raises(ValueError, match=r"onnxruntime cannot .* check=False"):  # it has no such layout
        read_onnx(path)
    first = read_onnx(path, check=False)
    inputs = drawn(first, 2)
    torch.testing.assert_close(first(inputs), usual(inputs).double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(radii(first, inputs, method="lines"), radii(usual, inputs, method="lines"), rtol=1e-6, atol=0)


# ---- inputs and outputs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "axis"),
    [
        (("batch_size", "sequence_length", 2), 0),
        (("SequenceLength", "BatchSize", 2), 1),
        (("unk__7", 4, 2), 0),
        (("time", 1, 2), 1),
        ((1, "frames", 2), 0),
        ((1, 4, 2), 0),
        ((4, 1, 2), 1),
        (("s", "N", 2), 1),
        ((1, 3, 4, 4), 0),
    ],
)
def test_batch_axis_is_found(dims: tuple[int | str, ...], axis: int, tmp_path: Path) -> None:
    network = read_onnx(saved(tmp_path, Case("y = Tanh(x)", dims)))
    assert network.inputs.axis == axis
    assert apart(network, drawn(network)) < 1e-5


@pytest.mark.parametrize(("turn", "axis"), [("[0, 1, 2]", 1), ("[1, 0, 2]", 0)])
def test_recurrence_tells_the_batch_axis(turn: str, axis: int, tmp_path: Path) -> None:
    body = f"f = Transpose <perm: ints = {turn}> (x) o, e = GRU <hidden_size: int = 3> (f, w, r) y = Identity(e)"
    network = read_onnx(saved(tmp_path, Case(body, ("P", "Q", 2), {"w": (1, 9, 2), "r": (1, 9, 3)})))
    assert network.inputs.axis == axis


def test_axis_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path, Case("y = Tanh(x)", ("P", "Q", 2)))
    with pytest.raises(ValueError, match=r"shape \['P', 'Q', 2\], is the batch cannot be told; pass batch_axis="):
        read_onnx(path)
    network = read_onnx(path, batch_axis=1)
    assert apart(network, drawn(network)) < 1e-5
    with pytest.raises(ValueError, match="batch_axis is 3"):
        read_onnx(path, batch_axis=3)


@pytest.fixture
def two_inputs(tmp_path: Path) -> Path:
    body = "a = Mul(x, z) y = Add(a, x) s = ReduceMean <axes: ints = [2], keepdims: int = 0> (a)"
    return saved(tmp_path, Case(body, ("N", 2, 3), inputs=", float[N, 2, 1] z", outputs="float[A] y, float[A] s"))


@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 1), (1,), ()])
def test_other_inputs_are_given_values(shape: tuple[int, ...], two_inputs: Path) -> None:
    network = read_onnx(two_inputs, inputs={"z": np.full(shape, 0.7)})
    inputs = drawn(network)
    torch.testing.assert_close(network(inputs), 1.7 * inputs, rtol=1e-5, atol=1e-6)
    assert apart(network, inputs) < 1e-5
    assert popqorn.bounds(network, inputs, eps=0.1).lower.shape == inputs.shape


def test_any_input_moves_and_any_output_is_certified(two_inputs: Path) -> None:
    network = read_onnx(two_inputs, inputs={"x": np.ones((2, 3))}, output="s")
    inputs = torch.randn(4, 2, 1)
    torch.testing.assert_close(network(inputs), inputs[..., 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"2 inputs without a value \('x' of shape \['N', 2, 3\], 'z' of shape \['N', 2, 1\]\).*inputs=\{name: value\}"),
        ({"inputs": {"w": 1.0}}, "'w' is no input that the output needs; those are 'x', 'z'"),
        ({"inputs": {"x": 1.0, "z": 1.0}}, "0 inputs without a value"),
        ({"inputs": {"z": np.ones((3, 5))}}, r"'z' has shape .*the model takes \['N', 2, 1\]"),
        ({"inputs": {"z": 1.0}, "output": "q"}, "output is 'q'; the outputs of .* are 'y', 's'"),
        ({"inputs": {"z": float("nan")}}, r"inputs\['z'\] holds 1 value\(s\) that are NaN"),
        ({"inputs": "z"}, "inputs is 'z'; pass the values of all inputs but the one that moves, {name: value}"),
        ({"inputs": [1]}, r"inputs is \[1\]; pass the values"),
        ({"inputs": {"z": 1.0}, "frames": 0}, "frames is 0"),
        ({"inputs": {"z": 1.0}, "frames": 7}, "frames is 7, but .* takes 2"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str, two_inputs: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        read_onnx(two_inputs, **options)


def test_inputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    network = read_onnx(saved(tmp_path, MLP))
    with pytest.raises(ValueError, match=r"inputs have shape \['batch', 7\]; the model's 'x' takes \['batch', 6\]"):
        popqorn.certify(network, torch.randn(2, 7))


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    weight = np.full((6, 4), np.nan, np.float32)
    network = read_onnx(saved(tmp_path, Case("f = Flatten(x) y = Gemm(f, w)", weights={"w": weight})), check=False)
    with pytest.raises(ValueError, match="w holds 24 value"):
        popqorn.certify(network, drawn(network))
