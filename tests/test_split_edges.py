"""Splitting where numbers are extreme, networks degenerate, and one piece of the search at a time."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
import sets
from popqorn import branches, splitting
from popqorn.bounds.inner import run
from popqorn.bounds.split.cells import Space
from popqorn.bounds.split.forms import Bounded, lower_bounds
from popqorn.radii import statuses
from popqorn.relax import activations
from popqorn.status import Status
from popqorn.tape.tape import Tape, TapeWriter
from random_tapes import exact_values
from test_soundness import FRAMES, random_inputs, random_model
from test_split import pointed
from test_split_cells import asked

F64 = torch.float64


def affine(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight)).double()
    layer.weight.data, layer.bias.data = torch.tensor(weight, dtype=F64), torch.tensor(bias, dtype=F64)
    return layer


class Frame(nn.Module):
    """Layers of one frame."""

    def __init__(self, *layers: nn.Module, frame: int = 0) -> None:
        super().__init__()
        self.layers, self.frame = nn.Sequential(*layers), frame

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x[:, self.frame])


def falling(slope: float) -> Frame:
    """The margin is `1 - slope x`."""
    return Frame(affine([[slope, 0], [0, slope]], [1, 1]), nn.ReLU(), affine([[-1, 0], [0, 0]], [2, 0]))


class Hidden(nn.Module):
    """The margin is `1.2 + tanh 3b - tanh(3b + 1) - relu(a - 1)`: never negative for `a <= 1.27`, but planes do not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = affine([[3, 0], [3, 0], [0, 1]], [0, 1, -1]), affine([[1, -1, -1], [0, 0, 0]], [1.2, 0])

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x[:, 0])
        return self.last(torch.cat([torch.tanh(y[:, :2]), torch.relu(y[:, 2:])], dim=1))


@pytest.mark.parametrize(("slope", "share", "dtype"), [(1.0, 1e-156, F64), (1e-20, 1.0, torch.float32)])
def test_norms_that_overflow_prove_nothing(slope: float, share: float, dtype: torch.dtype) -> None:
    region, size = popqorn.Ball(2, scale=[[share, share]]), 10 / slope / share
    inputs = torch.zeros(1, 1, 2, dtype=F64)
    assert not popqorn.verify(falling(slope), inputs, size, region=region, method="split", seconds=1, dtype=dtype).certified.any()
    found = popqorn.certify(falling(slope), inputs, region=region, method="split", seconds=1, dtype=dtype)
    assert float(found.radius) <= 1.01 / slope / share


@pytest.mark.parametrize(("share", "dtype"), [(1e-17, F64), (1e-9, torch.float32)])
def test_what_rounding_hides_in_a_small_root_moves_in_a_large_one(share: float, dtype: torch.dtype) -> None:
    region = popqorn.Ball(scale=[[1, share]], clip=([[-1, -1e9]], [[1, 1e9]]))
    inputs = torch.tensor([[[0, 1]]], dtype=F64)
    found = popqorn.certify(Hidden(), inputs, region=region, method="split", seconds=2, dtype=dtype)
    assert float(found.radius) <= 0.3 / share
    curve = popqorn.curve(Hidden(), inputs, [1.0, 100 / share], region=region, method="split", seconds=2, dtype=dtype)
    assert curve.proven.tolist() == [[True, False]]


@pytest.mark.parametrize(("scale", "size", "dtype"), [((1e-180, 1e-175), 1e180, F64), ((1e-30, 1e-28), 1e30, torch.float32)])
def test_features_too_slow_for_any_root_are_not_forgotten(scale: tuple[float, float], size: float, dtype: torch.dtype) -> None:
    inputs = torch.tensor([[[0, 1]]], dtype=F64)
    region = popqorn.Ball(scale=[list(scale)])
    assert not popqorn.verify(Hidden(), inputs, size, region=region, method="split", seconds=1, dtype=dtype).certified.any()


def test_a_range_is_covered_to_its_very_end() -> None:
    """1/3 - 1e10 + 1e10 is 6e-7 more than 1/3."""
    low = 1 / 3
    model = Frame(affine([[-1e8]], [1e8 * (low + 3e-7)]), nn.ReLU(), affine([[-1], [0]], [1, 0]))
    inputs = torch.full((1, 1, 1), 1e10, dtype=F64)
    assert float(model(torch.full((1, 1, 1), low, dtype=F64))[0, 0].detach()) < 0
    found = popqorn.certify(model, inputs, region=popqorn.Ball(clip=(low, 2e10)), method="split", seconds=2)
    assert found.status != (Status.UNBOUNDED,)


