"""A network in an ONNX file: read, compared with onnxruntime, and asked what it computes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn.arithmetic import agreement
from popqorn.readers.network import Network, Reading
from popqorn.readers.onnx.file import open_model, required, tensors_of
from popqorn.readers.onnx.folding import as_known
from popqorn.readers.onnx.graph import written
from popqorn.readers.onnx.inputs import Inputs, random_samples, read_inputs, to_file
from popqorn.readers.onnx.structure import Program, checked
from popqorn.readers.symbols import Symbol, SymbolWriter
from popqorn.reading import read_count
from popqorn.sequences import Sequences, read_samples
from popqorn.tape.tape import Tape

MOST_APART = 1e-4  # of the outputs: what a file may compute otherwise than its tape
TRIES = 3  # inputs that a file is tried with

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OnnxNetwork(Network):
    """One output of an ONNX file as a function of one of its inputs, `[batch, ...]`. Made by `read_onnx`."""

    program: Program
    inputs: Inputs
    session: Any = field(default=None, repr=False)

    def sequences(self, inputs: Any, lengths: Any, dtype: torch.dtype) -> list[Sequences]:
        groups = read_samples(inputs, lengths, dtype)
        for group in groups:
            self.inputs.check_sample(group.sample)
        return groups

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        to_array = required("onnx").numpy_helper.to_array
        for name, tensor in tensors_of(self.program.graph):
            yield name, torch.from_numpy(as_known(to_array(tensor)))
        for name, value in self.inputs.others.items():
            yield f"inputs[{name!r}]", torch.from_numpy(as_known(value))

    def check(self) -> None:
        """As for any network; masks of -inf and open ends of a range are no weights."""
        for name, tensor in self.tensors():
            bad = ~torch.isfinite(tensor.double())
            mask = bool((tensor[~bad] == 0).all()) and bool((tensor[bad] == -torch.inf).all())
            if bool(tensor.double().isnan().any()) or (bool(bad.any()) and tensor.numel() > 1 and not mask):
                raise ValueError(
                    f"model: {name} holds {int(bad.sum())} value(s) that are NaN or infinite; nothing can be proven, load sound "
                    "weights"
                )

    def reading(self, group: Sequences, *, decides: bool) -> Reading:
        with torch.device("cpu"):  # where reading keeps the numbers of entries
            tape, left_off, axis = self._written(group, decides=decides)
        dtype = torch.from_numpy(np.empty(0, dtype=self.inputs.dtype)).dtype

        def own(points: Tensor) -> Tensor:
            if self.session is None:
                return Reading(tape, points, tape, dtype, left_off).finished(tape(points))
            return self._asked(points.reshape(len(points), *group.sample), axis).flatten(1).to(points.device)

        if self.session is not None:
            self.check_samples_are_apart(group)
        return Reading(tape, own(group.values), own, dtype, left_off)

    def _written(self, group: Sequences, *, decides: bool) -> tuple[Tape, str | None, int | None]:
        """The tape for a group, the softmax that was left off, and which axis of the output is the batch."""
        values = group.values
        sheet = SymbolWriter(group.frames, values.shape[2], dtype=values.dtype, device=values.device)
        moving = sheet.inputs((1, *group.sample)).moved(lambda entries: entries.movedim(0, self.inputs.axis))
        given: dict[str, Any] = {name: as_known(value) for name, value in self.inputs.others.items()}
        output, left_off = written(sheet, self.program, {**given, self.inputs.name: moving}, decides=decides)
        axis = self._output_axis(tuple(output.shape))
        if left_off is not None and axis == len(output.shape) - 1:
            return self._written(group, decides=False)  # a softmax over the batch is none that leaves decisions as they are
        entries = output.entries if axis is None else output.entries.movedim(axis, 0)
        shape = tuple(size for place, size in enumerate(output.shape) if place != axis) or (1,)
        return sheet.finish(Symbol(entries), shape), left_off, axis

    def __call__(self, inputs: Any) -> Tensor:
        """The outputs at given inputs, `[batch, ...]`."""
        (group,) = self.sequences(inputs, None, torch.float64)
        if self.session is None:
            reading = self.reading(group, decides=True)
            return reading.at_inputs.reshape(len(group.values), *reading.tape.shape)
        samples = group.values.reshape(-1, *group.sample)
        shape = tuple(self._ran(samples[:1]).shape)
        axis = self._output_axis(shape)
        sample = [size for place, size in enumerate(shape) if place != axis]
        return self._asked(samples, axis).reshape(len(samples), *(sample or (1,)))

    def _output_axis(self, shape: Shape) -> int | None:
        """Which axis of the output for one sample is the batch; None if it has none."""
        told = [dim.dim_param for dim in self.program.output.type.tensor_type.shape.dim]
        single = [place for place, size in enumerate(shape) if size == 1]
        told = told if len(told) == len(shape) else [""] * len(shape)
        batch = self.inputs.dims[self.inputs.axis]
        named = [place for place in single if told[place] and told[place] == batch]
        opened = [place for place in single if told[place]]
        return next(iter([*named, *opened, *single]), None)

    def _asked(self, samples: Tensor, axis: int | None) -> Tensor:
        """What onnxruntime makes of samples `[batch, ...]`, with the batch in front."""
        if not self.inputs.one_by_one and axis is not None:
            outputs = self._ran(samples)
            if outputs.shape[axis : axis + 1] == (len(samples),):
                return outputs.movedim(axis, 0)
        return torch.stack([self._ran(sample[None]).reshape(-1) for sample in samples])

    def check_samples_are_apart(self, group: Sequences) -> None:
        """Refuse a file whose outputs for several samples are not those for each of them, joined along some axis."""
        if self.inputs.one_by_one:
            return
        several = _others_beside(group.values[0].reshape(group.sample))
        among, alone = self._ran(several).double(), [self._ran(one).double() for one in several.split(1)]
        joined = [torch.cat(alone, dim=axis) for axis in range(alone[0].dim())]
        alike = [each for each in joined if each.shape == among.shape]
        where = f"path: {self.program.file}: with axis {self.inputs.axis} of its input {self.inputs.name!r} as the batch"
        if not alike:
            raise ValueError(
                f"{where}, its output has shape {list(alone[0].shape)} for one sample and {list(among.shape)} for {TRIES}: no "
                "axis of it counts the samples; pass batch_axis= if the batch is another axis, else export it with an output per "
                "sample"
            )
        dtype = torch.from_numpy(np.empty(0, dtype=self.inputs.dtype)).dtype
        if not any(_apart(among, each) <= _most_apart(group, dtype) for each in alike):
            raise ValueError(
                f"{where}, what it computes for a sample depends on the other samples, so that nothing can be proven of one; "
                "pass batch_axis= if the batch is another axis, else export a model that does not mix samples (that normalises "
                "by stored statistics, say)"
            )

    def _ran(self, samples: Tensor) -> Tensor:
        feed = {self.inputs.name: to_file(samples, self.inputs), **self.inputs.others}
        try:
            (found,) = self.session.run([self.program.output.name], feed)
        except Exception as error:  # whatever onnxruntime finds wrong
            raise ValueError(
                f"path: onnxruntime cannot run {self.program.file} on inputs of shape {list(samples.shape)} "
                f"({_first_line(error)}); pass inputs that it takes, or check=False to do without onnxruntime"
            ) from error
        return torch.from_numpy(np.array(found))


def read_onnx(
    path: str | Path,
    *,
    frames: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    batch_axis: int | None = None,
    output: str | None = None,
    check: bool = True,
) -> OnnxNetwork:
    """The network in an ONNX file.

    - `frames`: how many frames the file is tried with, if it takes any number; 5 by default.
    - `inputs`: values of inputs that do not move, by name, for one sample; needed if the file has several.
    - `batch_axis`: which axis of the input that moves is the batch, if the file does not tell. Inputs are always passed as
      `[batch, ...]`.
    - `output`: the output to certify, by default the first.
    - `check`: compare with onnxruntime when the file is loaded and whenever it is read, which tells of every mistake.
    """
    if frames is not None:
        read_count("frames", frames)
    program = checked(open_model(path), str(path), output)
    network = OnnxNetwork(program, read_inputs(program, inputs, batch_axis))
    samples = random_samples(network.inputs, frames, TRIES)
    group = None if samples is None else network.sequences(samples, None, torch.float64)[0]
    # before anyone else opens the file: what is damaged is refused here
    reading = None if group is None else network.reading(group, decides=True)
    if not check:
        return network
    network = OnnxNetwork(program, network.inputs, _session(program))
    if group is not None and reading is not None:
        _compare(network, group, reading)
    return network


def _session(program: Program) -> Any:
    runtime = required("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(program.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever onnxruntime finds wrong
        raise ValueError(
            f"path: onnxruntime cannot open {program.file} ({_first_line(error)}); pass check=False to do without it"
        ) from error


def _compare(network: OnnxNetwork, group: Sequences, reading: Reading) -> None:
    """Refuse a file that is read otherwise than onnxruntime runs it; `reading` is without it."""
    network.check_samples_are_apart(group)
    found, own = reading.at_inputs, network(group.values.reshape(-1, *group.sample)).flatten(1).double()
    if own.shape != found.shape:
        raise ValueError(
            f"path: {network.program.file}: onnxruntime gives {own.shape[1]} numbers per sample, its tape {found.shape[1]}; the "
            "batch may be another axis, pass batch_axis="
        )
    apart, most = _apart(own, found), _most_apart(group, reading.dtype)
    if not apart <= most:
        raise ValueError(
            f"path: {network.program.file} is read otherwise than onnxruntime runs it: outputs are {apart:.1e} apart, "
            f"relative to the largest (at most {most:g}); pass batch_axis= if the batch is another axis, else report it "
            "with the file"
        )


def _apart(own: Tensor, found: Tensor) -> float:
    """How far two sets of outputs are apart, relative to the largest."""
    same = (own == found) | (own.isnan() & found.isnan())
    size = own.masked_fill(~own.isfinite(), 0.0).abs().amax().clamp(min=1e-30)
    return float((own - found).masked_fill(same, 0.0).abs().amax() / size)


def _most_apart(group: Sequences, dtype: torch.dtype) -> float:
    return agreement(group.frames, dtype) if dtype == torch.float16 else MOST_APART


def _others_beside(sample: Tensor) -> Tensor:
    """A sample and others beside it, towards zero, where most models are at home."""
    other = sample if bool(sample.any()) else sample + 1
    return torch.stack([sample - other * step / 8 for step in range(TRIES)])


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
