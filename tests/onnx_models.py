"""ONNX models made by hand, for the tests of the reader: what exporters write, and what they do not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from torch import Tensor, nn

from popqorn.readers.onnx import OnnxNetwork

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A graph in ONNX's text form: `body` computes `y` from `x` of shape `dims`, with weights at random of the given shapes."""

    body: str
    dims: Sequence[int | str] = ("N", 2, 3)
    weights: Mapping[str, Sequence[int] | Array] = field(default_factory=dict)
    opset: int = 17
    inputs: str = ""
    outputs: str = "float[A] y"


def made(case: Case) -> onnx.ModelProto:
    dims = ", ".join(map(str, case.dims))
    text = f"""<ir_version: 8, opset_import: ["" : {case.opset}]>
    graph (float[{dims}] x{case.inputs}) => ({case.outputs}) {{ {case.body} }}"""
    model = parser.parse_model(text)
    _without_shapes(model.graph, outputs_only=True)
    random = np.random.default_rng(0)
    for name, told in case.weights.items():
        array = told if isinstance(told, np.ndarray) else random.normal(0, 0.5, tuple(told)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _without_shapes(graph: onnx.GraphProto, *, outputs_only: bool) -> None:
    """The text form has no way to leave a shape open."""
    for value in graph.output if outputs_only else [*graph.input, *graph.output]:
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _without_shapes(attribute.g, outputs_only=False)


def saved(folder: Path, model: onnx.ModelProto | Case, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes((made(model) if isinstance(model, Case) else model).SerializeToString())
    return path


def ints(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def _unary(kind: str, attributes: str = "", opset: int = 17) -> Case:
    return Case(f"y = {kind}{attributes}(x)", opset=opset)


def _positive(kind: str) -> Case:
    return Case(f"a = Abs(x) b = Add(a, one) y = {kind}(b)", weights={"one": np.ones((), np.float32)})


def _reduced(kind: str, opset: int, shift: bool = False) -> Case:
    before = "a = Abs(x) b = Add(a, one)" if shift else "b = Identity(x)"
    one = {"one": np.ones((), np.float32)} if shift else {}
    if opset < 18:
        return Case(f"{before} y = {kind} <axes: ints = [1], keepdims: int = 0> (b)", weights=one, opset=opset)
    return Case(f"{before} y = {kind} <keepdims: int = 1> (b, axes)", weights={**one, "axes": ints(-1)}, opset=opset)


_FILTERS = {"w": (4, 2, 3), "b": (4,)}

COMPUTING: dict[str, Case] = {
    **{kind: _unary(kind) for kind in ("Abs", "Atan", "Cos", "Erf", "Exp", "HardSwish", "Neg", "Relu", "Sigmoid", "Sin")},
    **{kind: _unary(kind) for kind in ("Softplus", "Softsign", "Tanh", "Selu", "Celu")},
    "Mish": _unary("Mish", opset=18),
    "Elu": _unary("Elu", " <alpha: float = 0.7> "),
    "LeakyRelu": _unary("LeakyRelu", " <alpha: float = 0.2> "),
    "HardSigmoid": _unary("HardSigmoid", " <alpha: float = 0.3, beta: float = 0.4> "),
    "Gelu": _unary("Gelu", ' <approximate: string = "tanh"> ', opset=20),
    "exact Gelu": _unary("Gelu", opset=20),
    "Log": _positive("Log"),
    "Sqrt": _positive("Sqrt"),
    "Reciprocal": _positive("Reciprocal"),
    "Clip": Case("y = Clip(x, low, high)", weights={"low": np.full((), -0.5, np.float32), "high": np.full((), 0.4, np.float32)}),
    "Clip of version 7": Case("y = Clip <min: float = -0.2, max: float = 0.4> (x)", opset=7),
    "PRelu": Case("y = PRelu(x, w)", weights={"w": (2, 1)}),
    "Pow": Case("y = Pow(x, three)", weights={"three": np.full((), 3, np.float32)}),
    "power of two": Case("y = Pow(two, x)", weights={"two": np.full((), 2, np.float32)}),
    "Add and Sub": Case("a = Add(x, w) b = Sub(w, a) c = Sub(b, x) y = Sub(c, w)", weights={"w": (3,)}),
    "Mul and Div": Case("a = Mul(x, w) b = Mul(a, x) c = Exp(x) d = Div(b, c) y = Div(d, w)", weights={"w": (2, 3)}),
    "Min and Max": Case("a = Tanh(x) b = Max(x, w, a) y = Min(b, v)", weights={"w": (3,), "v": (2, 1)}),
    "Sum and Mean": Case("a = Sum(x, w, x) b = Tanh(x) y = Mean(a, b, w)", weights={"w": (3,)}),
    "MatMul": Case("y = MatMul(x, w)", weights={"w": (3, 4)}),
    "MatMul from the left": Case("y = MatMul(w, x)", weights={"w": (4, 2)}),
    "MatMul of two": Case("a = Transpose <perm: ints = [0, 2, 1]> (x) b = Tanh(a) y = MatMul(x, b)"),
    "Gemm": Case(
        "f = Flatten(x) y = Gemm <alpha: float = 0.5, beta: float = 2.0, transB: int = 1> (f, w, b)",
        weights={"w": (4, 6), "b": (4,)},
    ),
    "Gemm with a matrix of biases": Case("f = Flatten(x) y = Gemm(f, w, b)", weights={"w": (6, 4), "b": (1, 4)}),
    "Einsum": Case('y = Einsum <equation: string = "nij,jk->nki"> (x, w)', weights={"w": (3, 4)}),
    "Conv": Case("y = Conv <pads: ints = [1, 1], strides: ints = [2]> (x, w, b)", ("N", 2, 7), weights=_FILTERS),
    "Conv with uneven pads": Case("y = Conv <pads: ints = [2, 0]> (x, w, b)", ("N", 2, 5), weights=_FILTERS),
    "Conv SAME_LOWER": Case(
        'y = Conv <auto_pad: string = "SAME_LOWER", strides: ints = [2]> (x, w)', ("N", 2, 6), {"w": (4, 2, 3)}
    ),
    "Conv SAME_UPPER": Case('y = Conv <auto_pad: string = "SAME_UPPER"> (x, w)', ("N", 2, 5), {"w": (4, 2, 2)}),
    "Conv in two axes and groups": Case(
        "y = Conv <group: int = 2, dilations: ints = [2, 1]> (x, w)", ("N", 2, 5, 4), weights={"w": (4, 1, 2, 2)}
    ),
    "ConvTranspose": Case(
        "y = ConvTranspose <pads: ints = [1, 0], strides: ints = [2], output_padding: ints = [1]> (x, w, b)",
        ("N", 2, 4),
        weights={"w": (2, 4, 3), "b": (4,)},
    ),
    "MaxPool": Case("y = MaxPool <kernel_shape: ints = [3], strides: ints = [2], pads: ints = [1, 1]> (x)", ("N", 2, 6)),
    "MaxPool ceil": Case(
        "y = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2], ceil_mode: int = 1> (x)", ("N", 2, 3, 4)
    ),
    "AveragePool": Case(
        "y = AveragePool <kernel_shape: ints = [3], pads: ints = [1, 1], count_include_pad: int = 1> (x)", ("N", 2, 5)
    ),
    "AveragePool without edges": Case("y = AveragePool <kernel_shape: ints = [3], pads: ints = [1, 1]> (x)", ("N", 2, 5)),
    "GlobalAveragePool": Case("y = GlobalAveragePool(x)", ("N", 2, 3, 2)),
    "GlobalMaxPool": Case("y = GlobalMaxPool(x)", ("N", 2, 3, 2)),
    "BatchNormalization": Case(
        "v = Exp(u) y = BatchNormalization <epsilon: float = 0.01> (x, s, b, m, v)",
        weights={"s": (2,), "b": (2,), "m": (2,), "u": (2,)},
    ),
    "LayerNormalization": Case("y = LayerNormalization <axis: int = -1> (x, s, b)", weights={"s": (3,), "b": (3,)}),
    "LayerNormalization over two axes": Case("y = LayerNormalization <axis: int = 1> (x, s)", weights={"s": (2, 3)}),
    "InstanceNormalization": Case("y = InstanceNormalization(x, s, b)", weights={"s": (2,), "b": (2,)}),
    "Softmax": Case("y = Softmax <axis: int = 1> (x)"),
    "Softmax of version 11": Case("y = Softmax(x)", opset=11),
    "LogSoftmax": Case("y = LogSoftmax(x)"),
    "CumSum": Case("a = CumSum(x, one) y = CumSum <exclusive: int = 1, reverse: int = 1> (a, one)", weights={"one": np.array(1)}),
    **{f"{kind} of version 11": _reduced(kind, 11) for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")},
    **{kind: _reduced(kind, 18) for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL1")},
    **{kind: _reduced(kind, 18, shift=True) for kind in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")},
    "Dropout and Cast": Case("a, m = Dropout(x) y = Cast <to: int = 1> (a)"),
    "a mask of -inf": Case(
        "a = Add(x, mask) y = Softmax(a)", weights={"mask": np.array([0, -np.inf, 0], np.float32)}, dims=("N", 2, 3)
    ),
}

MOVING: dict[str, Case] = {
    "Transpose and Reshape": Case(
        "a = Transpose <perm: ints = [2, 0, 1]> (x) y = Reshape(a, s)", (1, 2, 3), weights={"s": ints(1, -1)}
    ),
    "Slice": Case("y = Slice(x, i, j, k, l)", weights={"i": ints(-1), "j": ints(-5), "k": ints(2), "l": ints(-2)}),
    "Slice of version 9": Case("y = Slice <axes: ints = [2], starts: ints = [1], ends: ints = [3]> (x)", opset=9),
    "Gather": Case("y = Gather <axis: int = 2> (x, i)", weights={"i": ints(2, 0, -1, 1)}),
    "GatherElements": Case(
        "s = Shape(x) o = Expand(i, s) y = GatherElements <axis: int = 2> (x, o)", weights={"i": ints(2, 0, 1).reshape(1, 1, 3)}
    ),
    "Concat": Case("a = Tanh(x) y = Concat <axis: int = 1> (x, a, x)"),
    "Concat with a constant": Case(
        "t = Tanh(x) s = Shape(x) e = Expand(w, s) y = Concat <axis: int = -1> (t, e)", weights={"w": (1, 3)}
    ),
    "Split": Case("a, b = Split <axis: int = 2> (x, s) y = Sub(a, b)", dims=("N", 2, 4), weights={"s": ints(2, 2)}),
    "Split of version 11": Case("a, b = Split <axis: int = 2, split: ints = [1, 2]> (x) y = Mul(b, a)", opset=11),
    "Squeeze and Unsqueeze": Case("a = Unsqueeze(x, k) b = Tanh(a) y = Squeeze(b, k)", weights={"k": ints(0)}),
    "Squeeze of version 11": Case(
        "a = Unsqueeze <axes: ints = [1]> (x) b = Tanh(a) y = Squeeze <axes: ints = [1]> (b)", opset=11
    ),
    "Expand": Case("m = ReduceMean <axes: ints = [2]> (x) s = Shape(x) y = Expand(m, s)"),
    "Pad": Case("y = Pad(x, p, v)", weights={"p": ints(0, 1, 0, 0, 0, 2), "v": np.full((), 0.3, np.float32)}),
    "Pad by reflection": Case('y = Pad <mode: string = "reflect"> (x, p)', weights={"p": ints(0, 0, 2, 0, 1, 0)}),
    "Pad of version 10": Case("y = Pad <pads: ints = [0, 1, 0, 0, 0, 2], value: float = 0.3> (x)", opset=10),
    "Pad along axes": Case("y = Pad(x, p, , k)", weights={"p": ints(1, 2), "k": ints(2)}, opset=18),
    "Tile": Case("y = Tile(x, r)", weights={"r": ints(1, 2, 3)}),
    "Where": Case("a = Tanh(x) y = Where(c, x, a)", weights={"c": np.array([True, False, True])}),
    "Where with a constant": Case(
        "a = Tanh(x) y = Where(c, w, a)", weights={"c": np.array([True, False, True]), "w": np.full((), 0.3, np.float32)}
    ),
    "Trilu": Case("a = Exp(x) y = Trilu <upper: int = 0> (a)"),
    "DepthToSpace": Case("y = DepthToSpace <blocksize: int = 2> (x)", ("N", 4, 2, 3)),
    "ScatterND": Case(
        "t = Transpose <perm: ints = [1, 2, 0]> (x) n = Shape(x) k = Gather(n, zero) u = Unsqueeze(k, zeros) "
        "s = Concat <axis: int = 0> (one, three, u) e = Expand(w, s) y = ScatterND(t, i, e)",
        weights={
            "i": ints(1).reshape(1, 1),
            "w": (1, 3, 1),
            "zero": np.array(0),
            "zeros": ints(0),
            "one": ints(1),
            "three": ints(3),
        },
    ),
    "ReverseSequence": Case(
        "t = Transpose <perm: ints = [1, 0, 2]> (x) n = Shape(x) k = Gather(n, zeros) l = Expand(two, k) "
        "r = ReverseSequence(t, l) y = Transpose <perm: ints = [1, 0, 2]> (r)",
        weights={"two": ints(2), "zeros": ints(0)},
    ),
    "sequences": Case(
        "s = SplitToSequence <axis: int = 1, keepdims: int = 0> (x) a = SequenceAt(s, one) b = SequenceAt(s, zero) t = Tanh(a) "
        "q = SequenceConstruct(t, b) r = SequenceInsert(q, a) y = ConcatFromSequence <axis: int = 1, new_axis: int = 1> (r)",
        weights={"zero": np.array(0), "one": np.array(1)},
    ),
    "arithmetic of shapes": Case(
        "s = Shape(x) n = Gather(s, zeros) m = Gather(s, one) p = Mul(m, m) q = Concat <axis: int = 0> (n, p) "
        "z = ConstantOfShape <value: tensor = float[1] {1}> (q) t = MatMul(z, w) f = Flatten(x) y = Add(f, t)",
        weights={"zeros": ints(0), "one": ints(1), "w": (4, 6)},
    ),
}

CONTROL: dict[str, Case] = {
    "If": Case(
        "s = Shape(x) n = Gather(s, one) c = Greater(n, one) "
        "y = If (c) <then_branch = yes () => (float[A] p) { p = Tanh(x) }, else_branch = no () => (float[A] q) { q = Exp(x) }>",
        weights={"one": np.array(1)},
    ),
    "Loop": Case(
        "s = Shape(x) m = Gather(s, one) "
        "h, ys = Loop (m, yes, zero) <body = step (int64 i, bool c, float[A] a) => (bool d, float[A] b, float[A] o) "
        "{ d = Identity(c) f = Gather <axis: int = 1> (x, i) g = Add(f, a) b = Tanh(g) o = Identity(b) }> "
        "t = Transpose <perm: ints = [1, 0, 2]> (ys) y = Add(t, x)",
        weights={"one": np.array(1), "yes": np.array(True), "zero": np.zeros((1, 3), np.float32)},
    ),
    "Loop that ends by its condition": Case(
        "y = Loop (, yes, x) <body = step (int64 i, bool c, float[A] a) => (bool d, float[A] b) "
        "{ b = Tanh(a) d = Less(i, two) }>",
        weights={"two": np.array(2), "yes": np.array(True)},
    ),
    "Scan": Case(
        "t = Transpose <perm: ints = [1, 0, 2]> (x) n = Shape(x) k = Gather(n, zeros) l = Concat <axis: int = 0> (k, three) "
        "z = ConstantOfShape(l) h, y = Scan (z, t) <num_scan_inputs: int = 1, scan_output_axes: ints = [1], "
        "body = step (float[A] a, float[B] f) => (float[A] b, float[A] o) { g = Add(f, a) b = Tanh(g) o = Identity(b) }>",
        weights={"zeros": ints(0), "three": ints(3)},
    ),
}

# ---- recurrence --------------------------------------------------------------------------------------------------------------

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def recurrent(kind: str, *, directions: int = 1, states: str = "", opset: int = 14, **attributes: Any) -> Case:
    """One recurrent node over `[batch, 4, 2]`: the mean of its steps and its final state, and a linear head."""
    gates, size, batch_first = GATES[kind], 3, bool(attributes.get("layout"))
    listed = "".join(f", {name}: {_text(value)}" for name, value in attributes.items())
    turn = "Identity" if batch_first else "Transpose <perm: ints = [1, 0, 2]>"
    body = (
        f"f = {turn} (x) o, e = {kind} <hidden_size: int = {size}{listed}> (f, w, r, b{states}) "
        f"h = ReduceMean <axes: ints = [{int(batch_first)}], keepdims: int = 0> (o) p = {turn} (h) q = {turn} (e) "
        "m = Flatten(p) n = Flatten(q) g = Concat <axis: int = 1> (m, n) y = MatMul(g, v)"
    )
    weights = {
        "w": (directions, gates * size, 2),
        "r": (directions, gates * size, size),
        "b": (directions, 2 * gates * size),
        "v": (2 * directions * size, 3),
    }
    return Case(body, ("N", 4, 2), weights, opset=opset)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f'string = "{value}"'
    if isinstance(value, list | tuple):
        strings = isinstance(value[0], str)
        return (
            "strings" if strings else "floats"
        ) + f" = [{', '.join(f'{chr(34)}{v}{chr(34)}' if strings else str(v) for v in value)}]"
    return f"{'int' if isinstance(value, int) else 'float'} = {value}"


RECURRENT: dict[str, Case] = {
    "RNN": recurrent("RNN"),
    "RNN Relu": recurrent("RNN", activations=["Relu"]),
    "RNN both ways, unlike": recurrent("RNN", directions=2, direction="bidirectional", activations=["Relu", "Sigmoid"]),
    "RNN LeakyRelu": recurrent("RNN", activations=["LeakyRelu"], activation_alpha=[0.2]),
    "RNN HardSigmoid": recurrent("RNN", activations=["HardSigmoid"], activation_alpha=[0.3], activation_beta=[0.4]),
    "RNN ScaledTanh": recurrent("RNN", activations=["ScaledTanh"], activation_alpha=[0.7], activation_beta=[0.6]),
    "RNN Affine": recurrent("RNN", activations=["Affine"], activation_alpha=[0.7], activation_beta=[0.1]),
    "LSTM": recurrent("LSTM"),
    "LSTM reverse": recurrent("LSTM", direction="reverse"),
    "LSTM both ways": recurrent("LSTM", directions=2, direction="bidirectional"),
    "LSTM Relu": recurrent("LSTM", activations=["Sigmoid", "Relu", "Relu"]),
    "LSTM HardSigmoid": recurrent("LSTM", activations=["HardSigmoid", "Tanh", "Tanh"]),
    "GRU reset first": recurrent("GRU"),
    "GRU reset after": recurrent("GRU", linear_before_reset=1),
    "GRU reverse": recurrent("GRU", direction="reverse", linear_before_reset=1),
    "GRU both ways": recurrent("GRU", directions=2, direction="bidirectional"),
    "GRU Relu": recurrent("GRU", activations=["Sigmoid", "Relu"]),
    "GRU Relu reset after": recurrent("GRU", activations=["Sigmoid", "Relu"], linear_before_reset=1),
}


def lstm_written_out(frames: int = 3) -> Case:
    """An LSTM as Gemm, Split, Sigmoid, Mul, as some exporters leave it; the same weights as `lstm_node`."""
    steps = []
    for t in range(frames):
        before = f"h{t}" if t else "zero"
        steps.append(
            f"f{t} = Gather <axis: int = 1> (x, t{t}) u{t} = Gemm <transB: int = 1> (f{t}, wx, bx) "
            f"a{t} = Gemm <transB: int = 1> ({before}, wh, bh) s{t} = Add(u{t}, a{t}) "
            f"i{t}, o{t}, k{t}, g{t} = Split <axis: int = 1> (s{t}) si{t} = Sigmoid(i{t}) so{t} = Sigmoid(o{t}) "
            f"sk{t} = Sigmoid(k{t}) tg{t} = Tanh(g{t}) ig{t} = Mul(si{t}, tg{t}) "
            + (f"kc{t} = Mul(sk{t}, c{t}) c{t + 1} = Add(kc{t}, ig{t}) " if t else f"c{t + 1} = Identity(ig{t}) ")
            + f"tc{t} = Tanh(c{t + 1}) h{t + 1} = Mul(so{t}, tc{t})"
        )
    weights: dict[str, Any] = {"wx": (12, 2), "wh": (12, 3), "bx": (12,), "bh": (12,), "head": (3, 2)}
    weights |= {"zero": np.zeros((1, 3), np.float32)} | {f"t{t}": np.array(t) for t in range(frames)}
    return Case(" ".join(steps) + f" y = MatMul(h{frames}, head)", ("N", frames, 2), weights)


def lstm_node(frames: int = 3) -> Case:
    """`lstm_written_out` as one node."""
    drawn = {tensor.name: numpy_helper.to_array(tensor) for tensor in made(lstm_written_out(frames)).graph.initializer}
    weights = {
        "w": drawn["wx"][None],
        "r": drawn["wh"][None],
        "b": np.concatenate([drawn["bx"], drawn["bh"]])[None],
        "head": drawn["head"],
    }
    body = (
        "f = Transpose <perm: ints = [1, 0, 2]> (x) o, e = LSTM <hidden_size: int = 3> (f, w, r, b) "
        "h = Squeeze(e, zeros) y = MatMul(h, head)"
    )
    return Case(body, ("N", frames, 2), {**weights, "zeros": ints(0)})


def gru_of(rnn: nn.GRU, head: nn.Linear) -> Case:
    """A GRU of torch as one node, by hand: ONNX has the gates as z, r, h."""

    def ordered(weight: Any) -> Array:
        r, z, n = weight.detach().chunk(3)
        return np.concatenate([z.numpy(), r.numpy(), n.numpy()])

    biases = np.concatenate([ordered(rnn.bias_ih_l0), ordered(rnn.bias_hh_l0)])
    weights = {
        "w": ordered(rnn.weight_ih_l0)[None],
        "r": ordered(rnn.weight_hh_l0)[None],
        "b": biases[None],
        "head": head.weight.detach().numpy(),
        "bias": head.bias.detach().numpy(),
        "zeros": ints(0),
    }
    size = rnn.hidden_size
    body = (
        f"o, e = GRU <hidden_size: int = {size}, linear_before_reset: int = 1> (x, w, r, b) h = Squeeze(e, zeros) "
        "y = Gemm <transB: int = 1> (h, head, bias)"
    )
    return Case(body, ("frames", "batch", rnn.input_size), weights)


MLP = Case(
    "f = Flatten(x) a = Gemm(f, w1, b1) r = Relu(a) c = Gemm(r, w2, b2) y = Softmax <axis: int = 1> (c)",
    ("N", 6),
    {"w1": (6, 5), "b1": (5,), "w2": (5, 3), "b2": (3,)},
)
CNN = Case(
    "a = Conv <pads: ints = [1, 1, 1, 1]> (x, w1, b1) r = Relu(a) "
    "p = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (r) c = Conv(p, w2) s = Relu(c) "
    "g = GlobalAveragePool(s) f = Flatten(g) y = Gemm(f, w3)",
    ("N", 1, 6, 6),
    {"w1": (2, 1, 3, 3), "b1": (2,), "w2": (3, 2, 2, 2), "w3": (3, 3)},
)


def with_function() -> onnx.ModelProto:
    """A model with a function of its own, which calls another."""
    return parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        graph (float[N, 3] x) => (float[N, 3] y) { a = own.twice(x) y = own.twice(a) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> twice (p) => (q) { t = own.once(p) q = own.once(t) }
        <domain: "own", opset_import: ["" : 17]> once (p) => (q) { t = Tanh(p) q = Add(t, p) }"""
    )


# ---- how far a network is from onnxruntime -------------------------------------------------------------------------------------


def drawn(network: OnnxNetwork, count: int = 3, frames: int = 4) -> Tensor:
    sample = [frames if isinstance(size, str) else size for size in network.inputs.sample]
    return torch.randn(count, *sample)


def apart(network: OnnxNetwork, inputs: Tensor) -> float:
    """How far the tape's outputs are from onnxruntime's, relative to the largest."""
    (group,) = network.sequences(inputs, None, torch.float64)
    reading = network.reading(group, decides=False)
    own = reading.at_inputs.double()
    assert network.session is not None
    return float((own - reading.tape(group.values)).abs().max() / own.abs().max().clamp(min=1.0))
