"""The task of every search and attack: a tape, what is allowed, what must hold, how to bound. Nothing else knows all four."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn._version import __version__
from popqorn.arithmetic import agreement, sum_below
from popqorn.bounds.chunks import entry_blocks, read_chunk_rows
from popqorn.bounds.first_order import first_order
from popqorn.bounds.inner import Run, relax, run
from popqorn.bounds.joint.bounds import Joint
from popqorn.bounds.joint.greatest import Memory
from popqorn.readers.models import read_model
from popqorn.readers.network import Network, Reading
from popqorn.reading import check_products, describe, fingerprint, read_dtype, read_tensor
from popqorn.regions.ball import Ball
from popqorn.regions.region import AllowedSet, Region
from popqorn.relax.methods import METHODS, Method
from popqorn.sequences import Sequences, together
from popqorn.specs.decision import Decision
from popqorn.specs.spec import Margins, Spec, extremes
from popqorn.tape.tape import Tape

SECONDS = 30.0  # of training for each sample, unless the user says
ELSEWHERE = (0.03, 1.0)  # where the model is asked beside the inputs: sizes, in units of the largest input


@dataclass(frozen=True)
class Task:
    """One entry per sample (or sample and target, or sample and frame).

    `center` is the run at the inputs themselves: for tasks in which some frames stand still or margins are relative to it.
    """

    tape: Tape
    allowed: AllowedSet
    margins: Margins
    method: Method
    chunk_rows: int | None = None
    center: Run | None = None

    def __len__(self) -> int:
        return len(self.allowed.center)

    def select(self, index: Tensor) -> "Task":
        """Some of the entries, in any order and any number of times."""
        center = None if self.center is None else self.center.select(index)
        return replace(self, allowed=self.allowed.select(index), margins=self.margins.select(index), center=center)

    def prepared(self) -> "Task":
        """The same, ready to be proven: with the run at the inputs, if some frames stand still or margins are relative to it."""
        return self.centered() if self.allowed.still or self.margins.relative is not None else self

    def centered(self) -> "Task":
        """The same, with the run at the inputs."""
        if self.center is not None:
            return self
        center = Run.joined([run(self.tape, self.allowed.select(index), self.chunk_rows) for index in self.blocks()])
        margins = self.margins
        if margins.relative is not None:
            margins = margins.lowered(center.values[-1], center.errors[-1])
        return replace(self, center=center, margins=margins)

    def blocks(self) -> Iterator[Tensor]:
        """Entries in blocks that fit the memory."""
        joint = self.method.joint
        yield from entry_blocks(self.tape, len(self), self.margins.rows.shape[1], self.allowed.center, joint=joint)

    def prove(self, eps: Float[Tensor, " batch"], memory: Memory | None = None) -> Float[Tensor, "batch rows"]:
        """Lower bounds of the margins over all inputs allowed at size `eps`; `memory` of estimates makes joint ones tighter.

        The best of every effort up to the method's: no one of them is the best of all for every row.
        """
        found = self._lower(eps, self.method if not self.method.joint else METHODS["planes"])
        efforts = {1, self.method.effort} if self.method.joint else set()  # the third does all that the second does
        for effort in sorted(efforts):
            task = self.at_effort(effort, self.method.seconds)
            found = torch.fmax(found, task.joint_bounds(eps, {} if memory is None else memory, prove=True))
        return found

    def at_effort(self, effort: int, seconds: float | None = None) -> "Task":
        """The same with more or less effort, and `seconds` of training in every proof or estimate."""
        return replace(self, method=replace(self.method, effort=effort, seconds=seconds))

    @property
    def seconds(self) -> float:
        """How long slopes are trained for every sample."""
        return SECONDS if self.method.seconds is None else self.method.seconds

    def joint_bounds(self, eps: Float[Tensor, " batch"], memory: Memory, *, prove: bool) -> Float[Tensor, "batch rows"]:
        """What joint bounds of this effort alone prove; or, at a fraction of the cost, what they will probably prove.

        `memory` makes the next time cheaper still.
        """
        effort, seconds = self.method.effort, len(self) * self.seconds
        joint = Joint.around(self.tape, self.allowed.at(eps), prove=prove, memory=memory, effort=effort, seconds=seconds)
        return self._lower(eps, self.method, joint)

    def _lower(self, eps: Tensor, method: Method, joint: Joint | None = None) -> Tensor:
        relaxed = relax(self.tape, self.allowed.at(eps), method, self.chunk_rows, self.center, joint=joint)
        found = sum_below([relaxed.lower(self.margins.rows), self.margins.offset])
        return found.masked_fill(found.isnan(), -math.inf)  # where numbers overflow, nothing is known

    def values(
        self, points: Float[Tensor, "batch frames features"], equal: frozenset[int] = frozenset()
    ) -> Float[Tensor, "batch rows"]:
        """The margins at given inputs, which are `equal` in some frames; differentiable."""
        return self.margins.of(self.tape(points, equal))

    def first_order(self) -> tuple[Float[Tensor, "batch rows"], Float[Tensor, "batch rows"]]:
        """The margins at the inputs, and the size at which each is used up to first order."""
        return first_order(self.tape, self.allowed, self.margins)


@dataclass(frozen=True)
class Question:
    """What a public function was asked: one task per length of sequence, and the settings that decide the numbers."""

    network: Network
    groups: list[Sequences]
    readings: list[Reading]
    tasks: list[Task]
    difference: Float[Tensor, " batch"]
    words: tuple[tuple[str, ...], ...] | None
    settings: dict[str, Any]

    @property
    def batch(self) -> int:
        return self.groups[0].batch

    @staticmethod
    def read(
        model: object,
        inputs: Any,
        *,
        lengths: Any,
        region: Region,
        spec: Spec | None,
        method: Method = METHODS["planes"],
        chunk_rows: Any = None,
        dtype: Any = torch.float64,
        eps: Any = None,
    ) -> "Question":
        """Check the arguments of a public function; every error names the argument and the remedy. No `spec`: bare outputs.

        Where sizes are given, the model is not asked beyond them.
        """
        network = read_model(model)
        dtype = read_dtype(dtype)
        if method.split:
            check_products("splitting computes in float32 as well")
        groups = network.sequences(inputs, lengths, dtype)
        chunk = read_chunk_rows(chunk_rows)
        sizes = None if eps is None else read_eps(eps, groups[0].batch, groups[0].values)
        readings, tasks, differences = [], [], []
        for group in groups:
            reading = network.reading(group, decides=isinstance(spec, Decision))
            tape, allowed = reading.tape, region.around(group)
            outputs = tape(allowed.center)
            shaped = outputs.unflatten(1, tape.shape)
            margins = extremes(shaped) if spec is None else spec.margins(shaped, group)
            furthest = None if sizes is None else group.of_batch(sizes)
            margins, difference = _asked(reading, allowed, outputs, margins, furthest)
            differences.append(difference)
            readings.append(reading)
            tasks.append(Task(tape, allowed, margins, method, chunk))
        about = {
            "popqorn": __version__,
            "torch": torch.__version__,
            "region": describe(region),
            "spec": None if spec is None else describe(spec),
            "method": method.name,
            "effort": method.effort if method.joint else None,
            "seconds": method.seconds,
            "left_off": readings[0].left_off,
            "dtype": str(dtype).removeprefix("torch."),
            "device": str(groups[0].values.device),
            "shape": [groups[0].batch, groups[0].longest, groups[0].values.shape[2]],
            "lengths": [group.frames for group in groups],
            "weights": fingerprint(tensor for _, tensor in network.tensors()),
            "inputs": fingerprint(group.values for group in groups),
        }
        return Question(network, groups, readings, tasks, together(differences, groups), network.words(inputs), about)

    def sizes(self, eps: Any) -> list[Tensor]:
        """The size of every set, per task: as given, or each as large as it gets."""
        if eps is None:
            return [self._greatest(task.allowed) for task in self.tasks]
        every = read_eps(eps, self.batch, self.groups[0].values)
        limit = self.tasks[0].allowed.limit
        if (every > limit).any():
            raise ValueError(
                f"eps holds {float(every.max()):g}, but this region ends at {limit:g}; pass less, or a larger region"
            )
        if self.tasks[0].allowed.whole and (every != every.round()).any():
            raise ValueError(f"eps holds {float(every[every != every.round()][0]):g}; this region counts, pass whole numbers")
        return [group.of_batch(every) for group in self.groups]

    def together(self, parts: Sequence[Tensor]) -> Tensor:
        """What was found for each task, `[entries, ...]`, in the order of the inputs."""
        return together(parts, self.groups)

    def shaped(self, parts: Sequence[Tensor]) -> Tensor:
        """Points of all tasks in the order, and the shape, of the inputs."""
        points = self.together(parts)
        sample = self.groups[0].sample
        one_frame = len(sample) in (1, 3)
        return points.reshape(len(points), *sample) if one_frame else points.unflatten(2, sample[1:])

    def in_order(self, parts: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        """The same for what is no tensor."""
        ordered: list[Any] = [None] * self.batch
        for part, group in zip(parts, self.groups, strict=True):
            for sample, value in zip(group.samples.tolist(), part, strict=True):
                ordered[sample] = value
        return tuple(ordered)

    def tables(self, rows: Sequence[Tensor]) -> Tensor:
        """Values of the margins' rows as one table, in the order of the inputs."""
        return self.together([task.margins.table(values) for task, values in zip(self.tasks, rows, strict=True)])

    def decisions(self) -> dict[str, Tensor | None]:
        """The labels and targets that were asked about, in the order of the inputs; None for other claims than decisions."""
        named: dict[str, Tensor | None] = {}
        for name in ("labels", "targets"):
            parts = [getattr(task.margins, name) for task in self.tasks]
            named[name] = None if parts[0] is None else self.together(parts)
        return named

    def _greatest(self, allowed: AllowedSet) -> Tensor:
        if allowed.greatest.isinf().any():
            raise ValueError("eps is missing: this region grows without end; pass eps, a number or one per sample")
        return allowed.greatest


