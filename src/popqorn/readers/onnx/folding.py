"""What follows from known values alone is computed by ONNX's own reference, in double precision; shapes are looked at before."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from popqorn.readers.onnx.file import required

Array = NDArray[Any]

SMALL = 1_024  # entries of a tensor that may say what shape another one gets

# Operators that are no rule for symbols, but occur in the arithmetic of shapes and masks.
SHAPES = frozenset(
    [
        "And",
        "ArgMax",
        "ArgMin",
        "BitShift",
        "Ceil",
        "Constant",
        "ConstantOfShape",
        "DequantizeLinear",
        "Equal",
        "EyeLike",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Mod",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "QuantizeLinear",
        "Range",
        "ReduceProd",
        "Round",
        "Sign",
        "TopK",
        "Xor",
    ]
)


def as_known(value: Any) -> Array:
    """A value as reading computes with it: floating point numbers in double precision."""
    array = np.asarray(value)
    kind = array.dtype if array.dtype.kind in "biu" else np.dtype(np.float64)
    return np.require(array.astype(kind, copy=False), requirements=["C", "W"])


def evaluated(node: Any, operands: Sequence[Any], version: int) -> list[Any]:
    """The outputs of a node at known operands (None for those left out)."""
    onnx = required("onnx")
    graph = onnx.GraphProto()
    graph.node.append(node)
    given = {name: value for name, value in zip(node.input, operands, strict=True) if name}
    for name in given:
        graph.input.add().name = name
    for name in node.output:
        graph.output.add().name = name
    evaluator = required("onnx.reference").ReferenceEvaluator(graph, opsets={"": version})
    found = evaluator.run([name for name in node.output if name], given)
    values = iter(found)
    return [next(values) if name else None for name in node.output]


def entries_of(
    node: Any, shapes: Sequence[tuple[int, ...] | None], known: Sequence[Array | None], version: int, most: int
) -> int:
    """How many numbers a node's outputs will have, by ONNX's own inference of shapes; a node that makes more of them than `most`,
    and than it takes, is refused. `known` has the values of known operands.
    """
    onnx = required("onnx")
    types, data = {}, {}
    for name, shape, value in zip(node.input, shapes, known, strict=True):
        if not name or shape is None:
            continue
        kind = onnx.TensorProto.FLOAT
        if value is not None and value.dtype.kind in "biu":
            kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        types[name] = onnx.helper.make_tensor_type_proto(kind, list(shape))
        if value is not None and value.size <= SMALL:
            stored = value.astype(np.float32) if value.dtype.kind == "f" else value
            data[name] = onnx.numpy_helper.from_array(stored, name)
    schema = onnx.defs.get_schema(node.op_type, version, "")
    versions = [onnx.helper.make_opsetid("", version)]
    found = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=versions)
    largest = max((math.prod(shape) for shape in shapes if shape is not None), default=0)
    total = 0
    for kind in found.values():
        dims = [dim.dim_value for dim in kind.tensor_type.shape.dim if dim.HasField("dim_value")]
        entries = math.prod(dims) if kind.tensor_type.HasField("shape") else 0
        if entries > max(most, largest):
            raise LookupError(f"{node.op_type} to the shape {dims}: {entries:,} numbers, at most {most:,} are taken")
        total += entries
    return total
