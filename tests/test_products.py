"""Planes of a product lie below and above it in exact arithmetic, over every kind of box, and waste no volume."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from boxes import boxes
from popqorn.relax.product import product_image, product_planes
from popqorn.relax.relaxation import Interval, Linear

each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
SHARES = [Fraction(0), Fraction(1), Fraction(1, 2), Fraction(1, 7), Fraction(19, 20)]
# Edges that meet at 0, lie on one side of it, or around it; numbers whose products are too small, or too large, to be numbers.
EDGES = [(0.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (-3.0, 2.0), (2.0, 5.0), (-5.0, -4.0), (0.1, 0.1), (1.0, 1.0 + 2**-23)]
SMALL = [(1e-30, 2e-30), (-1e-20, 3e-25), (-1e-38, 1e-38), (0.0, 1e-45), (-1e-300, 3e-200), (5e-324, 1e-310)]
LARGE = [(-1e18, 1e19), (1e19, 2e19), (1e30, 1e38), (-1e38, 1e38), (1e154, 2e154), (-1e200, 1e250), (1e300, 1.7e308)]


def holds(plane: Linear, number: int, x: Fraction, y: Fraction, side: int) -> bool:
    """Whether the plane is below (`side = 1`) or above (`side = -1`) the product at a point, or says nothing."""
    a, b, offset = (float(part[number]) for part in (*plane.slopes, plane.offset))
    assert math.isfinite(a)
    assert math.isfinite(b)
    if offset == -side * math.inf:
        return True
    return math.isfinite(offset) and side * (Fraction(a) * x + Fraction(b) * y + Fraction(offset) - x * y) <= 0


def hold_everywhere(x: Interval, y: Interval) -> None:
    """Planes and image hold at corners, on edges and inside of every box."""
    relaxation, found = product_planes(x, y), product_image(x, y)
    flat = torch.zeros_like(found.lower)
    below, above = (relaxation.lower, Linear((flat, flat), found.lower)), (relaxation.upper, Linear((flat, flat), found.upper))
    for number, ends in enumerate(zip(x.lower.tolist(), x.upper.tolist(), y.lower.tolist(), y.upper.tolist(), strict=True)):
        x_low, x_high, y_low, y_high = map(Fraction, ends)
        for along, across in itertools.product(SHARES, SHARES):
            point = x_low + along * (x_high - x_low), y_low + across * (y_high - y_low)
            assert all(holds(plane, number, *point, 1) for plane in below), (ends, along, across)
            assert all(holds(plane, number, *point, -1) for plane in above), (ends, along, across)


def converted(box: Interval, dtype: torch.dtype) -> Interval:
    return Interval(box.lower.to(dtype), box.upper.to(dtype))


@each_dtype
@settings(max_examples=20)
@given(x=boxes(8), y=boxes(8))
def test_a_product_lies_between_its_planes(dtype: torch.dtype, x: Interval, y: Interval) -> None:
    hold_everywhere(converted(x, dtype), converted(y, dtype))


@each_dtype
@settings(max_examples=15)
@given(data=st.data())
def test_nothing_false_is_said_where_numbers_end(dtype: torch.dtype, data: st.DataObject) -> None:
    end = st.floats(allow_nan=False, allow_infinity=False, width=64 if dtype == torch.float64 else 32)
    pairs = data.draw(st.lists(st.tuples(end, end).map(sorted), min_size=12, max_size=12))
    ends = torch.tensor(pairs, dtype=torch.float64).to(dtype)
    hold_everywhere(Interval(ends[:6, 0], ends[:6, 1]), Interval(ends[6:, 0], ends[6:, 1]))


def table(first: list[tuple[float, float]], second: list[tuple[float, float]], dtype: torch.dtype) -> tuple[Interval, Interval]:
    """All pairs of the given intervals that `dtype` can hold."""
    pairs = torch.tensor(list(itertools.product(first, second)), dtype=torch.float64).to(dtype)
    ends = pairs[pairs.isfinite().flatten(1).all(1)]
    return Interval(ends[:, 0, 0], ends[:, 0, 1]), Interval(ends[:, 1, 0], ends[:, 1, 1])


@each_dtype
def test_small_large_and_empty_sides_in_all_combinations(dtype: torch.dtype) -> None:
    every = EDGES + SMALL + LARGE
    hold_everywhere(*table(every, every, dtype))


@each_dtype
def test_what_overflows_is_unbounded_and_what_does_not_is_bounded(dtype: torch.dtype) -> None:
    x, y = table(EDGES + SMALL + LARGE, EDGES + SMALL + LARGE, dtype)
    relaxation, found = product_planes(x, y), product_image(x, y)
    fits = (x.magnitude.double().log10() + y.magnitude.double().log10()) < math.log10(torch.finfo(dtype).max) - 1
    for said in (relaxation.lower.offset, relaxation.upper.offset, found.lower, found.upper):
        assert said[fits].isfinite().all()
        assert not said.isnan().any()


@each_dtype
@pytest.mark.parametrize("end", [math.inf, math.nan])
def test_nothing_is_said_of_what_is_unbounded(dtype: torch.dtype, end: float) -> None:
    x = Interval(torch.tensor([-1.0, 0.0, 2.0], dtype=dtype), torch.tensor([1.0, 0.0, 3.0], dtype=dtype))
    y = Interval(torch.full_like(x.lower, -1.0), torch.full_like(x.lower, end))
    for first, second in ((x, y), (y, x)):
        relaxation = product_planes(first, second)
        for side, plane in ((-1, relaxation.lower), (1, relaxation.upper)):
            # only a factor that is never negative has a least product with one that is unbounded above
            said = plane.offset != side * math.inf
            assert not said.any() or (side == -1 and said.tolist() == [False, False, True] and not math.isnan(end))
            assert all(slope.isfinite().all() for slope in plane.slopes)


@each_dtype
@settings(max_examples=30)
@given(x=boxes(16), y=boxes(16))
def test_planes_have_least_volume(dtype: torch.dtype, x: Interval, y: Interval) -> None:
    """The value at the centre, times the area, is the volume below: that of McCormick's planes, which support the envelopes."""
    x, y = converted(x, dtype), converted(y, dtype)
    relaxation = product_planes(x, y)
    ends = [side.double() for side in (x.lower, x.upper, y.lower, y.upper)]
    middle = (ends[0] + ends[1]) / 2, (ends[2] + ends[3]) / 2
    below, above = (ends[0] * ends[3] + ends[1] * ends[2]) / 2, (ends[0] * ends[2] + ends[1] * ends[3]) / 2
    room = 200 * torch.finfo(dtype).eps * (x.magnitude * y.magnitude).double() + 1e3 * torch.finfo(dtype).tiny
    assert ((at(relaxation.lower, *middle) - below).abs() <= room).all()
    assert ((at(relaxation.upper, *middle) - above).abs() <= room).all()


