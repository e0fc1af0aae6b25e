"""`TextClassifier`: sentences in, words out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from popqorn._typing import Int
from popqorn.readers.calls import called, vectors_of
from popqorn.readers.models import read_model
from popqorn.readers.network import Network, Reading
from popqorn.readers.untouched import untouched
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
        numbers = _read_vocabulary(self.vocabulary)
        object.__setattr__(self, "_numbers", numbers)
        if not callable(self.tokenizer):
            raise TypeError(f"tokenizer is {self.tokenizer!r}; pass a function from a sentence to its words, such as str.split")
        if isinstance(self.unknown, str) and self.unknown not in numbers:
            raise ValueError(f"unknown is {self.unknown!r}, which the vocabulary lacks; pass one of its words, or a number")
        if self.unknown is not None and not isinstance(self.unknown, str):
            _read_number("unknown", self.unknown)
        if not isinstance(self.module, nn.Module):
            raise TypeError(f"module is a {type(self.module).__name__}; pass an nn.Module")
        if self.vectors is None and not any(isinstance(part, nn.Embedding) for part in self.module.modules()):
            raise ValueError(
                f"module is a {type(self.module).__name__} without an nn.Embedding, so that words have no vectors; pass "
                "vectors=, the table [words, features]"
            )

    # ---- words -----------------------------------------------------------------------------------------------------------

    def words(self, inputs: Any) -> tuple[tuple[str, ...], ...]:
        """The words of every sentence."""
        if isinstance(inputs, str) or not isinstance(inputs, Sequence) or not all(isinstance(each, str) for each in inputs):
            raise ValueError(f"inputs are {str(inputs)[:40]!r}; pass a list of sentences")
        if not inputs:
            raise ValueError("inputs are an empty list; pass at least one sentence")
        found = tuple(self._split(sentence) for sentence in inputs)
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
        """The region in which words may be exchanged for their `neighbours`, at most `most` at once.

        Words are numbered as those of sentences are: what the vocabulary lacks is its unknown word.
        """
        if not isinstance(neighbours, Mapping):
            raise TypeError(f"neighbours are {neighbours!r}; pass a mapping from words to lists of words")
        there = {word for words in self.words(sentences) for word in words}
        numbered: dict[int, list[int]] = {}
        for given, others in neighbours.items():
            if isinstance(others, str) or not isinstance(others, Iterable):
                raise TypeError(f"neighbours[{given!r}] is {others!r}; pass a list of words, [{others!r}]")
            word = self._one_word(given)
            if word in there:  # several words may have the number of what is unknown
                numbered.setdefault(self._number(word), []).extend(self._number(self._one_word(each)) for each in others)
        return Words(self._table(), [row.tolist() for row in self.tokens(sentences)], numbered, most)

    def _split(self, sentence: str) -> tuple[str, ...]:
        found = self.tokenizer(sentence)
        if isinstance(found, str) or not isinstance(found, Iterable):
            raise TypeError(f"tokenizer makes {found!r} of {sentence!r}; pass a function that gives a list of words")
        words = tuple(found)
        odd = [word for word in words if not isinstance(word, str)]
        if odd:
            raise TypeError(
                f"tokenizer makes {odd[0]!r} of {sentence!r}, which is no word; pass the function that gives words, before they "
                "are numbered (tokenize, not encode)"
            )
        return words

    def _one_word(self, given: Any) -> str:
        """A word of `neighbours` as the tokenizer writes it."""
        if not isinstance(given, str):
            raise TypeError(f"neighbours hold {given!r}; pass words, not their numbers")
        words = self._split(given)
        if given in words:
            return given
        if len(words) != 1:
            raise ValueError(f"neighbours hold {given!r}, which is {len(words)} words to the tokenizer; pass single words")
        return words[0]

    @property
    def numbering(self) -> str:
        """Which word has which number, and what stands for the others."""
        return f"{sorted(self._numbers.items())} {self.unknown}"

    def _number(self, word: str) -> int:
        if word in self._numbers:
            return self._numbers[word]
        if isinstance(self.unknown, int | np.integer):
            return int(self.unknown)
        names = (self.unknown, *UNKNOWN) if isinstance(self.unknown, str) else UNKNOWN
        for name in names:
            if name in self._numbers:
                return self._numbers[name]
        raise ValueError(f"the vocabulary lacks {word!r}; pass unknown=, the number that stands for such words")

    def _table(self) -> Tensor:
        """The vectors of all words."""
        if self.vectors is not None:
            table = read_tensor(self.vectors, "vectors")
            if table.dim() != 2:
                raise ValueError(f"vectors have shape {tuple(table.shape)}; pass a table [words, features]")
            return table.detach()
        first = torch.tensor([[next(iter(self._numbers.values()))]], device=self._device)
        return vectors_of(self.module, first)

    @property
    def _device(self) -> torch.device:
        return next((tensor.device for tensor in self.module.parameters()), torch.device("cpu"))

    # ---- the network -----------------------------------------------------------------------------------------------------

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """The module's outputs, `[batch, ...]`."""
        found = []
        for row in self.tokens(sentences):
            values = row if self.vectors is None else self._table()[row]
            with torch.no_grad(), untouched(self.module):
                found.append(called(self.module, values.unsqueeze(0), len(row)).clone())
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


def _read_vocabulary(given: Any) -> dict[str, int]:
    """The number of every word; each word has one, and each number stands for one word."""
    if isinstance(given, str | Set) or not isinstance(given, Iterable):
        raise TypeError(
            f"vocabulary is {str(given)[:40]!r}, a {type(given).__name__}; pass a mapping from words to numbers, or a list of "
            "the words in order"
        )
    items = list(given.items()) if isinstance(given, Mapping) else [(word, number) for number, word in enumerate(given)]
    numbers: dict[str, int] = {}
    words: dict[int, str] = {}
    for word, number in items:
        if not isinstance(word, str):
            raise TypeError(f"vocabulary holds {word!r}, which is no word; pass a mapping from words to numbers")
        _read_number(f"vocabulary[{word!r}]", number)
        if word in numbers:
            raise ValueError(f"vocabulary holds {word!r} twice, as {numbers[word]} and {number}; leave one out")
        if int(number) in words:
            raise ValueError(f"vocabulary has {words[int(number)]!r} and {word!r} both at {number}; pass a number for each")
        numbers[word], words[int(number)] = int(number), word
    if not numbers:
        raise ValueError("vocabulary is empty; pass a mapping from words to numbers, or the words in order")
    return numbers


def _read_number(name: str, given: Any) -> None:
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 0:
        raise ValueError(f"{name} is {given!r}; pass a whole number that is not negative, the word's row in the table")
