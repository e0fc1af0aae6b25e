"""Splitting: cells cover what is allowed, and bounds hold in every cell."""

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import popqorn
import sets
from boxes import boxes, points
from popqorn.bounds.split.cells import Cells, Space, axes_of
from popqorn.bounds.split.forms import _Forward, lower_bounds
from popqorn.regions.region import AllowedSet
from popqorn.relax import activations
from popqorn.relax.gates import GateKind
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.linear import Slice
from popqorn.tape.ops.node import NonlinearNode
from popqorn.tape.ops.nonlinear import Gate, Maximum, Product, Unary
from popqorn.task import Question, Task, read_spec
from test_arithmetic import TOO_SMALL, cancelling
from test_soundness import CLASSES, FEATURES, FRAMES, MODELS, random_inputs, random_model

each_norm = pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, math.inf])
NODES: dict[str, NonlinearNode] = {
    "s(v) z": Gate((0, 1), GateKind.IDENTITY, 16),
    "s(v) tanh z": Gate((0, 1), GateKind.TANH, 16),
    "s(-v) tanh z": Gate((0, 1), GateKind.TANH, 16, closing=True),
    "product": Product((0, 1), 16),
    "maximum": Maximum((0, 1), 16),
    "tanh": Unary((0,), activations.TANH, 16),
    "relu": Unary((0,), activations.RELU, 16),
    "silu": Unary((0,), activations.SILU, 16),
}


def around(inputs: Tensor, region: Any) -> AllowedSet:
    return sets.around(inputs, 0.0, region)


