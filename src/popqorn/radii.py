"""The radii of a task, by whichever search its method asks for, and what each of them means."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.attacks.found import Found, checked
from popqorn.attacks.scan import FEW
from popqorn.bounds.chunks import frame_groups
from popqorn.found import SearchResult
from popqorn.progress import Watch
from popqorn.readers.network import Reading
from popqorn.search import CAUTION, Guess, largest_size
from popqorn.splitting import can_split, split
from popqorn.status import Status
from popqorn.task import Task

NEARLY = 1.5  # times the tolerance: how near a counterexample must be for a radius to be exact


@dataclass(frozen=True)
class Radii:
    """Per entry: what a search found, what it means, and (where splitting looked for one) the nearest counterexample."""

    found: SearchResult
    status: list[Status]
    refuted: Tensor | None
    points: Tensor | None


def splitting(task: Task) -> bool:
    """Whether searches go on by splitting; refuses tasks in which more features move than that is for."""
    if not task.method.split:
        return False
    can = can_split(task)
    if not bool(can.all()):
        raise ValueError(
            f"splitting (method='split', or seconds) is for at most {FEW} moving features of a Ball or a Box, and sample "
            f"{int((~can).nonzero()[0])} has others; let fewer move (frames, scale), or use method='tight'"
        )
    return True


def searched(task: Task, tolerance: float, watch: Watch, first: Guess | None = None) -> SearchResult:
    """The largest sizes that are proven; the search may begin at `first`."""
    goes_on = splitting(task)
    found = largest_size(task, tolerance, watch, first)
    if not goes_on:
        return found
    sought = found.ended & task.margins.holds & (found.margins > 0).all(-1)
    return split(task, found, sought, tolerance, watch)


def radii(task: Task, reading: Reading, tolerance: float, watch: Watch, first: Guess | None = None) -> Radii:
    """The radii of a task; counterexamples are put to the model itself."""
    found = searched(task, tolerance, watch, first)
    refuted = points = None
    if found.broken is not None and found.points is not None:
        refuted, points = checked(reading, task, Found(found.broken, found.points))
    return Radii(found, statuses(found, task, refuted, tolerance), refuted, points)


def each(task: Task, groups: int | None, tolerance: float, watch: Watch) -> Float[Tensor, "batch groups"]:
    """The radius of every group of a sample's margins alone (None: of every margin); NaN where the user stopped its search."""
    count = task.margins.rows.shape[1] if groups is None else groups
    sample = torch.arange(len(task), device=task.margins.rows.device).repeat_interleave(count)
    alone = replace(task.select(sample), margins=task.margins.split(count))
    found = searched(alone, tolerance, watch)
    sizes: Tensor = torch.where(found.ended, found.eps, math.nan).unflatten(0, (-1, count))
    return sizes


@dataclass(frozen=True)
class FrameRadii:
    """The radius of every frame alone, `[batch, frames]`, what it means, and the nearest counterexamples."""

    radius: Tensor
    status: list[tuple[Status, ...]]
    refuted: Tensor | None
    points: Tensor | None


def frame_by_frame(task: Task, reading: Reading, tolerance: float, watch: Watch) -> FrameRadii:
    """The radius of every frame when it alone may move; its counterexample is what that frame then is."""
    task, batch, frames = task.centered(), len(task), task.tape.frames
    radius = task.allowed.center.new_full((batch, frames), math.nan)
    linear = torch.full_like(radius, math.nan)
    named: list[list[Status]] = [[] for _ in range(frames)]
    broken, shown = torch.full_like(radius, math.nan), torch.full_like(task.allowed.center, math.nan)
    sought = False
    for group in frame_groups(frames, batch, radius.device):
        sample = torch.arange(batch, device=group.device).repeat(len(group))
        alone = torch.nn.functional.one_hot(group.repeat_interleave(batch), frames).bool()
        every = task.select(sample)
        every = replace(every, allowed=every.allowed.only(alone))
        linear[:, group] = every.first_order()[1].amin(-1).unflatten(0, (-1, batch)).T
        result = radii(every, reading, tolerance, watch, _guess(radius, linear, group, tolerance))
        found = result.found
        # A frame that cannot move does no harm at any size; one whose search was stopped is not known.
        fixed = ~every.allowed.moves.any(-1) & every.margins.holds & (found.margins > 0).all(-1)
        known = found.ended | (found.eps > 0)  # what is proven stands, though the search was stopped
        sizes = torch.where(known, torch.where(fixed, math.inf, found.eps), math.nan)
        radius[:, group] = sizes.unflatten(0, (-1, batch)).T
        for place, frame in enumerate(group.tolist()):
            named[frame] = result.status[place * batch : (place + 1) * batch]
        if result.refuted is not None and result.points is not None:
            sought = True
            broken[:, group] = result.refuted.unflatten(0, (-1, batch)).T
            shown[:, group] = result.points[alone].unflatten(0, (-1, batch)).transpose(0, 1)
    status = list(zip(*named, strict=True))
    return FrameRadii(radius, status, broken if sought else None, shown if sought else None)


