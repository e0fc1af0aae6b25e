"""Words: what is certified survives every exchange there is; attacks find what trying everything finds."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn import Status, Words
from popqorn.experiments import data as datasets
from popqorn.experiments import words as corpora
from popqorn.experiments.training import Recipe, accuracy, train

SENTENCES = 20


def texts_of(tokens: list[int], neighbours: dict[int, list[int]], most: int) -> Tensor:
    """Every text with at most `most` words exchanged, the given one first."""
    found = [tokens]
    for count in range(1, most + 1):
        for places in itertools.combinations(range(len(tokens)), count):
            for others in itertools.product(*(neighbours.get(tokens[place], []) for place in places)):
                text = list(tokens)
                for place, word in zip(places, others, strict=True):
                    text[place] = word
                found.append(text)
    return torch.tensor(found)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.RNN])
def test_no_exchange_flips_a_certified_question(data: Path, cell: type[nn.LSTM] | type[nn.RNN]) -> None:
    """A classifier of real questions, synonyms from counter-fitted vectors: every combination of two swaps is tried."""
    vocabulary = corpora.Vocabulary.read(data)
    training, testing = (datasets.questions(data, split) for split in ("train", "test"))
    model = popqorn.SequenceClassifier(cell(100, 8, batch_first=True), nn.Linear(8, 6), "mean")
    split = vocabulary.split(training)
    train(model, split.inputs, split.labels, Recipe(epochs=4, batch=64, learning_rate=5e-3, weight_decay=0.01))
    held_out = vocabulary.split(testing)
    assert accuracy(model, held_out.inputs, held_out.labels) > 0.5

    number = {word: row for row, word in enumerate(vocabulary.embeddings.words)}
    listed = json.loads((data / "synonyms" / "counterfitted_neighbors.json").read_text())
    neighbours = {number[word]: [number[other] for other in others] for word, others in listed.items() if word in number}
    rows = [vocabulary.embeddings.rows(testing.words[place]).tolist() for place in corpora.usable(testing, 9)]
    tokens = [row for row in rows if sum(bool(neighbours.get(word)) for word in row) >= 2][:SENTENCES]
    assert len(tokens) == SENTENCES
    region = Words(vocabulary.vectors, tokens, neighbours)
    inputs = [vocabulary.vectors[row] for row in tokens]
    proof = popqorn.verify(model, inputs, 1.0, region=region)
    certified = popqorn.certify(model, inputs, region=region)
    attacked = popqorn.attack(model, inputs, region=region)
    assert torch.equal(proof.certified, certified.radius >= 1)
    assert proof.certified.any()
    assert (certified.radius < attacked.radius).all()
    model = model.double()
    for sample, row in enumerate(tokens):
        texts = texts_of(row, neighbours, 2)
        decisions = model(vocabulary.vectors.double()[texts]).argmax(-1)
        exchanged = (texts != texts[0]).sum(-1)
        flips = exchanged[decisions != certified.labels[sample]]
        fewest = float(flips.min()) if len(flips) else float("inf")
        assert certified.radius[sample] < fewest
        assert attacked.radius[sample] >= min(fewest, 3)
        if fewest == 1:
            assert attacked.radius[sample] == 1
    found = region.tokens_of(attacked.adversarial[0][None, : len(tokens[0])])
    assert int((found[0] != torch.tensor(tokens[0])).sum()) == (attacked.radius[0] if attacked.success[0] else 0)


def linear_texts(most: int | None = None) -> tuple[popqorn.SequenceClassifier, Words, Tensor]:
    """A relu RNN that never switches off: a linear network over random words."""
    torch.manual_seed(1)
    rnn = nn.RNN(4, 5, nonlinearity="relu").double()
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.mul_(0.3)
        rnn.bias_ih_l0.add_(20.0)
    model = popqorn.SequenceClassifier(rnn, nn.Linear(5, 3).double())
    table = torch.randn(40, 4, dtype=torch.float64)
    tokens = torch.randint(40, (12, 5))
    with torch.no_grad():
        model.head.bias.sub_(model(table[tokens]).mean(0))
    neighbours = {word: torch.randint(40, (word % 4,)).tolist() for word in range(40)}
    return model, Words(table, tokens, neighbours, most), table[tokens]


@pytest.mark.parametrize("most", [None, 2])
def test_certificate_and_attack_meet_on_a_linear_network(most: int | None) -> None:
    """A linear network is bounded exactly: one word more than certified is one too many, and the attack finds that."""
    model, region, inputs = linear_texts(most)
    certified = popqorn.certify(model, inputs, region=region)
    attacked = popqorn.attack(model, inputs, region=region)
    whole = torch.tensor([status is Status.UNBOUNDED for status in certified.status])
    assert whole.any()
    assert (~whole).any()
    assert torch.equal(attacked.radius[~whole], certified.radius[~whole] + 1)
    assert attacked.radius[whole].isinf().all()
    found = region.tokens_of(attacked.adversarial)
    assert torch.equal((found != region.tokens).sum(-1)[~whole].double(), attacked.radius[~whole])
    decisions = model(region.table[found]).argmax(-1)
    assert (decisions != certified.labels)[~whole].all()


def test_single_exchanges_are_found_where_trying_all_finds_one() -> None:
    torch.manual_seed(11)
    table, tokens = torch.randn(200, 6, dtype=torch.float64), torch.randint(200, (8, 4))
    model = popqorn.SequenceClassifier(nn.LSTM(6, 8), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    labels = model(table[tokens]).argmax(-1)
    region = Words.within(table, tokens, 2.5)
    possible = []
    for sample, row in enumerate(tokens.tolist()):
        texts = texts_of(row, region.neighbours, 1)
        possible.append(bool((model(table[texts]).argmax(-1) != labels[sample]).any()))
    for method in ("greedy", "beam", "best"):
        found = popqorn.attack(model, table[tokens], region=region, method=method)
        assert [radius == 1 for radius in found.radius.tolist()] == possible, method
    assert any(possible)
    moved = (found.adversarial - table[tokens]).norm(dim=-1)
    assert (moved <= 2.5).all()


def test_bracket_of_words_has_no_estimate() -> None:
    model, region, inputs = linear_texts()
    found = popqorn.bracket(model, inputs, region=region)
    assert found.clever is None
    assert found.estimate.isnan().all()
    assert (found.lower < found.upper).all()
    assert len(str(found).splitlines()) == len(inputs) + 2
    assert not found.stopped


def test_a_text_without_exchanges_is_certified_as_it_stands() -> None:
    model, region, inputs = linear_texts()
    none = Words(region.table, region.tokens, {})
    found = popqorn.certify(model, inputs, region=none)
    assert set(found.status) == {Status.UNBOUNDED}
    assert (found.radius == 0).all()
    assert popqorn.verify(model, inputs, region=none).certified.all()
    assert popqorn.attack(model, inputs, region=none).radius.isinf().all()
    lower, upper = popqorn.bounds(model, inputs, region=none)
    torch.testing.assert_close(lower, upper)


def test_two_words_are_found_between_one_and_three() -> None:
    """Losses of 1 each against a margin of 2.5: bisection proves 1, fails at 3, and must try 2."""
    table = torch.eye(2, dtype=torch.float64)
    model = popqorn.SequenceClassifier(nn.RNN(2, 1, nonlinearity="relu"), nn.Linear(1, 2), pooling="mean").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.rnn.weight_ih_l0[0, 0] = 1.0
        model.head.weight[0, 0], model.head.bias[1] = 4.0, 1.5
    tokens = torch.zeros(1, 4, dtype=torch.long)
    found = popqorn.certify(model, table[tokens], region=popqorn.Words(table, tokens, {0: [1]}))
    assert found.radius.tolist() == [2.0]
