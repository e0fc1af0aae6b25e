"""Splitting: cells cover what is allowed, bounds hold in every cell, and what a search says of both sides is true."""

import math
import time
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
from popqorn import splitting
from popqorn.bounds.split.cells import Cells, Space, axes_of
from popqorn.bounds.split.forms import lower_bounds
from popqorn.regions.region import AllowedSet
from popqorn.relax import activations
from popqorn.relax.gates import GateKind
from popqorn.relax.relaxation import Interval
from popqorn.status import Status
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
    low, high = Cells(lower, upper, axes_of(share)).cut()
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
    beyond, slabs = space.beyond(inner, outer), space.around(inner, outer)
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
    assert math.isinf(space.beyond(space.root(1.0), space.root(2.0)))


def test_a_feature_that_rounding_hides_still_moves() -> None:
    inputs = torch.full((1, 1, 2), 1e17, dtype=torch.float64)
    assert len(Space.of(around(inputs, popqorn.Ball(2))).places) == 2


# ---- bounds of cells ---------------------------------------------------------------------------------------------------------


def cells_around(space: Space, size: float, groups: int = 3) -> tuple[Tensor, Tensor]:
    lower = space.center + size * torch.randn(groups, len(space.places), dtype=torch.float64)
    upper = lower + size * torch.rand(groups, len(space.places), dtype=torch.float64)
    return Cells(lower, upper, axes_of(torch.rand_like(lower))).cut()


def assert_bounds_hold(task: Task, size: float, slack: float = 1e-11, *, undefined: bool = False) -> None:
    """No input of any cell has a margin below its bound; an `undefined` one (a root, a quotient) may have none."""
    task = task.centered()
    space, rows = Space.of(task.allowed), task.margins.rows[0]
    assert task.center is not None
    lower, upper = cells_around(space, size)
    found = lower_bounds(task.tape, space, task.center, rows, lower, upper).lower
    for share in torch.cat([torch.rand(60, *lower.shape), torch.randint(2, (30, *lower.shape))]).double():
        chosen = torch.minimum(lower + share * (upper - lower), upper)
        outputs = task.tape(space.points(chosen.flatten(0, 1)))
        values = (outputs @ rows.mT).unflatten(0, lower.shape[:2])
        assert not (values < found - slack * (1 + values.abs())).any()
    assert undefined or found.isfinite().all()


def asked(model: Any, inputs: Tensor, region: Any, spec: Any = None) -> Task:
    return Question.read(model, inputs, lengths=None, region=region, spec=read_spec(spec, None, None)).tasks[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pooling", ["last", "max"])
def test_no_input_of_a_cell_lies_below_its_bound(name: str, pooling: str) -> None:
    model, inputs = random_model(name, pooling=pooling), random_inputs()[:1]
    for frame in range(FRAMES):
        for size in (1e-9, 0.1, 3.0, 100.0):
            assert_bounds_hold(asked(model, inputs, popqorn.Ball(2, frames=[frame])), size)


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


# ---- the search --------------------------------------------------------------------------------------------------------------


def scanned(model: popqorn.SequenceClassifier, inputs: Tensor, frame: int, directions: int = 720) -> float:
    """The least distance at which a direction of the first two features leads to another decision."""
    label = int(model(inputs).argmax())
    angle = torch.arange(directions, dtype=torch.float64) * (2 * math.pi / directions)
    ways = torch.stack([angle.cos(), angle.sin()], dim=-1)
    for distance in 0.002 * 1.01 ** torch.arange(1100, dtype=torch.float64):
        moved = inputs.repeat(directions, 1, 1)
        moved[:, frame, :2] += distance * ways
        if (model(moved).argmax(-1) != label).any():
            return float(distance)
    return math.inf


def pointed(frames: int, frame: int, norm: float = 2) -> popqorn.Ball:
    scale = torch.zeros(frames, FEATURES)
    scale[frame, :2] = 1
    return popqorn.Ball(norm, scale=scale)


EXACT = {"rnn": 0, "lstm": 0, "gru": 0, "bidirectional lstm": 1}  # a sample of each that can be broken


@pytest.mark.parametrize("name", EXACT)
def test_a_finished_search_is_exact(name: str) -> None:
    torch.manual_seed(3)
    model, inputs = random_model(name, spread=1.2), random_inputs()[[EXACT[name]]]
    region = pointed(FRAMES, 1)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=60, tolerance=0.02)
    planes = popqorn.certify(model, inputs, region=region, tolerance=0.02)
    labels = model(inputs).argmax(-1)
    assert (found.radius >= planes.radius).all()
    assert found.refuted is not None
    assert found.counterexamples is not None
    scan = scanned(model, inputs, 1)
    assert found.status == (Status.EXACT,)
    assert 0.96 * scan <= float(found.radius) <= float(found.refuted) <= 1.05 * scan
    assert float(found.radius) <= scan
    assert int(model(found.counterexamples).argmax()) != int(labels)
    assert float((found.counterexamples - inputs).norm()) == pytest.approx(float(found.refuted), rel=1e-9)


