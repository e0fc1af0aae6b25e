"""The least value of linear forms over what a ball and a box have in common, where the box need not hold the ball's centre.

A point of the box is `nearest + d`, `low <= d <= high`, and `y = (moved + d) / (eps share)` is where it lies in the ball:
`sum |y|^p <= 1`. With `beta = form eps share`, the form changes by `sum beta (y - y0)`, and for any multiplier `lam >= 0`

    sum beta (y - y0)  >=  sum beta (s - y0) + lam/p (sum |s|^p - 1),    s = -sign(beta) (|beta| / lam)^(1/(p-1)), cut to the box,

since `s` minimises the Lagrangian entry by entry (for p = 1: the end of the box where `|beta| > lam`, else the entry nearest 0).
So every multiplier gives a valid bound; the right one, which the bisection approaches, gives the least value itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import NORM, gamma, tiny
from popqorn.regions.geometry import dual, length
from popqorn.regions.region import AllowedSet
from popqorn.relax.relaxation import Interval

STEPS = 10
RANGE = 100.0  # the multiplier is sought from the dual norm over this to the dual norm times this


@dataclass(frozen=True)
class CellOfBall(AllowedSet):
    """What a ball of size `eps` and a box have in common: `center` is the point of the box nearest to the ball's, which lies
    `moved` off; `low <= 0 <= high` are the ends of the box from there. Sets of a search by splitting: no attack asks about them.
    """

    share: Float[Tensor, "#batch frames _"]
    norm: float
    total: bool
    moved: Float[Tensor, "batch frames features"]
    low: Float[Tensor, "batch frames features"]
    high: Float[Tensor, "batch frames features"]

    @property
    def moves(self) -> Bool[Tensor, "#batch frames"]:
        return (self.low < self.high).any(-1)

    def box(self) -> Interval:
        return Interval(self.center + self.low, self.center + self.high)

    def part(self, frame: int, rows: Float[Tensor, "#batch rows features"]) -> Tensor:
        return rows if self.total else self._least(rows, [frame])

    def least(self, parts: Mapping[int, Tensor]) -> Float[Tensor, "batch rows"]:
        order = sorted(parts)
        if not self.total:
            return torch.stack(torch.broadcast_tensors(*(parts[frame] for frame in order))).sum(0)
        rows = torch.cat(torch.broadcast_tensors(*(parts[frame] for frame in order)), dim=-1)
        return self._least(rows, order)

    def _least(self, rows: Float[Tensor, "#batch rows features"], frames: Sequence[int]) -> Float[Tensor, "batch rows"]:
        """Of rows over the given frames, side by side. What cannot move counts for nothing."""
        low, high, moved = (end[:, frames].flatten(1).unsqueeze(1) for end in (self.low, self.high, self.moved))
        share = self.share[:, frames].expand(-1, -1, self.center.shape[-1]).flatten(1).unsqueeze(1)
        unit = self.eps[:, None, None] * share
        free = (unit > 0) & (low < high)
        # the ends are differences of two numbers, right to a unit in the last place: so they, and the ball, are widened
        wide = 1 + NORM * torch.finfo(rows.dtype).eps
        unit = torch.where(free, unit * wide, 1.0)
        start, bottom, top = (torch.where(free, end / unit, 0.0) for end in (moved, moved + wide * low, moved + wide * high))
        return self._lagrangian(torch.where(free, rows * unit, 0.0), start, bottom, top)

    def _lagrangian(self, beta: Tensor, start: Tensor, bottom: Tensor, top: Tensor) -> Float[Tensor, "batch rows"]:
        """The greatest lower bound of `sum beta (y - start)` that the multipliers tried give; 0 is the box's own."""
        end = torch.where(beta > 0, bottom, top)
        found = self._value(beta, start, end, beta.new_zeros(()))
        middle = length(beta, dual(self.norm)).clamp(min=tiny(beta.dtype) ** 0.5)
        less, more = middle / RANGE, middle * RANGE
        for _ in range(STEPS):
            price = (less * more).sqrt()
            ratio = beta.abs() / price.unsqueeze(-1)
            if self.norm == 1:
                best = torch.where(ratio > 1, end, 0.0)
            else:
                best = -beta.sign() * (ratio if self.norm == 2 else ratio.pow(1 / (self.norm - 1)))
            best = torch.minimum(torch.maximum(best, bottom), top)
            found = torch.fmax(found, self._value(beta, start, best, price))
            outside = self._power(best) > 1
            less, more = torch.where(outside, price, less), torch.where(outside, more, price)
        return found

    def _power(self, point: Tensor) -> Tensor:
        """`sum |point|^p`."""
        return (point.square() if self.norm == 2 else point.abs().pow(self.norm)).sum(-1)

    def _value(self, beta: Tensor, start: Tensor, point: Tensor, price: Tensor) -> Tensor:
        """The Lagrangian at its least, rounded downwards."""
        budget, fallen = self._power(point), beta * (point - start)
        error = (beta.abs() * (point.abs() + start.abs())).sum(-1) + price * (1 + budget)
        lost = gamma(beta.shape[-1] + NORM, beta.dtype) * error + NORM * beta.shape[-1] * tiny(beta.dtype) * (1 + price)
        found: Tensor = fallen.sum(-1) + price / self.norm * (budget - 1) - lost
        return found.masked_fill(found.isnan(), -math.inf)
