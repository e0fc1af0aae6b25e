"""`Box`: every feature in an interval of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.reading import read_tensor
from popqorn.regions.region import AllowedSet, slack, still_frames
from popqorn.relax.relaxation import Interval
from popqorn.sequences import Sequences


@dataclass(frozen=True, eq=False)
class Box:
    """All sequences between `lower` and `upper`: numbers, or arrays that broadcast to `[batch, frames, features]`.

    `verify` and `bounds` prove something for the whole box. `certify` finds the largest share of it, from 0 (the inputs alone) to
    1: the box shrunk towards the inputs, which lie inside it.

    >>> popqorn.verify(model, readings, region=popqorn.Box(readings - drift, readings + 2 * drift)).certified
    """

    lower: Any
    upper: Any

    def around(self, sequences: Sequences) -> "BoxSet":
        """The boxes around these sequences, shrunk to them; sequences outside are refused."""
        lower, upper = (_read_end(name, getattr(self, name), sequences) for name in ("lower", "upper"))
        values = sequences.values
        if (lower > upper).any():
            raise ValueError("lower lies above upper; pass Box(lower, upper)")
        outside = (values < lower - slack(lower)) | (values > upper + slack(upper))
        if outside.any():
            sample, frame, feature = outside.nonzero()[0].tolist()
            place = f"sample {int(sequences.samples[sample])}, frame {frame}, feature {feature}"
            ends = f"[{float(lower[sample, frame, feature]):.9g}, {float(upper[sample, frame, feature]):.9g}]"
            raise ValueError(
                f"inputs: {place} is {float(values[sample, frame, feature]):.9g}, outside the box {ends}; pass inputs of the box"
            )
        down, up = (values - lower).clamp(min=0), (upper - values).clamp(min=0)
        allowed = BoxSet(values, torch.zeros_like(values[:, 0, 0]), frozenset(), down, up)
        return replace(allowed, still=still_frames(allowed.moves))


def _read_end(name: str, given: Any, sequences: Sequences) -> Tensor:
    tensor = read_tensor(given, name).to(sequences.values)
    shape = (sequences.batch, sequences.longest, sequences.values.shape[2])
    try:
        tensor = tensor.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}; pass a number, or an array that broadcasts to "
            f"[batch, frames, features] = {shape}"
        ) from None
    tensor = sequences.of_batch(tensor, frames=True)
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name} holds NaN or infinite values; every feature needs two finite ends")
    return tensor


@dataclass(frozen=True)
class BoxSet(AllowedSet):
    """`down` and `up` (not negative) are how far each feature may go at full size, 1."""

    down: Float[Tensor, "batch frames features"]
    up: Float[Tensor, "batch frames features"]

    def only(self, frames: Bool[Tensor, "batch frames"]) -> "BoxSet":
        held = replace(self, down=self.down * frames.unsqueeze(-1), up=self.up * frames.unsqueeze(-1))
        return replace(held, still=still_frames(held.moves))

    @property
    def moves(self) -> Bool[Tensor, "#batch frames"]:
        return ((self.down > 0) | (self.up > 0)).any(-1)

    @property
    def greatest(self) -> Float[Tensor, " batch"]:
        return self.moves.any(-1).to(self.eps).expand_as(self.eps)

    @property
    def limit(self) -> float:
        return 1.0

    @property
    def separable(self) -> bool:
        return True

    def rates(self, forms: Float[Tensor, "batch rows frames features"]) -> Float[Tensor, "batch rows budgets"]:
        return (forms.clamp(min=0) * self.down.unsqueeze(1) - forms.clamp(max=0) * self.up.unsqueeze(1)).sum(-1)

    def box(self) -> Interval:
        share = self.eps[:, None, None]
        return Interval(self.center - share * self.down, self.center + share * self.up)

    def part(self, frame: int, rows: Float[Tensor, "#batch rows features"]) -> Float[Tensor, "batch rows"]:
        """The least value in this frame at full size."""
        down, up = self.down[:, frame].unsqueeze(-1), self.up[:, frame].unsqueeze(-1)
        return (rows.clamp(max=0) @ up - rows.clamp(min=0) @ down).squeeze(-1)

    def least(self, parts: Mapping[int, Tensor]) -> Float[Tensor, "batch rows"]:
        return self.eps.unsqueeze(-1) * torch.stack(list(parts.values())).sum(0)

    def size_of(self, points: Float[Tensor, "batch frames features"]) -> Float[Tensor, " batch"]:
        move = points - self.center
        room = torch.where(move > 0, self.up, self.down)
        share = torch.where(room > 0, move.abs() / torch.where(room > 0, room, 1.0), 0.0)
        return share.flatten(1).amax(-1)

    def lowest(self, form: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        move = torch.where(form > 0, -self.down, torch.where(form < 0, self.up, 0.0))
        return self.center + self.eps[:, None, None] * move

    def nearest(self, points: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        box = self.box()
        return torch.minimum(torch.maximum(points, box.lower), box.upper)

    def random(self, generator: torch.Generator) -> Float[Tensor, "batch frames features"]:
        """Uniform in the box."""
        box = self.box()
        share = torch.rand(self.center.shape, generator=generator, dtype=self.center.dtype, device=self.center.device)
        return box.lower + share * (box.upper - box.lower)
