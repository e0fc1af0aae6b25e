"""The tape computes what the module computes, for every variant; every walker knows every operation."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn.bounds.inner import relax
from popqorn.readers.classifier import tape_of
from popqorn.readers.models import read_model
from popqorn.relax import activations
from popqorn.relax.methods import METHODS
from popqorn.tape.ops.node import LinearNode
from popqorn.tape.ops.nonlinear import Gate
from popqorn.tape.tape import TapeWriter
from sets import around

pytestmark = pytest.mark.shapes

FRAMES, FEATURES, HIDDEN, CLASSES = 3, 5, 4, 3

CELLS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "tanh": (nn.RNN, {"nonlinearity": "tanh"}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "lstm projected": (nn.LSTM, {"proj_size": 2}),
    "gru": (nn.GRU, {}),
}
VARIANTS = [
    {"num_layers": layers, "bidirectional": both, "bias": bias, "batch_first": batch_first}
    for layers, both, bias, batch_first in itertools.product((1, 2), (False, True), (True, False), (True, False))
]


def double_model(
    cell: str, variant: dict[str, Any], pooling: str | None = "last", states: bool = False
) -> popqorn.SequenceClassifier:
    kind, options = CELLS[cell]
    dropout = {"dropout": 0.5} if variant["num_layers"] > 1 else {}
    rnn = kind(FEATURES, HIDDEN, **options, **variant, **dropout)
    directions = 2 if variant["bidirectional"] else 1
    out = options.get("proj_size", HIDDEN)
    initial = None
    if states:
        hidden = torch.randn(variant["num_layers"] * directions, out)
        cells = torch.randn(variant["num_layers"] * directions, HIDDEN)
        initial = (hidden, cells) if kind is nn.LSTM else hidden
    head = nn.Linear(out * directions, CLASSES)
    return popqorn.SequenceClassifier(rnn, head, pooling, initial).double().eval()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("states", [False, True], ids=["zero states", "given states"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(str(int(value)) for value in variant.values()))
def test_tape_equals_module(cell: str, variant: dict[str, Any], states: bool) -> None:
    inputs = torch.randn(2, FRAMES, FEATURES, dtype=torch.float64)
    for pooling in ("last", "mean", "max", "final", None):
        model = double_model(cell, variant, pooling, states)
        tape = tape_of(model, FRAMES, dtype=torch.float64, device=inputs.device)
        torch.testing.assert_close(tape(inputs).unflatten(1, tape.shape), model(inputs), rtol=0, atol=1e-10)


def test_pooling_means_what_it_says() -> None:
    inputs = torch.randn(2, FRAMES, FEATURES, dtype=torch.float64)
    model = double_model("gru", {"num_layers": 2, "bidirectional": True, "bias": True, "batch_first": True})
    outputs, final = model.rnn(inputs)
    pooled = {
        "last": outputs[:, -1],
        "mean": outputs.mean(1),
        "max": outputs.amax(1),
        None: outputs,
        "final": torch.cat([final[-2], final[-1]], dim=-1),
    }
    for pooling, expected in pooled.items():
        model.pooling = pooling
        torch.testing.assert_close(model(inputs), model.head(expected))


HEADS = [
    nn.ReLU(),
    nn.LeakyReLU(0.2),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.ELU(0.7),
    nn.ELU(2.0),
    nn.SiLU(),
    nn.GELU(),
    nn.GELU(approximate="tanh"),
    nn.Softplus(),
    nn.Softplus(2.0, 1.0),
    nn.Hardtanh(-0.5, 0.7),
    nn.Softsign(),
    nn.Dropout(0.5),
    nn.Flatten(),
    nn.Identity(),
    nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU()),
]


@pytest.mark.parametrize("module", HEADS, ids=str)
def test_tape_reads_every_head(module: nn.Module) -> None:
    head = nn.Sequential(nn.Linear(HIDDEN, 6), module, nn.Linear(6, CLASSES))
    model = popqorn.SequenceClassifier(nn.GRU(FEATURES, HIDDEN), head).double().eval()
    inputs = 4 * torch.randn(20, FRAMES, FEATURES, dtype=torch.float64)
    tape = tape_of(model, FRAMES, dtype=torch.float64, device=inputs.device)
    torch.testing.assert_close(tape(inputs), model(inputs), rtol=0, atol=1e-10)
    lower, upper = popqorn.bounds(model, inputs[:4], 0.05)
    moved = inputs[:4] + 0.05 * (2 * torch.rand(50, 4, FRAMES, FEATURES, dtype=torch.float64) - 1)
    logits = model(moved.flatten(0, 1)).unflatten(0, (50, 4))
    assert (lower <= logits).all()
    assert (logits <= upper).all()


def test_own_activation_can_be_registered() -> None:
    class Arctan(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.atan(x)

    class Bump(nn.Module):
        def __init__(self, height: float) -> None:
            super().__init__()
            self.height = height

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.height * torch.exp(-x.square())

    head = nn.Sequential(nn.Linear(HIDDEN, 6), Arctan(), Bump(1.5), nn.Linear(6, CLASSES))
    model = popqorn.SequenceClassifier(nn.RNN(FEATURES, HIDDEN), head).double()
    inputs = torch.randn(3, FRAMES, FEATURES, dtype=torch.float64)
    popqorn.register_activation(Arctan, activations.ARCTAN)
    popqorn.register_activation(
        Bump,
        lambda module: popqorn.Activation(
            "bump",
            module.forward,
            popqorn.Smooth(lambda lower, upper: torch.full_like(lower, 2 * module.height)),
        ),
    )
    lower, upper = popqorn.bounds(model, inputs, 0.1)
    moved = inputs + 0.1 * (2 * torch.rand(200, 3, FRAMES, FEATURES, dtype=torch.float64) - 1)
    logits = model(moved.flatten(0, 1)).unflatten(0, (200, 3))
    assert (lower <= logits).all()
    assert (logits <= upper).all()


@dataclass(frozen=True, eq=False)
class RunningMean(LinearNode):
    """A linear operation the engine has never heard of: the mean of each entry and its neighbour, plus a constant."""

    sources: tuple[int, ...]
    width: int

    def evaluate(self, *operands: Tensor) -> Tensor:
        (x,) = operands
        return (x[..., 1:] - 0.5 * x[..., :-1]).cumsum(-1) + 3.0


def test_a_linear_operation_needs_no_rule() -> None:
    """Its walk is its vector-Jacobian product, its box the absolute Jacobian's."""
    writer = TapeWriter(2, 5, dtype=torch.float64, device=torch.device("cpu"))
    frames = [writer.input(0), writer.input(1)]
    means = [writer._append(RunningMean((frame,), 4)) for frame in frames]
    tape = writer.finish(writer.unary(writer.sum(*means, writer.scale(means[0], -0.3)), activations.TANH))
    inputs = 0.3 * torch.randn(3, 2, 5, dtype=torch.float64) - 1
    moved = torch.randn(400, *inputs.shape, dtype=torch.float64)
    moved = inputs + 0.2 * moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
    rows = torch.randn(1, 6, 4, dtype=torch.float64)
    values = tape(moved.flatten(0, 1)).unflatten(0, (400, 3)) @ rows[0].mT
    for method in METHODS.values():
        relaxed = relax(tape, around(inputs, 0.2), method)
        assert (values >= relaxed.lower(rows)).all()
        for node, box in zip(tape.nodes, relaxed.boxes, strict=True):
            assert box.lower.shape[-1] == node.width
            assert (box.lower <= box.upper).all()
    # Without the tanh the bound is exact: the sum of dual norms.
    linear = writer.finish(writer.sum(*means, writer.scale(means[0], -0.3)))
    jacobian = torch.autograd.functional.jacobian(lambda x: (linear(x) @ rows[0].mT).sum(0), inputs)
    exact = linear(inputs) @ rows[0].mT - 0.2 * torch.linalg.vector_norm(jacobian, dim=-1).sum(-1).T
    torch.testing.assert_close(relax(linear, around(inputs, 0.2), METHODS["planes"]).lower(rows), exact)


