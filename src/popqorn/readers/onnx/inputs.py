"""What a model is given: which of its inputs moves, which of that one's axes is the batch, and the values of all others."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn.readers.onnx.file import required
from popqorn.readers.onnx.folding import Array
from popqorn.readers.onnx.structure import Program
from popqorn.reading import read_tensor

Dims = tuple[int | str, ...]
"""A shape as files have it: a number, or the name of a size that is left open ("" if it has none)."""

MOST_NUMBERS = 1_000_000  # of a sample

_BATCH = re.compile(r"batch|^bs$|^num_?samples$|^samples?$|^none$", re.IGNORECASE)
_LETTER = re.compile(r"^[nb]$", re.IGNORECASE)  # often the batch, but also the next letter after "a"
_TIME = re.compile(r"seq|time|frame|length|^t$|^s$|^l$|steps?", re.IGNORECASE)
_KEEPS_AXES = frozenset(
    "Add Cast Clip Div Dropout Elu Gelu Identity LayerNormalization LeakyRelu MatMul Mul Relu Sigmoid Sub Tanh".split()  # noqa: SIM905
)


@dataclass(frozen=True, eq=False)
class Inputs:
    """The input that moves, of shape `dims` with the batch at `axis`, and the values of all `others`, by name."""

    name: str
    dims: Dims
    axis: int
    dtype: np.dtype[Any]
    others: Mapping[str, Array] = field(default_factory=dict, repr=False)

    @property
    def sample(self) -> Dims:
        """The shape of one sample, as users pass it behind the batch."""
        return (*self.dims[: self.axis], *self.dims[self.axis + 1 :])

    @property
    def one_by_one(self) -> bool:
        """Whether the file takes but one sample."""
        return bool(self.others) or self.dims[self.axis] == 1

    def check_sample(self, shape: Sequence[int]) -> None:
        """Refuse samples of a shape that the file does not take."""
        fits = len(shape) == len(self.sample) and all(
            isinstance(told, str) or told == size for told, size in zip(self.sample, shape, strict=True)
        )
        if not fits:
            told = ["batch", *(size or "any" if isinstance(size, str) else size for size in self.sample)]
            raise ValueError(f"inputs have shape {['batch', *shape]}; the model's {self.name!r} takes {told}")


def read_inputs(program: Program, given: Mapping[str, Any] | None, batch_axis: int | None) -> Inputs:
    """Which input moves (the only one without a given value), and the values of the others."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"inputs is {given!r}; pass the values of all inputs but the one that moves, {{name: value}}")
    given = dict(given or {})
    described = {value.name: value for value in program.inputs}
    unknown = [name for name in given if name not in described]
    if unknown:
        raise ValueError(f"inputs: {unknown[0]!r} is no input that the output needs; those are {', '.join(map(repr, described))}")
    moving = [name for name in described if name not in given]
    if len(moving) != 1:
        shapes = ", ".join(f"{name!r} of shape {list(_dims(described[name]) or ())}" for name in moving or described)
        raise ValueError(
            f"path: {program.file} has {len(moving)} inputs without a value ({shapes}); one moves, give all others a value: "
            "inputs={name: value}"
        )
    value = described[moving[0]]
    dims, dtype = _dims(value), _dtype(value)
    if not dims:
        raise ValueError(f"path: {program.file}: the shape of its input {value.name!r} is missing; export it with one")
    if dtype.kind != "f":
        raise TypeError(
            f"path: {program.file}: its input {value.name!r} holds {dtype.name}, which cannot move by a little; export the part "
            "behind the embedding, which takes floating point numbers"
        )
    axis = _batch_axis(program, value.name, dims, batch_axis)
    others = {name: _value(described[name], each, dims[axis]) for name, each in given.items()}
    return Inputs(value.name, dims, axis, dtype, others)


def _dims(value: Any) -> Dims | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param for dim in kind.shape.dim)


def _dtype(value: Any) -> np.dtype[Any]:
    onnx = required("onnx")
    kind = value.type.tensor_type.elem_type
    if not value.type.HasField("tensor_type") or kind in (0, onnx.TensorProto.STRING):
        raise TypeError(f"path: its input {value.name!r} is no tensor of numbers; nothing can be certified")
    found: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(kind)
    return found


def _value(described: Any, given: Any, batch: int | str) -> Array:
    """The value of an input for one sample: as the file has it with one sample, or without that axis, or broadcast."""
    name = f"inputs[{described.name!r}]"
    array = read_tensor(given, name).detach().cpu().numpy().astype(_dtype(described))
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"{name} holds {int(np.isnan(array).sum())} value(s) that are NaN; nothing can be proven, pass numbers")
    dims = _dims(described)
    if dims is None:
        return array
    own = [place for place, dim in enumerate(dims) if isinstance(dim, str) and (dim == batch != "" or _names_batch(dim))]
    target = [1 if place in own else dim for place, dim in enumerate(dims)]
    if array.ndim == len(dims) - 1:
        places = own or [place for place, dim in enumerate(dims) if dim == 1] or [0]
        array = np.expand_dims(array, places[0])
    shape = [
        size if isinstance(size, int) else array.shape[place] if array.ndim == len(dims) else 1
        for place, size in enumerate(target)
    ]
    try:
        return np.array(np.broadcast_to(array, shape))
    except ValueError:
        raise ValueError(
            f"inputs: the value of {described.name!r} has shape {list(array.shape)}; the model takes {list(dims)}, for one sample"
        ) from None