@pytest.mark.parametrize("first", [1e37, 1.0])
@pytest.mark.parametrize("place", ["weight", "slope"])
def test_factors_too_small_for_single_precision_count(first: float, place: str) -> None:
    """`x` passes 1e37 and 4e-46 on its way: every product is an ordinary number."""
    writer = TapeWriter(2, 1, dtype=F64, device=torch.device("cpu"))
    one = lambda number: torch.tensor([[number]], dtype=F64)  # noqa: E731
    large = writer.affine([(writer.input(0), one(first))], None)
    small = writer.affine([(large, one(4e-46))], None) if place == "weight" else writer.product(large, writer.input(1))
    tape = writer.finish(writer.unary(writer.affine([(small, one(2.5e8))], one(1.0)[0]), activations.RELU))
    allowed = sets.around(torch.tensor([[[0.0], [4e-46]]], dtype=F64), 0.0, popqorn.Ball(frames=[0]))
    reach = 0.9 * 1e37 / first
    lower = torch.full((1, 4, 1), -reach, dtype=F64)
    found = lower_bounds(tape, Space.of(allowed), run(tape, allowed), torch.ones(1, 1, dtype=F64), lower, -lower).lower
    assert (found <= 0.1 + 1e-9).all()


def on_a_way(writer: TapeWriter, h: int, way: int) -> int:
    """A value that goes on unchanged, or through nonlinearities alone, joined or twice."""
    if way == 0:
        return writer.unary(h, activations.RELU)
    if way == 1:
        return writer.unary(writer.affine([(h, torch.eye(4, dtype=F64))], torch.zeros(4, dtype=F64)), activations.RELU)
    if way == 2:
        return writer.sum(writer.unary(h, activations.RELU), writer.unary(h, activations.ABS))
    if way == 3:
        twice = writer.unary(h, activations.RELU)
        return writer.sum(twice, twice)
    return writer.product(h, writer.constant(torch.ones(4, dtype=F64))) if way == 4 else h


