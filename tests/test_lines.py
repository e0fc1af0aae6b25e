"""Lines lie where they say, touch where they should, and waste no area."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from boxes import boxes, points
from popqorn.relax import activations
from popqorn.relax.activations import Activation, Sigmoidal, Smooth
from popqorn.relax.lines import certified_minimum, image, lines
from popqorn.relax.maximum import maximum_planes
from popqorn.relax.relaxation import Interval

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
        smooth = isinstance(activation.shape, Smooth) or activation.name in ("tanh", "sigmoid", "arctan")
        tolerance = (2e-4 if smooth else float(x[1] - x[0])) + 2 * activation.slack + (1e-3 if dtype == torch.float32 else 0)
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


def test_curvature_bounds_hold() -> None:
    x = torch.linspace(-12, 12, 4801, dtype=torch.float64, requires_grad=True)
    for activation in (activations.SILU, activations.GELU, activations.TANH_GELU):
        (first,) = torch.autograd.grad(activation.function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert isinstance(activation.shape, Smooth)
        bound = activation.shape.curvature(x.detach(), x.detach())
        assert (second.abs() <= bound + 1e-12).all()


def test_branch_and_bound_is_tight_on_wide_intervals() -> None:
    for width, loss in ((7.0, 1e-8), (40.0, 5e-3), (2000.0, 8.0)):
        box = interval(-2.0, width - 2.0)
        zero = torch.zeros(1, dtype=torch.float64)
        found = certified_minimum(torch.sin, lambda lower, upper: torch.ones_like(lower), box.lower, box.upper, zero)
        assert -1.0 - loss <= float(found) <= -1.0


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