# ---- the batch axis ----------------------------------------------------------------------------------------------------------


def _batch_axis(program: Program, name: str, dims: Dims, given: int | None) -> int:
    """The axis as given or as the file tells; what its recurrence contradicts is refused, as its samples would be frames."""
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or not -len(dims) <= given < len(dims)):
        raise ValueError(f"batch_axis is {given!r}; the input {name!r} has shape {list(dims)}: pass 0 to {len(dims) - 1}")
    told = _axis_of_recurrence(program.graph, name, len(dims))
    axis = _found_axis(program, dims, told) if given is None else given % len(dims)
    if axis is None:
        raise ValueError(
            f"path: {program.file}: which axis of its input {name!r}, of shape {list(dims)}, is the batch cannot be told; pass "
            "batch_axis="
        )
    if told is not None and axis != told:
        source = f"batch_axis is {given}" if given is not None else f"the name of axis {axis} says that it is the batch"
        raise ValueError(
            f"path: {program.file}: {source}, but the recurrence that takes its input {name!r}, of shape {list(dims)}, has its "
            f"batch on axis {told}; pass batch_axis={told}"
        )
    size = dims[axis]
    if isinstance(size, int) and size != 1:
        raise ValueError(
            f"path: {program.file}: its input {name!r} of shape {list(dims)} takes exactly {size} samples at once (axis {axis}); "
            "export it with a dynamic batch axis or for one sample, or say with batch_axis= which axis is the batch"
        )
    return axis


def _names_batch(dim: str) -> bool:
    return bool(_BATCH.search(dim) or _LETTER.search(dim))


def _found_axis(program: Program, dims: Dims, told: int | None) -> int | None:
    """By the name of an open size, by what a recurrence has `told`, by a name that the output has as well, by a letter, by the
    only open size, or by a size of 1.
    """
    opened = [place for place, dim in enumerate(dims) if isinstance(dim, str)]
    called = [place for place in opened if _BATCH.search(str(dims[place]))]
    if len(called) == 1:
        return called[0]
    if told is not None:
        return told
    kept = {dim.dim_param for dim in program.output.type.tensor_type.shape.dim} - {""}
    others = [place for place in opened if not _TIME.search(str(dims[place]))]
    shared = [place for place in others if dims[place] in kept]
    if len(shared) == 1 and len(opened) > 1:
        return shared[0]
    lettered = [place for place in shared or opened if _LETTER.search(str(dims[place]))]
    if len(lettered) == 1:
        return lettered[0]
    alone = next((place for place in range(2 if len(dims) == 3 else 1) if dims[place] == 1), None)
    if len(others) == 1 and (alone is None or len(opened) > 1 or others == [0]):
        return others[0]
    if not others:
        return alone if alone is not None else opened[0] if len(opened) == 1 else 0 if not opened else None
    return None


def _axis_of_recurrence(graph: Any, name: str, rank: int) -> int | None:
    """The axis of the input that a recurrent layer takes for the batch, if one takes it, perhaps transposed."""
    axes = {name: list(range(rank))}
    for node in graph.node:
        place = axes.get(node.input[0]) if node.input else None
        if place is None:
            continue
        attributes = {each.name: each for each in node.attribute}
        if node.op_type in ("RNN", "LSTM", "GRU") and len(place) == 3:
            return place[0 if "layout" in attributes and attributes["layout"].i else 1]
        if node.op_type == "Transpose":
            order = list(attributes["perm"].ints) if "perm" in attributes else list(range(rank))[::-1]
            axes[node.output[0]] = [place[axis] for axis in order]
        elif node.op_type in _KEEPS_AXES:
            axes[node.output[0]] = place
    return None


def to_file(values: Tensor, inputs: Inputs) -> Array:
    """Inputs `[batch, ...]` as the file takes them."""
    return np.ascontiguousarray(values.detach().cpu().movedim(0, inputs.axis).numpy().astype(inputs.dtype))


def random_samples(inputs: Inputs, frames: int | None, count: int) -> Tensor | None:
    """Inputs to try a model with, `[count, ...]`; None if the file leaves more open than a number of frames."""
    opened = [place for place, size in enumerate(inputs.sample) if isinstance(size, str)]
    if frames is not None and not opened and len(inputs.sample) > 1 and inputs.sample[0] != frames:
        raise ValueError(f"frames is {frames}, but the model's {inputs.name!r} takes {inputs.sample[0]}; leave it out")
    if len(opened) > 1:
        return None
    if math.prod(size for size in inputs.sample if isinstance(size, int)) > MOST_NUMBERS:
        raise ValueError(
            f"path: the input {inputs.name!r} claims the shape {list(inputs.dims)}; at most {MOST_NUMBERS:,} numbers"
        )
    shape = [(frames or 5) if isinstance(size, str) else size for size in inputs.sample]
    generator = torch.Generator().manual_seed(0)
    sizes = torch.linspace(0.3, 1.0, count).reshape(count, *[1] * len(shape))
    return sizes * torch.randn([count, *shape], generator=generator)
