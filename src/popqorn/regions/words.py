"""`Words`: a text whose words may be exchanged for given others, at most so many at once."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn._typing import Bool, Float, Int
from popqorn.arithmetic import NORM, gamma
from popqorn.reading import read_count, read_norm, read_tensor
from popqorn.regions.region import AllowedSet, Choices, still_frames
from popqorn.relax.relaxation import Interval
from popqorn.sequences import Sequences

TABLES_AT_ONCE = 2**24  # distances between words held at once


@dataclass(frozen=True, eq=False)
class Words:
    """Every word may be exchanged for one of its neighbours, at most `most` words at once (None: all of them).

    - `table`: the embeddings `[words, features]`; the inputs are `table[tokens]`.
    - `tokens`: row numbers of the table, `[batch, frames]`, or a list of sentences of any lengths.
    - `neighbours`: from a word's number to the numbers of the words that may stand in its place; a word without any stays.

    `verify` and `bounds` prove something for all such texts. `certify` finds the largest number of words: any that many may be
    exchanged at once.

    >>> region = popqorn.Words(glove, tokens, synonyms)
    >>> popqorn.certify(model, glove[tokens], region=region).radius  # words
    """

    table: Any
    tokens: Any
    neighbours: Any
    most: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "neighbours", _read_neighbours(self.neighbours))
        if self.most is not None:
            read_count("most", self.most)

    @staticmethod
    def within(table: Any, tokens: Any, distance: float, *, norm: float = 2, most: int | None = None) -> "Words":
        """The neighbours of a word are all words of the table within `distance` of it."""
        if not isinstance(distance, int | float) or isinstance(distance, bool) or not distance >= 0:
            raise ValueError(f"distance is {distance!r}; pass a number that is not negative")
        vectors = _read_table(table, torch.float64)
        used = sorted({int(word) for row in _rows(tokens) for word in row.tolist() if 0 <= word < len(vectors)})
        neighbours = {}
        order = read_norm(norm)
        for some in torch.tensor(used, dtype=torch.long, device=vectors.device).split(max(1, TABLES_AT_ONCE // len(vectors))):
            apart = torch.cdist(vectors[some], vectors, p=order, compute_mode="donot_use_mm_for_euclid_dist")
            apart = apart - gamma(vectors.shape[1] + NORM, apart.dtype) * apart  # no word that near is left out by rounding
            for word, near in zip(some.tolist(), apart <= distance, strict=True):
                neighbours[word] = [other for other in near.nonzero().squeeze(1).tolist() if other != word]
        return Words(table, tokens, neighbours, most)

    def around(self, sequences: Sequences) -> "WordSet":
        """The texts around these sequences, with no word exchanged yet; sequences that are not `table[tokens]` are refused."""
        table = _read_table(self.table, sequences.values.dtype).to(sequences.values.device)
        tokens = self._read_tokens(table, sequences)
        center = table[tokens]
        if center.shape != sequences.values.shape or not torch.allclose(center, sequences.values, rtol=1e-5, atol=1e-6):
            raise ValueError(
                "inputs are not the words of the region; pass inputs=table[tokens], with the region's table and tokens"
            )
        options, allowed = self._read_options(table, tokens)
        words = WordSet(center, torch.zeros_like(center[:, 0, 0]), frozenset(), Choices(table, options, allowed), self.most)
        return replace(words, still=still_frames(words.moves))

    def tokens_of(self, points: Float[Tensor, "batch frames features"]) -> Int[Tensor, "batch frames"]:
        """The words of texts that an attack found: `region.tokens_of(found.adversarial)`; -1 for what is no word of the table."""
        table = _read_table(self.table, points.dtype).to(points.device)
        flat = points.flatten(0, 1)
        apart = [(part.unsqueeze(1) - table).abs().amax(-1) for part in flat.split(max(1, TABLES_AT_ONCE // table.numel()))]
        distance, word = torch.cat(apart).min(-1)
        words: Tensor = torch.where(distance <= 1e-9, word, -1).unflatten(0, points.shape[:2])
        return words

    def _read_tokens(self, table: Tensor, sequences: Sequences) -> Tensor:
        rows = _rows(self.tokens)
        if len(rows) != sequences.batch:
            raise ValueError(f"tokens are {len(rows)} sentences, but the inputs are {sequences.batch}; pass one per sample")
        chosen = [rows[sample][: sequences.frames] for sample in sequences.samples.tolist()]
        for sample in sequences.samples.tolist():
            if len(rows[sample]) not in (sequences.frames, sequences.longest):
                raise ValueError(
                    f"tokens: sentence {sample} has {len(rows[sample])} words, but its inputs have {sequences.frames} frames; "
                    "pass one word per frame"
                )
        tokens = torch.stack(chosen).to(table.device)
        outside = tokens[(tokens < 0) | (tokens >= len(table))]
        if len(outside):
            raise ValueError(f"tokens hold {int(outside[0])}; the table has words 0 to {len(table) - 1}")
        return tokens

    def _read_options(self, table: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """For every word itself first, then its neighbours; padded with itself, which is not marked as allowed again."""
        for word, others in self.neighbours.items():
            for other in (word, *others):
                if not 0 <= other < len(table):
                    raise ValueError(f"neighbours of word {word} hold {other}; the table has words 0 to {len(table) - 1}")
        by_word: dict[int, list[int]] = {}
        for word in tokens.unique().tolist():
            by_word[word] = [word, *dict.fromkeys(other for other in self.neighbours.get(word, ()) if other != word)]
        most = max(map(len, by_word.values()))
        listed = {word: options + [word] * (most - len(options)) for word, options in by_word.items()}
        counts = {word: len(options) for word, options in by_word.items()}
        options = torch.tensor([[listed[word] for word in row] for row in tokens.tolist()], device=table.device)
        count = torch.tensor([[counts[word] for word in row] for row in tokens.tolist()], device=table.device)
        return options, torch.arange(most, device=table.device) < count.unsqueeze(-1)


@dataclass(frozen=True)
class WordSet(AllowedSet):
    """Texts in which at most `eps` words are exchanged."""

    words: Choices
    most: int | None

    def select(self, index: Tensor | slice) -> "WordSet":
        chosen = super().select(index)
        words = replace(self.words, options=self.words.options[index], allowed=self.words.allowed[index])
        return replace(chosen, words=words)

    def only(self, frames: Bool[Tensor, "batch frames"]) -> "WordSet":
        own = torch.zeros_like(self.words.allowed)
        own[..., 0] = True
        allowed = torch.where(frames.unsqueeze(-1), self.words.allowed, own)
        held = replace(self, words=replace(self.words, allowed=allowed))
        return replace(held, still=still_frames(held.moves))

    @property
    def choices(self) -> Choices:
        return self.words

    @property
    def moves(self) -> Bool[Tensor, "batch frames"]:
        return self.words.allowed[..., 1:].any(-1)

    @property
    def greatest(self) -> Float[Tensor, " batch"]:
        count = self.moves.sum(-1).to(self.eps)
        return count if self.most is None else count.clamp(max=self.most)

    @property
    def limit(self) -> float:
        return math.inf if self.most is None else self.most

    @property
    def whole(self) -> bool:
        return True

    def _moved(self, frame: int) -> Float[Tensor, "batch options features"]:
        """How far each option of one frame is from the word that stands there; what is not allowed does not move."""
        moved = self.words.table[self.words.options[:, frame]] - self.center[:, frame].unsqueeze(1)
        return moved * self.words.allowed[:, frame].unsqueeze(-1)

    def box(self) -> Interval:
        free = (self.eps >= 1)[:, None]
        ends = []
        for frame in range(self.center.shape[1]):
            moved = self._moved(frame)
            ends.append((moved.amin(1) * free, moved.amax(1) * free))
        down, up = (torch.stack(side, dim=1) for side in zip(*ends, strict=True))
        return Interval(self.center + down, self.center + up)

    def part(self, frame: int, rows: Float[Tensor, "#batch rows features"]) -> Float[Tensor, "batch rows"]:
        """How much the worst exchange of this word lowers each row."""
        return -(rows @ self._moved(frame).mT).amin(-1)

    def least(self, parts: Mapping[int, Tensor]) -> Float[Tensor, "batch rows"]:
        """The `eps` words whose loss is greatest are exchanged."""
        losses = torch.stack(list(parts.values()), dim=-1).sort(dim=-1, descending=True).values
        rank = torch.arange(losses.shape[-1], device=losses.device)
        return -(losses * (rank < self.eps[:, None, None])).sum(-1)

    def size_of(self, points: Float[Tensor, "batch frames features"]) -> Float[Tensor, " batch"]:
        """How many words are others than given."""
        return (points != self.center).any(-1).sum(-1).to(self.eps)


# ---- what Words may be given -------------------------------------------------------------------------------------------------


def _read_table(table: Any, dtype: torch.dtype) -> Tensor:
    tensor = read_tensor(table, "table").detach()
    if tensor.dim() != 2 or 0 in tensor.shape:
        raise ValueError(f"table has shape {tuple(tensor.shape)}; pass embeddings [words, features]")
    if not torch.isfinite(tensor).all():
        raise ValueError("table holds NaN or infinite values; replace or drop those words")
    return tensor.to(dtype)


def _read_neighbours(given: Any) -> dict[int, list[int]]:
    """From words' numbers to lists of words' numbers, whatever holds them."""
    if not isinstance(given, Mapping):
        raise ValueError(f"neighbours is a {type(given).__name__}; pass a mapping from a word's number to the numbers of others")
    read = {}
    for key, others in given.items():
        listed = others.tolist() if isinstance(others, Tensor | np.ndarray) else others
        if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
            raise ValueError(f"neighbours of word {key!r} are {others!r}; pass a list of words' numbers")
        read[_read_word(key)] = [_read_word(other) for other in listed]
    return read


def _read_word(word: Any) -> int:
    if isinstance(word, bool) or not isinstance(word, int | np.integer):
        raise ValueError(f"neighbours hold {word!r}, a {type(word).__name__}; words are named by their row numbers in table")
    return int(word)


def _rows(tokens: Any) -> list[Tensor]:
    """Every sentence as row numbers."""
    ragged = isinstance(tokens, Sequence) and len({len(row) if hasattr(row, "__len__") else -1 for row in tokens}) > 1
    sentences = [read_tensor(row, "tokens") for row in tokens] if ragged else [read_tensor(tokens, "tokens")]
    for tensor in sentences:
        if tensor.dim() != (1 if ragged else 2) or tensor.is_floating_point() or tensor.dtype == torch.bool or not tensor.numel():
            raise ValueError(
                f"tokens are of dtype {tensor.dtype} and shape {tuple(tensor.shape)}; pass row numbers of table, [batch, frames]"
            )
    return [row.long() for row in (sentences if ragged else sentences[0])]
