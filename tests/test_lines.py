"""Lines lie where they say, touch where they should, and waste no area."""

import itertools
import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from boxes import boxes, points
from exact_functions import EXACT, Exact, power
from popqorn.readers.operators.table import ACTIVATIONS as TORCHS
from popqorn.relax import activations
from popqorn.relax.activations import Activation, PiecewiseLinear, Sigmoidal, Smooth
from popqorn.relax.lines import certified_minimum, image, lines
from popqorn.relax.maximum import maximum_planes
from popqorn.relax.relaxation import Interval, Linear

pytestmark = pytest.mark.shapes

ACTIVATIONS = [
    activations.TANH,
    activations.SIGMOID,
    activations.ARCTAN,
    activations.SOFTSIGN,
    activations.RELU,
    activations.IDENTITY,
    activations.SILU,
    activations.GELU,
    activations.TANH_GELU,
    activations.leaky_relu(0.01),
    activations.leaky_relu(2.0),
    activations.leaky_relu(-0.5),
    activations.hardtanh(),
    activations.hardtanh(-0.3, 2.0),
    activations.elu(1.0),
    activations.elu(0.5),
    activations.elu(3.0),
    activations.softplus(),
    activations.softplus(3.0, 5.0),
    Activation(
        "shifted tanh",
        lambda x: torch.tanh(x - 1) + 2,
        Sigmoidal(lambda x: 1 - torch.tanh(x - 1).square(), 1.0, lambda upper: 1 + activations.tanh_touch(upper - 1)),
    ),
    Activation("sine", torch.sin, Smooth(lambda lower, upper: torch.ones_like(lower))),
    activations.ERF,
    activations.SQUARE,
    activations.ABS,
    activations.COS,
    activations.MISH,
    activations.HARDSWISH,
    activations.HARDSIGMOID,
    activations.power(3),
    activations.power(4),
    activations.exp_up_to(0.5),
    activations.negated_share(0.0),
]
each_activation = pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.name)


def interval(lower: float, upper: float) -> Interval:
    return Interval(torch.tensor([lower], dtype=torch.float64), torch.tensor([upper], dtype=torch.float64))


@each_activation
@settings(max_examples=40)
@given(box=boxes(16))
def test_function_lies_between_its_lines(activation: Activation, box: Interval) -> None:
    # 20 activations x 40 examples x 16 boxes x 256 points: 3.3 million
    relaxation = lines(activation, box)
    x = points(box, 256)
    value = activation.function(x)
    assert (relaxation.lower(x) <= value).all()
    assert (relaxation.upper(x) >= value).all()
    for line in (relaxation.lower, relaxation.upper):
        assert line.slopes[0].isfinite().all()
        assert line.offset.isfinite().all()


@each_activation
@settings(max_examples=20)
@given(box=boxes(16))
def test_image_holds_all_values(activation: Activation, box: Interval) -> None:
    values = activation.function(points(box, 256))
    found = image(activation, box)
    assert (found.lower <= values).all()
    assert (found.upper >= values).all()


@each_activation
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gap_at_the_middle_is_the_envelope_gap(activation: Activation, dtype: torch.dtype) -> None:
    """Least area means greatest value at the middle: compare with the convex hull of a fine sampling."""
    centers = 2 * torch.randn(200, dtype=dtype)
    widths = 3 * torch.rand(200, dtype=dtype) + 0.01
    box = Interval(centers - widths, centers + widths)
    relaxation = lines(activation, box)
    for i in range(0, 200, 5):
        x = torch.linspace(float(box.lower[i]), float(box.upper[i]), 801, dtype=torch.float64)
        y = activation.function(x)
        best_below, best_above = _hull_at_middle(x, y), -_hull_at_middle(x, -y)
        middle = (box.lower[i] + box.upper[i]) / 2
        below = float(relaxation.lower.slopes[0][i] * middle + relaxation.lower.offset[i])
        above = float(relaxation.upper.slopes[0][i] * middle + relaxation.upper.offset[i])
        # the sampled hull misses kinks by a step, and curvature by a square of one
        bent = isinstance(activation.shape, Smooth) and activation.name != "hardswish"
        smooth = bent or activation.name in ("tanh", "sigmoid", "arctan")
        tolerance = (2e-4 if smooth else float(x[1] - x[0])) + 2 * activation.slack + (1e-3 if dtype == torch.float32 else 0)
        tolerance *= max(1.0, float(y.abs().max()) / 10)
        assert below >= best_below - tolerance
        assert above <= best_above + tolerance


