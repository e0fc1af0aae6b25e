"""ONNX files that are refused: what cannot be read, by name, and what is no model, at once."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from malformed_onnx import MALFORMED  # noqa: E402
from onnx_models import MLP, Case, ints, made, recurrent, saved  # noqa: E402
from popqorn.readers.onnx import names, read_onnx  # noqa: E402
from popqorn.readers.onnx import table as rules  # noqa: E402


def _peepholes() -> Case:
    case = recurrent("LSTM", states=", , , , holes")
    return Case(case.body, case.dims, {**case.weights, "holes": (1, 9)}, opset=14)


REFUSED: dict[str, tuple[Case, str]] = {
    "an operator": (
        Case("a, i = TopK(x, k) y = Exp(a)", weights={"k": ints(1)}),
        "TopK of what depends on the inputs, at the node 'a'",
    ),
    "an unknown operator": (Case("y = Det(x)", ("N", 3, 3)), "the operator Det, at the node 'y'"),
    "a random operator": (Case("r = RandomNormal <shape: ints = [3]> () y = Add(x, r)"), "the operator RandomNormal"),
    "a foreign operator": (Case("y = com.microsoft.FastGelu(x)"), "the operator FastGelu"),
    "peepholes": (_peepholes(), r"LSTM with peepholes \(its input P\)"),
    "clip": (recurrent("LSTM", clip=3.0), "LSTM with clip=3"),
    "input_forget": (recurrent("LSTM", input_forget=1), "LSTM with input_forget=1"),
    "an activation that jumps": (recurrent("RNN", activations=["ThresholdedRelu"]), "RNN with the activation ThresholdedRelu"),
    "places that move": (
        Case("c = Cast <to: int = 7> (x) y = Gather <axis: int = 0> (w, c)", weights={"w": (3, 2)}),
        "Cast to whole numbers",
    ),
    "a comparison": (Case("c = Greater(x, w) y = Where(c, x, w)", weights={"w": (3,)}), "Greater of what depends on the inputs"),
    "a decision": (Case("y = ArgMax(x)"), "ArgMax of what depends on the inputs"),
    "indices": (Case("a, i = MaxPool <kernel_shape: ints = [2]> (x) y = Add(i, i)"), "Add of the indices of MaxPool"),
    "training": (
        Case(
            "y, a, b = BatchNormalization <training_mode: int = 1> (x, s, t, m, v)",
            weights={"s": (2,), "t": (2,), "m": (2,), "v": np.ones(2, np.float32)},
        ),
        "BatchNormalization in training mode",
    ),
    "dropout in training": (
        Case("y = Dropout(x, r, t)", weights={"r": np.full((), 0.5, np.float32), "t": np.array(True)}),
        "Dropout in training mode, which is random",
    ),
    "weights that move": (Case("y = Conv(x, x)", (1, 3, 3)), "weights of Conv that depend on the inputs"),
    "several exponents": (Case("y = Pow(x, w)", weights={"w": np.array([2, 3, 4], np.float32)}), "several exponents"),
    "a wide softmax": (Case("y = Softmax(x) z = Exp(y)", ("N", 1, 200), outputs="float[A] z"), "at most 128"),
    "einsum of three": (Case('y = Einsum <equation: string = "nij,nij,nij->nij"> (x, x, x)'), "two operands"),
    "wrong shapes": (Case("y = MatMul(x, w)", weights={"w": (5, 4)}), "MatMul with these operands"),
    "a place that is not there": (
        Case("y = Gather <axis: int = 1> (x, i)", weights={"i": ints(7)}),
        "Gather with these operands",
    ),
    "a scatter that adds": (
        Case('y = ScatterND <reduction: string = "add"> (x, i, w)', (1, 2, 3), {"i": ints(0).reshape(1, 1), "w": (1, 2, 3)}),
        "ScatterND with a reduction",
    ),
    "an old scan": (
        Case("y = Scan (x) <num_scan_inputs: int = 1, body = g (float[A] f) => (float[A] o) { o = Tanh(f) }>", opset=8),
        "Scan of version 8",
    ),
    "no dependence": (Case("y = Exp(w) a = Add(x, y)", weights={"w": (3,)}, outputs="float[A] y"), "0 inputs"),
    "a branch that depends on values": (
        Case(
            "s = ReduceSum <keepdims: int = 0> (x) c = Cast <to: int = 9> (s) "
            "y = If (c) <then_branch = p () => (float[A] p) { p = Tanh(x) }, else_branch = q () => (float[A] q) { q = Exp(x) }>"
        ),
        "Cast to whole numbers",
    ),
    "within a branch": (
        Case(
            "y = If (c) <then_branch = p () => (float[A] p) { p = Det(x) }, else_branch = q () => (float[A] q) { q = Exp(x) }>",
            ("N", 3, 3),
            {"c": np.array(True)},
        ),
        "the operator Det, at the node 'p'",
    ),
    "a fixed batch": (Case("y = Tanh(x)", (8, 2, 3)), r"takes exactly 8 samples at once \(axis 0\)"),
    "the mean of a normalisation": (
        Case("a, y, b = LayerNormalization(x, s)", weights={"s": (3,)}, outputs="float[A] y"),
        "'y' is the mean of LayerNormalization",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_construct(name: str, tmp_path: Path) -> None:
    case, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message) as refusal:
        read_onnx(saved(tmp_path, case))
    assert "model.onnx" in str(refusal.value) or "output:" in str(refusal.value)
    if "cannot read" in str(refusal.value):
        assert "popqorn.supported_operations()" in str(refusal.value)


def test_whole_numbers_do_not_move(tmp_path: Path) -> None:
    model = made(Case("y = Tanh(x)"))
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    with pytest.raises(TypeError, match="'x' holds int64, which cannot move by a little"):
        read_onnx(saved(tmp_path, model))


def test_input_without_a_shape_is_refused(tmp_path: Path) -> None:
    model = made(Case("y = Tanh(x)"))
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ValueError, match="the shape of its input 'x' is missing"):
        read_onnx(saved(tmp_path, model))


def test_what_is_read_otherwise_than_it_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.RULES, "Tanh", rules.RULES["Neg"])
    with pytest.raises(ValueError, match=r"otherwise than onnxruntime runs it: outputs are .* apart"):
        read_onnx(saved(tmp_path, Case("y = Tanh(x)")))


def test_values_that_add_up_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, MLP)
    read_onnx(path)
    monkeypatch.setattr("popqorn.readers.onnx.graph.MOST_TOTAL", -10_000)
    with pytest.raises(TypeError, match=r"values of more than .* numbers"):
        read_onnx(path)


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_missing_extra_is_named(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, MLP)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'needs {module}; pip install "popqorn\[onnx\]"'):
        read_onnx(path)


def test_all_names_are_operators_of_onnx() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert set(names()) <= known
    assert {"LSTM", "GRU", "RNN", "Gemm", "Loop", "If", "Shape", "Transpose"} <= set(names())


# ---- malformed files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_file_is_refused(name: str, tmp_path: Path) -> None:
    make, message = MALFORMED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        read_onnx(make(tmp_path))


def test_model_and_data_may_be_links_into_one_folder(tmp_path: Path) -> None:
    stored, shown = tmp_path / "stored", tmp_path / "shown"
    stored.mkdir()
    shown.mkdir()
    onnx.save(made(MLP), stored / "a", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (stored / "weights.bin").rename(stored / "b")
    (shown / "model.onnx").symlink_to(stored / "a")
    (shown / "weights.bin").symlink_to(stored / "b")
    read_onnx(shown / "model.onnx")
    (shown / "weights.bin").unlink()
    (tmp_path / "elsewhere").write_bytes((stored / "b").read_bytes())
    (shown / "weights.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="outside the model's folder"):
        read_onnx(shown / "model.onnx")


def test_malformed_files_take_neither_time_nor_memory() -> None:
    script = Path(__file__).with_name("malformed_onnx.py")
    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120).stdout
    *rows, memory = printed.splitlines()
    assert len(rows) == len(MALFORMED)
    assert max(float(row.rpartition(":")[2]) for row in rows) < 1.0
    before, after = map(float, memory.removeprefix("memory:").split())
    assert after - before < 250
    assert after < 1000