def test_both_sides_of_a_size_are_decided() -> None:
    torch.manual_seed(3)
    model, inputs = random_model("lstm", spread=1.2), random_inputs()[:1]
    region = pointed(FRAMES, 1)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=20, tolerance=0.02)
    assert found.status == (Status.EXACT,)
    assert found.refuted is not None
    inside = popqorn.verify(model, inputs, 0.97 * found.radius, region=region, method="split", seconds=20)
    assert inside.status == (Status.CERTIFIED,)
    assert (inside.margins > 0).all()
    planes = popqorn.verify(model, inputs, 0.97 * found.radius, region=region)
    assert planes.status == (Status.NOT_CERTIFIED,)
    outside = popqorn.verify(model, inputs, 1.01 * found.refuted, region=region, method="split", seconds=20)
    assert outside.status == (Status.BROKEN,)
    assert outside.counterexamples is not None
    sizes = [0.5 * float(found.radius), 0.97 * float(found.radius), 1.01 * float(found.refuted)]
    curve = popqorn.curve(model, inputs, sizes, region=region, method="split", seconds=20)
    assert curve.proven.tolist() == [[True, True, False]]


def test_margins_of_split_radii_hold() -> None:
    torch.manual_seed(3)
    model, inputs = random_model("gru", spread=1.2), random_inputs()[:1]
    found = popqorn.certify(model, inputs, region=pointed(FRAMES, 0), method="split", seconds=3)
    angle = torch.rand(2000, dtype=torch.float64) * 2 * math.pi
    moved = inputs.repeat(2000, 1, 1)
    reached = float(found.radius) * torch.rand(2000, 1, dtype=torch.float64).sqrt()
    moved[:, 0, :2] += reached * torch.stack([angle.cos(), angle.sin()], dim=-1)
    logits = model(moved)
    label = int(model(inputs).argmax())
    margins = logits[:, label : label + 1] - logits
    margins[:, label] = math.inf
    assert (margins >= found.margins - 1e-12).all()
    assert (found.margins > 0).all()


@pytest.mark.parametrize("clip", [None, (-2.0, 2.0)])
@each_norm
def test_no_attack_succeeds_inside_a_split_radius(norm: float, clip: tuple[float, float] | None) -> None:
    model, inputs = random_model("lstm"), random_inputs()[:1].clamp(-2, 2)
    region = popqorn.Ball(norm, frames=[0, 2], scale=torch.tensor([[1, 0.5, 0, 0], [1, 1, 1, 1], [0, 0, 2, 0]]), clip=clip)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=0.5, tolerance=0.01)
    reached = popqorn.attack(model, inputs, region=region, restarts=2)
    assert (found.radius <= reached.radius).all()
    assert (found.radius >= popqorn.certify(model, inputs, region=region, tolerance=0.01).radius).all()


def test_a_box_may_be_proven_as_a_whole() -> None:
    torch.manual_seed(0)
    model, inputs = random_model("lstm", spread=0.3), random_inputs()[:1]
    width = torch.zeros(FRAMES, FEATURES)
    width[1, :2] = 2.0
    region = popqorn.Box(inputs[0] - width, inputs[0] + 2 * width)
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=10)
    planes = popqorn.certify(model, inputs, region=region)
    assert float(planes.radius) < 1
    assert (found.status, float(found.radius)) == ((Status.UNBOUNDED,), 1.0)
    assert popqorn.verify(model, inputs, region=region, method="split", seconds=10).certified.all()


def test_what_changes_nothing_has_no_end() -> None:
    model, inputs = random_model("lstm"), random_inputs()[:1]
    with torch.no_grad():
        model.rnn.weight_ih_l0[:, :2] = 0
    found = popqorn.certify(model, inputs, region=pointed(FRAMES, 0), method="split", seconds=5)
    assert found.status == (Status.UNBOUNDED,)