def _hull_at_middle(x: Tensor, y: Tensor) -> float:
    """The lower convex hull of the points at the middle of `x`: the lowest chord over it."""
    half = len(x) // 2
    left_x, left_y, right_x, right_y = x[: half + 1], y[: half + 1], x[half:], y[half:]
    run = (right_x[None] - left_x[:, None]).clamp(min=1e-12)
    height = left_y[:, None] + (right_y[None] - left_y[:, None]) * (x[half] - left_x[:, None]) / run
    height[half, 0] = y[half]
    return float(height.min())


@pytest.mark.parametrize("activation", [activations.TANH, activations.SIGMOID], ids=["tanh", "sigmoid"])
def test_chord_touches_both_ends_and_tangent_is_tangent(activation: Activation) -> None:
    concave, convex = interval(0.5, 2.0), interval(-2.0, -0.5)
    for box, chord, tangent in ((concave, "lower", "upper"), (convex, "upper", "lower")):
        relaxation = lines(activation, box)
        for end in (box.lower, box.upper):
            torch.testing.assert_close(getattr(relaxation, chord)(end), activation.function(end), rtol=0, atol=1e-14)
        middle = (box.lower + box.upper) / 2
        torch.testing.assert_close(getattr(relaxation, tangent)(middle), activation.function(middle), rtol=0, atol=1e-14)


def test_zero_width_lines_meet_the_function() -> None:
    x = torch.tensor([-700.0, -3.0, 0.0, 0.4, 900.0], dtype=torch.float64)
    for activation in ACTIVATIONS:
        relaxation = lines(activation, Interval(x, x))
        value = activation.function(x)
        for line in (relaxation.lower, relaxation.upper):
            torch.testing.assert_close(line(x), value, rtol=1e-12, atol=1e-11 + 2 * activation.slack)


def test_branch_and_bound_is_tight_on_wide_intervals() -> None:
    for width, loss in ((7.0, 1e-8), (40.0, 5e-3), (2000.0, 8.0)):
        box = interval(-2.0, width - 2.0)
        zero = torch.zeros(1, dtype=torch.float64)
        found = certified_minimum(torch.sin, lambda lower, upper: torch.ones_like(lower), box.lower, box.upper, zero)
        assert -1.0 - loss <= float(found) <= -1.0


def test_the_troughs_of_a_wave_are_not_missed() -> None:
    """Nor the bottom of a parabola: between two points of a grid a function sinks by as much as its curvature says."""
    generator = torch.Generator().manual_seed(0)
    lower = -1000 * torch.rand(300, generator=generator, dtype=torch.float64)
    box = Interval(lower, lower + 7 + 1000 * torch.rand(300, generator=generator, dtype=torch.float64))
    found, relaxation = image(activations.SIN, box), lines(activations.SIN, box)
    assert (found.lower <= -1).all()
    assert (found.upper >= 1).all()
    trough = 2 * math.pi * torch.ceil((box.lower + math.pi / 2) / (2 * math.pi)) - math.pi / 2
    peak = torch.where(trough + math.pi > box.upper, trough - math.pi, trough + math.pi)
    assert (relaxation.lower(trough) <= -1 + 1e-12).all()
    assert (relaxation.upper(peak) >= 1 - 1e-12).all()
    bent = Activation("parabola", torch.square, Smooth(lambda lower, upper: torch.full_like(lower, 2.0)))
    assert (image(bent, Interval(lower, -lower.flip(0))).lower <= 0).all()


def test_slack_covers_where_torchs_softplus_jumps() -> None:
    jumping = activations.softplus(1.0, 2.0)
    for box in (interval(2.0, 2.05), interval(1.99, 2.001), interval(1.5, 2.2)):
        x = torch.cat(
            [torch.linspace(float(box.lower), float(box.upper), 99, dtype=torch.float64), interval(2.0, 2.0 + 1e-12).upper]
        )
        value, found, relaxation = jumping.function(x), image(jumping, box), lines(jumping, box)
        assert (found.lower <= value).all()
        assert (found.upper >= value).all()
        assert (relaxation.lower(x) <= value).all()
        assert (relaxation.upper(x) >= value).all()