# ---- bands -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NODES)
@settings(max_examples=60, deadline=None)
@given(first=boxes(), second=boxes(), seed=st.integers(0, 99))
def test_values_stay_beside_any_slopes(name: str, first: Interval, second: Interval, seed: int) -> None:
    node = NODES[name]
    operands = (first, second)[: len(node.sources)]
    drawn = torch.randn(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for slopes in (node.secant(*operands), tuple(drawn[: len(operands)])):
        band = node.beside(slopes, *operands)
        sampled = [points(box, 200, seed + number) for number, box in enumerate(operands)]
        size = torch.zeros_like(band.lower)
        values = node.evaluate(*sampled)
        for slope, operand, box in zip(slopes, sampled, operands, strict=True):
            values = values - slope * operand
            size = size + slope.abs() * box.magnitude + box.magnitude
        noise = 1e-15 * (1 + size) * (1 + size if name == "product" else 1)  # of the sampled values
        assert (values >= band.lower - noise).all()
        assert (values <= band.upper + noise).all()


@pytest.mark.parametrize("name", ["s(v) z", "s(v) tanh z", "product"])
def test_a_band_is_no_wider_than_it_must_be(name: str) -> None:
    node = NODES[name]
    low = torch.randn(2, 16, dtype=torch.float64)
    operands = [Interval(end, end + 0.5) for end in low]
    slopes = node.secant(*operands)
    band = node.beside(slopes, *operands)
    sampled = [points(box, 40_000, number) for number, box in enumerate(operands)]
    values = node.evaluate(*sampled) - sum(slope * operand for slope, operand in zip(slopes, sampled, strict=True))
    assert ((band.upper - band.lower) <= 1.1 * (values.amax(0) - values.amin(0)) + 1e-12).all()


# ---- cells -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [1, 2, 4])
def test_parts_cover_their_cell_and_nothing_else(features: int) -> None:
    lower = torch.randn(30, features, dtype=torch.float64)
    upper = lower + torch.rand(30, features, dtype=torch.float64) * 10.0 ** torch.randint(-12, 3, (30, features))
    share = torch.rand(30, features, dtype=torch.float64) * 10.0 ** torch.randint(-2, 2, (30, features))
    low, high = Cells(lower, upper, axes_of(share), share[:, 0], share[:, 0]).cut()
    assert (low >= lower.unsqueeze(1)).all()
    assert (high <= upper.unsqueeze(1)).all()
    inside = lower + torch.rand(500, 30, features, dtype=torch.float64) * (upper - lower)
    inside = torch.minimum(torch.maximum(inside, lower), upper).unsqueeze(2)
    assert ((inside >= low) & (inside <= high)).all(-1).any(-1).all()
    volume = (high - low).prod(-1).sum(-1)
    torch.testing.assert_close(volume, (upper - lower).prod(-1))


@each_norm
@pytest.mark.parametrize("total", [False, True])
def test_no_point_of_a_cell_is_nearer_than_its_distance(norm: float, total: bool) -> None:
    inputs = torch.randn(1, 3, 2, dtype=torch.float64)
    scale = torch.rand(3, 2) * torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    space = Space.of(around(inputs, popqorn.Ball(norm, scale=scale, total=total)))
    assert len(space.places) == 3
    lower = space.center + torch.randn(50, 3, dtype=torch.float64)
    upper = lower + torch.rand(50, 3, dtype=torch.float64)
    distance = space.distance(lower, upper)
    for share in torch.rand(200, 50, 3, dtype=torch.float64).round(decimals=1):
        assert (space.sizes(lower + share * (upper - lower)) >= distance).all()
    nearest = torch.minimum(torch.maximum(space.center, lower), upper)
    torch.testing.assert_close(space.sizes(nearest), distance, rtol=1e-9, atol=1e-12)


@each_norm
@pytest.mark.parametrize("clip", [None, (-1.0, 1.0)])
def test_what_is_outside_a_root_is_beyond(norm: float, clip: tuple[float, float] | None) -> None:
    inputs = torch.rand(1, 2, 2, dtype=torch.float64) - 0.5
    space = Space.of(around(inputs, popqorn.Ball(norm, clip=clip)))
    size = 1.2
    inner, outer = space.root(size), space.root(2 * size)
    beyond, slabs = space.beyond(inner), space.around(inner, outer)
    assert beyond == pytest.approx(size, rel=1e-9) if clip is None else beyond >= size * (1 - 1e-9)
    drawn = outer.lower + torch.rand(3000, 4, dtype=torch.float64) * (outer.upper - outer.lower)
    inside = ((drawn >= inner.lower) & (drawn <= inner.upper)).all(-1)
    covered = ((drawn.unsqueeze(1) >= slabs.lower) & (drawn.unsqueeze(1) <= slabs.upper)).all(-1).any(-1)
    assert (inside | covered).all()
    assert (~(inside & covered)).all()
    assert (space.sizes(drawn[~inside]) >= beyond).all()


def test_what_its_range_holds_back_is_in_the_root() -> None:
    inputs = torch.zeros(1, 1, 2, dtype=torch.float64)
    space = Space.of(around(inputs, popqorn.Ball(2, clip=(-0.1, 0.1))))
    assert math.isinf(space.beyond(space.root(1.0)))


def test_a_feature_that_rounding_hides_still_moves() -> None:
    inputs = torch.full((1, 1, 2), 1e17, dtype=torch.float64)
    assert len(Space.of(around(inputs, popqorn.Ball(2))).places) == 2


# ---- bounds of cells ---------------------------------------------------------------------------------------------------------


def cells_around(space: Space, size: float, groups: int = 3) -> tuple[Tensor, Tensor]:
    lower = space.center + size * torch.randn(groups, len(space.places), dtype=torch.float64)
    upper = lower + size * torch.rand(groups, len(space.places), dtype=torch.float64)
    return space.cells(lower, upper, axes_of(torch.rand_like(lower))).cut()


def assert_bounds_hold(task: Task, size: float, slack: float = 1e-11, *, undefined: bool = False) -> None:
    """No input of any cell has a margin below its bound; an `undefined` one (a root, a quotient) may have none."""
    task = task.centered()
    space, rows = Space.of(task.allowed), task.margins.rows[0]
    assert task.center is not None
    lower, upper = cells_around(space, size)
    found = lower_bounds(task.tape, space, task.center, rows, lower, upper).lower
    share = torch.cat([torch.rand(60, *lower.shape), torch.randint(2, (30, *lower.shape))]).double()
    chosen = torch.minimum(lower + share * (upper - lower), upper)
    outputs = task.tape(space.points(chosen.flatten(0, 2)))
    values = (outputs @ rows.mT).unflatten(0, chosen.shape[:3])
    assert not (values < found - slack * (1 + values.abs())).any()
    assert undefined or found.isfinite().all()


def asked(model: Any, inputs: Tensor, region: Any, spec: Any = None) -> Task:
    return Question.read(model, inputs, lengths=None, region=region, spec=read_spec(spec, None, None)).tasks[0]


@pytest.mark.parametrize(("pooling", "name"), [*(("last", name) for name in MODELS), ("max", "rnn"), ("max", "stacked lstm")])
def test_no_input_of_a_cell_lies_below_its_bound(pooling: str, name: str) -> None:
    model, inputs = random_model(name, pooling=pooling), random_inputs()[:1]
    for frame in range(FRAMES):
        task = asked(model, inputs, popqorn.Ball(2, frames=[frame])).centered()
        for size in (1e-9, 0.1, 3.0, 100.0):
            assert_bounds_hold(task, size)


def test_bounds_hold_for_modules_of_any_kind() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Conv1d(2, 3, 3, padding=1)
            self.norm = nn.LayerNorm(3)
            self.rnn = nn.GRU(3, 4, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
            h = self.rnn(self.norm(x) + x)[0]
            return self.head((h * torch.softmax(h.sum(-1, keepdim=True), 1)).sum(1))

    task = asked(Module().double(), torch.randn(1, 3, 2, dtype=torch.float64), popqorn.Ball(2))
    for size in (1e-6, 0.03, 0.3):
        assert_bounds_hold(task, size, slack=1e-9, undefined=size > 0.1)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_slice_reaches_as_far_as_its_own_columns(name: str) -> None:
    """Which a slice need not compute: it takes its place in what the whole reaches."""
    task = asked(random_model(name), random_inputs()[:1], popqorn.Ball(2, frames=[1])).centered()
    assert task.center is not None
    space = Space.of(task.allowed)
    walk = _Forward.over(task.tape, space, task.center, *cells_around(space, 0.3))
    sliced = 0
    for position, node in enumerate(task.tape.nodes):
        walk.forms[position] = walk.form(position, node)
        if isinstance(node, Slice) and walk.forms[position].columns is not None:
            taken = walk._reached(position)
            alone = replace(walk, forms={position: walk.forms[position]}, reached={})._reached(position)
            for own, other in zip(taken, alone, strict=True):
                torch.testing.assert_close(own.expand_as(other), other, rtol=1e-4, atol=1e-12)
            sliced += 1
    assert sliced >= 4


def test_small_cells_have_tight_bounds() -> None:
    """The error is of second order: cells a tenth as wide have a hundredth of it."""
    task = asked(random_model("lstm"), random_inputs()[:1], popqorn.Ball(2, frames=[0])).centered()
    space, rows = Space.of(task.allowed), task.margins.rows[0]
    assert task.center is not None
    gaps = []
    for size in (0.1, 0.01):
        middle = space.center.expand(1, 4, -1)
        lower, upper = middle - size, middle + size
        bound = lower_bounds(task.tape, space, task.center, rows, lower, upper).lower
        corners = torch.cartesian_prod(*[torch.tensor([-size, size], dtype=torch.float64)] * FEATURES)
        least = (task.tape(space.points(space.center + corners)) @ rows.mT).amin(0)
        gaps.append((least - bound[0, 0]).max())
    assert gaps[1] < gaps[0] / 50


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("place", ["inputs", "state", "head"])
def test_weights_that_cancel_prove_nothing_false(dtype: torch.dtype, place: str) -> None:
    """2^54 - 1 - 2^54 + 1/2 is -1/2, whatever is rounded away on the way to it."""
    for order in list(permutations((2.0**54, -1.0, -(2.0**54), 0.5)))[::3]:
        model, inputs = cancelling(place, order), torch.ones(1, 2, 4)
        region = popqorn.Ball(scale=[[0, 0, 0, 0], [0, 1e-30, 0, 0]])
        found = popqorn.verify(model, inputs, 1e-30, labels=[0], region=region, method="split", seconds=0.05, dtype=dtype)
        assert not bool(found.certified), order


@pytest.mark.parametrize("case", TOO_SMALL)
def test_what_is_too_small_to_be_a_number_counts(case: str) -> None:
    model, eps, region, dtype = TOO_SMALL[case]
    if dtype == torch.float32:
        model = model.float()
    inputs = torch.zeros(1, 1, model.rnn.input_size, dtype=dtype)
    found = popqorn.verify(model, inputs, eps, labels=[0], region=region, method="split", seconds=0.2, dtype=dtype)
    assert not bool(found.certified)


def test_cells_of_no_size_have_the_values_of_the_network() -> None:
    inputs = random_inputs()[:1]
    task = asked(random_model("gru"), inputs, popqorn.Ball(2, frames=[0])).centered()
    space, rows = Space.of(task.allowed), torch.eye(CLASSES, dtype=torch.float64)
    assert task.center is not None
    middle = space.center.expand(1, 1, -1)
    found = lower_bounds(task.tape, space, task.center, rows, middle, middle).lower[0, 0]
    values = task.tape(inputs)[0]
    assert (found <= values).all()
    assert (found >= values - 1e-10).all()
