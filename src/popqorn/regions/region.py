"""What the adversary may do. A `Region` is a question as a user writes it; around a batch of inputs it becomes an `AllowedSet`.

A set answers everything the rest of the program asks of inputs: the box around them, the least value of linear forms over
them, what attacks need, and how it grows. Nothing else knows norms, ranges or words. A new region is one file: a frozen record
with `around`, and an `AllowedSet` with the methods marked below.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.relax.relaxation import Interval
from popqorn.sequences import Sequences

S = TypeVar("S", bound="AllowedSet")


@runtime_checkable
class Region(Protocol):
    """A frozen record of what may happen to inputs, whatever they are."""

    def around(self, sequences: Sequences) -> "AllowedSet":
        """The set of allowed inputs around each of these sequences, of size 0; reads (and checks) what the record holds."""
        ...


@dataclass(frozen=True)
class AllowedSet:
    """The inputs allowed around a batch of samples, one set per sample. Sets grow with `eps`: a larger one holds the smaller.

    `center` are the inputs themselves, always allowed. `eps` is the size: a distance, a share or a number of words. `still`
    names the frames in which nothing moves in any sample. Tensors of other fields have the batch (or 1) as their first axis.

    To write: `moves`, `box`, `part` and `least`, `size_of`, `only`; for attacks `lowest`, or `choices` if the set is finite.
    """

    center: Float[Tensor, "batch frames features"]
    eps: Float[Tensor, " batch"]
    still: frozenset[int]

    # ---- one per sample --------------------------------------------------------------------------------------------------

    def select(self: S, index: Tensor | slice) -> S:
        """The sets of some samples, in any order and any number of times."""
        batch = len(self.center)
        chosen: dict[str, Any] = {
            field.name: value[index]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor) and len(value) == batch
        }
        return replace(self, **chosen)

    def at(self: S, eps: Tensor) -> S:
        """The sets of size `eps`, one per sample."""
        return replace(self, eps=eps)

    def only(self: S, frames: Bool[Tensor, "batch frames"]) -> S:
        """The same with all other frames held still."""
        raise NotImplementedError(f"a {type(self).__name__} cannot be held to single frames")

    # ---- the search ------------------------------------------------------------------------------------------------------

    @property
    def moves(self) -> Bool[Tensor, "#batch frames"]:
        """Which frames may move at all."""
        raise NotImplementedError

    @property
    def greatest(self) -> Float[Tensor, " batch"]:
        """The size beyond which the set no longer grows; inf where it always does."""
        return torch.full_like(self.eps, math.inf)

    @property
    def limit(self) -> float:
        """The greatest size that may be asked about."""
        return math.inf

    @property
    def whole(self) -> bool:
        """Whether sizes are whole numbers."""
        return False

    @property
    def separable(self) -> bool:
        """Whether `size_of` depends on every feature's own distance from the centre alone, and grows with each."""
        return False

    def within(
        self,
        point: Float[Tensor, "batch frames features"],
        down: Float[Tensor, "batch frames features"],
        up: Float[Tensor, "batch frames features"],
    ) -> "AllowedSet | None":
        """What is allowed at this size and lies in the box from `point - down` to `point + up`, or a set that holds it; None for
        the box alone. The point is the one of the box that is nearest to the centre.
        """
        return None

    def rates(self, forms: Float[Tensor, "batch rows frames features"]) -> Float[Tensor, "batch rows budgets"]:
        """How fast linear forms fall below their value at the centre while the set is small, per unit of size.

        One number per budget that is spent on its own, such as each frame's.
        """
        unit = self.at(torch.ones_like(self.eps))
        return -unit.least({k: unit.part(k, forms[:, :, k]) for k in range(forms.shape[2])}).unsqueeze(-1)

    @property
    def depth(self) -> Float[Tensor, "#batch"]:
        """How many frames a perturbation passes through: from the first frame that may move to the last of all."""
        moves = self.moves.to(self.center.dtype)
        return moves.shape[1] - moves.argmax(-1).to(moves.dtype)

    # ---- bounds ----------------------------------------------------------------------------------------------------------

    def box(self) -> Interval:
        """The smallest box around the allowed inputs, `[batch, frames, features]`."""
        raise NotImplementedError

    def part(self, frame: int, rows: Float[Tensor, "#batch rows features"]) -> Tensor:
        """What `least` will need to know of the rows at one frame: as little as possible, as walks are long. All, by default."""
        return rows

    def parts(self, frames: Sequence[int], rows: Float[Tensor, "#batch rows frames features"]) -> dict[int, Tensor]:
        """The same for several frames at once."""
        return {frame: self.part(frame, rows[:, :, place]) for place, frame in enumerate(frames)}

    def least(self, parts: Mapping[int, Tensor]) -> Float[Tensor, "#batch rows"]:
        """A lower bound of `sum over frames of rows @ (x - center)` over the allowed inputs `x`: the least itself, if known.

        `parts` holds what `part` made of the rows of every frame they reach; their first axis is the batch, or 1.
        """
        raise NotImplementedError

    # ---- joint bounds ----------------------------------------------------------------------------------------------------

    def units(self) -> tuple[Float[Tensor, "batch frames features"], Float[Tensor, "batch frames features"]]:
        """A point and a radius: every allowed input is `point + radius * d` with all `|d| <= 1`. By default those of the box."""
        box = self.box()
        point = (box.lower + box.upper) / 2
        rounded = torch.finfo(point.dtype).eps * (box.lower.abs() + box.upper.abs())  # the ends are, and so is the middle
        return point, torch.maximum(box.upper - point, point - box.lower) + rounded

    def reach(self, forms: Float[Tensor, "*rows frames features entries"]) -> Float[Tensor, "*rows entries"]:
        """An upper bound of `|sum over frames and features of forms d|` over the allowed inputs, in units of the radius."""
        return forms.abs().sum((-3, -2))

    def spread(self, weights: Float[Tensor, "batch rows frames features"]) -> Float[Tensor, "batch rows"]:
        """An upper bound of `sum weights d^2` (weights are not negative) over the allowed inputs, in units of the radius."""
        return weights.sum((-2, -1))

    def evened(self, weights: Float[Tensor, "batch rows frames features"]) -> Float[Tensor, "batch rows frames features"]:
        """Weights like these, but no larger in one place than in another where the spread counts both alike."""
        return weights

    # ---- attacks ---------------------------------------------------------------------------------------------------------

    @property
    def choices(self) -> "Choices | None":
        """The alternatives for each frame, if these are finitely many."""
        return None

    def size_of(self, points: Float[Tensor, "batch frames features"]) -> Float[Tensor, " batch"]:
        """The least size whose set holds the points (differentiable, where points move freely)."""
        raise NotImplementedError

    def lowest(self, form: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        """The allowed point where the linear form `form @ x` is least."""
        raise NotImplementedError

    def steepest(self, form: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        """The step of size 1 along which a descent on `form @ x` goes."""
        return self.at(torch.ones_like(self.eps)).lowest(form) - self.center

    def nearest(self, points: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        """The nearest allowed points, or at least allowed points nearby: by default on the line to the centre."""
        share = (self.eps / self.size_of(points)).nan_to_num(nan=1.0).clamp(max=1.0)
        return self.center + share[:, None, None] * (points - self.center)

    def random(self, generator: torch.Generator) -> Float[Tensor, "batch frames features"]:
        """A random allowed point for every sample: by default part of the way to where a random form is least."""
        like: dict[str, Any] = {"generator": generator, "dtype": self.center.dtype, "device": self.center.device}
        toward = self.lowest(torch.randn(self.center.shape, **like))
        share: Tensor = torch.rand(len(self.center), **like)
        return self.center + share[:, None, None] * (toward - self.center)


@dataclass(frozen=True)
class Choices:
    """Finitely many alternatives: frame `k` of sample `b` may be any `table[options[b, k, j]]` for which `allowed[b, k, j]`."""

    table: Float[Tensor, "words features"]
    options: Tensor  # Int[batch frames options]
    allowed: Tensor  # Bool[batch frames options]


def slack(ends: Tensor) -> Tensor:
    """How far inputs may lie outside their range by rounding, as those of a float32 data set do; the range is widened to them."""
    return 1e-6 * ends.abs().clamp(min=1).nan_to_num(posinf=0.0)


def still_frames(moves: Bool[Tensor, "#batch frames"]) -> frozenset[int]:
    """The frames in which no sample moves."""
    return frozenset(frame for frame, any_moves in enumerate(moves.any(0).tolist()) if not any_moves)
