"""Every operation of a tape computes what torch computes, boxes and relaxes what it computes, and so do random tapes of all."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from torch import Tensor, nn

import popqorn
from popqorn.bounds.inner import relax, run
from popqorn.relax import activations
from popqorn.relax.gates import GateKind
from popqorn.relax.methods import METHODS
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.linear import Affine, Concat, Convolution, Gather, Scale, Slice, Sum, Total
from popqorn.tape.ops.node import LinearNode, NonlinearNode, pull_back
from popqorn.tape.ops.nonlinear import Gate, Maximum, Product, Unary
from popqorn.tape.tape import Tape, TapeWriter
from random_tapes import BUILT, EXACTLY, FEATURES, FRAMES, OUTPUTS, Steps, exact_values, random_tape, steps
from sets import around

BATCH = 5
GENERATED = (Phase.explicit, Phase.generate)  # no shrinking, which takes minutes
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@dataclass(frozen=True)
class Case:
    """An operation, the widths of its operands, and the same in plain torch."""

    node: Any
    widths: tuple[int, ...]
    plain: Callable[..., Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def convolution(shape: tuple[int, ...], weight: tuple[int, ...], bias: int | None, **options: Any) -> Case:
    dimensions, transposed = len(shape) - 1, options.pop("transposed", False)
    given = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **({"output_padding": 0} if transposed else {}), **options}
    kernel, added = normal(*weight), None if bias is None else normal(bias)
    plain = getattr(nn.functional, f"conv{'_transpose' if transposed else ''}{dimensions}d")
    each = {name: value if isinstance(value, tuple) else (value,) * dimensions for name, value in given.items()}
    node = Convolution((0,), shape, kernel, added, **{**each, "groups": given["groups"]}, transposed=transposed)
    return Case(node, (math.prod(shape),), lambda x: plain(x.unflatten(1, shape), kernel, added, **given).flatten(1))


SCALES = {
    "scale": (normal(6), normal(6, seed=1)),
    "scale, one factor": (torch.tensor([-1.7], dtype=torch.float64), normal(6)),
    "scale, one shift": (-normal(6).abs(), torch.tensor([0.3], dtype=torch.float64)),
    "scale by nothing": (torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)),
}
INDEX = torch.tensor([3, 0, 0, 5, 3, 3, 1])
WEIGHTS = normal(3, 4), normal(3, 2)
LINEAR = {
    "affine": Case(
        Affine((0, 1), WEIGHTS, normal(3)),
        (4, 2),
        lambda x, y: nn.functional.linear(x, WEIGHTS[0], normal(3)) + nn.functional.linear(y, WEIGHTS[1]),
    ),
    **{
        name: Case(Scale((0,), factor, shift, 6), (6,), lambda x, factor=factor, shift=shift: torch.addcmul(shift, factor, x))
        for name, (factor, shift) in SCALES.items()
    },
    "sum": Case(Sum((0, 1, 2), 4), (4, 4, 4), lambda x, y, z: torch.stack([x, y, z]).sum(0)),
    "total": Case(Total((0,), 3, 2), (6,), lambda x: torch.stack([x[:, :3].sum(1), x[:, 3:].sum(1)], dim=1)),
    "slice": Case(Slice((0,), 1, 4), (6,), lambda x: x[:, 1:4]),
    "gather": Case(Gather((0,), INDEX), (6,), lambda x: torch.index_select(x, 1, INDEX)),
    "concat": Case(Concat((0, 1, 2), (2, 3, 1)), (2, 3, 1), lambda x, y, z: torch.cat([x, y, z], dim=1)),
    "convolution 1d": convolution((4, 9), (6, 2, 3), 6, stride=2, padding=2, dilation=2, groups=2),
    "convolution 1d, no bias": convolution((2, 5), (3, 2, 2), None),
    "convolution 2d": convolution((2, 5, 4), (3, 2, 3, 2), 3, stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    "convolution 2d, depthwise": convolution((3, 4, 4), (6, 1, 3, 3), 6, padding=1, groups=3),
    "convolution 3d": convolution((2, 3, 3, 4), (2, 2, 2, 1, 3), 2, stride=(1, 2, 1), padding=(0, 1, 1)),
    "convolution 1d, transposed": convolution((2, 5), (2, 3, 3), 3, stride=2, padding=1, output_padding=1, transposed=True),
    "convolution 2d, transposed": convolution(
        (4, 3, 2),
        (4, 1, 2, 3),
        2,
        stride=(2, 3),
        padding=(0, 1),
        dilation=(2, 1),
        groups=2,
        output_padding=(1, 2),
        transposed=True,
    ),
    "convolution 3d, transposed": convolution((1, 2, 2, 3), (1, 2, 2, 2, 2), None, transposed=True),
}
NONLINEAR = {
    "unary": Case(Unary((0,), activations.MISH, 6), (6,), nn.functional.mish),
    **{
        f"gate {kind.value}{', closing' * closing}": Case(
            Gate((0, 1), kind, 6, closing),
            (6, 6),
            lambda v, z, kind=kind, closing=closing: (
                (1 - torch.sigmoid(v) if closing else torch.sigmoid(v)) * (z if kind is GateKind.IDENTITY else torch.tanh(z))
            ),
        )
        for kind, closing in itertools.product(GateKind, (False, True))
    },
    "product": Case(Product((0, 1), 6), (6, 6), torch.mul),
    "maximum": Case(Maximum((0, 1, 2), 6), (6, 6, 6), lambda x, y, z: torch.stack([x, y, z]).amax(0)),
}
CASES = {**LINEAR, **NONLINEAR}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_linear = pytest.mark.parametrize("case", LINEAR.values(), ids=LINEAR)
each_nonlinear = pytest.mark.parametrize("case", NONLINEAR.values(), ids=NONLINEAR)


def some_boxes(case: Case) -> list[Interval]:
    """Boxes of the operands; some sides are empty, some samples' boxes far from zero."""
    found = []
    for number, width in enumerate(case.widths):
        middle, half = normal(BATCH, width, seed=number), normal(BATCH, width, seed=number + 10).clamp(min=0)
        middle[0] *= 20
        found.append(Interval(middle - half, middle + half))
    return found