def _guess(radius: Tensor, linear: Tensor, frames: Tensor, tolerance: float) -> Guess:
    """Where the radii of some frames may be, from those `[batch, frames]` that are known (neither NaN, 0 nor inf) before and
    after them: on the line between the two logarithms, or between those of their shares of what is `linear`, whichever
    differ less.
    """
    known = radius.isfinite() & (radius > 0) & linear.isfinite() & (linear > 0)
    logs = torch.stack([radius.log(), (radius / linear).log()])  # of either kind, `[2, batch, frames]`
    places = torch.arange(radius.shape[1], device=radius.device)
    before = torch.where(known, places, -1).cummax(-1).values[:, frames]
    after = torch.where(known, places, len(places)).flip(-1).cummin(-1).values.flip(-1)[:, frames]
    left, right = torch.where(before >= 0, before, after), torch.where(after < len(places), after, before)
    outside = (left >= len(places)) | (right < 0)
    at_left, at_right = (logs.gather(2, at.clamp(0, len(places) - 1).expand(2, -1, -1)) for at in (left, right))
    share = ((frames - left) / (right - left).clamp(min=1)).clamp(0, 1).to(radius)
    here = torch.stack([torch.zeros_like(linear), linear.log()])[..., frames]
    sizes = (at_left + share * (at_right - at_left) + here).exp()
    doubt, which = (at_right - at_left).abs().min(dim=0, keepdim=True)
    size = sizes.gather(0, which)[0].masked_fill(outside, math.nan)
    alone = (left == right) | outside
    least = 1.5 * tolerance * torch.minimum(frames - left, right - frames)  # those far off may agree by chance
    factor = torch.maximum(doubt[0] / 4, least).clamp(max=math.log(CAUTION)).masked_fill(alone, math.log(CAUTION)).exp()
    return Guess(size.T.flatten(), factor.T.flatten())


def statuses(result: SearchResult, task: Task, refuted: Tensor | None, tolerance: float) -> list[Status]:
    """What each radius means."""
    whole = task.allowed.greatest.tolist()
    positive = (result.margins > 0).all(-1)
    least = torch.full_like(result.eps, math.inf) if refuted is None else refuted
    exact = least.isfinite() & (result.eps >= (1 - NEARLY * tolerance) * least)
    columns = (task.margins.holds, result.ended, positive, exact, result.open, result.eps, result.failed)

    def of(
        right: bool,
        ended: bool,
        positive: bool,
        exact: bool,
        unclosed: bool,
        radius: float,
        failed: float,
        greatest: float,
        refusal: Status,
    ) -> Status:
        if not right:
            return refusal
        if not ended:
            return Status.STOPPED
        if not positive:
            return Status.NOT_CERTIFIED
        if radius >= greatest:
            return Status.UNBOUNDED
        if radius == 0:
            return Status.NOT_CERTIFIED
        if exact:
            return Status.EXACT
        if unclosed:
            return Status.OUT_OF_EVALUATIONS
        return Status.UNBOUNDED if math.isinf(failed) else Status.CERTIFIED

    return list(map(of, *(column.tolist() for column in columns), whole, task.margins.refusals()))
