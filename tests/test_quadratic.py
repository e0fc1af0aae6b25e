"""Quadratics of gates, activations and products lie on their side of the function, over all kinds of boxes."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from boxes import boxes, points
from popqorn.relax import activations
from popqorn.relax.gates import GateKind
from popqorn.relax.quadratic import Bend, Tangent, plane_tangent, sigmoid_curvature, tanh_curvature
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.node import NonlinearNode
from popqorn.tape.ops.nonlinear import Gate, Maximum, Product, Unary

SIZE = 24
POINTS = 400
CURVED: dict[str, NonlinearNode] = {
    "s(v) z": Gate((0, 1), GateKind.IDENTITY, SIZE),
    "s(v) tanh(z)": Gate((0, 1), GateKind.TANH, SIZE),
    "(1 - s(v)) z": Gate((0, 1), GateKind.IDENTITY, SIZE, closing=True),
    "(1 - s(v)) tanh(z)": Gate((0, 1), GateKind.TANH, SIZE, closing=True),
    "x y": Product((0, 1), SIZE),
    "tanh": Unary((0,), activations.TANH, SIZE),
    "sigmoid": Unary((0,), activations.SIGMOID, SIZE),
    "square": Unary((0,), activations.SQUARE, SIZE),
    "silu": Unary((0,), activations.SILU, SIZE),
    "sin": Unary((0,), activations.SIN, SIZE),
    "hard-swish": Unary((0,), activations.HARDSWISH, SIZE),
}
PLAIN: dict[str, NonlinearNode] = {
    "relu": Unary((0,), activations.RELU, SIZE),
    "maximum": Maximum((0, 1), SIZE),
    "softplus": Unary((0,), activations.softplus(), SIZE),
}
each_curved = pytest.mark.parametrize("node", CURVED.values(), ids=CURVED)
each_plain = pytest.mark.parametrize("node", PLAIN.values(), ids=PLAIN)


@st.composite
def operands(draw: st.DrawFn) -> tuple[tuple[Interval, Interval], tuple[Tensor, Tensor]]:
    """Two boxes, and a point in each: the middle, or anywhere."""
    drawn = draw(boxes(SIZE)), draw(boxes(SIZE))
    share = draw(st.sampled_from([0.5, 0.5, 0.0, 1.0, 0.2]))
    return drawn, tuple(box.lower + share * (box.upper - box.lower) for box in drawn)  # type: ignore[return-value]


def sampled(
    node: NonlinearNode, drawn: tuple[Interval, ...], at: tuple[Tensor, ...], tangent: Tangent
) -> tuple[Tensor, list[Tensor]]:
    """How far the function is from its tangent at points of the boxes, and how far these are from the reference point."""
    inside = [points(box, POINTS, seed) for seed, box in enumerate(drawn)]
    away = [x - point for x, point in zip(inside, at, strict=True)]
    line = tangent.value
    for slope, distance in zip(tangent.slopes, away, strict=True):
        line = line + slope * distance
    return node.evaluate(*inside) - line, away


def noise(drawn: tuple[Interval, ...], tangent: Tangent) -> Tensor:
    """What evaluating the test itself may be off by."""
    size = 1 + tangent.value.abs()
    for slope, box in zip(tangent.slopes, drawn, strict=True):
        size = size * (1 + box.magnitude) + slope.abs() * box.magnitude
    return 1e-14 * size


@each_curved
@settings(max_examples=60)
@given(case=operands())
def test_function_lies_between_its_quadratics(
    node: NonlinearNode, case: tuple[tuple[Interval, Interval], tuple[Tensor, Tensor]]
) -> None:
    drawn, at = (each[: len(node.sources)] for each in case)
    tangent = node.tangent(at, *drawn)
    assert tangent is not None
    assert tangent.below is not None
    assert tangent.above is not None
    rest, away = sampled(node, drawn, at, tangent)
    allowed = noise(drawn, tangent)
    bends = [bend(*away) for bend in (tangent.below, tangent.above, tangent.both)]
    below, above, both = (bend.nan_to_num(nan=torch.inf) for bend in bends)
    assert (rest >= -below - allowed).all()
    assert (rest <= above + allowed).all()
    assert (rest.abs() <= both + allowed).all()
    assert tangent.both.cross is None


@each_plain
@settings(max_examples=40)
@given(case=operands())
def test_what_has_no_quadratic_lies_near_its_planes(
    node: NonlinearNode, case: tuple[tuple[Interval, Interval], tuple[Tensor, Tensor]]
) -> None:
    drawn, at = (each[: len(node.sources)] for each in case)
    assert node.tangent(at, *drawn) is None
    tangent = plane_tangent(node.evaluate(*at), node.planes(*drawn), drawn, at)
    rest, away = sampled(node, drawn, at, tangent)
    assert (rest.abs() <= tangent.both(*away) + noise(drawn, tangent)).all()


def test_a_million_points_of_gates_over_boxes_of_all_sizes() -> None:
    for node in list(CURVED.values())[:4]:
        for size in (1e-9, 1e-3, 0.3, 2.0, 40.0):
            count = 250
            center, sides = 1.5 * torch.randn(2, count, dtype=torch.float64), size * torch.rand(4, count, dtype=torch.float64)
            drawn = tuple(Interval(center[k] - sides[2 * k], center[k] + sides[2 * k + 1]) for k in range(2))
            tangent = node.tangent((center[0], center[1]), *drawn)
            assert tangent is not None
            rest, away = sampled(node, drawn, (center[0], center[1]), tangent)
            for bend, side in ((tangent.below, -1.0), (tangent.above, 1.0)):
                assert isinstance(bend, Bend)
                assert (side * rest <= bend(*away) + 1e-15 * (1 + center.abs().amax())).all()


def test_quadratics_hold_at_kinks_between_the_nodes() -> None:
    """Hard-swish has a kink at -3, which may lie anywhere in a cell."""
    for share in torch.linspace(0.01, 0.99, 25).tolist():
        for size in (0.1, 1.0, 10.0):
            at = torch.tensor([-3.0 + share * size / 32, -3.0 - share * size / 32], dtype=torch.float64)
            box = Interval(at - size, at + size * torch.tensor([0.0, 0.7], dtype=torch.float64))
            tangent = Unary((0,), activations.HARDSWISH, 2).tangent((at,), box)
            assert tangent is not None
            assert tangent.above is not None
            assert tangent.below is not None
            kink = torch.maximum(torch.minimum(torch.full_like(at, -3.0), box.upper), box.lower)
            rest = torch.nn.functional.hardswish(kink) - tangent.value - tangent.slopes[0] * (kink - at)
            assert (rest <= tangent.above(kink - at)).all()
            assert (rest >= -tangent.below(kink - at)).all()


def test_quadratics_hold_where_nodes_are_rounded() -> None:
    """A box of a few units in the last place around a large number."""
    at = torch.full((1,), 4096 * math.pi, dtype=torch.float64)
    for units in (0.49, 1.4, 3.0):
        size = units * math.ulp(float(at))
        tangent = Unary((0,), activations.SIN, 1).tangent((at,), Interval(at - size, at + size))
        assert tangent is not None
        exact = [mpmath.sin(mpmath.mpf(float(at)) + side * mpmath.mpf(size)) for side in (-1, 1)]
        for side, value in zip((-1, 1), exact, strict=True):
            line = mpmath.mpf(float(tangent.value)) + mpmath.mpf(float(tangent.slopes[0])) * side * mpmath.mpf(size)
            assert abs(value - line) <= float(tangent.both(torch.full_like(at, side * size)))


def test_quadratics_are_second_order() -> None:
    """Ten times narrower boxes have bends a hundred times smaller: nothing but rounding stays."""
    v, z = torch.linspace(-2, 2, SIZE, dtype=torch.float64), torch.linspace(-1, 1.5, SIZE, dtype=torch.float64)
    for node in list(CURVED.values())[:2]:
        found = []
        for size in (0.1, 0.01):
            tangent = node.tangent((v, z), Interval(v - size, v + size), Interval(z - size, z + size))
            assert tangent is not None
            assert tangent.below is not None
            found.append(tangent.both(torch.full_like(v, size), torch.full_like(z, size)))
            assert (tangent.below.slack < 0.02 * found[-1] + 1e-13).all()
        assert ((found[1] / found[0] - 0.01).abs() < 0.003).all()


@pytest.mark.parametrize(("function", "bound"), [(torch.sigmoid, sigmoid_curvature), (torch.tanh, tanh_curvature)])
def test_curvature_is_the_greatest_second_derivative(
    function: Callable[[Tensor], Tensor], bound: Callable[[Tensor, Tensor], Tensor]
) -> None:
    ends = (3 * torch.randn(2, 200, dtype=torch.float64)).sort(0).values
    x = torch.lerp(ends[0], ends[1], torch.linspace(0, 1, 2001, dtype=torch.float64).unsqueeze(-1)).requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    greatest = second.abs().amax(0)
    assert (bound(ends[0], ends[1]) >= greatest - 1e-12).all()
    assert (bound(ends[0], ends[1]) <= 1.01 * greatest + 1e-9).all()