def test_elu_and_softplus_refuse_what_they_cannot_bound() -> None:
    with pytest.raises(ValueError, match="alpha of ELU is -1"):
        activations.elu(-1.0)
    with pytest.raises(ValueError, match="beta of Softplus is 0"):
        activations.softplus(0.0)


def test_the_maximum_lies_between_its_planes_also_where_some_operands_are_never_it() -> None:
    """Operands without width, and others far below or above them: pooled frames that stand still, or do not matter."""
    generator = torch.Generator().manual_seed(0)
    lower = 3 * torch.randn(3, 2000, generator=generator, dtype=torch.float64)
    width = torch.rand(3, 2000, generator=generator, dtype=torch.float64)
    width = width * torch.randint(0, 2, width.shape, generator=generator)
    operands = [Interval(low, low + wide) for low, wide in zip(lower, width, strict=True)]
    relaxation = maximum_planes(*operands)
    for _ in range(50):
        share = torch.rand(3, 2000, generator=generator, dtype=torch.float64)
        share = torch.where(share < 0.3, 0.0, torch.where(share > 0.7, 1.0, share))
        points = lower + share * width
        assert (relaxation.lower(*points) <= points.amax(0) + 1e-12).all()
        assert (relaxation.upper(*points) >= points.amax(0) - 1e-12).all()


# ---- in exact arithmetic -----------------------------------------------------------------------------------------------------

FOUND = (Phase.explicit, Phase.generate)  # no shrinking: what fails names one interval
SHARES = [mpmath.mpf(share) for share in (0.5, 0.01, 0.37, 0.82)]
SMOOTH = [exact for exact in EXACT if isinstance(exact.activation.shape, Smooth)]
DOMAINS = [exact for exact in EXACT if exact.activation.defined is not None]
each_exact = pytest.mark.parametrize("exact", EXACT, ids=lambda exact: exact.activation.name)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def holds(line: Linear, number: int, x: Any, value: Any, side: int) -> bool:
    """Whether line `number` is below (`side = 1`) or above (`side = -1`) the exact `value` at the exact `x`, or says nothing."""
    slope, offset = float(line.slopes[0][number]), float(line.offset[number])
    if math.isnan(slope) or math.isnan(offset) or offset == -side * math.inf:
        return True
    return math.isfinite(slope) and math.isfinite(offset) and side * (slope * x + mpmath.mpf(offset) - value) <= 0


def exact_points(lower: float, upper: float) -> list[Any]:
    """Both ends, points between them, and the kinks that lie there."""
    start, end = mpmath.mpf(lower), mpmath.mpf(upper)
    kinks = [mpmath.mpf(kink) for kink in (-3, 0, 3) if lower < kink < upper]
    return [start, end, *(max(start, min(start + share * (end - start), end)) for share in SHARES), *kinks]


def hold_everywhere(exact: Exact, box: Interval) -> None:
    """Lines and image hold at points of every box."""
    relaxation, found = lines(exact.activation, box), image(exact.activation, box)
    flat = (torch.zeros_like(found.lower),)
    below, above = (relaxation.lower, Linear(flat, found.lower)), (relaxation.upper, Linear(flat, found.upper))
    for number, (lower, upper) in enumerate(zip(box.lower.tolist(), box.upper.tolist(), strict=True)):
        for x in exact_points(lower, upper):
            value = exact.function(x)
            where = f"{exact.activation.name} on [{lower!r}, {upper!r}] at {mpmath.nstr(x, 20)}"
            assert all(holds(line, number, x, value, 1) for line in below), where
            assert all(holds(line, number, x, value, -1) for line in above), where


