"""An ONNX file, opened with care: it comes from a stranger. Nothing is taken into memory before its size is known to be true."""

import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

MOST_BYTES = 2**31  # of a model with its data: protobuf has no larger messages

MOST_AXES = 32  # of a tensor

# What other files begin with, and what to do with them.
_OTHERS = (
    (b"version https://git-lfs", "a git-lfs pointer, not the file itself; fetch it with: git lfs pull"),
    (b"PK\x03\x04", "a zip archive (such as one of torch.save); export the model with torch.onnx.export, or unpack the archive"),
    (b"\x80\x02", "a pickle, which may run anything when opened; export the model with torch.onnx.export"),
    (b"\x80\x03", "a pickle, which may run anything when opened; export the model with torch.onnx.export"),
    (b"\x80\x04", "a pickle, which may run anything when opened; export the model with torch.onnx.export"),
    (b"\x80\x05", "a pickle, which may run anything when opened; export the model with torch.onnx.export"),
    (b"\x1f\x8b", "compressed (gzip); unpack it first"),
    (b"\x89HDF", "a HDF5 file of Keras; convert it with tf2onnx"),
    (b"<", "text (HTML or XML), perhaps a page instead of a download; download the file itself"),
    (b"{", "text (JSON); export the model as ONNX"),
)

# The fields that hold a tensor's numbers if its raw bytes do not, and the bytes of one number.
_TYPES = {
    "FLOAT": ("float_data", 4),
    "DOUBLE": ("double_data", 8),
    "FLOAT16": ("int32_data", 2),
    "BFLOAT16": ("int32_data", 2),
    "INT8": ("int32_data", 1),
    "INT16": ("int32_data", 2),
    "INT32": ("int32_data", 4),
    "INT64": ("int64_data", 8),
    "UINT8": ("int32_data", 1),
    "UINT16": ("int32_data", 2),
    "UINT32": ("uint64_data", 4),
    "UINT64": ("uint64_data", 8),
    "BOOL": ("int32_data", 1),
}


def required(module: str) -> Any:
    """A module of the optional extra `onnx`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f'path: reading ONNX files needs {module.partition(".")[0]}; pip install "popqorn[onnx]"') from error


def open_model(path: str | Path) -> Any:
    """The model of a file, with its external data taken in; ValueError for whatever is none."""
    file = Path(path)
    content = _content(file)
    onnx = required("onnx")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf has several kinds of errors, none of which says more
        raise ValueError(
            f"path: {file} is no ONNX model, or a truncated one ({_first_line(error)}); download it again"
        ) from error
    if not model.graph.node:
        raise ValueError(f"path: {file} holds no graph: it is no ONNX model, or a truncated one; download or export it again")
    _check_tensors(model, file)
    return model


def _content(file: Path) -> bytes:
    if not file.is_file():
        what = "a folder" if file.is_dir() else "not there"
        raise ValueError(f"path: {file} is {what}; pass the path of an .onnx file")
    size = file.stat().st_size
    if size == 0:
        raise ValueError(f"path: {file} is empty (0 bytes); download or export it again")
    if size >= MOST_BYTES:
        raise ValueError(f"path: {file} has {size:,} bytes; at most {MOST_BYTES:,} can be read")
    with file.open("rb") as stream:
        first = stream.read(64)
        for beginning, what in _OTHERS:
            if first.startswith(beginning):
                raise ValueError(f"path: {file} is {what}")
        return first + stream.read()


# ---- tensors -----------------------------------------------------------------------------------------------------------------


def graphs_of(node: Any) -> Iterator[Any]:
    """The graphs a node holds (branches, bodies of loops)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def tensors_of(graph: Any) -> Iterator[tuple[str, Any]]:
    """All tensors of a graph and the graphs within, by name: weights, and constants of nodes."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        yield from _constants_of(node)
        for inner in graphs_of(node):
            yield from tensors_of(inner)


def _constants_of(node: Any) -> Iterator[tuple[str, Any]]:
    name = node.output[0] if node.output else node.name
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield name, attribute.t
        for tensor in attribute.tensors:
            yield name, tensor


def _check_tensors(model: Any, file: Path) -> None:
    """Every tensor has as many numbers as its shape claims, of a type that is known; external ones are taken in."""
    every = list(tensors_of(model.graph))
    for function in model.functions:
        for node in function.node:
            every += _constants_of(node)
            every += [found for inner in graphs_of(node) for found in tensors_of(inner)]
    if model.graph.sparse_initializer:
        raise ValueError(f"path: {file} holds sparse tensors; export it with dense ones")
    total = 0
    for name, tensor in every:
        bytes_claimed = _claimed(name, tensor, file)
        total += bytes_claimed
        if total >= MOST_BYTES:
            raise ValueError(f"path: {file}: its tensors claim {total:,} bytes; at most {MOST_BYTES:,} can be read")
        if _is_external(tensor):
            tensor.raw_data = _external(name, tensor, file, bytes_claimed)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")


def _claimed(name: str, tensor: Any, file: Path) -> int:
    """How many bytes a tensor has by its shape; refused unless that is what is there."""
    kind = _type_name(tensor.data_type)
    if kind not in _TYPES:
        raise ValueError(f"path: {file}: the tensor {name!r} is of type {kind}; numbers of {', '.join(_TYPES)} can be read")
    field, size = _TYPES[kind]
    if len(tensor.dims) > MOST_AXES or any(dim < 0 for dim in tensor.dims) or tensor.HasField("segment"):
        raise ValueError(
            f"path: {file}: the tensor {name!r} claims the shape {list(tensor.dims)[:MOST_AXES]}; the file is damaged"
        )
    entries = math.prod(map(int, tensor.dims))
    if _is_external(tensor):
        return entries * size
    held = len(tensor.raw_data) / size if tensor.HasField("raw_data") else len(getattr(tensor, field))
    if held != entries:
        raise ValueError(
            f"path: {file}: the tensor {name!r} claims the shape {list(tensor.dims)} ({entries:,} numbers), but holds {held:,g}; "
            "the file is damaged"
        )
    return entries * size


def _type_name(number: int) -> str:
    known: dict[int, str] = {value: key for key, value in required("onnx").TensorProto.DataType.items()}
    return known.get(number, f"number {number}")


def _is_external(tensor: Any) -> bool:
    return bool(tensor.data_location == required("onnx").TensorProto.EXTERNAL)


def _external(name: str, tensor: Any, file: Path, size: int) -> bytes:
    """The bytes of a tensor that stands in a file of its own, which must be in the model's folder."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = told.get("location", "")
    data = (file.parent / location).resolve()
    what = f"path: {file}: the tensor {name!r} has its data in {location!r}"
    # a model and its data may both be links into one other folder, as download caches have them
    if not location or not any(data.is_relative_to(folder) for folder in (file.parent.resolve(), file.resolve().parent)):
        raise ValueError(f"{what}, which is outside the model's folder; put both into one folder and save the model again")
    if not data.is_file():
        raise ValueError(f"{what}, which is not there; put it beside the model")
    there = data.stat().st_size
    try:
        offset = int(told.get("offset", 0))
        length = int(told.get("length", there - offset))
    except ValueError:
        raise ValueError(f"{what}, at a place that is no number; the file is damaged") from None
    if length != size or offset < 0 or offset + length > there:
        raise ValueError(
            f"{what}, {size:,} bytes by its shape; the file says {length:,} from {offset:,} on, and the data has {there:,}: "
            "one of them is damaged"
        )
    with data.open("rb") as stream:
        stream.seek(offset)
        return bytes(stream.read(length))


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