def cancelling_tapes() -> list[tuple[Tape, Tensor]]:
    """Values of about 10 from terms of 1e13, in a frame that moves or one that does not, on every way to the output."""
    found = []
    for seed in range(24):
        draw, writer = torch.Generator().manual_seed(seed), TapeWriter(2, 4, dtype=F64, device=torch.device("cpu"))
        inputs = torch.randn(1, 2, 4, generator=draw, dtype=F64)
        weight, frame, eye = 1e13 * torch.randn(4, 4, generator=draw, dtype=F64), seed % 2, torch.eye(4, dtype=F64)
        h = writer.affine([(writer.input(frame), weight)], 10 - weight @ inputs[0, frame])
        moving, way = writer.unary(writer.input(0), activations.SQUARE), on_a_way(writer, h, seed // 2 % 6)
        last = writer.affine([(way, eye[:3]), (moving, 1e-9 * eye[:3])], torch.zeros(3, dtype=F64))
        found.append((writer.finish(last), inputs))
    return found


def test_no_exact_value_lies_below_a_bound_where_terms_cancel() -> None:
    for tape, inputs in cancelling_tapes():
        allowed = sets.around(inputs, 0.0, popqorn.Ball(frames=[0]))
        space, center = Space.of(allowed), run(tape, allowed)
        for size in (0.0, 1e-12):
            lower = space.center + size * torch.randn(1, 4, 4, dtype=F64)
            upper = lower + size / 2
            found = lower_bounds(tape, space, center, torch.eye(3, dtype=F64), lower, upper).lower[0]
            for cell in range(4):
                for end in (lower, upper):
                    values = exact_values(tape, torch.stack([end[0, cell], inputs[0, 1]]))[-1]
                    assert all(Fraction(bound) <= value for bound, value in zip(found[cell].tolist(), values, strict=True))


def test_networks_without_anything_nonlinear_are_split() -> None:
    model, inputs = Frame(affine([[1, 0], [0, 1]], [1, 0])), torch.zeros(1, 1, 2, dtype=F64)
    found = popqorn.certify(model, inputs, norm=2, method="split", seconds=2)
    assert found.status == (Status.EXACT,)
    assert float(found.radius) == pytest.approx(0.5**0.5, rel=2e-3)


def test_outputs_that_do_not_move_are_safe() -> None:
    model = Frame(affine([[1, 0], [0, 1]], [1, 0]), nn.Tanh(), frame=-1)
    found = popqorn.certify(model, torch.zeros(1, 2, 2, dtype=F64), norm=2, frames=[0], method="split", seconds=0.5)
    assert found.status == (Status.UNBOUNDED,)


def test_sizes_beyond_a_whole_range_are_proven_with_it() -> None:
    model = Frame(affine([[3, 0], [0, 3], [3, 3]], [0, 0, 0]), nn.Tanh(), affine([[1, 1, -1.2], [0, 0, 0]], [2, 0]))
    inputs, region = torch.full((1, 1, 2), 0.1, dtype=F64), popqorn.Ball(clip=(-1, 1))
    for size in (1.1, 5.0):
        assert popqorn.verify(model, inputs, size, region=region, method="split", seconds=5).certified.all()
    assert popqorn.curve(model, inputs, [1.0, 5.0], region=region, method="split", seconds=5).proven.all()


def test_sizes_that_rounding_hides_end_the_search() -> None:
    model = Frame(affine([[1e17]], [-1e17]), nn.ReLU(), affine([[-1], [0]], [1, 0]))
    found = popqorn.verify(model, torch.ones(1, 1, 1, dtype=F64), 4e-17, method="split", seconds=0.2)
    assert not found.certified.any()


# ---- the search, one piece at a time ---------------------------------------------------------------------------------------


def started() -> Any:
    task = asked(random_model("lstm"), random_inputs()[:1], pointed(FRAMES, 0)).centered()
    return splitting._ways(task, 0.1, math.inf, 1e-3, decide=False)[0]


def faked(monkeypatch: pytest.MonkeyPatch, lowest: list[float]) -> None:
    """Every four parts have these bounds."""

    def bounds(tape: Any, space: Any, center: Any, rows: Tensor, lower: Tensor, upper: Tensor) -> Bounded:
        found = torch.tensor(lowest, dtype=F64).view(1, 4, 1).expand(len(lower), 4, len(rows))
        return Bounded(found, torch.ones_like(lower[:, 0]))

    monkeypatch.setattr(branches, "lower_bounds", bounds)


def test_margins_are_those_of_the_worst_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    search = started()
    faked(monkeypatch, [3.0, 1.0, 2.0, 4.0])
    search.step()
    assert not len(search.cells)
    torch.testing.assert_close(search.margins, torch.ones_like(search.margins))


def test_cells_with_bounds_that_are_no_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    search = started()
    faked(monkeypatch, [3.0, math.nan, 2.0, 4.0])
    search.step()
    assert len(search.cells) == 1


def test_a_larger_root_keeps_the_cells_that_are_left() -> None:
    search = started()
    lower, upper = search.cells.lower.clone(), search.cells.upper.clone()
    search._grow()
    assert ((search.cells.lower == lower) & (search.cells.upper == upper)).all(-1).any()


def test_distances_that_are_no_numbers_are_kept() -> None:
    search = started()
    search._keep(replace(search.cells, safe=torch.full_like(search.cells.safe, math.nan)))
    assert len(search.cells) == 1


def test_a_search_with_cells_left_has_an_end() -> None:
    search = started()
    search.step()
    search.size = 1e9 * search.first
    assert len(search.cells)
    less, true = torch.full((1,), -1.0, dtype=F64), torch.ones(1, dtype=torch.bool)
    margins, none = torch.ones(1, len(search.margins), dtype=F64), torch.zeros(1, dtype=torch.long)
    plain = splitting.SearchResult(less, less, margins, none, true, true)
    assert math.isfinite(float(splitting._with(plain, 0, search).failed))


def test_every_sample_is_split_around_itself() -> None:
    torch.manual_seed(3)
    model = popqorn.SequenceClassifier(nn.RNN(1, 6), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    inputs = torch.randn(2, 3, 1, dtype=F64)
    both = popqorn.certify(model, inputs, frames=[0], method="split", seconds=3, tolerance=0.02)
    for sample in range(2):
        one = popqorn.certify(model, inputs[[sample]], frames=[0], method="split", seconds=3, tolerance=0.02)
        assert float(both.radius[sample]) == pytest.approx(float(one.radius), rel=0.05)


def test_what_is_relative_to_the_output_is_split() -> None:
    torch.manual_seed(0)
    model, inputs = random_model("gru"), random_inputs()[:1]
    spec, region = popqorn.Tolerance(0.2), pointed(FRAMES, 1)
    found = popqorn.certify(model, inputs, spec=spec, region=region, method="split", seconds=2, tolerance=0.02)
    assert (found.radius > popqorn.certify(model, inputs, spec=spec, region=region, tolerance=0.02).radius).all()
    angle = torch.rand(3000, dtype=F64) * 2 * math.pi
    moved = inputs.repeat(3000, 1, 1)
    moved[:, 1, :2] += float(found.radius) * torch.stack([angle.cos(), angle.sin()], dim=-1)
    assert ((model(moved) - model(inputs)).abs() <= 0.2).all()


def test_cells_up_to_the_limit_are_kept() -> None:
    search = started()
    search.limit = 1.0
    for distance, kept in ((0.995, 1), (1.0, 1), (1.001, 0)):
        fresh = started()
        fresh.limit = 1.0
        fresh._keep(replace(fresh.cells, safe=torch.full_like(fresh.cells.safe, distance)))
        assert len(fresh.cells) == kept


@pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, math.inf])
def test_distances_are_rounded_down(norm: float) -> None:
    space = Space.of(sets.around(torch.randn(1, 1, 3, dtype=F64), 0.0, popqorn.Ball(norm)))
    lower = space.center + 1 + torch.rand(50, 3, dtype=F64)
    assert (space.distance(lower, lower + 1) < space.sizes(lower) * (1 - 1e-15)).all()


@pytest.mark.parametrize(("refuted", "status"), [(1.0005, Status.EXACT), (1.01, Status.CERTIFIED), (math.inf, Status.CERTIFIED)])
def test_a_radius_is_exact_only_where_a_counterexample_is_near(refuted: float, status: Status) -> None:
    task, one = asked(random_model("rnn"), random_inputs()[:1], pointed(FRAMES, 0)), torch.ones(1, dtype=F64)
    true = torch.ones(1, dtype=torch.bool)
    found = splitting.SearchResult(
        one, 2 * one, torch.ones_like(task.margins.offset), torch.zeros(1, dtype=torch.long), ~true, true
    )
    assert statuses(found, task, refuted * one, 1e-3) == [status]