def test_time_is_kept_and_what_planes_prove_is_never_lost() -> None:
    model, inputs = random_model("stacked lstm"), random_inputs()[:2]
    region = popqorn.Ball(2, frames=[0])
    plain = popqorn.certify(model, inputs, region=region)
    started = time.perf_counter()
    found = popqorn.certify(model, inputs, region=region, method="split", seconds=0.01)
    assert time.perf_counter() - started < plain.seconds + 30
    assert (found.radius >= plain.radius).all()
    assert found.settings["seconds"] == 0.01


def test_frames_are_split_where_there_is_time() -> None:
    torch.manual_seed(3)
    model = popqorn.SequenceClassifier(nn.RNN(1, 6), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    inputs = torch.randn(2, 3, 1, dtype=torch.float64)
    plain = popqorn.sensitivity(model, inputs, tolerance=0.05)
    found = popqorn.sensitivity(model, inputs, tolerance=0.05, seconds=5)
    assert plain.refuted is None
    assert found.refuted is not None
    assert found.counterexamples is not None
    assert (found.radius >= plain.radius).all()
    assert (found.radius > 1.2 * plain.radius).any()
    assert (found.radius <= found.refuted).all()
    assert any(Status.EXACT in row for row in found.status)
    labels = model(inputs).argmax(-1)
    for sample in range(2):
        for frame in range(3):
            if found.refuted[sample, frame].isfinite():
                moved = inputs[sample].clone()
                moved[frame] = found.counterexamples[sample, frame]
                assert int(model(moved.unsqueeze(0)).argmax()) != int(labels[sample])


def test_a_stopped_search_returns_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = random_model("lstm"), random_inputs()[:2]
    steps = splitting._Search._step
    calls = []

    def interrupted(self: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        steps(self)

    monkeypatch.setattr(splitting._Search, "_step", interrupted)
    found = popqorn.certify(model, inputs, region=pointed(FRAMES, 0), method="split", seconds=1)
    assert (found.radius >= popqorn.certify(model, inputs, region=pointed(FRAMES, 0)).radius).all()


def test_bounds_that_are_no_numbers_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = random_model("lstm"), random_inputs()[:1]
    real = splitting.lower_bounds

    def broken(*given: Any) -> Any:
        found = real(*given)
        return replace(found, lower=torch.full_like(found.lower, math.nan))

    monkeypatch.setattr(splitting, "lower_bounds", broken)
    found = popqorn.verify(model, inputs, 5.0, region=pointed(FRAMES, 0), method="split", seconds=0.2)
    assert not bool(found.certified)


def test_wrong_decisions_are_not_split() -> None:
    model, inputs = random_model("rnn"), random_inputs()[:1]
    wrong = (model(inputs).argmax(-1) + 1) % CLASSES
    found = popqorn.certify(model, inputs, labels=wrong, region=pointed(FRAMES, 0), method="split", seconds=5)
    assert found.status == (Status.MISCLASSIFIED,)
    assert found.seconds < 4


def test_progress_counts_both_searches() -> None:
    told: list[tuple[int, int]] = []
    model, inputs = random_model("rnn"), random_inputs()[:2]
    popqorn.certify(
        model,
        inputs,
        region=pointed(FRAMES, 0),
        method="split",
        seconds=0.05,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (4, 4)


REFUSED = {
    "too many features": (lambda model, x: popqorn.certify(model, x, method="split"), "at most 6 moving features"),
    "bounds": (lambda model, x: popqorn.bounds(model, x, 0.1, method="split"), "method is 'split', which proves what must hold"),
    "seconds": (lambda model, x: popqorn.certify(model, x, frames=[0], method="split", seconds=-1), "seconds is -1"),
    "wide frames": (
        lambda model, x: popqorn.sensitivity(
            popqorn.SequenceClassifier(nn.RNN(9, 2), nn.Linear(2, 2)), torch.rand(1, 2, 9), seconds=1
        ),
        "at most 6 moving features",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_split_is_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(random_model("rnn"), random_inputs())


def test_words_are_not_split() -> None:
    table, tokens = torch.rand(5, FEATURES, dtype=torch.float64), torch.tensor([[0, 1, 2]])
    region = popqorn.Words(table, tokens, {0: [1], 1: [2]})
    with pytest.raises(ValueError, match="moving features of a Ball or a Box"):
        popqorn.certify(random_model("rnn"), table[tokens], region=region, method="split")


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
