"""One process's share of a run: a model that is loaded once, and batches of samples in, rows out."""

import copy
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from popqorn.given import read_given_model
from popqorn.readers.models import read_model
from popqorn.runs.ask import ask
from popqorn.runs.data import Fault, Label, Sample, Samples, together
from popqorn.runs.identity import identity
from popqorn.runs.plan import Plan
from popqorn.runs.store import FAILED, Row

STOPPED = "stopped"
PROBES = 5  # shapes for which a model is tried to be read


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples of a run, with the keys under which their rows are kept."""

    keys: tuple[str, ...]
    samples: tuple[int, ...]
    inputs: tuple[Sample, ...]
    labels: tuple[Label, ...] | None

    def one(self, place: int) -> "Batch":
        label = None if self.labels is None else (self.labels[place],)
        return Batch((self.keys[place],), (self.samples[place],), (self.inputs[place],), label)

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Worker:
    """`model` is a module, or how to get one: a file, `package.module:factory`.

    `expected` is its identity, read for the sample `probe`: a process that loads another model than the run was begun with
    answers nothing.
    """

    model: Any
    plan: Plan
    probe: Sample | None = None
    expected: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what was loaded: every process reads the file itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _given(self) -> Any:
        model = read_given_model(self.model)
        if self.probe is not None and identity(self.model, model, self.probe) != self.expected:
            raise ValueError(
                f"model: {self.model} is another than when the run began: a file was replaced, or a factory gives other weights "
                "on every call (seed it); begin anew"
            )
        return model

    def begun(self, inputs: Sequence[Sample]) -> "Worker":
        """The same, knowing which model it must be, by the first of the inputs for which the model can be read."""
        model = self._given
        failure: Exception = ValueError("data holds no sample that can be read; pass some")
        for probe in _probes(inputs):
            try:
                found = replace(self, probe=probe, expected=identity(self.model, model, probe))
            except Exception as error:  # also of the user's own code
                failure = error
                continue
            found.__dict__["_given"] = model
            return found
        raise failure

    @cached_property
    def _loaded(self) -> Any:
        """The model where it is to compute."""
        model, device = self._given, torch.device(self.plan.device)
        if not isinstance(model, torch.nn.Module) or all(part.device == device for part in model.parameters()):
            return model
        return copy.deepcopy(model).to(device)  # a module of the user's stays where it is

    def summary(self) -> str:
        """What kind of model it is, and how large."""
        return described(self._given)

    def load(self) -> None:
        """Bring the model to its device now, not with the first batch."""
        read_model(self._loaded)

    def rows(self, batch: Batch) -> list[tuple[str, Row]]:
        """One row per sample and its key. Where a batch fails, its samples are asked one by one, and those at fault say why."""
        started = time.perf_counter()
        try:
            found = self._asked(batch)
        except Exception as error:  # also of the user's own code, on one sample: the others are done
            if len(batch) > 1:
                return [row for place in range(len(batch)) for row in self.rows(batch.one(place))]
            found = [{"decision": None, "radius": None, "status": FAILED, "error": _named(str(error), batch.samples[0])}]
        if any(STOPPED in (row["status"], row.get("attack_status")) for row in found):
            raise KeyboardInterrupt
        seconds = (time.perf_counter() - started) / len(batch)
        labels: Sequence[Label] = batch.labels or [None] * len(batch)
        named = zip(batch.keys, labels, found, strict=True)
        return [(key, {"label": label, **row, "seconds": seconds}) for key, label, row in named]

    def _asked(self, batch: Batch) -> list[Row]:
        inputs = together(batch.inputs)
        inputs = inputs.to(self.plan.device) if isinstance(inputs, Tensor) else inputs
        labels = None if batch.labels is None else [label for label in batch.labels if label is not None]
        found = ask(self.plan, self._loaded, inputs, labels)
        decisions = self._decisions(inputs) if self.plan.decides_classes else [None] * len(batch)
        return [{"decision": decision, **row} for decision, row in zip(decisions, found, strict=True)]

    def _decisions(self, inputs: Any) -> list[int | None]:
        """What the model itself decides."""
        network = read_model(self._loaded)
        decided: list[int | None] = [None] * len(inputs)
        for group in network.sequences(inputs, None, getattr(torch, self.plan.dtype)):
            reading = network.reading(group, decides=True)
            if len(reading.tape.shape) == 1:
                for sample, decision in zip(group.samples.tolist(), reading.at_inputs.argmax(-1).tolist(), strict=True):
                    decided[sample] = decision
        return decided


def described(model: Any) -> str:
    """What kind of model it is, and how large."""
    sizes = [tensor.numel() for _, tensor in read_model(model).tensors()]
    return f"{type(model).__name__}, {sum(sizes):,} numbers in {len(sizes)} tensors"


def _probes(inputs: Sequence[Sample]) -> list[Sample]:
    """One sample of each of the first few shapes, without its values, which may be none."""
    found: dict[tuple[int, ...], Sample] = {}
    for one in inputs:
        if not isinstance(one, Fault) and len(found) < PROBES:
            bare = torch.zeros_like(one) if isinstance(one, Tensor) and one.is_floating_point() else one
            found.setdefault(_shape(one), bare)
    return list(found.values())


def _named(error: str, sample: int) -> str:
    """What the library says of the only sample of a call, with the number it has in the data."""
    return re.sub(r"\b(sample |inputs\[|labels\[)0\b", rf"\g<1>{sample}", error)


def batches(keys: Mapping[int, str], samples: Samples, chosen: Sequence[int], size: int) -> list[Batch]:
    """The chosen samples, `size` at a time, those of one shape together."""
    inputs, labels = samples.inputs, samples.labels
    order = sorted(chosen, key=lambda sample: (_shape(inputs[sample]), sample))
    found = []
    while order:
        some = [sample for sample in order[:size] if _shape(inputs[sample]) == _shape(inputs[order[0]])]
        order = order[len(some) :]
        label = None if labels is None else tuple(labels[sample] for sample in some)
        found.append(Batch(tuple(keys[s] for s in some), tuple(some), tuple(inputs[s] for s in some), label))
    return sorted(found, key=lambda batch: batch.samples[0])


def _shape(one: Sample) -> tuple[int, ...]:
    """What can be asked about together; what cannot be read stands apart."""
    return tuple(one.shape) if isinstance(one, Tensor) else (-1,) if isinstance(one, Fault) else ()


def without(batch: Batch, done: set[str]) -> Batch:
    """The samples of a batch that have no row yet."""
    left = [place for place, key in enumerate(batch.keys) if key not in done]
    labels = None if batch.labels is None else tuple(batch.labels[place] for place in left)
    keys, samples = tuple(batch.keys[place] for place in left), tuple(batch.samples[place] for place in left)
    return Batch(keys, samples, tuple(batch.inputs[place] for place in left), labels)