@each_dtype
@each_exact
@settings(max_examples=3, phases=FOUND)
@given(box=boxes(16))
def test_lines_hold_in_exact_arithmetic(exact: Exact, dtype: torch.dtype, box: Interval) -> None:
    placed = exact.boxes(box, dtype)
    relaxation, found = lines(exact.activation, placed), image(exact.activation, placed)
    for said in (*relaxation.lower.slopes, relaxation.lower.offset, *relaxation.upper.slopes, relaxation.upper.offset):
        assert said.isfinite().all()
    assert (found.lower.isfinite() & found.upper.isfinite()).all()
    hold_everywhere(exact, placed)


@each_dtype
@each_exact
@settings(max_examples=3, phases=FOUND)
@given(data=st.data())
def test_nothing_false_is_said_where_numbers_end(exact: Exact, dtype: torch.dtype, data: st.DataObject) -> None:
    """Ends of any size: squares that overflow, slopes that underflow over a long way, sines of 1e300."""
    width = 64 if dtype == torch.float64 else 32
    end = st.floats(allow_nan=False, allow_infinity=False, width=width)
    pairs = data.draw(st.lists(st.tuples(end, end).map(sorted), min_size=12, max_size=12))
    spread = torch.linspace(-0.95, 0.95, 9, dtype=torch.float64) * math.log10(torch.finfo(dtype).max)
    grown = [[sign * value, sign * 3 * value] for value in (10**spread).tolist() for sign in (1, -1)]
    ends = torch.tensor([*pairs, *map(sorted, grown)], dtype=torch.float64).to(dtype)
    hold_everywhere(exact, Interval(ends[:, 0], ends[:, 1]) if exact.activation.defined is None else _inside(exact, ends))


def _inside(exact: Exact, ends: Tensor) -> Interval:
    """The boxes of these ends on which the function is defined."""
    assert exact.activation.defined is not None
    inside = exact.activation.defined(ends[:, 0], ends[:, 1])
    return Interval(ends[inside, 0], ends[inside, 1])


@each_dtype
@pytest.mark.parametrize("exact", DOMAINS, ids=lambda exact: exact.activation.name)
def test_nothing_is_said_outside_the_domain(exact: Exact, dtype: torch.dtype) -> None:
    sizes = [0.0, 5e-324, 1e-300, 1e-30, 1.0, 3.0, 1e30, math.inf]
    ends = [(-low, high) for low, high in itertools.product(sizes, sizes)] + [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.nan, math.nan),
    ]
    both = torch.tensor(ends, dtype=torch.float64).to(dtype)
    box = Interval(both[:, 0], both[:, 1])
    assert exact.activation.defined is not None
    relaxation, found = lines(exact.activation, box), image(exact.activation, box)
    nan = both.isnan().any(-1)
    for side, line, end in ((-1, relaxation.lower, found.lower), (1, relaxation.upper, found.upper)):
        assert (line.slopes[0] == 0)[~nan].all()
        assert (line.offset == side * math.inf)[~nan].all()
        assert (end == side * math.inf)[~nan].all()
        assert not line.offset[nan].isfinite().any()


def near_kinks(count: int) -> Interval:
    """Boxes around -3 or 3, of widths from 1e-4 to 10."""
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(3, count, generator=generator, dtype=torch.float64)
    width, kink = 10 ** (5 * share[0] - 4), torch.where(share[1] < 0.5, -3.0, 3.0)
    return Interval(kink - share[2] * width, kink + (1 - share[2]) * width)


def test_lines_hold_at_kinks() -> None:
    for exact in EXACT:
        if exact.activation.name in ("hardswish", "hardsigmoid"):
            hold_everywhere(exact, near_kinks(100))


@pytest.mark.parametrize("exact", SMOOTH, ids=lambda exact: exact.activation.name)
@settings(max_examples=6, phases=FOUND)
@given(drawn=boxes(16))
def test_no_function_leaves_its_chord_by_more_than_its_curvature_allows(exact: Exact, drawn: Interval) -> None:
    """On a cell of width h by at most `h^2/8` of it, kinks included: what the search for the least value relies on."""
    assert isinstance(exact.activation.shape, Smooth)
    kinked = near_kinks(24)
    box = Interval(torch.cat([drawn.lower, kinked.lower]), torch.cat([drawn.upper, kinked.upper]))
    curvature = exact.activation.shape.curvature(box.lower, box.upper)
    for lower, upper, bend in zip(box.lower.tolist(), box.upper.tolist(), curvature.tolist(), strict=True):
        start, end = mpmath.mpf(lower), mpmath.mpf(upper)
        first, last = exact.function(start), exact.function(end)
        most = (end - start) ** 2 / 8 * mpmath.mpf(bend) * (1 + mpmath.mpf("1e-12")) + mpmath.mpf("1e-30")
        for x in exact_points(lower, upper):
            chord = first if end == start else first + (last - first) * (x - start) / (end - start)
            assert abs(exact.function(x) - chord) <= most, (lower, upper, x)


