"""`TextClassifier`: sentences in, words out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from popqorn._typing import Int
from popqorn.readers.calls import called, embedding_of, in_eval_mode
from popqorn.readers.models import read_model
from popqorn.readers.network import Network, Reading
from popqorn.reading import read_tensor
from popqorn.regions.words import Words
from popqorn.sequences import Sequences

UNKNOWN = ("<unk>", "[UNK]", "<UNK>", "UNK", "unk")


@dataclass(frozen=True, eq=False)
class TextClassifier(Network):
    """A model that is given sentences: `certify`, `sensitivity` and the others take a list of them.

    - `tokenizer`: from a sentence to its words, such as `str.split`;
    - `vocabulary`: from a word to its number, or all words in order;
    - `module`: takes token ids `[batch, words]` (and looks them up in its own `nn.Embedding`); or, with `vectors`, the words'
      vectors `[batch, words, features]`;
    - `vectors`: the table of the words' vectors, for a module without an embedding of its own;
    - `unknown`: the number (or word) that stands for every word the vocabulary lacks; by default its `<unk>`, if it has one.

    Sentences are never padded: those of one length are read together. Regions in the space of the vectors (`Ball`) work as they
    are; `exchanges` makes one over words.

    >>> model = popqorn.TextClassifier(str.split, vocabulary, network)
    >>> radii = popqorn.sensitivity(model, ["what is the capital of france"])
    >>> radii.words, radii.radius
    """

    tokenizer: Callable[[str], Sequence[str]]
    vocabulary: Mapping[str, int] | Sequence[str]
    module: nn.Module
    vectors: Any = None
    unknown: int | str | None = None
    _numbers: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.vocabulary
        items = given.items() if isinstance(given, Mapping) else ((word, number) for number, word in enumerate(given))
        numbers = {str(word): int(number) for word, number in items}
        if not numbers:
            raise ValueError("vocabulary is empty; pass a mapping from words to numbers, or the words in order")
        object.__setattr__(self, "_numbers", numbers)
        if not callable(self.tokenizer):
            raise TypeError(f"tokenizer is {self.tokenizer!r}; pass a function from a sentence to its words, such as str.split")
        if isinstance(self.unknown, str) and self.unknown not in numbers:
            raise ValueError(f"unknown is {self.unknown!r}, which the vocabulary lacks; pass one of its words, or a number")

    # ---- words -----------------------------------------------------------------------------------------------------------

    def words(self, inputs: Any) -> tuple[tuple[str, ...], ...]:
        """The words of every sentence."""
        if isinstance(inputs, str) or not isinstance(inputs, Sequence) or not all(isinstance(each, str) for each in inputs):
            raise ValueError(f"inputs are {str(inputs)[:40]!r}; pass a list of sentences")
        if not inputs:
            raise ValueError("inputs are an empty list; pass at least one sentence")
        found = tuple(tuple(map(str, self.tokenizer(sentence))) for sentence in inputs)
        for number, each in enumerate(found):
            if not each:
                raise ValueError(f"inputs[{number}] is {inputs[number]!r}, which has no words; leave it out")
        return found

    def tokens(self, sentences: Sequence[str]) -> list[Int[Tensor, " words"]]:
        """The numbers of every sentence's words."""
        place = self._device
        return [torch.tensor([self._number(word) for word in words], device=place) for words in self.words(sentences)]

    def text(self, tokens: Any) -> list[list[str]]:
        """The words of given numbers, `[batch, words]`; negative ones are left out."""
        names = {number: word for word, number in self._numbers.items()}
        return [[names.get(number, "?") for number in row if number >= 0] for row in read_tensor(tokens, "tokens").tolist()]

    def exchanges(self, sentences: Sequence[str], neighbours: Mapping[str, Iterable[str]], most: int | None = None) -> Words:
        """The region in which words may be exchanged for their `neighbours`, at most `most` at once; unknown ones stay."""
        numbered = {
            self._numbers[word]: [self._numbers[other] for other in others if other in self._numbers]
            for word, others in neighbours.items()
            if word in self._numbers
        }
        return Words(self._table(), [row.tolist() for row in self.tokens(sentences)], numbered, most)

    def _number(self, word: str) -> int:
        if word in self._numbers:
            return self._numbers[word]
        if isinstance(self.unknown, int):
            return self.unknown
        names = (self.unknown, *UNKNOWN) if isinstance(self.unknown, str) else UNKNOWN
        for name in names:
            if name in self._numbers:
                return self._numbers[name]
        raise ValueError(f"inputs: the vocabulary lacks {word!r}; pass unknown=, the number that stands for such words")

    def _table(self) -> Tensor:
        """The vectors of all words."""
        if self.vectors is not None:
            table = read_tensor(self.vectors, "vectors")
            if table.dim() != 2:
                raise ValueError(f"vectors have shape {tuple(table.shape)}; pass a table [words, features]")
            return table.detach()
        first = torch.tensor([[next(iter(self._numbers.values()))]], device=self._device)
        return embedding_of(self.module, first).weight.detach()

    @property
    def _device(self) -> torch.device:
        return next((tensor.device for tensor in self.module.parameters()), torch.device("cpu"))

    # ---- the network -----------------------------------------------------------------------------------------------------

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """The module's outputs, `[batch, ...]`."""
        found = []
        with torch.no_grad(), in_eval_mode(self.module):
            for row in self.tokens(sentences):
                values = row if self.vectors is None else self._table()[row]
                found.append(called(self.module, values.unsqueeze(0), len(row)))
        return torch.cat(found)

    def sequences(self, inputs: Any, lengths: Any, dtype: torch.dtype) -> list[Sequences]:
        if lengths is not None:
            raise ValueError("lengths are given, but sentences have their own; leave them out")
        rows = self.tokens(inputs)
        if self.vectors is None:
            return self._inner.sequences(rows, None, dtype)
        table = self._table().to(dtype)
        for row in rows:
            if int(row.max()) >= len(table):
                raise ValueError(
                    f"vocabulary: it goes up to {int(row.max())}, but vectors have {len(table)} rows; make them agree"
                )
        return self._inner.sequences([table[row] for row in rows], None, dtype)

    def reading(self, group: Sequences, *, decides: bool) -> Reading:
        return self._inner.reading(group, decides=decides)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._inner.tensors()

    @property
    def _inner(self) -> Network:
        return read_model(self.module)