def test_tape_drops_what_the_output_does_not_need() -> None:
    """Of the backward direction, pooling "last" reads one step only."""
    model = double_model("lstm", {"num_layers": 1, "bidirectional": True, "bias": True, "batch_first": True})
    one, many = (tape_of(model, frames, dtype=torch.float64, device=torch.device("cpu")) for frames in (1, 4))
    gates = [sum(isinstance(node, Gate) for node in tape.nodes) for tape in (one, many)]
    assert gates == [2 * 2, 4 * 3 + 1]  # three gates a step, one less in each direction's first, whose state is zero


class Traced(nn.Module):
    def __init__(self, rnn: nn.RNNBase, head: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh"])
def test_a_traced_network_has_the_gates_of_the_same_classifier(cell: str) -> None:
    """States that start at zero are left out, of every layer and direction."""
    model = double_model(cell, {"num_layers": 2, "bidirectional": True, "bias": True, "batch_first": True})
    network = read_model(Traced(model.rnn, model.head))
    (group,) = network.sequences(torch.randn(1, 3, FEATURES, dtype=torch.float64), None, torch.float64)
    traced = network.reading(group, decides=True).tape
    plain = tape_of(model, 3, dtype=torch.float64, device=torch.device("cpu"))
    counts = [sum(not node.linear for node in tape.nodes) for tape in (traced, plain)]
    assert counts[0] == counts[1]


def test_tape_is_cut_off_from_the_module() -> None:
    model = double_model("tanh", VARIANTS[0])
    inputs = torch.randn(2, FRAMES, FEATURES, dtype=torch.float64)
    tape = tape_of(model, FRAMES, dtype=torch.float64, device=inputs.device)
    before = tape(inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(tape(inputs), before)
    with pytest.raises(TypeError, match="has no value of its own"):
        tape.nodes[0].evaluate()


def test_frames_reach_the_output_by_any_operation() -> None:
    """No recurrent cell sends a frame straight to a sum, a slice or an activation, but a tape may."""
    writer = TapeWriter(2, 3, dtype=torch.float64, device=torch.device("cpu"))
    first, second = writer.input(0), writer.input(1)
    mixed = writer.sum(first, writer.scale(second, -2.0), writer.unary(first, activations.TANH))
    tape = writer.finish(writer.concat(writer.slice(mixed, 1, 3), writer.affine([(second, torch.eye(3)[:2])])))
    inputs = torch.randn(4, 2, 3, dtype=torch.float64)
    relaxed = relax(tape, around(inputs, 0.3), METHODS["planes"])
    rows = torch.randn(1, 5, 4, dtype=torch.float64)
    bound = relaxed.lower(rows)
    moved = torch.randn(500, *inputs.shape, dtype=torch.float64)
    moved = inputs + 0.3 * moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
    values = tape(moved.flatten(0, 1)).unflatten(0, (500, 4)) @ rows[0].mT
    assert (values >= bound).all()
    assert (values.amin(0) - bound < 1.0).all()


def test_slices_may_overlap() -> None:
    """A walk writes the coefficients of slices next to each other; those that share entries must add up."""
    writer = TapeWriter(1, 6, dtype=torch.float64, device=torch.device("cpu"))
    whole = writer.affine([(writer.input(0), torch.randn(6, 6))])
    parts = [writer.unary(writer.slice(whole, start, start + 2), activations.IDENTITY) for start in (1, 2, 1, 4)]
    tape = writer.finish(writer.sum(*parts))
    inputs = torch.randn(3, 1, 6, dtype=torch.float64)
    rows = torch.randn(1, 4, 2, dtype=torch.float64)
    bound = relax(tape, around(inputs, 0.0), METHODS["planes"]).lower(rows)
    torch.testing.assert_close(bound, tape(inputs) @ rows[0].mT)


def test_frames_may_be_sliced() -> None:
    writer = TapeWriter(1, 4, dtype=torch.float64, device=torch.device("cpu"))
    frame = writer.input(0)
    tape = writer.finish(writer.sum(*(writer.unary(writer.slice(frame, start, start + 2), activations.TANH) for start in (0, 2))))
    inputs = torch.randn(5, 1, 4, dtype=torch.float64)
    rows = torch.randn(1, 3, 2, dtype=torch.float64)
    value = tape(inputs) @ rows[0].mT
    bound = relax(tape, around(inputs, 1e-9), METHODS["planes"]).lower(rows)
    assert (bound <= value).all()
    torch.testing.assert_close(bound, value, rtol=0, atol=1e-7)
