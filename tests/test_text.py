"""Text: sentences in, words out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import popqorn

WORDS = "<unk> <pad> what is the capital city town of france spain a big large small place".split()  # noqa: SIM905
SENTENCES = ["what is the capital of france", "a big city", "is spain a place", "the zebra of spain"]
NEIGHBOURS = {"big": ["large", "small", "enormous"], "capital": ["city", "town"], "france": ["spain"], "zebra": ["place"]}


class Classifier(nn.Module):
    """Token ids in, as people write it: embedding, packed LSTM, the last states of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 6, padding_idx=1)
        self.rnn = nn.LSTM(6, 5, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.rnn(packed)
        return self.head(torch.cat([hidden[-2], hidden[-1]], dim=-1))


def classifier() -> Classifier:
    torch.manual_seed(0)
    model = Classifier().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def text() -> popqorn.TextClassifier:
    return popqorn.TextClassifier(str.split, WORDS, classifier())


def test_outputs_are_those_of_the_module() -> None:
    model = text()
    batch = model.module
    tokens = model.tokens(SENTENCES)
    assert [row.tolist() for row in tokens][3] == [4, 0, 8, 10], "what the vocabulary lacks is <unk>"
    padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=1)
    lengths = torch.tensor([len(row) for row in tokens])
    torch.testing.assert_close(model(SENTENCES), batch(padded, lengths))
    assert model.text(padded[:, :2])[1] == ["a", "big"]


def test_sentences_are_certified_as_their_vectors_are() -> None:
    """The same network over vectors, without an embedding, has the same radii."""
    model = text()
    module = model.module
    wrapped = popqorn.SequenceClassifier(module.rnn, module.head, "final")
    table = module.embedding.weight.detach()
    vectors = [table[row] for row in model.tokens(SENTENCES)]
    asked = {"norm": 2, "tolerance": 0.1}
    found, expected = popqorn.certify(model, SENTENCES, **asked), popqorn.certify(wrapped, vectors, **asked)
    torch.testing.assert_close(found.radius, expected.radius, rtol=1e-9, atol=0)
    assert (found.radius > 0).all()
    assert (found.difference < 1e-12).all()
    over_vectors = popqorn.TextClassifier(str.split, {word: number for number, word in enumerate(WORDS)}, wrapped, vectors=table)
    torch.testing.assert_close(popqorn.certify(over_vectors, SENTENCES, **asked).radius, expected.radius)
    torch.testing.assert_close(over_vectors(SENTENCES), model(SENTENCES))
    attacked = popqorn.attack(model, SENTENCES, norm=2, method="pgd", restarts=1)
    assert (attacked.radius > found.radius).all()


def test_sensitivity_has_the_words_beside_the_numbers() -> None:
    found = popqorn.sensitivity(text(), SENTENCES)
    assert found.words == tuple(tuple(sentence.split()) for sentence in SENTENCES)
    assert found.radius.shape == (4, 6)
    for row, words in zip(found.radius, found.words, strict=True):
        assert row[: len(words)].isfinite().all()
        assert row[len(words) :].isnan().all()
    plain = popqorn.sensitivity(popqorn.SequenceClassifier(nn.RNN(2, 3), nn.Linear(3, 2)), torch.randn(1, 2, 2))
    assert plain.words is None


def test_words_are_exchanged_and_every_text_is_tried() -> None:
    """What is proven of all exchanges holds for each of them, as the module itself decides."""
    model = text()
    region = model.exchanges(SENTENCES, NEIGHBOURS)
    decided = model(SENTENCES).argmax(-1)
    proof = popqorn.verify(model, SENTENCES, region=region)
    attacked = popqorn.attack(model, SENTENCES, region=region)
    for number, sentence in enumerate(SENTENCES):
        texts = [[]]
        for word in sentence.split():
            own = word if word in WORDS else "<unk>"
            others = NEIGHBOURS.get(word, [])
            texts = [[*start, choice] for start in texts for choice in (own, *others)]
        kept = bool((model([" ".join(words) for words in texts]).argmax(-1) == decided[number]).all())
        if proof.certified[number]:
            assert kept
        assert bool(attacked.success[number]) == (not kept), "few enough for the attack to try all"
        if attacked.success[number]:
            words = model.text(region.tokens_of(attacked.adversarial))[number]
            assert int(model([" ".join(words)]).argmax()) != int(decided[number])


def test_words_that_the_vocabulary_lacks_are_exchanged_as_the_model_reads_them() -> None:
    """What is unknown is an input like any other, and several unknown words are one."""
    model = text()
    number = {word: place for place, word in enumerate(WORDS)}
    assert model.exchanges(["a big city"], {"big": ["superb", "small"]}).neighbours == {number["big"]: [0, number["small"]]}
    region = model.exchanges(["superb zebra"], {"superb": ["big"], "zebra": ["small"], "emu": ["city"]})
    assert region.neighbours == {0: [number["big"], number["small"]]}
    lower = popqorn.TextClassifier(lambda sentence: sentence.lower().split(), WORDS, classifier())
    assert lower.exchanges(["A Big city"], {"Big": ["Large"]}).neighbours == {number["big"]: [number["large"]]}


def test_an_exchange_for_an_unknown_word_is_not_proven_away() -> None:
    module = nn.Sequential(nn.Embedding.from_pretrained(torch.tensor([[1.0, 0.0], [0.0, 1.0]])), nn.Flatten())
    model = popqorn.TextClassifier(str.split, ["<unk>", "big"], module)
    assert model(["big"]).argmax() != model(["superb"]).argmax()
    assert not popqorn.verify(model, ["big"], region=model.exchanges(["big"], {"big": ["superb"]})).certified