def test_curvature_bounds_hold() -> None:
    """At a point, as all of them fall with the distance to zero: beside second derivatives of many digits."""
    x = torch.linspace(-14, 14, 281, dtype=torch.float64)
    for exact in SMOOTH:
        if exact.activation.name in ("mish", "silu", "gelu", "gelu(tanh)"):
            assert isinstance(exact.activation.shape, Smooth)
            bound = exact.activation.shape.curvature(x, x).tolist()
            with mpmath.workdps(100):
                for point, most in zip(x.tolist(), bound, strict=True):
                    bend = abs(mpmath.diff(exact.function, mpmath.mpf(point), 2, h=mpmath.mpf("1e-25")))
                    assert bend <= mpmath.mpf(most) * (1 + mpmath.mpf("1e-15")), (exact.activation.name, point)


def test_powers_that_are_lines_or_squares_are_known_as_such() -> None:
    assert activations.power(2) is activations.SQUARE
    box = interval(-2.0, 3.0)
    for exponent in (0, 1):
        relaxation = lines(activations.power(exponent), box)
        assert float(relaxation.upper.offset - relaxation.lower.offset) < 1e-13
        hold_everywhere(power(exponent), box)


def test_a_wide_concave_box_has_lines_though_its_greatest_slope_overflows() -> None:
    """Slopes of `-1/x` from 1e28 to 1e-28 over a length of 1e14: a product no line needs is no number in float32."""
    found = lines(activations.NEGATED_RECIPROCAL, Interval(torch.tensor([8e-15, -1.2e14]), torch.tensor([1.2e14, -8e-15])))
    for line in (found.lower, found.upper):
        assert line.slopes[0].isfinite().all()
        assert line.offset.isfinite().all()


ROUNDED_KINKS = {
    "softshrink": (TORCHS["softshrink"](0.1), lambda x: max(x - mpmath.mpf(0.1), 0) + min(x + mpmath.mpf(0.1), 0)),
    "hardtanh": (activations.hardtanh(-0.3, 0.1), lambda x: min(max(x, mpmath.mpf(-0.3)), mpmath.mpf(0.1))),
    "taught": (
        Activation("bent", lambda x: x + 2 * torch.relu(x - 0.1), PiecewiseLinear((0.1,))),
        lambda x: x + 2 * max(x - mpmath.mpf(0.1), 0),
    ),
}


@pytest.mark.parametrize("name", ROUNDED_KINKS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_kink_that_is_no_number_of_the_dtype_stays_where_it_is(name: str, dtype: torch.dtype) -> None:
    activation, exact = ROUNDED_KINKS[name]
    kink = torch.tensor(0.1, dtype=dtype)
    near = [float(kink), *(float(torch.nextafter(kink, kink + way)) for way in (-1, 1)), -0.3, -0.1, 0.05, 0.2]
    for low, high in itertools.product(near, near):
        if low > high:
            continue
        box = Interval(torch.tensor([low], dtype=dtype), torch.tensor([high], dtype=dtype))
        relaxation, values = lines(activation, box), image(activation, box)
        ends = [mpmath.mpf(float(end)) for end in (box.lower, box.upper)]
        inside = [point for point in (mpmath.mpf(-0.3), mpmath.mpf(-0.1), mpmath.mpf(0.1)) if ends[0] <= point <= ends[1]]
        for x in (*ends, *inside):
            lower, upper = (float(line.slopes[0]) * x + float(line.offset) for line in (relaxation.lower, relaxation.upper))
            assert max(lower, float(values.lower)) <= exact(x) <= min(upper, float(values.upper))