def _asked(
    reading: Reading, allowed: AllowedSet, outputs: Tensor, margins: Margins, furthest: Tensor | None
) -> tuple[Margins, Tensor]:
    """Ask the model itself, at the inputs and at others around them: what it decides otherwise than its tape, or computes
    otherwise, is not worth proving. Also returns how far the two are apart.
    """
    tape, own = reading.tape, reading.at_inputs
    difference, size = _apart(own, reading.finished(outputs))
    for points in _elsewhere(allowed, furthest):
        apart, larger = _apart(*_where_known(reading.own(points), reading.finished(tape(points))))
        difference, size = torch.maximum(difference, apart), torch.maximum(size, larger)
    coarser = max((reading.dtype, outputs.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    most = agreement(tape.frames, coarser) * size
    differs = ~(difference <= most)  # NaN differs
    if margins.claimed:
        differs = differs | ((margins.of(own.to(outputs)) > 0) != (margins.of(outputs) > 0)).any(-1)
    if margins.labels is not None:
        chosen = [values.unflatten(1, tape.shape).argmax(-1) == margins.labels for values in (own, outputs)]
        differs = differs | (chosen[0] != chosen[1]).reshape(len(differs), -1).any(-1)
    return replace(margins, differs=differs, right=margins.right & ~differs.unsqueeze(-1)), difference


def _apart(own: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """How far two sets of outputs are apart, per sample, and how large outputs are here at all."""
    return (own.to(outputs) - outputs).abs().amax(-1), outputs.abs().amax()


def _where_known(own: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Two sets of outputs, without what is a number to neither: beyond the inputs a network is made for, both find no logarithm.

    What is a number to one of them only is apart as far as can be.
    """
    known, found = own.isfinite(), outputs.isfinite()
    own = own.masked_fill(~known & ~found, 0.0).masked_fill(known != found, math.inf)
    return own, outputs.masked_fill(~found, 0.0)


@torch.no_grad()
def _elsewhere(allowed: AllowedSet, furthest: Tensor | None) -> Iterator[Tensor]:
    """Inputs of the region: nearby and further off (at most of size `furthest`), at random and where random forms are least."""
    generator = torch.Generator(allowed.center.device).manual_seed(0)
    if allowed.choices is not None:
        chosen = allowed.choices
        drawn = torch.rand(chosen.allowed.shape, generator=generator, device=chosen.allowed.device)
        option = drawn.masked_fill(~chosen.allowed, -1.0).argmax(-1, keepdim=True)
        yield chosen.table[chosen.options.gather(-1, option).squeeze(-1)]
        return
    largest = allowed.center.abs().flatten(1).amax(-1)
    for share in ELSEWHERE:
        size = torch.minimum(share * (1 + largest), allowed.greatest.clamp(max=allowed.limit))
        some = allowed.at(size if furthest is None else torch.minimum(size, furthest))
        form = torch.randn(allowed.center.shape, generator=generator, dtype=largest.dtype, device=largest.device)
        try:
            yield some.random(generator)
            yield some.lowest(form)
        except NotImplementedError:  # a region that attacks have no use for
            return


def read_region(region: Any, norm: Any, frames: Any, scale: Any, default_norm: float = float("inf")) -> Region:
    """`region`, or the `Ball` that its short forms describe."""
    short = {"norm": norm, "frames": frames, "scale": scale}
    given = [name for name, value in short.items() if value is not None]
    if region is None:
        return Ball(default_norm if norm is None else norm, frames=frames, scale=scale)
    if given:
        raise ValueError(
            f"{' and '.join(given)} given beside region; they are short forms of popqorn.Ball: put them into the region"
        )
    if isinstance(region, type) or not isinstance(region, Region):
        raise ValueError(f"region is {region!r}; pass a popqorn.Ball, Box or Words, or a region of your own (docs/extending.md)")
    return region


def read_spec(spec: Any, labels: Any, targets: Any) -> Spec:
    """`spec`, or the `Decision` that its short forms describe."""
    if spec is None:
        return Decision(labels, targets)
    if labels is not None or targets is not None:
        given = " and ".join(name for name, value in (("labels", labels), ("targets", targets)) if value is not None)
        raise ValueError(f"{given} given beside spec; they are short forms of popqorn.Decision: put them into the spec")
    if isinstance(spec, type) or not isinstance(spec, Spec):
        raise ValueError(
            f"spec is {spec!r}; pass a popqorn.Decision, Tolerance or Property, or a spec of your own (docs/extending.md)"
        )
    return spec


def read_eps(eps: Any, batch: int, like: Tensor, *, name: str = "eps") -> Tensor:
    tensor = read_tensor(eps, name).to(like)
    if tensor.dim() == 0:
        tensor = tensor.expand(batch)
    if tuple(tensor.shape) != (batch,):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; pass one number, or one per sample, shape ({batch},)")
    allowed = torch.isfinite(tensor) & (tensor >= 0)
    if not allowed.all():
        raise ValueError(f"{name} holds {float(tensor[~allowed][0]):g}; it must be finite and not negative")
    return tensor