def inside(box: Interval, count: int, seed: int) -> Tensor:
    """Points of a box, `[count, batch, width]`: a third of them corners."""
    share = torch.rand(count, *box.lower.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    share[: count // 3] = share[: count // 3].round()
    return torch.lerp(box.lower, box.upper, share)


def samples(case: Case, count: int = 200) -> tuple[list[Interval], list[Tensor]]:
    boxes = some_boxes(case)
    return boxes, [inside(box, count, number) for number, box in enumerate(boxes)]


@each_case
def test_operations_compute_what_torch_computes(case: Case) -> None:
    operands = [normal(BATCH, width, seed=number) for number, width in enumerate(case.widths)]
    value = case.node.evaluate(*operands)
    assert value.shape == (BATCH, case.node.width)
    torch.testing.assert_close(value, case.plain(*operands), rtol=1e-12, atol=1e-12)
    # what is the same in all samples has a batch of one
    shared = case.node.evaluate(operands[0][:1], *operands[1:]).expand(BATCH, -1)
    torch.testing.assert_close(shared, case.plain(operands[0][:1].expand(BATCH, -1), *operands[1:]), rtol=1e-12, atol=1e-12)


@each_case
def test_images_hold_all_values(case: Case) -> None:
    boxes, points = samples(case)
    found = case.node.image(*boxes)
    values = torch.stack([case.plain(*point) for point in zip(*points, strict=True)])
    room = 1e-12 * (1 + values.abs())
    assert (found.lower <= values + room).all()
    assert (found.upper >= values - room).all()


@each_linear
def test_linear_images_are_those_of_the_jacobian(case: Case) -> None:
    boxes = some_boxes(case)
    found, expected = case.node.image(*boxes), LinearNode.image(case.node, *boxes)
    torch.testing.assert_close(found.lower, expected.lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.upper, expected.upper, rtol=1e-12, atol=1e-12)


@each_linear
def test_errors_pass_by_the_absolute_jacobian(case: Case) -> None:
    values = [normal(BATCH, width, seed=number).abs() for number, width in enumerate(case.widths)]
    (constant, total), expected = case.node.absolute(*values), LinearNode.absolute(case.node, *values)
    torch.testing.assert_close(constant.expand_as(total), expected[0].expand_as(total), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(total, expected[1], rtol=1e-12, atol=1e-12)
    jacobian = torch.autograd.functional.jacobian(lambda *x: case.plain(*x)[0], tuple(value[:1] for value in values))
    by_hand = sum(part[:, 0].abs() @ value.mT for part, value in zip(jacobian, values, strict=True))
    torch.testing.assert_close(total, by_hand.mT, rtol=1e-12, atol=1e-12)


@each_nonlinear
@pytest.mark.parametrize("kind", ["planes", "lines", "constants"])
def test_relaxations_hold_at_all_points(case: Case, kind: str) -> None:
    boxes, points = samples(case)
    relaxation = getattr(case.node, kind)(*boxes)
    for point in zip(*points, strict=True):
        value = case.plain(*point)
        room = 1e-12 * (1 + value.abs())
        assert (relaxation.lower(*point) <= value + room).all()
        assert (relaxation.upper(*point) >= value - room).all()


@each_nonlinear
def test_nothing_changes_faster_than_its_steepest_slope(case: Case) -> None:
    boxes, points = samples(case)
    if len(case.widths) == 1:
        with pytest.raises(NotImplementedError):
            case.node.steepest(0, *boxes)
        return
    moving = [point.requires_grad_() for point in points]
    total = sum(case.node.evaluate(*point).sum() for point in zip(*moving, strict=True))
    for place, slope in enumerate(torch.autograd.grad(total, moving)):
        most = case.node.steepest(place, *boxes)
        assert (slope.abs() <= most * (1 + 1e-12)).all()
        # and over a step: how a known operand that is off by an error moves the value
        far = [*points[:place], points[place] + 0.5, *points[place + 1 :]]
        step = (case.node.evaluate(*map(torch.detach, far)) - case.node.evaluate(*map(torch.detach, points))).abs()
        assert (step <= 0.5 * most * (1 + 1e-12)).all()


# ---- tapes -------------------------------------------------------------------------------------------------------------------

REGIONS = [popqorn.Ball(2), popqorn.Ball(math.inf), popqorn.Ball(1, frames=[1]), popqorn.Ball(math.inf, frames=[0])]


def moved(inputs: Tensor, eps: float, region: popqorn.Ball, count: int) -> Tensor:
    """Allowed inputs, `[count, batch, frames, features]`: all at the edge but for rounding."""
    delta = torch.randn(count, *inputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if math.isinf(region.norm):
        delta = delta.sign()
    delta[::2] *= delta[::2].abs() == delta[::2].abs().amax(-1, keepdim=True)  # every other one is a corner of the l_1 ball
    if region.frames is not None:
        delta = delta * (torch.arange(FRAMES) == region.frames[0]).unsqueeze(-1)
    size = torch.linalg.vector_norm(delta, ord=region.norm, dim=-1, keepdim=True)
    return inputs + eps * (1 - 1e-9) * delta / size.clamp(min=1e-9)


@pytest.mark.parametrize("region", REGIONS, ids=["l2", "linf", "l1, first still", "linf, last still"])
@settings(max_examples=10, phases=GENERATED)
@given(chosen=steps(BUILT, 9))
def test_random_tapes_are_bounded_by_every_method(region: popqorn.Ball, chosen: Steps) -> None:
    tape = random_tape(chosen)
    inputs, rows = normal(3, FRAMES, FEATURES), normal(1, 4, OUTPUTS)
    for eps in (0.01, 0.4):
        points = moved(inputs, eps, region, 60)
        values = [value.expand(180, -1).unflatten(0, (60, 3)) for value in tape.values(points.flatten(0, 1))]
        wanted = values[-1] @ rows[0].mT
        center = run(tape, around(inputs, eps, region))
        for method, known in [*((method, None) for method in METHODS.values()), (METHODS["planes"], center)]:
            relaxed = relax(tape, around(inputs, eps, region), method, center=known)
            assert not (relaxed.lower(rows) > wanted + 1e-9 * wanted.abs()).any()
            for node, box, value in zip(tape.nodes, relaxed.boxes, values, strict=True):
                room = 1e-9 * value.abs()
                assert not ((box.lower > value + room) | (box.upper < value - room)).any(), (method.name, node)


def test_random_tapes_say_something() -> None:
    """Nearly all have finite bounds: what the test above holds true is not empty."""
    finite = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        names = [list(BUILT)[number] for number in torch.randint(0, len(BUILT), (6,), generator=generator).tolist()]
        tape = random_tape([(name, seed + place) for place, name in enumerate(names)])
        lower = relax(tape, around(normal(1, FRAMES, FEATURES), 0.01), METHODS["planes"]).lower(normal(1, 4, OUTPUTS))
        finite += bool(lower.isfinite().all())
    assert finite >= 30


# ---- in exact arithmetic -----------------------------------------------------------------------------------------------------


def hold_exactly(exact: Tape, bounded: Tape, dtype: torch.dtype, inputs: Tensor, eps: float) -> None:
    """The boxes and bounds of a tape hold the exact values of one, at the centre and where inputs have moved by eps."""
    signs = torch.randn(2, FRAMES, FEATURES, generator=torch.Generator().manual_seed(0)).sign().double()
    points = (inputs, *(inputs + eps * signs)) if eps else (inputs,)
    every = [exact_values(exact, point) for point in points]
    rows = torch.cat([torch.eye(exact.outputs), -torch.eye(exact.outputs)]).unsqueeze(0).to(dtype)
    for method in ("planes", "interval"):
        relaxed = relax(bounded, around(inputs[None].to(dtype), eps, popqorn.Ball(math.inf)), METHODS[method])
        lowest = relaxed.lower(rows)[0].tolist()
        for values in every:
            for index, (node, box) in enumerate(zip(bounded.nodes, relaxed.boxes, strict=True)):
                error = relaxed.errors[index].double() if index in relaxed.known else torch.zeros(1, dtype=torch.float64)
                around_it = box.lower.double() - error, box.upper.double() + error
                for low, number, high in zip(around_it[0][0].tolist(), values[index], around_it[1][0].tolist(), strict=True):
                    assert not low > number, (method, node)
                    assert not high < number, (method, node)
            for low, number in zip(lowest, [*values[-1], *(-end for end in values[-1])], strict=True):
                assert not low > number, method


@each_dtype
@pytest.mark.parametrize("spread", [0.0, 5.0])
@settings(max_examples=12, phases=GENERATED)
@given(chosen=steps(EXACTLY, 7))
def test_exact_values_lie_in_the_bounds_of_random_tapes(spread: float, dtype: torch.dtype, chosen: Steps) -> None:
    """Weights of ten orders of magnitude, none of which float32 can hold: `dtype` is what is computed in."""
    inputs = (normal(FRAMES, FEATURES) * 256).round() / 256
    for eps in (0.0, 2.0**-6):
        hold_exactly(random_tape(chosen, spread=spread), random_tape(chosen, dtype, spread), dtype, inputs, eps)


CANCEL = (2.0**54, -1.0, -(2.0**54), 0.5)


def _by_scales(writer: TapeWriter, ones: int, order: Tensor) -> int:
    return writer.sum(*(writer.scale(writer.slice(ones, place, place + 1), order[place]) for place in range(4)))


def _by_shifts(writer: TapeWriter, ones: int, order: Tensor) -> int:
    """`((1 w0 + w1) 1 + w2) 1 + w3`."""
    value = writer.scale(writer.slice(ones, 0, 1), order[0], order[1])
    return writer.scale(writer.scale(value, 1.0, order[2]), 1.0, order[3])


def _by_convolution(writer: TapeWriter, ones: int, order: Tensor) -> int:
    where: dict[str, Any] = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
    return writer.convolution(ones, (1, 4), order[None, None], None, **where)


def _by_transposed_convolution(writer: TapeWriter, ones: int, order: Tensor) -> int:
    where: dict[str, Any] = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1, "transposed": True}
    return writer.convolution(ones, (4, 1), order[:, None, None], None, **where)


CANCELLING: dict[str, Callable[[TapeWriter, int, Tensor], int]] = {
    "scale": _by_scales,
    "shift": _by_shifts,
    "total": lambda writer, ones, order: writer.total(writer.scale(ones, order), 4),
    "gather": lambda writer, ones, order: writer.total(
        writer.gather(writer.scale(writer.slice(ones, 0, 2), order[:2]), torch.tensor([0, 1, 0, 1])), 4
    ),
    "product": lambda writer, ones, order: writer.total(writer.product(ones, writer.constant(order)), 4),
    "product of what moves": lambda writer, ones, order: writer.total(writer.product(writer.scale(ones, order), ones), 4),
    "convolution": _by_convolution,
    "transposed convolution": _by_transposed_convolution,
}


@each_dtype
@pytest.mark.parametrize("way", CANCELLING)
@pytest.mark.parametrize("behind", [None, activations.HARDSIGMOID], ids=["linear", "bent"])
def test_what_cancels_proves_nothing_false(way: str, behind: activations.Activation | None, dtype: torch.dtype) -> None:
    """2^54 - 1 - 2^54 + 1/2 is -1/2, in any order and whatever computes it."""
    for order in itertools.permutations(CANCEL):
        writer = TapeWriter(FRAMES, FEATURES, dtype=dtype, device=torch.device("cpu"))
        found = CANCELLING[way](writer, writer.input(0), torch.tensor(order, dtype=torch.float64))
        tape = writer.finish(found if behind is None else writer.unary(found, behind))
        hold_exactly(tape, tape, dtype, torch.ones(FRAMES, FEATURES, dtype=torch.float64), 0.0)


@each_dtype
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("switched_on", [True, False], ids=["mkldnn", "no mkldnn"])
def test_a_large_entry_of_an_image_does_not_blur_what_is_far_from_it(switched_on: bool, dtype: torch.dtype) -> None:
    """Fast convolutions (Winograd, Fourier) would: they are exact beside the largest entry only. The batch is large enough."""
    kernel, image = normal(4, 3, 3, 3).to(dtype), normal(17, 3, 12, 12).to(dtype)
    image[:, :, 0, 0] = 2.0**60
    where: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    node = Convolution((0,), (3, 12, 12), kernel, None, **where)
    rows = normal(17, 1, 4, 12, 12).to(dtype)
    rows[..., 0, 0] = 2.0**60
    with torch.backends.mkldnn.flags(enabled=switched_on):
        found = node.evaluate(image.flatten(1))
        back = pull_back(node, rows.flatten(2), [3 * 12 * 12])[1][0]
    exact = [each.double() for each in (image, rows[:, 0], kernel)]
    for way, value, weight in (("conv2d", found, exact[0]), ("conv_transpose2d", back[:, 0], exact[1])):
        convolved = getattr(nn.functional, way)
        room = 200 * torch.finfo(dtype).eps * convolved(weight.abs(), exact[2].abs(), padding=1)
        assert ((value.double() - convolved(weight, exact[2], padding=1).flatten(1)).abs() <= room.flatten(1)).all()


@each_linear
def test_windows_are_written_out_a_few_at_a_time(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [normal(BATCH, width) for width in case.widths]
    expected = case.node.evaluate(*operands)
    monkeypatch.setattr("popqorn.tape.ops.sums.MOST_COLUMNS", 100)
    assert torch.equal(case.node.evaluate(*operands), expected)


@each_linear
def test_of_no_sample_nothing_is_computed(case: Case) -> None:
    assert case.node.evaluate(*(torch.zeros(0, width, dtype=torch.float64) for width in case.widths)).shape[1] == case.node.width


def test_rounding_of_every_kind_is_seen_by_the_exact_values() -> None:
    """The numbers above do cancel: computed, the sums are off by more than they are."""
    writer = TapeWriter(FRAMES, FEATURES, dtype=torch.float64, device=torch.device("cpu"))
    tape = writer.finish(CANCELLING["total"](writer, writer.input(0), torch.tensor(CANCEL, dtype=torch.float64)))
    inputs = torch.ones(FRAMES, FEATURES, dtype=torch.float64)
    assert exact_values(tape, inputs)[-1] == [Fraction(-1, 2)]
    assert float(tape(inputs[None])) != -0.5


def test_every_operation_is_in_the_tables() -> None:
    """An operation that is added must be tested here."""
    known = {type(case.node) for case in CASES.values()}
    modules = ("popqorn.tape.ops.linear", "popqorn.tape.ops.nonlinear")
    classes = {kind for base in (LinearNode, NonlinearNode) for kind in _below(base) if kind.__module__ in modules}
    assert {kind.__name__ for kind in classes - known} == {"Input", "Constant"}


def _below(kind: type) -> set[type]:
    return {kind} | {lower for each in kind.__subclasses__() for lower in _below(each)}
