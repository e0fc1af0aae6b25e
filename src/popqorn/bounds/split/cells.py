"""Cells: boxes of the features that move, and how the set of allowed inputs is covered by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.arithmetic import FEW, large, tiny
from popqorn.regions.box import BoxSet
from popqorn.regions.region import AllowedSet

QUARTERS = 3.0  # times the second axis' share of the errors: from there on a cell is cut along its first axis alone


@dataclass(frozen=True)
class Cells:
    """Boxes `lower <= x <= upper` of the moving features, `[cells, features]`, and along which two axes to cut each next.

    What is allowed in a cell at the size `safe` is proven; at the size `failed` it could not be.
    """

    lower: Float[Tensor, "cells features"]
    upper: Float[Tensor, "cells features"]
    axes: Tensor  # Int[cells 2]; the same twice to cut along one alone
    safe: Float[Tensor, " cells"]
    failed: Float[Tensor, " cells"]

    def __len__(self) -> int:
        return len(self.lower)

    def select(self, index: Tensor) -> "Cells":
        return Cells(*(getattr(self, field.name)[index] for field in fields(self)))

    @staticmethod
    def joined(parts: "Sequence[Cells]") -> "Cells":
        return Cells(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Cells)))

    def cut(self) -> tuple[Float[Tensor, "cells 4 features"], Float[Tensor, "cells 4 features"]]:
        """Each cell in four: the lower and the upper ends of its parts, which share their sides to the last bit."""
        number = torch.arange(len(self), device=self.lower.device)
        first, second = self.axes.T
        lower, upper = self.lower.unsqueeze(1).repeat(1, 4, 1), self.upper.unsqueeze(1).repeat(1, 4, 1)
        quarters = first == second
        low, high = self.lower[number, first], self.upper[number, first]
        middle = (low + high) / 2
        ends = torch.stack([low, (low + middle) / 2, middle, (middle + high) / 2, high], dim=-1)
        halves = ends[:, [0, 0, 2, 2]], ends[:, [2, 2, 4, 4]]
        lower[number, :, first] = torch.where(quarters.unsqueeze(-1), ends[:, :4], halves[0])
        upper[number, :, first] = torch.where(quarters.unsqueeze(-1), ends[:, 1:], halves[1])
        low, high = self.lower[number, second], self.upper[number, second]
        ends = torch.stack([low, (low + high) / 2, high], dim=-1)
        lower[number, :, second] = torch.where(quarters.unsqueeze(-1), lower[number, :, second], ends[:, [0, 1, 0, 1]])
        upper[number, :, second] = torch.where(quarters.unsqueeze(-1), upper[number, :, second], ends[:, [1, 2, 1, 2]])
        return lower, upper


def axes_of(share: Float[Tensor, "cells features"]) -> Tensor:
    """The two axes with the greatest share of the errors; the first alone where it has by far the most."""
    if share.shape[1] == 1:
        return torch.zeros(len(share), 2, dtype=torch.long, device=share.device)
    greatest, axes = share.nan_to_num(0.0).topk(2, dim=1)
    alone = greatest[:, :1] > QUARTERS * greatest[:, 1:]
    return torch.where(alone, axes[:, :1], axes)


@dataclass(frozen=True)
class Space:
    """The moving features of one sample's allowed set (of batch 1): `places` are their numbers among all of the inputs."""

    allowed: AllowedSet
    places: Tensor  # Int[features]

    @staticmethod
    def of(allowed: AllowedSet) -> "Space":
        box = allowed.at(torch.full_like(allowed.eps, large(allowed.eps.dtype))).box()
        return Space(allowed, (box.upper > box.lower).flatten().nonzero().squeeze(1))

    @property
    def center(self) -> Float[Tensor, " features"]:
        return self.allowed.center.flatten()[self.places]

    def points(self, chosen: Float[Tensor, "cells features"]) -> Float[Tensor, "cells frames entries"]:
        """Whole inputs with the moving features as chosen."""
        points = self.allowed.center.flatten(1).repeat(len(chosen), 1)
        points[:, self.places] = chosen
        whole: Tensor = points.unflatten(1, self.allowed.center.shape[1:])
        return whole

    def sizes(self, chosen: Float[Tensor, "cells features"]) -> Float[Tensor, " cells"]:
        """The size of the least set that holds each point."""
        index = torch.zeros(len(chosen), dtype=torch.long, device=chosen.device)
        return self.allowed.select(index).size_of(self.points(chosen))

    def distance(self, lower: Float[Tensor, "cells features"], upper: Float[Tensor, "cells features"]) -> Tensor:
        """A lower bound of the least size whose set meets a cell: sizes grow with every feature's own distance (`separable`)."""
        nearest = torch.minimum(torch.maximum(self.center, lower), upper)
        return self._below(self.sizes(nearest))

    def _below(self, sizes: Tensor) -> Tensor:
        return sizes * (1 - FEW * (len(self.places) + FEW) * torch.finfo(sizes.dtype).eps) - tiny(sizes.dtype)

    def cells(self, lower: Tensor, upper: Tensor, axes: Tensor, safe: Tensor | None = None) -> Cells:
        """New cells: each is safe up to its own distance, and to what else is known."""
        distance = self.distance(lower, upper)
        safe = distance if safe is None else torch.maximum(distance, safe)
        return Cells(lower, upper, axes, safe, torch.full_like(safe, math.inf))

    def cut_off(self, cells: Cells, size: float) -> dict[str, Tensor]:
        """The ends of cells that reach no further than the box of a size."""
        box = self.allowed.at(torch.full_like(self.allowed.eps, size)).box()
        least, most = (end.flatten()[self.places] for end in (box.lower, box.upper))
        lower = torch.minimum(torch.maximum(cells.lower, least), most)
        return {"lower": lower, "upper": torch.maximum(torch.minimum(cells.upper, most), lower)}

    def sets(self, cells: Cells, size: float) -> AllowedSet:
        """What is allowed at a size inside every cell, around its point nearest to the centre."""
        allowed = self.allowed.select(torch.zeros(len(cells), dtype=torch.long, device=self.places.device))
        allowed = allowed.at(torch.full_like(allowed.eps, size))
        lower, upper = self.cut_off(cells, size).values()
        nearest = torch.minimum(torch.maximum(self.center, lower), upper)
        point = self.points(nearest)
        down, up = (torch.zeros_like(point).flatten(1) for _ in range(2))
        # ends of regions are sums with the centre, and rounded like those: a cell near 0 may lie far from it
        rounded = FEW * torch.finfo(lower.dtype).eps * (self.center.abs() + torch.maximum(lower.abs(), upper.abs()))
        down[:, self.places], up[:, self.places] = nearest - lower + rounded, upper - nearest + rounded
        down, up = down.view_as(point), up.view_as(point)
        cut = allowed.within(point, down, up)
        return BoxSet(point, torch.ones_like(allowed.eps), allowed.still, down, up) if cut is None else cut

    def root(self, size: float) -> Cells:
        """The box of the set of this size, as one cell."""
        box = self.allowed.at(torch.full_like(self.allowed.eps, size)).box()
        lower, upper = (end.flatten()[self.places].unsqueeze(0) for end in (box.lower, box.upper))
        return self.cells(lower, upper, axes_of(upper - lower))

    def beyond(self, inner: Cells) -> float:
        """A lower bound of the size of any allowed input outside a root: the least at which a feature passes an end that is not
        that of its range, as a larger root shows.
        """
        least, outer = math.inf, self.root(large(self.allowed.eps.dtype))
        for end, further in ((inner.lower[0], outer.lower[0]), (inner.upper[0], outer.upper[0])):
            passed = self.center.repeat(len(end), 1)
            # an end that rounding puts at the centre: what is nearer than the next number is part of every input's rounding
            passed.diagonal().copy_(torch.where(end == self.center, torch.nextafter(end, further), end))
            sizes = self._below(self.sizes(passed))[end != further]
            least = min([least, *sizes.tolist()])
        return least

    def around(self, inner: Cells, outer: Cells) -> Cells:
        """What a root holds beside a smaller one, cut into slabs; those without any width are left out."""
        lower, upper = outer.lower[0].clone(), outer.upper[0].clone()
        slabs: list[tuple[Tensor, Tensor]] = []
        for place in range(len(self.places)):
            for start, stop in ((lower[place], inner.lower[0, place]), (inner.upper[0, place], upper[place])):
                low, high = lower.clone(), upper.clone()
                low[place], high[place] = start, stop
                if bool(high[place] > low[place]):
                    slabs.append((low, high))
            lower[place], upper[place] = inner.lower[0, place], inner.upper[0, place]
        if not slabs:
            return outer.select(torch.zeros(0, dtype=torch.long, device=lower.device))
        lows, highs = (torch.stack(ends) for ends in zip(*slabs, strict=True))
        return self.cells(lows, highs, axes_of(highs - lows))
