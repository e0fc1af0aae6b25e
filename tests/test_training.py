"""Training with the bound in mind: the loss is what it says, its gradients are right, and networks can be certified."""

import gc
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn.readers.models import read_model
from popqorn.relax.relaxation import Interval
from popqorn.sequences import Sequences
from popqorn.tape.ops.linear import Input
from popqorn.training import certified_loss
from popqorn.training import loss as losses
from popqorn.training.widths import squared_widths
from test_soundness import CLASSES, FEATURES, FRAMES, MODELS, random_inputs, random_model

F64 = torch.float64


class Plain(nn.Module):
    """A module of a user's own: traced, not known."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.front = nn.Linear(FEATURES, 5)
        self.norm = nn.LayerNorm(5)
        self.rnn = kind(5, 6, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.relu(self.front(x)) + 0.1)
        return self.head(self.dropout(self.rnn(x)[0][:, -1]))


def group_of(inputs: Tensor) -> Sequences:
    return Sequences(inputs, torch.arange(len(inputs)), len(inputs), inputs.shape[1], tuple(inputs.shape[1:]))


def around(inputs: Tensor, eps: float) -> Interval:
    return Interval(inputs - eps, inputs + eps)


def networks() -> dict[str, Any]:
    known = {name: (lambda name=name: random_model(name)) for name in MODELS}
    return {**known, "a module": lambda: Plain().double().eval(), "a GRU module": lambda: Plain(nn.GRU).double().eval()}


@pytest.mark.parametrize("name", networks())
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = networks()[name](), random_inputs()[:2]
    network = read_model(model)

    def widths() -> Tensor:
        return squared_widths(network.live(group_of(inputs)), around(inputs, 0.1)).sum()

    parameters = [each for each in model.parameters() if each.numel()]
    gradients = torch.autograd.grad(widths(), parameters, allow_unused=True)
    assert sum(gradient is not None for gradient in gradients) >= len(parameters) - 4  # a head behind the last gate is none
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        way = torch.randn_like(parameter)
        step = 1e-6
        with torch.no_grad():
            parameter += step * way
            above = widths()
            parameter -= 2 * step * way
            below = widths()
            parameter += step * way
        expected = float((above - below) / (2 * step))
        assert float((gradient * way).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-6 * float(widths().detach()))


@pytest.mark.parametrize("name", networks())
def test_a_live_tape_is_the_model_as_it_is_now(name: str) -> None:
    model, inputs = networks()[name](), random_inputs()[:2]
    network = read_model(model)
    for _ in range(2):
        torch.testing.assert_close(network.live(group_of(inputs))(inputs), model(inputs).flatten(1))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)


def test_boxes_hold_what_the_network_does() -> None:
    model, inputs = random_model("gru"), random_inputs()[:2]
    tape = read_model(model).live(group_of(inputs))
    widths = squared_widths(tape, around(inputs, 0.1))
    operands = sorted({source for node in tape.nodes if not node.linear for source in node.sources})
    points = inputs + 0.1 * (2 * torch.rand(400, *inputs.shape, dtype=F64) - 1)
    values = tape.values(points.flatten(0, 1))
    reached = [values[place].expand(len(points.flatten(0, 1)), -1).unflatten(0, points.shape[:2]) for place in operands]
    assert (sum((value.amax(0) - value.amin(0)).square().sum(-1) for value in reached) <= widths).all()
    assert (widths > 0).all()
    assert (squared_widths(tape, around(inputs, 0.05)) < widths / 3).all()  # of second order


@pytest.mark.parametrize("name", networks())
def test_widths_are_those_of_the_boxes_that_bounds_rest_on(name: str) -> None:
    model, inputs = networks()[name](), random_inputs()[:2]
    tape, box = read_model(model).live(group_of(inputs)), around(inputs, 0.1)
    boxes: list[Interval] = []
    for node in tape.nodes:
        if isinstance(node, Input):
            boxes.append(Interval(box.lower[:, node.frame], box.upper[:, node.frame]))
        elif node.sources:
            boxes.append(node.image(*(boxes[source] for source in node.sources)))
        else:
            boxes.append(Interval(node.evaluate(), node.evaluate()))
    operands = {source for node in tape.nodes if not node.linear for source in node.sources}
    expected = sum((boxes[place].upper - boxes[place].lower).square().sum(-1) for place in operands)
    torch.testing.assert_close(squared_widths(tape, box), expected)


def test_without_strength_it_is_adversarial_training() -> None:
    model, inputs = random_model("lstm"), random_inputs()
    labels = torch.randint(CLASSES, (len(inputs),))
    torch.manual_seed(1)
    found = certified_loss(model, inputs, labels, 0.3, strength=0.0)
    torch.manual_seed(1)
    group = group_of(inputs)
    allowed = popqorn.Ball().around(group).at(torch.full((len(inputs),), 0.3, dtype=F64))
    points = losses.moved(model, group, allowed, labels, losses.cross_entropy, 2)
    expected = nn.functional.cross_entropy(model(points), labels)
    torch.testing.assert_close(found, expected)
    assert float(found) > float(nn.functional.cross_entropy(model(inputs), labels))
    assert ((points - inputs).abs() <= 0.3 + 1e-12).all()
    widths = squared_widths(read_model(model).live(group), around(inputs, 0.3 * losses.SHARE)) / losses.SHARE**2
    torch.manual_seed(1)
    more = certified_loss(model, inputs, labels, 0.3, strength=2.0)
    torch.testing.assert_close(more, expected + 2 * widths.log1p().mean())


def test_words_are_exchanged_where_that_hurts_most() -> None:
    model, inputs = random_model("lstm"), random_inputs()
    table = torch.cat([inputs.flatten(0, 1), torch.randn(30, FEATURES, dtype=F64)])
    near = {number: [(number + step) % len(table) for step in (1, 2, 3)] for number in range(len(table))}
    tokens = torch.arange(len(inputs) * FRAMES).view(len(inputs), FRAMES)
    region = popqorn.Words(table, tokens, near)
    labels = model(inputs).argmax(-1)
    group = group_of(inputs)
    for count in (1.0, 2.0):
        allowed = region.around(group).at(torch.full((len(inputs),), count, dtype=F64))
        points = losses.moved(model, group, allowed, labels, losses.cross_entropy, 2)
        assert ((points != inputs).any(-1).sum(-1) <= count).all()
        assert (allowed.size_of(points) <= count).all()
        with torch.no_grad():
            assert losses.cross_entropy(model(points), labels) > losses.cross_entropy(model(inputs), labels)
        held = allowed.only(torch.eye(FRAMES, dtype=torch.bool)[[0] * len(inputs)])
        moved = losses.moved(model, group, held, labels, losses.cross_entropy, 2) != inputs
        assert not moved[:, 1:].any(), "words that must stay do"
        assert moved[:, 0].any()
    certified_loss(model, inputs, labels, 1, region=region).backward()
    worse = model(inputs).argmin(-1)  # the class it finds least: every exchange that helps the decision hurts this one
    gradient = losses._gradient(model, group, inputs, worse, losses.cross_entropy)
    allowed = region.around(group).at(torch.full((len(inputs),), float(FRAMES), dtype=F64))
    points = losses._exchanged(allowed, allowed.choices, gradient)
    assert (((points - inputs) * gradient).sum(-1) >= 0).all(), "where no word raises the loss, the one that stands there stays"


def test_without_eps_it_is_plain_training() -> None:
    model, inputs = random_model("gru"), random_inputs()
    labels = torch.randint(CLASSES, (len(inputs),))
    found = certified_loss(model, inputs, labels, 0.0, strength=1.0)
    torch.testing.assert_close(found, nn.functional.cross_entropy(model(inputs), labels))


def test_numbers_as_targets_and_losses_of_ones_own() -> None:
    model, inputs = random_model("rnn"), random_inputs()
    wanted = torch.randn(len(inputs), CLASSES, dtype=F64)
    found = certified_loss(model, inputs, wanted, 0.0)
    torch.testing.assert_close(found, nn.functional.mse_loss(model(inputs), wanted))
    own = certified_loss(model, inputs, wanted, 0.0, criterion=nn.functional.l1_loss)
    torch.testing.assert_close(own, nn.functional.l1_loss(model(inputs), wanted))


def test_one_decision_per_step_and_any_lengths() -> None:
    tagger = random_model("lstm", pooling=None)
    inputs, labels = random_inputs(), torch.randint(CLASSES, (len(random_inputs()), FRAMES))
    expected = nn.functional.cross_entropy(tagger(inputs).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(certified_loss(tagger, inputs, labels, 0.0), expected)
    model, few = random_model("lstm"), [inputs[0], inputs[1, :2]]
    found = certified_loss(model, few, [0, 1], 0.0)
    alone = [nn.functional.cross_entropy(model(one.unsqueeze(0)), torch.tensor([label])) for label, one in enumerate(few)]
    torch.testing.assert_close(found, (alone[0] + alone[1]) / 2)
    padded = nn.utils.rnn.pad_sequence(few, batch_first=True, padding_value=99.0)
    torch.testing.assert_close(certified_loss(model, padded, [0, 1], 0.0, lengths=[FRAMES, 2]), found)
    labels = torch.tensor([[0] * FRAMES, [1, 2, *[-5] * (FRAMES - 2)]])
    per_step = certified_loss(tagger, padded, labels, 0.0, lengths=[FRAMES, 2])
    each = [nn.functional.cross_entropy(tagger(one[None])[0], own[: len(one)]) for one, own in zip(few, labels, strict=True)]
    torch.testing.assert_close(per_step, (each[0] + each[1]) / 2)
    labels[0, 1] = -100  # ignored, as in torch
    known = nn.functional.cross_entropy(tagger(few[0][None])[0], labels[0])
    torch.testing.assert_close(certified_loss(tagger, few[0][None], labels[:1], 0.0), known)


def test_samples_of_any_lengths_count_alike_and_keep_their_own_eps() -> None:
    model, inputs = random_model("gru"), random_inputs()
    few = [inputs[0], inputs[1, :2], inputs[2]]
    sizes = torch.tensor([0.0, 0.2, 0.4], dtype=F64)
    torch.manual_seed(2)
    whole = certified_loss(model, few, [2, 0, 1], sizes, strength=0.3)
    torch.manual_seed(2)
    short = certified_loss(model, few[1][None], [0], 0.2, strength=0.3)
    long = certified_loss(model, torch.stack([few[0], few[2]]), [2, 1], sizes[[0, 2]], strength=0.3)
    torch.testing.assert_close(whole, (short + 2 * long) / 3)


def test_widths_of_a_large_batch_are_those_of_some_of_its_samples() -> None:
    model, inputs = random_model("lstm"), random_inputs()
    many = torch.randn(150, *inputs.shape[1:], dtype=F64)
    sizes = torch.rand(150, dtype=F64)
    labels = torch.zeros(150, dtype=torch.long)

    def loss(strength: float) -> Tensor:
        torch.manual_seed(0)
        return certified_loss(model, many, labels, sizes, strength=strength)

    some = many[::3]
    box = Interval(some - losses.SHARE * sizes[::3, None, None], some + losses.SHARE * sizes[::3, None, None])
    widths = squared_widths(read_model(model).live(group_of(some)), box) / losses.SHARE**2
    torch.testing.assert_close(loss(1.0) - loss(0.0), widths.log1p().mean())


def test_inputs_move_against_the_network_as_it_decides() -> None:
    """Dropout would send them astray."""
    model, inputs = Plain().double().train(), random_inputs()
    labels = torch.zeros(len(inputs), dtype=torch.long)
    allowed = popqorn.Ball().around(group_of(inputs)).at(torch.full((len(inputs),), 0.3, dtype=F64))
    points = []
    for chance in (0.5, 0.0):
        torch.manual_seed(0)
        model.dropout.p = chance
        points.append(losses.moved(model, group_of(inputs), allowed, labels, losses.cross_entropy, 2))
    assert torch.equal(*points)


@pytest.mark.parametrize("region", [popqorn.Ball(2), popqorn.Ball(1, clip=(-9, 9)), popqorn.Ball(frames=[-1])], ids=str)
def test_regions_are_kept_to(region: Any) -> None:
    model, inputs = random_model("lstm"), random_inputs()
    labels = torch.randint(CLASSES, (len(inputs),))
    allowed = region.around(group_of(inputs)).at(torch.full((len(inputs),), 0.3, dtype=F64))
    points = losses.moved(model, group_of(inputs), allowed, labels, losses.cross_entropy, 3)
    assert (allowed.size_of(points) <= 0.3 * (1 + 1e-9)).all()
    loss = certified_loss(model, inputs, labels, 0.3, region=region)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_modes_and_gradients_of_the_model_are_left_alone() -> None:
    model, inputs = Plain().double().train(), random_inputs()
    model.front.eval()
    before = [parameter.clone() for parameter in model.parameters()]
    certified_loss(model, inputs, torch.zeros(len(inputs), dtype=torch.long), 0.1)
    assert (model.training, model.front.training, model.dropout.training) == (True, False, True)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_frozen_layer_stays_as_it_is() -> None:
    model, inputs = random_model("lstm"), random_inputs()
    model.rnn.requires_grad_(False)
    certified_loss(model, inputs, torch.zeros(len(inputs), dtype=torch.long), 0.1).backward()
    assert model.rnn.weight_ih_l0.grad is None
    assert next(model.head.parameters()).grad is not None
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="none of its parameters wants a gradient"):
        certified_loss(model, inputs, torch.zeros(len(inputs), dtype=torch.long), 0.1)


def one_loss(model: nn.Module, inputs: Tensor, labels: Tensor, strength: float) -> Tensor:
    torch.manual_seed(0)
    return certified_loss(model, inputs, labels, 0.1, strength=strength)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precisions(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.GRU(3, 4), nn.Linear(4, 3))
    inputs, labels = torch.randn(6, 4, 3), torch.randint(3, (6,))
    full = certified_loss(model, inputs, labels, 0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = certified_loss(model, inputs, labels, 0.0)
        moved = certified_loss(model, inputs, labels, 0.1)
    torch.testing.assert_close(loss.float(), full, rtol=0.02, atol=0.02)
    moved.backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = [one_loss(model, inputs, labels, strength=strength) for strength in (1.0, 0.0)]
    widths = [one_loss(model, inputs, labels, strength=strength) for strength in (1.0, 0.0)]
    torch.testing.assert_close((found[0] - found[1]).float(), widths[0] - widths[1], rtol=1e-4, atol=1e-5)  # not autocast
    own = model.to(dtype)
    certified_loss(own, inputs, labels, 0.1).backward()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "eps per feature": ({"eps": torch.full((FEATURES,), 0.1)}, "eps has shape"),
    "negative eps": ({"eps": -0.1}, "eps holds -0.1"),
    "targets": ({"targets": [0]}, "targets are 1 for"),
    "strength": ({"strength": -1.0}, "strength is -1.0"),
    "strength, NaN": ({"strength": math.nan}, "strength is nan"),
    "targets, too great": ({"targets": [CLASSES] * len(random_inputs())}, f"targets hold {CLASSES}; the model has classes 0 to"),
    "targets, negative": ({"targets": [-1] * len(random_inputs())}, "targets hold -1"),
    "targets, one-hot": (
        {"targets": torch.eye(CLASSES).long()[[0] * len(random_inputs())]},
        "pass one per decision",
    ),
    "targets, numbers": ({"targets": torch.zeros(len(random_inputs()))}, "targets are numbers of shape"),
    "criterion": ({"criterion": "cross entropy"}, "criterion is 'cross entropy'; pass a function"),
    "criterion, no mean": ({"criterion": nn.CrossEntropyLoss(reduction="none")}, "criterion gives a tensor of shape"),
    "steps": ({"steps": 0}, "steps"),
    "region": ({"region": popqorn.Ball}, "region is"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    model, inputs = random_model("rnn"), random_inputs()
    options, message = BAD[name]
    given: dict[str, Any] = {"targets": torch.zeros(len(inputs), dtype=torch.long), "eps": 0.1} | options
    with pytest.raises(ValueError, match=message):
        certified_loss(model, inputs, **given)


def test_what_cannot_be_read_or_trained_is_refused() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(FEATURES, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0][:, -1].sort(-1).values

    with pytest.raises(TypeError, match="cannot read"):
        certified_loss(Sorted().double(), random_inputs(), torch.zeros(len(random_inputs()), dtype=torch.long), 0.1)


def test_training_that_diverged_says_so() -> None:
    model, inputs = random_model("rnn"), random_inputs()
    labels = torch.zeros(len(inputs), dtype=torch.long)
    with torch.no_grad():
        next(model.head.parameters())[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"head.* holds 1 value"):
        certified_loss(model, inputs, labels, 0.1)
    with torch.no_grad():
        next(model.head.parameters())[:] = 1e300
    with pytest.raises(FloatingPointError, match="diverged"):
        certified_loss(model, inputs, labels, 0.1, criterion=lambda outputs, _: (outputs * 1e308).square().mean())


@pytest.mark.parametrize("known", [True, False])
def test_a_hundred_steps_leave_nothing_behind(known: bool) -> None:
    inputs = random_inputs().float()
    model = popqorn.SequenceClassifier(nn.LSTM(FEATURES, 4), nn.Linear(4, CLASSES)) if known else Plain()
    labels = torch.zeros(len(inputs), dtype=torch.long)
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    counts = []
    for step in range(100 if known else 30):
        optimiser.zero_grad()
        certified_loss(model, inputs, labels, 0.1, steps=1).backward()
        optimiser.step()
        if step in (10, 29, 99):
            gc.collect()
            counts.append(sum(issubclass(type(each), Tensor) for each in gc.get_objects()))
    assert counts[-1] <= counts[0]