def at(plane: Linear, x: Tensor, y: Tensor) -> Tensor:
    return plane.slopes[0].double() * x + plane.slopes[1].double() * y + plane.offset.double()


@settings(max_examples=30)
@given(x=boxes(16), y=boxes(16))
def test_of_all_planes_of_least_volume_the_flattest_is_taken(x: Interval, y: Interval) -> None:
    """Over the box it changes by no more than McCormick's own two, nor than mixtures of them."""
    relaxation = product_planes(x, y)
    wide_x, wide_y = x.upper - x.lower, y.upper - y.lower

    def change(a: Tensor, b: Tensor) -> Tensor:
        return (a * wide_x).abs() + (b * wide_y).abs()

    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        ys, xs = torch.lerp(y.lower, y.upper, share), torch.lerp(x.lower, x.upper, share)
        room = 1e-12 * (1 + change(y.magnitude, x.magnitude))
        assert (change(*relaxation.lower.slopes) <= change(ys, xs) + room).all()
        assert (change(*relaxation.upper.slopes) <= change(ys, x.lower + x.upper - xs) + room).all()


def test_samples_share_what_is_the_same_in_all_of_them() -> None:
    one, many = torch.tensor([[1.0, -2.0]], dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    x, y = Interval(one - 0.5, one + 0.5), Interval(many, many + 1)
    alone = product_planes(Interval(x.lower.expand(5, 2), x.upper.expand(5, 2)), y)
    shared = product_planes(x, y)
    torch.testing.assert_close(shared.lower.offset, alone.lower.offset, rtol=0, atol=0)
    torch.testing.assert_close(shared.upper.offset, alone.upper.offset, rtol=0, atol=0)
    assert product_image(x, y).lower.shape == product_image(y, x).upper.shape == (5, 2)
