"""`Ball`: every frame moves inside its own l_p ball, or all of them inside one; optionally inside a range such as [0, 1]."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import tiny
from popqorn.reading import read_norm, read_tensor
from popqorn.regions import clip, geometry
from popqorn.regions.cell import CellOfBall
from popqorn.regions.geometry import dual, length, length_above
from popqorn.regions.region import AllowedSet, slack, still_frames
from popqorn.relax.relaxation import Interval
from popqorn.sequences import Sequences


@dataclass(frozen=True, eq=False)
class Ball:
    """All sequences `x` with `||(x_k - x0_k) / scale_k||_norm <= eps` in every frame `k`.

    - `norm`: any number >= 1, or inf.
    - `frames`: which frames may move: indices (negative ones from each sequence's own end), or a boolean mask `[frames]` or
      `[batch, frames]`; None for all.
    - `scale`: each frame's (`[frames]`) or feature's (`[frames, features]`, `[batch, frames, features]`) own share of eps;
      where it is 0 nothing moves.
    - `clip`: `(low, high)`, numbers or arrays that broadcast to frames x features: only inputs of that range count.
    - `total`: one budget for the whole sequence, the norm over all frames together.

    >>> popqorn.certify(model, images, region=popqorn.Ball(2, clip=(0, 1)))
    """

    norm: float = math.inf
    _: KW_ONLY
    frames: Any = None
    scale: Any = None
    clip: Any = None
    total: Any = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", read_norm(self.norm))
        if not isinstance(self.total, bool):
            raise ValueError(f"total is {self.total!r}; pass True for one budget over the whole sequence, or False")

    def around(self, sequences: Sequences) -> "BallSet":
        """The balls around these sequences, of size 0; `frames`, `scale` and `clip` are checked against them."""
        share = _read_scale(self.scale, sequences)
        if self.frames is not None:
            share = share * _read_frames(self.frames, sequences).unsqueeze(-1)
        stuck = (~(share > 0).flatten(1).any(1)).expand(len(sequences.samples))
        if stuck.any():
            sample = int(sequences.samples[stuck][0])
            raise ValueError(f"frames and scale leave nothing that may move in sample {sample}; let a frame move")
        low, high = _read_clip(self.clip, sequences)
        zero = torch.zeros_like(sequences.values[:, 0, 0])
        total = self.total and math.isfinite(self.norm)  # the greatest entry of all is the greatest of the frames' greatest
        allowed = BallSet(sequences.values, zero, frozenset(), share, self.norm, total, low, high)
        return replace(allowed, still=still_frames(allowed.moves))


@dataclass(frozen=True)
class BallSet(AllowedSet):
    """`share` (`[batch or 1, frames, features or 1]`, not negative) is every feature's own part of `eps`; `low <= 0 <= high`
    is how far the range lets it move, if there is one.
    """

    share: Float[Tensor, "#batch frames _"]
    norm: float
    total: bool
    low: Float[Tensor, "batch frames features"] | None
    high: Float[Tensor, "batch frames features"] | None

    def only(self, frames: Bool[Tensor, "batch frames"]) -> "BallSet":
        held = replace(self, share=self.share * frames.unsqueeze(-1))
        return replace(held, still=still_frames(held.moves))

    @property
    def moves(self) -> Bool[Tensor, "#batch frames"]:
        if self.low is None or self.high is None:
            return (self.share > 0).any(-1)
        return ((self.share > 0) & (self.low < self.high)).any(-1)

    @property
    def greatest(self) -> Float[Tensor, " batch"]:
        if self.low is None or self.high is None:
            return torch.where(self.moves.any(-1), math.inf, 0.0).to(self.eps).expand_as(self.eps)
        return self.size_of(self.center + torch.maximum(-self.low, self.high))

    @property
    def separable(self) -> bool:
        return True

    def within(self, point: Tensor, down: Tensor, up: Tensor) -> CellOfBall | None:
        if math.isinf(self.norm):
            return None
        return CellOfBall(point, self.eps, self.still, self.share, self.norm, self.total, point - self.center, -down, up)

    def rates(self, forms: Float[Tensor, "batch rows frames features"]) -> Float[Tensor, "batch rows budgets"]:
        if self.low is not None and self.high is not None:  # what the range does not let go down cannot lower anything
            blocked = torch.where(forms > 0, self.low.unsqueeze(1), self.high.unsqueeze(1)) == 0
            forms = forms.masked_fill(blocked, 0.0)
        forms = forms * self.share.unsqueeze(1)
        return length(forms.flatten(2).unsqueeze(2) if self.total else forms, dual(self.norm))

    # ---- bounds ----------------------------------------------------------------------------------------------------------

    def _limits(self) -> tuple[Tensor, Tensor]:
        """How far every feature may move down and up."""
        widest = self.eps[:, None, None] * self.share
        if self.low is None or self.high is None:
            return -widest, widest
        return torch.maximum(-widest, self.low), torch.minimum(widest, self.high)

    def box(self) -> Interval:
        """No feature moves further than `eps` times its share, whatever the norm."""
        down, up = self._limits()
        return Interval(self.center + down, self.center + up)

    def part(self, frame: int, rows: Float[Tensor, "#batch rows features"]) -> Tensor:
        """Without a range, the dual norm `||rows share||_q` (Hoelder, attained); else the least value in this frame."""
        share = self.share[:, frame].unsqueeze(-2)
        if self.low is None:
            if share.shape[-1] == 1:  # one share for the whole frame comes out of the norm: a pass over the rows less
                return length_above(rows, dual(self.norm)) * share.squeeze(-1) + tiny(rows.dtype)
            return length_above(rows * share, dual(self.norm))
        if math.isinf(self.norm):
            down, up = (limit[:, frame].unsqueeze(-1) for limit in self._limits())
            # Each side on its own: a middle and a half width would lose the shorter side beside a much longer one.
            return (rows.clamp(min=0) @ down + rows.clamp(max=0) @ up).squeeze(-1)
        return rows if self.total else self._least_clipped(rows, slice(frame, frame + 1))

    def parts(self, frames: Sequence[int], rows: Float[Tensor, "#batch rows frames features"]) -> dict[int, Tensor]:
        if self.low is not None:
            return super().parts(frames, rows)
        share = self.share[:, list(frames)].unsqueeze(1)
        if share.shape[-1] == 1:
            lengths = length_above(rows, dual(self.norm)) * share.squeeze(-1) + tiny(rows.dtype)
        else:
            lengths = length_above(rows * share, dual(self.norm))
        return dict(zip(frames, lengths.unbind(-1), strict=True))

    def least(self, parts: Mapping[int, Tensor]) -> Float[Tensor, "#batch rows"]:
        values = list(parts.values())
        if self.low is None and self.total:
            whole = length_above(torch.stack(torch.broadcast_tensors(*values), dim=-1), dual(self.norm))
            return -self.eps.unsqueeze(-1) * whole - tiny(whole.dtype)
        if self.total:
            order = sorted(parts)
            batch = max(value.shape[0] for value in values)
            rows = torch.cat([parts[frame].expand(batch, -1, -1) for frame in order], dim=-1)
            return self._least_clipped(rows, order)
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total if self.low is not None else -self.eps.unsqueeze(-1) * total - tiny(total.dtype)

    # ---- joint bounds: the range counts where the norm is inf, as it cuts boxes, not balls ------------------------------------

    def units(self) -> tuple[Tensor, Tensor]:
        if math.isinf(self.norm):
            return super().units()
        return self.center, (self.eps[:, None, None] * self.share).expand(self.center.shape)

    def reach(self, forms: Float[Tensor, "*rows frames features entries"]) -> Float[Tensor, "*rows entries"]:
        if math.isinf(self.norm):
            return super().reach(forms)
        each = forms.flatten(-3, -2).unsqueeze(-3) if self.total else forms
        return length_above(each.transpose(-1, -2), dual(self.norm)).sum(-2)

    def spread(self, weights: Float[Tensor, "batch rows frames features"]) -> Float[Tensor, "batch rows"]:
        """`sum w d^2 <= max w ||d||_2^2` for p <= 2; Hoelder's inequality with the powers `p / (p - 2)` and `p / 2` beyond."""
        if math.isinf(self.norm):
            return super().spread(weights)
        order = math.inf if self.norm <= 2 else self.norm / (self.norm - 2)
        return length_above(weights.flatten(2).unsqueeze(2) if self.total else weights, order).sum(-1)

    def evened(self, weights: Float[Tensor, "batch rows frames features"]) -> Float[Tensor, "batch rows frames features"]:
        if self.norm > 2:
            return weights
        return weights.mean((-2, -1) if self.total else -1, keepdim=True).expand(weights.shape)

    def _least_clipped(self, rows: Tensor, frames: slice | list[int]) -> Float[Tensor, "batch rows"]:
        fall, _ = self._fall(rows, frames)
        return -self.eps.unsqueeze(-1) * fall - tiny(fall.dtype)

    def _fall(self, rows: Tensor, frames: slice | list[int]) -> tuple[Tensor, Tensor]:
        """How far rows over the given frames (side by side) fall per unit of size, and by which move per unit."""
        assert self.low is not None
        assert self.high is not None
        share = self.share[:, frames].expand(-1, -1, self.center.shape[-1]).flatten(1).unsqueeze(1)
        down, up = -self.low[:, frames].flatten(1).unsqueeze(1), self.high[:, frames].flatten(1).unsqueeze(1)
        unit = self.eps[:, None, None] * share
        least = tiny(rows.dtype)  # a quotient too small to be a number is a move all the same
        kappa_down, kappa_up = (
            torch.where((unit > 0) & (limit > 0), (limit / unit).clamp(min=least), 0.0) for limit in (down, up)
        )
        kappa_down, kappa_up = (torch.where(unit > 0, kappa, math.inf) for kappa in (kappa_down, kappa_up))
        kappa = torch.where(rows > 0, kappa_down, kappa_up)
        fall, sigma = clip.greatest_fall((rows.abs() * share).expand(kappa.shape), kappa, self.norm)
        return fall, -rows.sign() * sigma * share

    # ---- attacks ---------------------------------------------------------------------------------------------------------

    def _units(self, points: Tensor) -> Tensor:
        """Moves in units of the share, one ball along the last axis; what cannot move does not count."""
        moved = (points - self.center) / torch.where(self.share > 0, self.share, 1.0)
        moved = torch.where(self.share > 0, moved, 0.0)
        return moved.flatten(1).unsqueeze(1) if self.total else moved

    def _points(self, units: Tensor) -> Tensor:
        move = self.share * (units.reshape(self.center.shape) if self.total else units)
        if self.low is not None and self.high is not None:
            move = torch.minimum(torch.maximum(move, self.low), self.high)
        return self.center + move

    def size_of(self, points: Float[Tensor, "batch frames features"]) -> Float[Tensor, " batch"]:
        return length(self._units(points), self.norm).amax(-1)

    def lowest(self, form: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        if self.low is None or math.isinf(self.norm):
            return self._points(self.eps[:, None, None] * self._downhill(form, self.norm))
        if self.total:
            _, move = self._fall(form.flatten(1).unsqueeze(1), slice(None))
        else:
            moves = [self._fall(form[:, k].unsqueeze(1), slice(k, k + 1))[1] for k in range(form.shape[1])]
            move = torch.cat(moves, dim=1)
        move = self.eps[:, None, None] * move.reshape(form.shape)
        return self._points(torch.where(self.share > 0, move / self.share, 0.0).reshape(self._units(self.center).shape))

    def steepest(self, form: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        """For p = 1 the direction of the l_2 norm: a vertex would be one feature. The range does not bend it, projection will."""
        units = self._downhill(form, 2.0 if self.norm == 1 else self.norm)
        return self.share * (units.reshape(self.center.shape) if self.total else units)

    def _downhill(self, form: Tensor, norm: float) -> Tensor:
        scaled = form * self.share
        return -geometry.steepest(scaled.flatten(1).unsqueeze(1) if self.total else scaled, norm)

    def nearest(self, points: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch frames features"]:
        """Into the range first: the way back into the ball stays inside it."""
        if self.low is not None and self.high is not None:
            points = torch.minimum(torch.maximum(points, self.center + self.low), self.center + self.high)
        return self._points(geometry.project(self._units(points), self.norm, self.eps.unsqueeze(-1)))

    def random(self, generator: torch.Generator) -> Float[Tensor, "batch frames features"]:
        """Uniform in every ball of what may move, then cut to the range."""
        moves = (self.share > 0).expand(self.center.shape)
        if self.total:
            moves = moves.flatten(1).unsqueeze(1)
        drawn = geometry.sample(tuple(moves.shape), self.norm, generator, self.center, moves)
        return self._points(self.eps[:, None, None] * drawn)


# ---- what a Ball may be given ------------------------------------------------------------------------------------------------


def _read_scale(scale: Any, sequences: Sequences) -> Tensor:
    """`[batch or 1, frames, features or 1]`."""
    values = sequences.values
    frames, features = sequences.longest, values.shape[2]
    if scale is None:
        return values.new_ones(1, sequences.frames, 1)
    tensor = read_tensor(scale, "scale").to(values)
    forms = {(): (1, 1, 1), (frames,): (1, frames, 1), (frames, features): (1, frames, features)}
    shape, every = tuple(tensor.shape), (sequences.batch, frames, features)
    if shape != every and shape not in forms:
        raise ValueError(
            f"scale has shape {shape}; pass [frames] = ({frames},), [frames, features] = ({frames}, {features}) "
            f"or [batch, frames, features] = {every}"
        )
    allowed = torch.isfinite(tensor) & (tensor >= 0)
    if not allowed.all():
        worst = float(tensor[~allowed].flatten()[0])
        raise ValueError(f"scale holds {worst:g}; shares of eps must be finite and not negative")
    if shape == every:
        return sequences.of_batch(tensor, frames=True)
    return tensor.reshape(forms[shape]).expand(-1, frames, -1)[:, : sequences.frames]


def _read_frames(given: Any, sequences: Sequences) -> Tensor:
    """A mask `[batch or 1, frames]`."""
    longest = sequences.longest
    tensor = read_tensor(given, "frames").to(sequences.values.device)
    if tensor.numel() == 0:
        raise ValueError("frames is empty; name at least one frame that may move, or leave it out to let all move")
    if tensor.dtype == torch.bool:
        if tuple(tensor.shape) == (sequences.batch, longest):
            return sequences.of_batch(tensor, frames=True).to(sequences.values)
        if tuple(tensor.shape) != (longest,):
            raise ValueError(
                f"frames is a mask of shape {tuple(tensor.shape)}; "
                f"pass ({longest},) or [batch, frames] = ({sequences.batch}, {longest})"
            )
        return tensor[: sequences.frames].unsqueeze(0).to(sequences.values)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dim() > 1:
        raise ValueError(
            f"frames is of dtype {tensor.dtype} and shape {tuple(tensor.shape)}; pass a list of frame numbers or a boolean mask"
        )
    mask = sequences.values.new_zeros(1, sequences.frames)
    for frame in tensor.reshape(-1).tolist():
        if not -longest <= frame < longest:
            raise ValueError(f"frames holds {frame}; the inputs have frames 0 to {longest - 1}")
        if -sequences.frames <= frame < sequences.frames:
            mask[0, frame] = 1
    return mask


def _read_clip(given: Any, sequences: Sequences) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """How far each feature lies above the range's lower end (negative) and below its upper end."""
    if given is None:
        return None, None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(f"clip is {given!r}; pass the two ends of a range, such as clip=(0, 1)")
    values = sequences.values
    shape = (sequences.longest, values.shape[2])
    ends = []
    for name, end in zip(("low", "high"), given, strict=True):
        tensor = read_tensor(end, f"clip's {name} end").to(values)
        try:
            tensor = tensor.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"clip's {name} end has shape {tuple(tensor.shape)}; pass a number, or an array that broadcasts to frames x "
                f"features = {shape}"
            ) from None
        if tensor.isnan().any():
            raise ValueError(f"clip's {name} end holds NaN; pass numbers, or -inf and inf for no limit")
        ends.append(tensor[: sequences.frames])
    if (ends[0] > ends[1]).any():
        raise ValueError(f"clip's low end lies above its high end, {given!r}; pass (low, high)")
    outside = (values < ends[0] - slack(ends[0])) | (values > ends[1] + slack(ends[1]))
    if outside.any():
        worst, sample = float(values[outside][0]), int(sequences.samples[outside.flatten(1).any(1)][0])
        raise ValueError(
            f"clip: inputs of sample {sample} hold {worst:.9g}, which is outside the range; widen clip, or clamp the inputs to it"
        )
    return (ends[0] - values).clamp(max=0), (ends[1] - values).clamp(min=0)
