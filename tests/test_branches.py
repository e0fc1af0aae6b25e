"""Cells of balls, and the search that proves them by planes: bounds are true, cells hold everything, what is safe is safe."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
import sets
from popqorn.bounds.split.cells import Cells, Space, axes_of
from popqorn.branches import ByPlanes
from popqorn.regions.cell import CellOfBall
from popqorn.splitting import _race, _ways
from popqorn.status import Status
from test_soundness import FEATURES, FRAMES, random_inputs, random_model
from test_split_cells import asked

F64 = torch.float64
POINTS = 3_000
each_norm = pytest.mark.parametrize("norm", [1.0, 1.1, 1.5, 2.0, 5.0, math.inf])


def random_cells(space: Space, size: float, count: int = 12) -> Cells:
    """Boxes that meet the ball: some hold its centre, some touch it only just, some have no width in a feature."""
    middle = space.center + size * torch.randn(count, len(space.places), dtype=F64) * torch.rand(count, 1, dtype=F64)
    half = size * torch.rand(count, len(space.places), dtype=F64) * 10.0 ** -torch.randint(0, 4, (count, 1))
    half[:3, 0] = 0
    lower, upper = middle - half, middle + half
    lower[3], upper[3] = space.center - size, space.center + size
    lower[4], upper[4] = space.center + 0.3 * size, space.center + size
    return space.cells(lower, upper, axes_of(half))


def points_in(space: Space, cells: Cells, size: float) -> Tensor:
    """Points of every cell that are allowed at the size, `[cells, points, frames, features]`; NaN for those that are not."""
    share = torch.rand(POINTS, *cells.lower.shape, dtype=F64)
    ends = torch.rand_like(share) < 0.3
    share = torch.where(ends, share.round(), share)
    drawn = cells.lower + share * (cells.upper - cells.lower)
    toward = torch.minimum(torch.maximum(space.center, cells.lower), cells.upper)
    drawn = toward + (drawn - toward) * torch.rand(POINTS, len(cells), 1, dtype=F64).clamp(min=0.05)
    drawn = torch.minimum(torch.maximum(drawn, cells.lower), cells.upper)
    inside = (space.sizes(drawn.flatten(0, 1)) <= size).unflatten(0, drawn.shape[:2])
    points = space.points(drawn.flatten(0, 1)).unflatten(0, drawn.shape[:2])
    return torch.where(inside[..., None, None], points, math.nan).transpose(0, 1)


def around(norm: float, total: bool, size: float) -> Space:
    scale = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.0, 0.0], [2.0, 1.0, 0.0]])
    region = popqorn.Ball(norm, scale=scale, total=total)
    return Space.of(sets.around(torch.randn(1, 3, 3, dtype=F64), size, region))


@each_norm
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("size", [1e-9, 0.7, 1e6])
def test_no_point_of_a_cell_lies_below_its_least(norm: float, total: bool, size: float) -> None:
    torch.manual_seed(0)
    space = around(norm, total, size)
    cells = random_cells(space, size)
    allowed = space.sets(cells, size)
    points = points_in(space, cells, size)
    forms = torch.randn(8, 3, 3, dtype=F64)
    rows = forms.unsqueeze(0).expand(len(cells), -1, -1, -1)
    least = allowed.least({frame: allowed.part(frame, rows[:, :, frame]) for frame in range(3)})
    values = torch.einsum("cpfe,rfe->cpr", points - allowed.center.unsqueeze(1), forms)
    assert not (values < least.unsqueeze(1) - 1e-15 * points.abs().nan_to_num().amax()).any()  # inputs are rounded themselves
    box = allowed.box()
    slack = 1e-15 * (1 + points.abs())
    assert not ((points < box.lower.unsqueeze(1) - slack) | (points > box.upper.unsqueeze(1) + slack)).any()


@pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, 5.0])
def test_the_least_is_nearly_reached(norm: float) -> None:
    torch.manual_seed(1)
    space = Space.of(sets.around(torch.zeros(1, 1, 2, dtype=F64), 1.0, popqorn.Ball(norm)))
    lower = torch.tensor([[0.2, 0.3], [-0.4, 0.1], [-1.0, -1.0], [0.4, 0.0]], dtype=F64)
    cells = space.cells(lower, lower + torch.tensor([[0.9, 0.9], [0.8, 0.2], [2.0, 2.0], [0.1, 0.9]], dtype=F64), axes_of(lower))
    allowed = space.sets(cells, 1.0)
    assert isinstance(allowed, CellOfBall)
    points = points_in(space, cells, 1.0)
    forms = torch.randn(6, 1, 2, dtype=F64)
    least = allowed.least({0: allowed.part(0, forms[:, 0].expand(4, -1, -1))})
    values = torch.einsum("cpfe,rfe->cpr", points - allowed.center.unsqueeze(1), forms).nan_to_num(nan=math.inf).amin(1)
    assert (values - least < 0.05 * (1 + values.abs())).all()


# ---- the search ----------------------------------------------------------------------------------------------------------------


def by_planes(name: str, region: Any, size: float = 0.3) -> ByPlanes:
    task = asked(random_model(name), random_inputs()[:1], region).centered()
    return ByPlanes(task, Space.of(task.allowed), math.inf, 1e-3, False, size, task.allowed.center[0])


REGIONS = {
    "p = 2": popqorn.Ball(2, frames=[1]),
    "p = 1": popqorn.Ball(1, frames=[1]),
    "p = inf": popqorn.Ball(frames=[1]),
    "scale": popqorn.Ball(2, scale=torch.tensor([[1, 0.5, 0, 0], [0, 0, 0, 0], [0, 0, 2, 0]])),
    "total": popqorn.Ball(2, scale=torch.tensor([[1, 0.5, 0, 0], [0, 0, 0, 0], [0, 0, 2, 0]]), total=True),
    "clip": popqorn.Ball(2, frames=[1], clip=(-5, 5)),
}


@pytest.mark.parametrize("region", REGIONS.values(), ids=list(REGIONS))
@pytest.mark.parametrize("name", ["rnn", "lstm"])
def test_whatever_is_safe_holds_and_cells_hold_everything(name: str, region: Any) -> None:
    torch.manual_seed(2)
    search = by_planes(name, region)
    for _ in range(12):
        search.step()
    assert search.evaluations > 1
    allowed = search.task.allowed.select(torch.zeros(4000, dtype=torch.long))
    size = search.nearest * torch.rand(4000, dtype=F64).clamp(min=0.5)
    points = allowed.at(size).random(torch.Generator().manual_seed(0))
    margins = search.task.margins.of(search.task.tape(points))
    assert (margins > 0).all()
    assert (margins >= search.margins - 1e-12).all()
    wide = allowed.at(3 * size).random(torch.Generator().manual_seed(1))
    chosen = wide.flatten(1)[:, search.space.places].unsqueeze(1)
    inside = ((chosen >= search.cells.lower) & (chosen <= search.cells.upper)).all(-1)
    assert inside.any(-1).all()
    safe = torch.where(inside, search.cells.safe, math.inf).amin(-1)  # of all cells that hold a point, as their sides do
    held = search.space.sizes(chosen.squeeze(1)) <= safe
    assert (search.task.margins.of(search.task.tape(wide))[held] > 0).all()


def test_sizes_that_failed_are_not_tried_again() -> None:
    search = by_planes("lstm", popqorn.Ball(2, frames=[1]), 100.0)
    search.step()
    assert (search.cells.failed == 100.0).all()
    search.step()
    assert len(search.cells) == 4
    assert search.cells.failed.isinf().all()


def test_bounds_that_are_no_numbers_raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    search = by_planes("lstm", popqorn.Ball(2, frames=[1]), 1e-3)
    monkeypatch.setattr(popqorn.task.Task, "prove", lambda self, eps: torch.full((len(self), 2), math.nan, dtype=F64))
    search._raise(search.cells.safe < 1, 1e-3)
    assert (search.cells.safe <= 0).all()


def test_more_is_proven_than_by_planes_alone() -> None:
    """Four features that move: all of a decided size, and more than twice as far as one walk proves."""
    torch.manual_seed(3)
    model, inputs = random_model("lstm", spread=1.2), random_inputs()[:1]
    region = popqorn.Ball(frames=[1])
    plain = popqorn.certify(model, inputs, region=region, tolerance=0.05)
    task = replace(asked(model, inputs, region).centered())
    forms, planes = _ways(task, float(plain.radius), math.inf, 1e-3, decide=False)
    for _ in range(60):
        planes.step()
    assert planes.nearest > 1.2 * float(plain.radius)
    found = popqorn.verify(model, inputs, 0.99 * planes.nearest, region=region, method="split", seconds=30)
    assert found.status == (Status.CERTIFIED,)
    assert (planes.proven, planes.limit) == (planes.nearest * (1 - 1e-12), forms.limit)


def test_a_whole_range_is_proven_and_has_no_end() -> None:
    model, inputs = random_model("rnn", spread=0.05), random_inputs()[:1].clamp(-1, 1)
    region = popqorn.Ball(2, frames=[0], clip=(-1, 1))
    task = asked(model, inputs, region).centered()
    limit = float(task.allowed.greatest)
    search = ByPlanes(task, Space.of(task.allowed), limit, 1e-3, True, limit, task.allowed.center[0])
    search.run(math.inf)
    assert search.settled
    assert search.finished
    assert search.proven == limit


def test_what_never_ends_is_said_to() -> None:
    model, inputs = random_model("lstm"), random_inputs()[:1]
    with torch.no_grad():
        model.rnn.weight_ih_l0[:] = 0
    task = asked(model, inputs, popqorn.Ball(2, frames=[0])).centered()
    search = ByPlanes(task, Space.of(task.allowed), math.inf, 1e-3, False, 0.1, task.allowed.center[0])
    search.run(math.inf)
    assert search.settled
    assert search.endless
    assert math.isfinite(search.proven)


def test_counterexamples_are_shared() -> None:
    one, other = (by_planes("lstm", popqorn.Ball(2, frames=[1])) for _ in range(2))
    other.broken, other.point = 0.5, torch.full((FRAMES, FEATURES), 7.0, dtype=F64)
    one.learn(other)
    assert (one.broken, float(one.point[0, 0])) == (0.5, 7.0)
    other.broken = 0.7
    one.learn(other)
    assert one.broken == 0.5


# ---- what a referee found ----------------------------------------------------------------------------------------------------


class Step(nn.Module):
    """A jump of the decision at a tiny negative first feature."""

    def __init__(self, weight: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.rnn = nn.RNN(3, 1, batch_first=True)
        self.out = nn.Linear(1, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            self.rnn.weight_ih_l0[0, 0], self.rnn.bias_ih_l0[0] = weight, 4.0
            self.out.weight[0, 0], self.out.weight[1, 0] = 1.0, -1.0
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize(
    ("weight", "start", "end", "dtype"), [(2.7e6, 100.0, -3e-6, torch.float32), (2.0**56, 1.0, -(2.0**-53), F64)]
)
def test_ends_that_are_rounded_far_from_the_centre_are_no_way_out(
    weight: float, start: float, end: float, dtype: torch.dtype
) -> None:
    model, inputs = Step(weight, dtype), torch.tensor([[[start, 0, 0]]], dtype=dtype)
    lower, upper = torch.tensor([[end, -1, -1]], dtype=dtype), torch.tensor([[start, 1, 1]], dtype=dtype)
    assert int(model(inputs).argmax()) != int(model(lower.unsqueeze(0)).argmax())
    regions = [(popqorn.Box(lower, upper), None)]
    regions += [(popqorn.Ball(norm, clip=(lower, upper)), 2 * start) for norm in (math.inf, 2)]
    for region, eps in regions:
        found = popqorn.verify(model, inputs, eps, region=region, method="split", seconds=0.5, dtype=dtype)
        assert not bool(found.certified), region
    curve = popqorn.curve(model, inputs, [0.5 * start, 2 * start], region=regions[1][0], method="split", seconds=0.3, dtype=dtype)
    assert not bool(curve.proven[0, 1])


def taxi(limit: float = math.inf, broken: float = math.inf) -> ByPlanes:
    """A network whose margin is `3 - |x1| - |x2| - |x3|`: broken at 1 for p = inf, and nowhere nearer."""
    model = popqorn.SequenceClassifier(nn.RNN(3, 6, nonlinearity="relu"), nn.Linear(6, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.rnn.weight_ih_l0.copy_(torch.cat([torch.eye(3), -torch.eye(3)]))
        model.head.weight[1], model.head.bias[0] = 1.0, 3.0
    task = asked(model, torch.zeros(1, 1, 3, dtype=F64), popqorn.Ball()).centered()
    return ByPlanes(task, Space.of(task.allowed), limit, 1e-3, False, 0.9, task.allowed.center[0], broken)


@pytest.mark.parametrize(("limit", "broken"), [(math.inf, math.inf), (1.3, math.inf), (2.5, 0.95), (0.8, math.inf)])
def test_no_cell_is_said_to_be_safer_than_it_is(limit: float, broken: float) -> None:
    search = taxi(limit, broken)
    for _ in range(60):
        search.step()
        ends = torch.maximum(search.cells.lower.abs(), search.cells.upper.abs())
        reached = torch.minimum(ends, search.cells.safe.unsqueeze(1)).sum(-1)
        begun = search.space.distance(search.cells.lower, search.cells.upper) < (1 - 1e-9) * search.cells.safe
        assert (reached[begun] <= 3 + 1e-9).all()
        assert search.proven <= min(1 + 1e-9, broken)
        if search.settled:
            break
    assert search.nearest > min(0.98, limit, 0.999 * broken)
    assert search.evaluations >= 1


def test_counterexamples_are_found_on_the_way() -> None:
    search = taxi()
    search.size = 4.0
    for _ in range(8):
        search.step()
    assert 1 <= search.broken < 2
    assert float(search.task.margins.of(search.task.tape(search.point.unsqueeze(0))).min()) <= 0


def test_a_cell_without_width_is_cut_along_another_axis() -> None:
    search = taxi()
    cells = search.cells
    flat = replace(cells, lower=cells.lower.clone(), upper=cells.upper.clone(), axes=torch.zeros_like(cells.axes))
    flat.lower[0, 0] = flat.upper[0, 0] = 0.1
    search.cells = replace(flat, failed=torch.full_like(flat.failed, 0.3))
    search._cut(torch.ones(1, dtype=torch.bool), 0.3)
    assert len({tuple(row) for row in torch.cat([search.cells.lower, search.cells.upper], 1).tolist()}) == len(search.cells) > 1


def test_the_rest_goes_to_whoever_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [taxi(), taxi()]
    ran: list[int] = []

    def run(self: ByPlanes, deadline: float) -> None:
        ran.append(next(place for place, way in enumerate(ways) if way is self))

    monkeypatch.setattr(ByPlanes, "run", run)
    for ahead in (0, 1):
        for place, way in enumerate(ways):
            way.cells = replace(way.cells, safe=torch.full_like(way.cells.safe, 0.5 if place == ahead else 0.2))
        ran.clear()
        _race(list(ways), 1.0)
        assert ran == [0, 1, ahead]
