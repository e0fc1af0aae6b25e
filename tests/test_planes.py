"""Planes never cross the gate, offsets are exact, slopes are the best there are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from boxes import boxes, points
from popqorn.relax.gates import GateKind
from popqorn.relax.minimum import GateBox, least_value, lowest_point, offset
from popqorn.relax.planes import envelope_slopes, planes
from popqorn.relax.relaxation import Interval, Relaxation
from popqorn.relax.weak import gate_lines
from popqorn.tape.ops.nonlinear import Gate

pytestmark = pytest.mark.shapes

RELAXATIONS = {"planes": planes, "lines": gate_lines, "constants": lambda kind, v, z: Gate((0, 1), kind, 1).constants(v, z)}
both_gates = pytest.mark.parametrize("kind", list(GateKind), ids=["identity", "tanh"])


def gate(kind: GateKind, v: Tensor, z: Tensor) -> Tensor:
    return torch.sigmoid(v) * kind.factor(z)


def random_boxes(count: int, spread: float, seed: int = 0) -> tuple[Interval, Interval]:
    generator = torch.Generator().manual_seed(seed)
    center = spread * torch.randn(2, count, generator=generator, dtype=torch.float64)
    half = spread * torch.rand(2, count, generator=generator, dtype=torch.float64) + 1e-3
    return Interval(center[0] - half[0], center[0] + half[0]), Interval(center[1] - half[1], center[1] + half[1])


@both_gates
@pytest.mark.parametrize("name", list(RELAXATIONS))
@settings(max_examples=60)
@given(v=boxes(16), z=boxes(16))
def test_relaxation_never_crosses_gate(name: str, kind: GateKind, v: Interval, z: Interval) -> None:
    # 6 cases x 60 examples x 16 boxes x 1024 points: 5.9 million
    relaxation = RELAXATIONS[name](kind, v, z)
    x = points(v, 1024, seed=1)
    y = points(z, 1024, seed=2)
    y[4:20] = y[torch.randperm(1024, generator=torch.Generator().manual_seed(3))][4:20]
    for corner, (end_v, end_z) in enumerate(((v.lower, z.lower), (v.lower, z.upper), (v.upper, z.lower), (v.upper, z.upper))):
        x[corner], y[corner] = end_v, end_z
    value = gate(kind, x, y)
    assert (relaxation.lower(x, y) <= value).all()
    assert (relaxation.upper(x, y) >= value).all()
    for plane in (relaxation.lower, relaxation.upper):
        assert all(part.isfinite().all() for part in (*plane.slopes, plane.offset))


@both_gates
@settings(max_examples=60)
@given(v=boxes(16), z=boxes(16), a=st.floats(-1, 1), b=st.floats(-1, 2))
def test_offset_is_sound_for_any_slopes(kind: GateKind, v: Interval, z: Interval, a: float, b: float) -> None:
    slope_a, slope_b = torch.full_like(v.lower, a), torch.full_like(v.lower, b)
    c = offset(GateBox.of(kind, v, z), slope_a, slope_b)
    x, y = points(v, 1024, seed=1), points(z, 1024, seed=2)
    assert (slope_a * x + slope_b * y + c <= gate(kind, x, y)).all()


@both_gates
def test_offset_is_attained(kind: GateKind) -> None:
    """The minimum of `f - a v - b z` is the one a fine grid finds, for slopes that put it inside, on edges and at corners."""
    v, z = random_boxes(300, 3.0)
    generator = torch.Generator().manual_seed(5)
    a = 0.2 * torch.randn(300, generator=generator, dtype=torch.float64)
    b = torch.rand(300, generator=generator, dtype=torch.float64)
    lowest = lowest_point(GateBox.of(kind, v, z), a, b)
    steps = torch.linspace(0, 1, 401, dtype=torch.float64)
    x = (v.lower + steps[:, None] * (v.upper - v.lower))[:, None]
    y = (z.lower + steps[:, None] * (z.upper - z.lower))[None]
    on_grid = (gate(kind, x, y) - a * x - b * y).flatten(0, 1).amin(0)
    assert (lowest.value <= on_grid + 1e-12).all()
    torch.testing.assert_close(lowest.value, on_grid, rtol=0, atol=2e-4)
    inside_v, inside_z = (v.lower < lowest.v) & (lowest.v < v.upper), (z.lower < lowest.z) & (lowest.z < z.upper)
    if kind is GateKind.TANH:
        assert (inside_v & inside_z).any(), "no case put the minimum inside the box"
    assert (inside_v & ~inside_z).any()
    assert (~inside_v & ~inside_z).any()


def _program_value(kind: GateKind, v: tuple[float, float], z: tuple[float, float], cells: int = 40) -> float:
    """The centre value of the best plane below the gate on a fine grid, by linear programming."""
    x, y = np.meshgrid(np.linspace(*v, cells + 1), np.linspace(*z, cells + 1))
    heights = gate(kind, torch.from_numpy(x), torch.from_numpy(y)).numpy().ravel()
    rows = np.column_stack([x.ravel(), y.ravel(), np.ones(x.size)])
    center = np.array([sum(v) / 2, sum(z) / 2, 1.0])
    solution = linprog(-center, A_ub=rows, b_ub=heights, bounds=[(None, None)] * 3, method="highs")
    return float(-solution.fun)


@both_gates
def test_plane_is_within_one_percent_of_the_best(kind: GateKind) -> None:
    """Hundreds of boxes for either gate: the gap to the LP's plane at the centre is at most 1 % of the LP's own gap."""
    shares = []
    for spread, seed in ((0.5, 1), (1.5, 2), (4.0, 3)):
        v, z = random_boxes(60, spread, seed)
        middle_v, middle_z = (v.lower + v.upper) / 2, (z.lower + z.upper) / 2
        ours, value = planes(kind, v, z).lower(middle_v, middle_z), gate(kind, middle_v, middle_z)
        ends = torch.stack([v.lower, v.upper, z.lower, z.upper], dim=1).tolist()
        best = torch.tensor([_program_value(kind, (a, b), (c, d)) for a, b, c, d in ends], dtype=torch.float64)
        own_gap = value - best
        shares.append(((best - ours).clamp(min=0).sum() / own_gap.sum()).item())
        counted = own_gap > 1e-3  # below that the grid of the LP itself is the larger error
        shares.append(((best - ours).clamp(min=0) / own_gap)[counted].mean().item())
    assert max(shares) <= 0.01, shares


@both_gates
def test_planes_above_are_planes_below_in_the_mirror(kind: GateKind) -> None:
    """`f(v, z) = -f(v, -z)`: what is best below is best above."""
    v, z = random_boxes(1000, 1.5)
    upper, mirrored = planes(kind, v, z).upper, planes(kind, v, -z).lower
    assert torch.equal(upper.slopes[0], -mirrored.slopes[0])
    assert torch.equal(upper.slopes[1], mirrored.slopes[1])
    assert torch.equal(upper.offset, -mirrored.offset)


@both_gates
def test_thin_boxes_keep_their_curvature(kind: GateKind) -> None:
    """A box without width in z (or v) leaves a function of one variable; its plane must be as tight as a line would be."""
    v = Interval(torch.tensor([-2.0, 0.3], dtype=torch.float64), torch.tensor([1.0, 0.3], dtype=torch.float64))
    z = Interval(torch.tensor([0.7, -1.0], dtype=torch.float64), torch.tensor([0.7, 2.0], dtype=torch.float64))
    relaxation: Relaxation = planes(kind, v, z)
    middle = (v.lower + v.upper) / 2, (z.lower + z.upper) / 2
    gap = relaxation.upper(*middle) - relaxation.lower(*middle)
    assert (gap < torch.tensor([0.11, 0.75 if kind is GateKind.TANH else 1e-9], dtype=torch.float64)).all(), gap


@both_gates
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_boxes_as_large_as_numbers_go(kind: GateKind, dtype: torch.dtype) -> None:
    ends = [side * size for size in torch.tensor([1e-30, 1.0, 1e15, 1e30]) for side in (-1.0, 1.0)]
    ends += [side * share * torch.finfo(dtype).max for share in (1e-10, 0.3, 1.0) for side in (-1.0, 1.0)]
    points = torch.tensor(sorted(map(float, ends)), dtype=dtype)
    pairs = torch.combinations(points, 2, with_replacement=True)
    v, z = (part.flatten(0, 1) for part in torch.broadcast_tensors(pairs[:, None], pairs[None]))
    box_v, box_z = Interval(v[:, 0], v[:, 1]), Interval(z[:, 0], z[:, 1])
    found = planes(kind, box_v, box_z)
    for share in (0.0, 0.25, 0.5, 1.0):
        for other in (0.0, 0.5, 0.75, 1.0):
            x, y = (1 - share) * v[:, 0] + share * v[:, 1], (1 - other) * z[:, 0] + other * z[:, 1]
            value = gate(kind, x, y).double()
            for side, below in ((found.lower, 1.0), (found.upper, -1.0)):
                a, b, c = (part.double() for part in (*side.slopes, side.offset))
                plane = a * x.double() + b * y.double() + c
                assert not (below * plane > below * value + 1e-6 * (c.abs() + value.abs()) * (dtype == torch.float32)).any()


@both_gates
def test_zero_width_planes_meet_the_gate(kind: GateKind) -> None:
    v = torch.tensor([-800.0, -2.0, 0.0, 0.1, 800.0], dtype=torch.float64)
    z = torch.tensor([3.0, -1.0, 0.0, 1e-12, -900.0], dtype=torch.float64)
    relaxation = planes(kind, Interval(v, v), Interval(z, z))
    for plane in (relaxation.lower, relaxation.upper):
        torch.testing.assert_close(plane(v, z), gate(kind, v, z), rtol=1e-12, atol=1e-12)


@both_gates
def test_stopping_early_stays_sound(kind: GateKind) -> None:
    v, z = random_boxes(200, 2.0)
    for steps in (0, 1, 3):
        box = GateBox.of(kind, v, z)
        a, b, _ = envelope_slopes(box, steps=steps)
        c = offset(box, a, b)
        x, y = points(v, 512, seed=1), points(z, 512, seed=2)
        assert (a * x + b * y + c <= gate(kind, x, y)).all()


def test_the_minimum_is_bounded_after_any_number_of_newton_steps() -> None:
    """Inside the box the point of an unfinished iteration is not the minimum: what it may be short of is taken off."""
    generator = torch.Generator().manual_seed(7)
    wide = torch.full((4000,), 6.0, dtype=torch.float64)
    box = GateBox.of(GateKind.TANH, Interval(-wide, wide), Interval(-wide, wide / 6))
    a = -(10 ** (-4 + 3 * torch.rand(4000, generator=generator, dtype=torch.float64)))
    b = torch.rand(4000, generator=generator, dtype=torch.float64)
    exact = lowest_point(box, a, b, newton_steps=60).value
    v = torch.linspace(-6, 6, 1201, dtype=torch.float64)[:, None]
    z = torch.linspace(-6, 1, 701, dtype=torch.float64)[:, None]
    for chosen in torch.arange(0, 4000, 100).tolist():  # the reference is itself the minimum
        on_grid = gate(GateKind.TANH, v, z.T) - a[chosen] * v - b[chosen] * z.T
        assert exact[chosen] <= on_grid.min() + 1e-12
    short = []
    for steps in (1, 2, 3, 4):
        early = least_value(box, a, b, newton_steps=steps)
        assert (early <= exact + 1e-12).all(), steps
        short.append(float((exact - early).max()))
    assert short[0] > 1e-3 > short[3], short


@both_gates
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_offset_is_sound_where_tanh_has_saturated(kind: GateKind, dtype: torch.dtype) -> None:
    """Slopes so small that `1 - tanh(z)^2` at the minimum is below the rounding of 1."""
    v = Interval(torch.full((200,), 2.0, dtype=dtype), torch.full((200,), 2.0, dtype=dtype))
    z = Interval(torch.full((200,), -1000.0, dtype=dtype), torch.full((200,), -5.0, dtype=dtype))
    b = torch.logspace(-30, -2, 200, dtype=torch.float64).to(dtype)
    a = torch.zeros_like(b)
    c = offset(GateBox.of(kind, v, z), a, b).double()
    x = torch.linspace(-1000, -5, 200_001, dtype=torch.float64).unsqueeze(-1)
    crowded = -5 - torch.logspace(-3, 2, 2001, dtype=torch.float64).unsqueeze(-1)
    for points_z in (x, crowded):
        value = gate(kind, torch.full_like(points_z, 2.0), points_z)
        assert (b.double() * points_z + c <= value).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_saturated_boxes_lose_nothing(dtype: torch.dtype) -> None:
    """A closed gate on a saturated tanh is flat, and so are its planes, as far as the precision goes."""
    v, z = torch.meshgrid(torch.linspace(-12, 12, 60, dtype=dtype), torch.linspace(-14, 14, 60, dtype=dtype), indexing="ij")
    v, z = v.flatten(), z.flatten()
    found = planes(GateKind.TANH, Interval(v, v + 0.14), Interval(z, z + 0.12))
    middle = v + 0.07, z + 0.06
    gap = found.upper(*middle) - found.lower(*middle)
    assert (gap >= 0).all()
    assert (gap < 0.01).all()
