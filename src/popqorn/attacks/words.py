"""Word substitution: an attack on text models that may only exchange words for other words of an embedding table."""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from popqorn import checks
from popqorn._typing import Bool, Float, Int
from popqorn.attacks.objective import LEAST, Objective
from popqorn.attacks.run import decide
from popqorn.bounds.concretise import length
from popqorn.problem import Problem

MOST_ENTRIES = 2**24  # of a table of gains (samples x frames x words) at once


@dataclass(frozen=True)
class SubstitutionResult:
    """What exchanging words reached.

    - `success`: whether the decision changed (checked by the model itself); `tokens`: the words as exchanged.
    - `changed`: how many words were; `distance`: how far the furthest of them moved in the norm, comparable with a certified
      radius of the sentence: within that radius no exchange succeeds.
    """

    tokens: Int[Tensor, "batch frames"]
    success: Bool[Tensor, " batch"]
    changed: Int[Tensor, " batch"]
    distance: Float[Tensor, " batch"]
    labels: Int[Tensor, " batch"]
    seconds: float


@torch.inference_mode(False)
def substitute(
    model: nn.Module,
    table: Any,
    tokens: Any,
    *,
    labels: Any = None,
    targets: Any = None,
    norm: float = 2,
    frames: Any = None,
    most_words: int | None = None,
    most_distance: float = math.inf,
    tries: int = 32,
    dtype: torch.dtype = torch.float64,
) -> SubstitutionResult:
    """Exchange as few words as possible until the decision changes (HotFlip: first-order gains, then real tries).

    - `table`: the embeddings `[words, features]`; `tokens`: `[batch, frames]`, rows of the table.
    - `frames`: which words may be exchanged; `most_words`: how many (by default all); `most_distance`: how far each may move.
      All rows of the table are candidates: leave padding and unknown words out of it, or out of `frames`.
    - `tries`: in every round, how many exchanges with the best first-order gain are tried on the model; the best is kept.

    >>> substitute(model, glove, questions, most_words=2, most_distance=3.0).success
    """
    started = time.perf_counter()
    table, tokens = checks.check_table(table, dtype), checks.check_tokens(tokens, table)
    tries = checks.check_count("tries", tries)
    most_words = tokens.shape[1] if most_words is None else checks.check_count("most_words", most_words)
    most_distance = checks.check_distance("most_distance", most_distance)
    problem = Problem.read(model, table[tokens], norm, frames, None, dtype=dtype)
    margins, correct = problem.margins(labels, targets)
    objective = Objective(problem, margins.rows(dtype))
    movable = (problem.share > 0).all(-1).expand(len(tokens), -1)
    current = tokens.clone()
    block = max(1, MOST_ENTRIES // (tokens.shape[1] * len(table)))
    active = correct.nonzero().squeeze(1)
    for _ in range(most_words):
        if not len(active):
            break
        left = []
        for index in active.split(block):
            current[index], least = _exchange_one(
                objective.select(index), table, tokens[index], current[index], movable[index], most_distance, tries
            )
            left.append(index[least >= 0])
        active = torch.cat(left)
    moved = length(table[current] - problem.inputs, problem.norm)
    logits = decide(problem.model, table[current])
    own = (objective.rows @ logits.to(dtype).unsqueeze(-1)).squeeze(-1).amin(-1)
    return SubstitutionResult(
        tokens=current,
        success=own < 0,
        changed=(current != tokens).sum(-1),
        distance=moved.amax(-1),
        labels=margins.labels,
        seconds=time.perf_counter() - started,
    )


def _exchange_one(
    objective: Objective,
    table: Float[Tensor, "words features"],
    original: Int[Tensor, "batch frames"],
    current: Int[Tensor, "batch frames"],
    movable: Bool[Tensor, "batch frames"],
    most_distance: float,
    tries: int,
) -> tuple[Int[Tensor, "batch frames"], Float[Tensor, " batch"]]:
    """The best of the `tries` exchanges of one unchanged word that promise most; and the margin it leaves."""
    batch, frames = current.shape
    u = table[current] - objective.center
    _, gradient = objective.slope(u, torch.full_like(current[:, 0], LEAST))
    gain = gradient @ table.T - (gradient * table[current]).sum(-1, keepdim=True)  # first-order change of the margin
    allowed = (movable & (current == original)).unsqueeze(-1).expand_as(gain).clone()
    allowed.scatter_(2, current.unsqueeze(-1), False)
    if math.isfinite(most_distance):
        allowed &= _distances(table, original, objective.norm) <= most_distance
    gain = gain.masked_fill(~allowed, math.inf)
    promise, place = gain.flatten(1).topk(min(tries, gain[0].numel()), dim=1, largest=False)
    trial = current.unsqueeze(1).repeat(1, place.shape[1], 1)
    frame, word = place // len(table), place % len(table)
    trial.scatter_(2, frame.unsqueeze(-1), word.unsqueeze(-1))
    tried = objective.select(torch.arange(batch, device=current.device).repeat_interleave(place.shape[1]))
    least = (
        tried.least(table[trial.flatten(0, 1)] - tried.center).unflatten(0, (batch, -1)).masked_fill(promise.isinf(), math.inf)
    )
    margin, best = least.min(1)
    chosen = trial.gather(1, best[:, None, None].expand(-1, 1, frames)).squeeze(1)
    return torch.where(margin.isinf().unsqueeze(-1), current, chosen), margin


def _distances(table: Float[Tensor, "words features"], tokens: Int[Tensor, "batch frames"], norm: float) -> Tensor:
    """How far every word of the table is from every given one, `[batch, frames, words]`."""
    unique, place = tokens.unique(return_inverse=True)
    return torch.cdist(table[unique], table, p=norm, compute_mode="donot_use_mm_for_euclid_dist")[place]
