"""Exchanging frames for others out of finitely many: a beam of texts, each a word further from the input than the one before."""

import math

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.attacks.found import LOWEST, Found, lowest_margin, slope
from popqorn.regions.region import Choices
from popqorn.task import Task

BEAM = 8
TRIES = 128  # exchanges of every text in the beam that are put through the network; the most promising by first order
ENTRIES_AT_ONCE = 2**24  # of the vectors of all options of all samples


def greedy(task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator) -> None:
    """One text at a time: the exchange that lowers the margin most is kept."""
    _search(task, found, 1)


def beam(task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator) -> None:
    """The best few texts of every number of exchanges are kept."""
    _search(task, found, BEAM)


def _search(task: Task, found: Found, width: int) -> None:
    choices = task.allowed.choices
    assert choices is not None
    per_sample = choices.options[0].numel() * choices.table.shape[1]
    everyone = torch.arange(len(task), device=choices.options.device)
    for index in everyone.split(max(1, ENTRIES_AT_ONCE // per_sample)):
        part = task.select(index)
        points, success = _search_block(part, width)
        found.offer(task, index, points, success)


def _search_block(task: Task, width: int) -> tuple[Tensor, Tensor]:
    """For every sample, the first text found that succeeds, and whether there is one."""
    allowed, choices = task.allowed, task.allowed.choices
    assert choices is not None
    reached, success = allowed.center.clone(), torch.zeros_like(allowed.eps, dtype=torch.bool)
    active = (allowed.greatest > 0).nonzero().squeeze(1)
    chosen = torch.zeros_like(choices.options[active, :, 0]).unsqueeze(1)  # [samples, beam, frames]: places among the options
    for exchanged in range(1, 1 + int(allowed.greatest.max())):
        active, chosen = _still(active, chosen, ~success[active] & (allowed.greatest[active] >= exchanged))
        if not len(active):
            break
        chosen, margin = _one_more(task.select(active), chosen, width)
        hit = margin[:, 0] < 0
        points = _vectors(choices, active[hit], chosen[hit, 0])
        reached[active[hit]], success[active[hit]] = points, True
    return reached, success


def _still(active: Tensor, chosen: Tensor, goes_on: Tensor) -> tuple[Tensor, Tensor]:
    return active[goes_on], chosen[goes_on]


def _vectors(choices: Choices, samples: Tensor, chosen: Tensor) -> Tensor:
    """The inputs that texts are, `[samples, ..., frames, features]`, from places among the options."""
    options = choices.options[samples]
    extra = chosen.dim() - options.dim() + 1
    options = options.reshape(len(options), *[1] * extra, *options.shape[1:]).expand(*chosen.shape, -1)
    return choices.table[options.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)]


def _one_more(task: Task, chosen: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` texts of lowest margin with one more exchange than those of the beam, lowest first; and their margins."""
    choices = task.allowed.choices
    assert choices is not None
    batch, texts, frames = chosen.shape
    everyone = torch.arange(batch, device=chosen.device)
    each = task.select(everyone.repeat_interleave(texts))
    points = _vectors(choices, everyone, chosen)
    _, gradient = slope(each, points.flatten(0, 1), torch.full_like(each.margins.place[:, 0], LOWEST))
    vectors = choices.table[choices.options]
    at = torch.einsum("btkf,bkof->btko", gradient.unflatten(0, (batch, texts)), vectors)
    gain = at - at.gather(-1, chosen.unsqueeze(-1))  # the first-order change of the margin
    free = choices.allowed.unsqueeze(1) & (chosen == 0).unsqueeze(-1)
    gain = gain.masked_fill(~free, math.inf)
    gain[..., 0] = math.inf
    promise, place = gain.flatten(2).topk(min(TRIES, gain[0, 0].numel()), dim=-1, largest=False)
    tries = place.shape[-1]
    trial = chosen.unsqueeze(2).repeat(1, 1, tries, 1)
    frame, option = place // vectors.shape[2], place % vectors.shape[2]
    trial.scatter_(3, frame.unsqueeze(-1), option.unsqueeze(-1))
    tried = task.select(everyone.repeat_interleave(texts * tries))
    margin = lowest_margin(tried, _vectors(choices, everyone, trial).flatten(0, 2)).unflatten(0, (batch, texts * tries))
    margin = margin.masked_fill(promise.isinf().flatten(1), math.inf)
    margin, order = margin.topk(min(width, texts * tries), dim=1, largest=False)
    kept = trial.flatten(1, 2).gather(1, order.unsqueeze(-1).expand(-1, -1, frames))
    return kept, margin