BAD = {
    "one string": (lambda: popqorn.certify(text(), "what is"), "pass a list of sentences"),
    "no strings": (lambda: popqorn.certify(text(), torch.zeros(1, 2)), "pass a list of sentences"),
    "no sentences": (lambda: popqorn.certify(text(), []), "empty list"),
    "no words": (lambda: popqorn.certify(text(), ["what is", " "]), r"inputs\[1\] is ' ', which has no words"),
    "lengths": (
        lambda: popqorn.certify(text(), SENTENCES, lengths=[1, 2, 3, 4]),
        "lengths are given, but sentences have",
    ),
    "unknown word": (
        lambda: popqorn.certify(popqorn.TextClassifier(str.split, WORDS[2:], classifier()), ["a zebra"]),
        "the vocabulary lacks 'zebra'; pass unknown=",
    ),
    "unknown": (lambda: popqorn.TextClassifier(str.split, WORDS, classifier(), unknown="?"), "unknown is '\\?'"),
    "vocabulary": (lambda: popqorn.TextClassifier(str.split, {}, classifier()), "vocabulary is empty"),
    "neighbour unknown": (
        lambda: popqorn.TextClassifier(str.split, WORDS[2:], classifier()).exchanges(["a big city"], {"big": ["superb"]}),
        "the vocabulary lacks 'superb'; pass unknown=",
    ),
    "neighbour of two words": (lambda: text().exchanges(["big"], {"big": ["very big"]}), "'very big', which is 2 words"),
    "word twice": (lambda: popqorn.TextClassifier(str.split, ["a", "b", "a"], classifier()), "'a' twice, as 0 and 2"),
    "number twice": (lambda: popqorn.TextClassifier(str.split, {"a": 1, "b": 1}, classifier()), "'a' and 'b' both at 1"),
    "number below": (lambda: popqorn.TextClassifier(str.split, {"a": -1}, classifier()), r"vocabulary\['a'\] is -1"),
    "unknown below": (lambda: popqorn.TextClassifier(str.split, WORDS, classifier(), unknown=-1), "unknown is -1"),
    "no embedding": (
        lambda: popqorn.TextClassifier(str.split, WORDS, nn.Linear(3, 2)),
        "Linear without an nn.Embedding, .* pass vectors=",
    ),
    "token out of range": (
        lambda: popqorn.certify(popqorn.TextClassifier(str.split, [*WORDS, "more"], classifier()), ["a more"]),
        "token|index out of range",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


OF_ANOTHER_KIND: dict[str, tuple[Callable[[], Any], str]] = {
    "tokenizer": (lambda: popqorn.TextClassifier(3, WORDS, classifier()), "tokenizer is 3; pass a function"),  # type: ignore[arg-type]
    "numbers of a tokenizer": (
        lambda: popqorn.TextClassifier(lambda _: [1, 2], WORDS, classifier())(["a b"]),  # type: ignore[list-item]
        r"tokenizer makes 1 of 'a b', which is no word; .* \(tokenize, not encode\)",
    ),
    "text of a tokenizer": (lambda: popqorn.TextClassifier(str.lower, WORDS, classifier())(["a b"]), "makes 'a b' of 'a b'"),
    "vocabulary as a set": (lambda: popqorn.TextClassifier(str.split, {"a", "b"}, classifier()), "a set; pass a mapping"),  # type: ignore[arg-type]
    "vocabulary as text": (lambda: popqorn.TextClassifier(str.split, "abc", classifier()), "vocabulary is 'abc', a str"),
    "vocabulary of numbers": (lambda: popqorn.TextClassifier(str.split, {1: 2}, classifier()), "holds 1, which is no word"),  # type: ignore[dict-item]
    "module": (lambda: popqorn.TextClassifier(str.split, WORDS, 3), "module is a int; pass an nn.Module"),  # type: ignore[arg-type]
    "neighbours": (lambda: text().exchanges(["big"], [1]), r"neighbours are \[1\]; pass a mapping"),  # type: ignore[arg-type]
    "neighbours as text": (lambda: text().exchanges(["big"], {"big": "ab"}), r"neighbours\['big'\] is 'ab'; pass .* \['ab'\]"),
    "neighbours as numbers": (lambda: text().exchanges(["big"], {"big": [1]}), "neighbours hold 1; pass words"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("name", OF_ANOTHER_KIND)
def test_what_is_of_another_kind_is_named(name: str) -> None:
    call, message = OF_ANOTHER_KIND[name]
    with pytest.raises(TypeError, match=message):
        call()


def test_real_questions_are_read(tmp_path: Path) -> None:
    """A vocabulary as a mapping with numbers of its own, and a tokenizer that is no split."""
    numbers = {word: 3 * number for number, word in enumerate(WORDS)}
    module = nn.Sequential(nn.Embedding(60, 4), nn.Flatten(), nn.Linear(12, 2)).double()
    model = popqorn.TextClassifier(lambda sentence: sentence.lower().strip("?").split(), numbers, module, unknown="a")
    found = popqorn.sensitivity(model, ["What is France?", "What is love?"])
    assert found.words == (("what", "is", "france"), ("what", "is", "love"))
    assert model.tokens(["What is love?"])[0].tolist() == [6, 9, 33]
