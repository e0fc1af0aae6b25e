"""Files that are no ONNX models, or claim what is not so: for the tests of what the reader refuses.

Run as a program, it reads every one of them and prints the seconds each took and the most memory that was held.
"""

import contextlib
import gzip
import pickle
import resource
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_models import Case, made, saved, with_function

Maker = Callable[[Path], Path]

PLAIN = Case("f = Flatten(x) y = Gemm(f, w)", weights={"w": (6, 4)})


def _bytes(content: bytes) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(content)
        return path

    return make


def _changed(change: Callable[[onnx.ModelProto], None], case: Case = PLAIN) -> Maker:
    def make(folder: Path) -> Path:
        model = made(case)
        change(model)
        return saved(folder, model)

    return make


def _case(body: str, **weights: np.ndarray) -> Maker:
    return lambda folder: saved(folder, Case(body, weights=weights))


def _zip_bomb(folder: Path) -> Path:
    path = folder / "model.onnx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b"\0" * 10_000_000)
    return path


def _truncated(folder: Path) -> Path:
    path = saved(folder, PLAIN)
    path.write_bytes(path.read_bytes()[:-60])
    return path


def _half_numbers(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.raw_data = weight.raw_data[:40]


def _huge_claim(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [10**9, 10**9]


def _negative_claim(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [-6, -4]


def _unknown_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 77


def _cycle(model: onnx.ModelProto) -> None:
    del model.graph.node[:]
    model.graph.node.extend([helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Relu", ["a"], ["y"])])


def _undefined(model: onnx.ModelProto) -> None:
    del model.graph.initializer[:]


def _twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Relu", ["f"], ["y"]))


def _without_output(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def _without_version(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def _version(number: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = number

    return change


def _external(location: str, *, length: int | None = None, write: bool = True) -> Maker:
    def make(folder: Path) -> Path:
        inside = folder / "inside"
        inside.mkdir(exist_ok=True)
        model = made(PLAIN)
        weight = model.graph.initializer[0]
        if write:
            (inside / location).write_bytes(weight.raw_data[: 96 if length is None else length])
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        return saved(inside, model)

    return make


def _self_calling(folder: Path) -> Path:
    model = with_function()
    model.functions[1].node[0].domain, model.functions[1].node[0].op_type = "own", "twice"
    return saved(folder, model)


def _many_calls(folder: Path) -> Path:
    """Forty functions, each of which calls the next twice."""
    model = with_function()
    template = model.functions[0]
    names = [f"f{k}" for k in range(40)] + ["once"]
    for name, callee in pairwise(names):
        function = model.functions.add()
        function.CopyFrom(template)
        function.name = name
        for node in function.node:
            node.op_type = callee
    model.graph.node[0].op_type = "f0"
    return saved(folder, model)


def _doubled(folder: Path) -> Path:
    names = ["w", *(f"d{k}" for k in range(50))]
    steps = " ".join(f"{b} = Concat <axis: int = 0> ({a}, {a})" for a, b in pairwise(names))
    return saved(folder, Case(f"{steps} s = ReduceSum(d49) y = Add(x, s)", weights={"w": (3,)}))


def _huge_input(model: onnx.ModelProto) -> None:
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[1].dim_value = dims[2].dim_value = 10**8


def _sparse(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [10**9]))


_BODY = "(int64 i, bool c, float[A] a) => (bool d, float[A] b)"
_HUGE = np.array([10**6, 10**6])

MALFORMED: dict[str, tuple[Maker, str]] = {
    "not there": (lambda folder: folder / "none.onnx", "not there"),
    "a folder": (lambda folder: folder, "a folder"),
    "empty": (_bytes(b""), "is empty"),
    "a git-lfs pointer": (_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"), "git lfs pull"),
    "a zip bomb": (_zip_bomb, "zip archive"),
    "a pickle": (_bytes(pickle.dumps({"weights": [1.0]})), "a pickle"),
    "gzip": (_bytes(gzip.compress(b"model")), "gzip"),
    "a page": (_bytes(b"<html>Not found</html>"), "HTML"),
    "noise": (_bytes(np.random.default_rng(0).bytes(1000)), "no ONNX model"),
    "zeros": (_bytes(b"\0" * 1000), "no ONNX model"),
    "truncated": (_truncated, "truncated"),
    "fewer numbers than claimed": (_changed(_half_numbers), r"'w' claims the shape \[6, 4\] \(24 numbers\), but holds 10"),
    "a huge claim": (_changed(_huge_claim), "claims the shape"),
    "a negative claim": (_changed(_negative_claim), "claims the shape"),
    "an unknown type": (_changed(_unknown_type), "number 77"),
    "a sparse tensor": (_changed(_sparse), "sparse"),
    "a cycle": (_changed(_cycle), "in a cycle or out of order"),
    "an undefined name": (_changed(_undefined), "Gemm .* uses 'w', which is undefined"),
    "a name twice": (_changed(_twice), "a second time"),
    "no output": (_changed(_without_output), "no output"),
    "no version": (_changed(_without_version), "version of ONNX's operators"),
    "an old version": (_changed(_version(3)), "version 3 .* versions 7 to"),
    "a version to come": (_changed(_version(999)), "version 999"),
    "data outside the folder": (_external("../elsewhere"), "outside the model's folder"),
    "data at the root": (_external("/etc/passwd", write=False), "outside the model's folder"),
    "data that is missing": (_external("weights", write=False), "not there"),
    "data that is short": (_external("weights", length=50), "96 bytes by its shape"),
    "a function that calls itself": (_self_calling, "calls itself"),
    "functions that grow": (_many_calls, "functions written out"),
    "a huge input": (_changed(_huge_input), "claims the shape"),
    "ConstantOfShape": (_case("z = ConstantOfShape(s) m = ReduceSum(z) y = Add(x, m)", s=_HUGE), "1,000,000,000,000 numbers"),
    "Expand": (_case("y = Expand(x, s)", s=np.array([10**9, 1, 1])), "Expand to the shape"),
    "Tile": (_case("t = Tile(x, s) y = ReduceSum(t)", s=np.array([10**5, 10**5, 1])), "Tile to the shape"),
    "Range": (_case("r = Range(a, b, c) y = Add(x, r)", a=np.array(0), b=np.array(10**10), c=np.array(1)), "Range to the shape"),
    "an outer product": (
        _case(
            "p = MatMul(u, v) s = ReduceSum(p) y = Add(x, s)",
            u=np.ones((10**5, 1), np.float32),
            v=np.ones((1, 10**5), np.float32),
        ),
        "MatMul to the shape",
    ),
    "doubling": (_doubled, "Concat"),
    "a loop without end": (
        _case(f"y = Loop (, yes, x) <body = g {_BODY} {{ d = Identity(c) b = Tanh(a) }}>", yes=np.array(True)),
        "Loop without an end",
    ),
    "a long loop": (
        _case(
            f"y = Loop (m, yes, x) <body = g {_BODY} {{ d = Identity(c) b = Tanh(a) }}>", m=np.array(10**12), yes=np.array(True)
        ),
        "a loop of 1,000,000,000,000 trips",
    ),
    "a loop that never ends by its condition": (
        _case(
            f"y = Loop (, yes, x) <body = g {_BODY} {{ d = Less(i, m) b = Identity(a) }}>", m=np.array(10**12), yes=np.array(True)
        ),
        "before its condition ends it",
    ),
}


def main() -> None:
    """Prints `name seconds` for every file, then the most memory held, in megabytes, before and after."""
    from popqorn.readers.onnx import read_onnx

    with tempfile.TemporaryDirectory() as folder:
        read_onnx(saved(Path(folder), PLAIN))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for name, (make, _) in MALFORMED.items():
        with tempfile.TemporaryDirectory() as folder:
            path = make(Path(folder))
            started = time.process_time()
            with contextlib.suppress(ValueError, TypeError):
                read_onnx(path)
            sys.stdout.write(f"{name}: {time.process_time() - started:.3f}\n")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(f"memory: {before:.0f} {after:.0f}\n")


if __name__ == "__main__":
    main()
