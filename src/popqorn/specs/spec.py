"""What must hold. A `Spec` is a claim as a user writes it; for a batch of outputs it becomes `Margins`, rows that must stay
positive.

A new spec is one file: a frozen record with `margins`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from popqorn._typing import Bool, Float, Int
from popqorn.arithmetic import rounding
from popqorn.sequences import Sequences
from popqorn.status import Status


@dataclass(frozen=True)
class Margins:
    """The claim `rows @ output + offset > 0`, in every row, for every allowed input; one group of rows per sample.

    `right[b, r]` says that row `r` of sample `b` is worth proving (a wrong decision is not). Results are tables `[batch,
    *shape]`: row `r` of sample `b` stands at `place[b, r]` of the flattened table. `steps` is how many equal groups the rows
    are in, if the output is one per step. Nothing is `claimed` where bare outputs are bounded. Margins `relative` to the outputs
    at the input hold these, as they were computed, in their offsets. `wrong` is what to call a sample for which the claim fails
    at the input itself; where it `differs`, the model computes something else than its tape, and nothing is worth proving.
    `labels` and `targets` are what a decision was asked for.
    """

    rows: Float[Tensor, "batch rows outputs"]
    offset: Float[Tensor, "batch rows"]
    right: Bool[Tensor, "batch rows"]
    place: Int[Tensor, "batch rows"]
    shape: tuple[int, ...]
    steps: int = 1
    claimed: bool = True
    relative: Tensor | None = None
    wrong: Status = Status.VIOLATED
    labels: Tensor | None = None
    targets: Tensor | None = None
    differs: Tensor | None = None

    def of(self, outputs: Float[Tensor, "batch outputs"]) -> Float[Tensor, "batch rows"]:
        """The margins of given outputs."""
        return (self.rows @ outputs.unsqueeze(-1)).squeeze(-1) + self.offset

    def lowered(self, outputs: Float[Tensor, "batch outputs"], error: Float[Tensor, "batch outputs"]) -> "Margins":
        """Relative margins, if the output at the input is within `error` of these `outputs`."""
        assert self.relative is not None
        lost = (self.rows.abs() @ (error + (outputs - self.relative).abs()).unsqueeze(-1)).squeeze(-1)
        return replace(self, offset=self.offset - lost - rounding(self.offset, lost))

    @property
    def holds(self) -> Bool[Tensor, " batch"]:
        """Whether all of a sample's rows are worth proving."""
        return self.right.all(-1)

    def select(self, index: Tensor) -> "Margins":
        """The margins of some samples, in any order and any number of times."""
        given = {name: getattr(self, name) for name in (*_PER_ROW, "labels", "targets", "differs", "relative")}
        chosen: dict[str, Any] = {name: value[index] for name, value in given.items() if value is not None}
        return replace(self, **chosen)

    def split(self, groups: int) -> "Margins":
        """Every sample's rows in `groups` equal groups, each as a sample of its own: one after the other, sample by sample."""
        parts = {name: getattr(self, name).unflatten(1, (groups, -1)).flatten(0, 1) for name in _PER_ROW}
        differs = None if self.differs is None else self.differs.repeat_interleave(groups)
        relative = None if self.relative is None else self.relative.repeat_interleave(groups, dim=0)
        return replace(self, **parts, steps=1, labels=None, targets=None, differs=differs, relative=relative)

    @property
    def refused(self) -> Bool[Tensor, " batch"]:
        """Whether the model itself computes something else."""
        return torch.zeros_like(self.holds) if self.differs is None else self.differs

    def refusals(self) -> list[Status]:
        """What to call each sample if it is not worth proving."""
        return [Status.DIFFERS if differs else self.wrong for differs in self.refused.tolist()]

    def table(self, values: Float[Tensor, "batch rows"]) -> Float[Tensor, "batch ..."]:
        """Values of rows at their places; the least where rows share one, inf where there is none."""
        flat = values.new_full((len(values), math.prod(self.shape)), math.inf)
        table: Tensor = flat.scatter_reduce(1, self.place, values, "amin").unflatten(1, self.shape)
        return table


_PER_ROW = ("rows", "offset", "right", "place")


@runtime_checkable
class Spec(Protocol):
    """A frozen record of what must hold, whatever the inputs."""

    def margins(self, outputs: Tensor, sequences: Sequences) -> Margins:
        """The claim for outputs `[batch, *shape]` at the given sequences; reads (and checks) what the record holds."""
        ...


def plain_margins(rows: Tensor, offset: Tensor, outputs: Tensor, place: Tensor, shape: Sequence[int]) -> Margins:
    """Rows and offsets, for every sample or for all alike; right is what holds for `outputs` `[batch, outputs]`."""
    batch = len(outputs)
    rows, offset = rows.expand(batch, -1, -1), offset.expand(batch, -1)
    values = (rows @ outputs.unsqueeze(-1)).squeeze(-1) + offset
    return Margins(rows, offset, values > 0, place.expand(batch, -1), tuple(shape))


def extremes(outputs: Tensor) -> Margins:
    """Every output and its negative as rows: what `bounds` asks for. Nothing is claimed."""
    count = outputs[0].numel()
    identity = torch.eye(count, dtype=outputs.dtype, device=outputs.device)
    rows = torch.cat([identity, -identity])
    place = torch.arange(2 * count, device=outputs.device)
    margins = plain_margins(rows, rows.new_zeros(2 * count), outputs.flatten(1), place, (2, *outputs.shape[1:]))
    return replace(margins, claimed=False)
