"""Proofs are proofs in exact arithmetic: nothing rests on what floating point happened to round to."""

import math
import os
from fractions import Fraction
from itertools import permutations
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

import exact
import popqorn
from exact_functions import EXACT, Exact
from popqorn.arithmetic import ELEMENTARY, gamma, sum_below, unit
from popqorn.bounds.errors import Errors
from popqorn.bounds.inner import relax
from popqorn.readers.classifier import tape_of
from popqorn.regions.clip import greatest_fall
from popqorn.relax.activations import Smooth
from popqorn.relax.methods import METHODS
from popqorn.task import Question
from sets import around

DTYPES = [torch.float64, torch.float32]
NETWORKS = int(os.environ.get("POPQORN_NETWORKS", "6"))  # of every cell and dtype; 1,000 for the record
TIGHT = 6  # of them by joint bounds as well
CELLS = {
    "relu": lambda: nn.RNN(2, 3, nonlinearity="relu"),
    "tanh": lambda: nn.RNN(2, 3),
    "lstm": lambda: nn.LSTM(2, 3),
    "gru": lambda: nn.GRU(2, 3),
}
ORDERS = tuple(permutations((2.0**54, -1.0, -(2.0**54), 0.5)))  # of a sum that is -1/2, whatever is rounded away
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])


def cancelling(place: str, weights: tuple[float, ...]) -> popqorn.SequenceClassifier:
    """A network for two frames of ones whose first output is the sum of `weights`, which meet the ones in one place of it."""
    size = len(weights)
    rnn = nn.RNN(size, size, nonlinearity="relu", batch_first=True)
    summing, reading = nn.Linear(size, size), nn.Linear(size, 2)
    state = torch.ones(1, size, dtype=torch.float64)
    model = popqorn.SequenceClassifier(rnn, nn.Sequential(summing, reading), initial_state=state).double()
    one, row = torch.eye(size, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        summing.weight.copy_(one)
        reading.weight[0, 0] = 1.0
        if place == "inputs":  # 1 is added before the relu, which stays open, and taken off behind it
            rnn.weight_ih_l0[0] = row
            rnn.bias_ih_l0[0], reading.bias[0] = 1.0, -1.0
        elif place == "state":  # summed at the first frame, kept at the second
            rnn.weight_hh_l0.copy_(one)
            rnn.weight_hh_l0[0] = row
            rnn.bias_ih_l0[0] = 1.0
            rnn.weight_hh_l0[0, 1:] = row[1:]
        else:
            rnn.weight_ih_l0.copy_(one)
            summing.weight[0] = row
    return model


@each_dtype
@pytest.mark.parametrize("method", ["planes", "interval", "tight"])
@pytest.mark.parametrize("place", ["inputs", "state", "head"])
@pytest.mark.parametrize("frames", [None, [1]])
def test_weights_that_cancel_prove_nothing_false(dtype: torch.dtype, method: str, place: str, frames: list[int] | None) -> None:
    """2^54 - 1 - 2^54 + 1/2 is -1/2, whatever is rounded away on the way to it."""
    for order in ORDERS:
        model, inputs = cancelling(place, order), torch.ones(1, 2, 4)
        value = exact.outputs(model, inputs[0])[0]
        lower, upper = popqorn.bounds(model, inputs, 0.0, method=method, dtype=dtype, frames=frames)
        assert float(lower[0, 0]) <= value <= float(upper[0, 0]), order
        found = popqorn.verify(model, inputs, 0.0, labels=[0], method=method, dtype=dtype, frames=frames)
        assert value > 0 or not bool(found.certified), order


def extreme(cell: str, seed: int) -> tuple[popqorn.SequenceClassifier, Tensor]:
    """Weights of all sizes up to 1e6 in front of two units (and two features) that are alike, and opposite but for a hair.

    What is left of their sum is of the size of its rounding.
    """
    generator = torch.Generator().manual_seed(seed)

    def values(shape: torch.Size, most: float) -> Tensor:
        size = 10 ** (most - 6 * torch.rand(shape, generator=generator, dtype=torch.float64))
        return size * torch.randn(shape, generator=generator, dtype=torch.float64).sign()

    def opposite(weight: Tensor) -> None:
        hair = 2.0**-52 * torch.randint(-8, 9, weight[:, 1].shape, generator=generator)
        weight[:, 1] = -weight[:, 0] * (1 + hair)

    model = popqorn.SequenceClassifier(CELLS[cell](), nn.Linear(3, 2)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            large = name.startswith("head.weight") or (seed % 2 and "weight" in name)
            parameter.copy_(values(parameter.shape, most=6.0 if large else 0.0))
            if "rnn" in name:
                parameter[1::3] = parameter[0::3]  # unit 1 is unit 0, in every gate
            if large:
                opposite(parameter)
    inputs = values(torch.Size((1, 2, 2)), most=0.5)
    inputs[..., 1] = inputs[..., 0]
    return model, inputs


@each_dtype
@pytest.mark.parametrize("cell", CELLS)
def test_exact_outputs_lie_in_their_bounds(cell: str, dtype: torch.dtype) -> None:
    for seed in range(NETWORKS):
        model, inputs = extreme(cell, seed)
        if seed % 3 == 0:  # a model of float32; the others have weights that float32 cannot hold
            model, inputs = model.float(), inputs.float()
        for eps in (0.0, 1e-3):
            moved = inputs[0].double() + eps
            values = [mpmath_of(value) for value in exact.outputs(model, moved)]
            asked: list[dict[str, Any]] = [{"method": "planes"}, {"method": "interval"}]
            asked += [{"method": "tight"}] if seed < TIGHT else []
            asked += [{"method": "tight", "effort": 3, "seconds": 0.02}] if seed < 2 and eps else []  # and with it effort 2
            for how in asked:
                lower, upper = (side[0].tolist() for side in popqorn.bounds(model, inputs, eps, dtype=dtype, **how))
                for low, value, high in zip(lower, values, upper, strict=True):
                    assert mpmath.mpf(low) <= value <= mpmath.mpf(high), (cell, seed, eps, how)


@each_dtype
def test_a_gate_knows_how_little_is_known_of_a_still_frame(dtype: torch.dtype) -> None:
    for order in ORDERS:
        lstm = nn.LSTM(4, 1)
        model = popqorn.SequenceClassifier(lstm, nn.Linear(1, 2)).double()
        with torch.no_grad():
            for parameter in lstm.parameters():
                parameter.zero_()
            lstm.weight_ih_l0[2] = torch.tensor(order, dtype=torch.float64)
            lstm.bias_ih_l0[1] = 3.0
        inputs = torch.ones(1, 2, 4, dtype=torch.float64)
        inputs[:, 1] = 0  # the second frame adds nothing: what counts is what is left of the first
        for method in ("planes", "tight"):
            sides = popqorn.bounds(model, inputs, 0.0, frames=[1], dtype=dtype, method=method)
            for low, value, high in zip(sides.lower[0], exact.outputs(model, inputs[0]), sides.upper[0], strict=True):
                assert float(low) <= value <= float(high), order


def line(weights: list[float], head: float = 1.0, bias: float = 0.0) -> popqorn.SequenceClassifier:
    """A network for one frame whose outputs are `head * (weights @ x) + bias` and 0."""
    rnn = nn.RNN(len(weights), 2, nonlinearity="relu")
    model = popqorn.SequenceClassifier(rnn, nn.Linear(2, 2)).double()
    row = torch.tensor(weights, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        rnn.weight_ih_l0.copy_(torch.stack([row, -row]))
        model.head.weight[0] = torch.tensor([head, -head], dtype=torch.float64)
        model.head.bias[0] = bias
    return model


# Margins that are negative somewhere in the region, in exact arithmetic, and positive where too small a number is taken for 0.
TOO_SMALL = {
    "squares, float32": (line([1e-23] * 2, bias=0.5e-23), 1.0, popqorn.Ball(2), torch.float32),
    "squares": (line([1e-170] * 2, bias=0.5), 1e170, popqorn.Ball(2), torch.float64),
    "squares of a total": (line([1e-170] * 2, bias=0.5), 1e170, popqorn.Ball(2, total=True), torch.float64),
    "range over ball, float32": (line([1e30], bias=0.5), 1e20, popqorn.Ball(2, clip=(-1e-30, 1e-30)), torch.float32),
    "range over ball": (line([1e300], bias=0.5), 1e30, popqorn.Ball(2, clip=(-1e-300, 1e-300)), torch.float64),
    "range over a cross-polytope": (line([1e300], bias=0.5), 1e30, popqorn.Ball(1, clip=(-1e-300, 1e-300)), torch.float64),
    "rows times shares": (line([1e-200], 1e100, 0.5), 1e300, popqorn.Ball(scale=[[1e-200]]), torch.float64),
    "eps times a side": (line([1e300], 1e100, 0.5), 1e-200, popqorn.Box(-1e-200, 1e-200), torch.float64),
    "eps times a share": (line([1e300], 1e100, 0.5), 1e-200, popqorn.Ball(scale=[[1e-200]]), torch.float64),
}


@pytest.mark.parametrize("case", TOO_SMALL)
@pytest.mark.parametrize("method", ["planes", "interval"])
def test_what_is_too_small_to_be_a_number_counts(case: str, method: str) -> None:
    model, eps, region, dtype = TOO_SMALL[case]
    if dtype == torch.float32:
        model = model.float()
    inputs = torch.zeros(1, 1, model.rnn.input_size, dtype=torch.float64)
    assert not popqorn.verify(model, inputs, eps, region=region, labels=[0], method=method, dtype=dtype).certified.any()


def test_a_closed_gate_before_something_huge() -> None:
    """`s(-710)` is no number in float64, `s(-710) * 1e300` is."""
    gru = nn.GRU(1, 1)
    model = popqorn.SequenceClassifier(gru, nn.Linear(1, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        gru.bias_ih_l0[0], gru.bias_ih_l0[1], gru.bias_hh_l0[2] = -710.0, -800.0, 1e300
        model.head.weight[0, 0], model.head.bias[0] = -1e8, 0.2
    inputs = torch.zeros(1, 2, 1, dtype=torch.float64)
    assert exact.outputs(model, inputs[0])[0] < 0
    for method in ("planes", "lines", "constants", "interval"):
        assert not popqorn.verify(model, inputs, 0.0, labels=[0], method=method).certified.any()


@each_dtype
@pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, 3.0])
def test_falls_inside_a_range_are_rounded_up(norm: float, dtype: torch.dtype) -> None:
    """Beside the optimum of a dual in double precision, or of a knapsack by fractions for float64 and p = 1."""
    generator = torch.Generator().manual_seed(3)
    beta = 10 ** (3 * torch.rand(3000, 7, generator=generator, dtype=torch.float64))
    kappa = 10 ** (-4 * torch.rand(3000, 7, generator=generator, dtype=torch.float64))
    given, room = beta.to(dtype), kappa.to(dtype)
    bound, sigma = greatest_fall(given.unsqueeze(1), room.unsqueeze(1), norm)
    inside = sigma.squeeze(1).double() * (1 - 1e-6)
    assert (inside.pow(norm).sum(-1) <= 1).all()
    some = slice(0, None, 10)
    for number, (row, point) in enumerate(zip(given[some].tolist(), filled(given[some], room[some], norm), strict=True)):
        reached = sum(Fraction(b) * Fraction(s) for b, s in zip(row, point, strict=True))
        assert Fraction(float(bound[some][number, 0])) >= reached, number


def filled(beta: Tensor, kappa: Tensor, norm: float) -> list[list[float]]:
    """Feasible points near the optima, by bisection of multipliers in double precision, scaled to be feasible."""
    b, k = beta.double(), kappa.double()

    def at(multiplier: Tensor) -> Tensor:
        return torch.minimum(k, (b / multiplier).pow(1 / (norm - 1)) if norm > 1 else torch.where(b > multiplier, k, 0.0))

    low, high = torch.zeros(len(b), 1, dtype=torch.float64), torch.full((len(b), 1), 1e6, dtype=torch.float64)
    for _ in range(200):
        middle = (low + high) / 2
        beyond = at(middle).pow(norm).sum(-1, keepdim=True) > 1
        low, high = torch.where(beyond, middle, low), torch.where(beyond, high, middle)
    sigma = at(high)
    if norm == 1:
        for point, values, ends in zip(sigma, b, k, strict=True):  # the last one in part
            left = 1 - sum(map(Fraction, point.tolist()))
            rest = [number for number in values.argsort(descending=True).tolist() if point[number] == 0]
            if rest and left > 0:
                point[rest[0]] = min(float(ends[rest[0]]), math.nextafter(float(left), 0.0))
    found: list[list[float]] = (sigma * (1 - 2.0**-50)).tolist()
    return found


@each_dtype
@pytest.mark.parametrize("frames", [None, [1]])
def test_what_follows_from_an_initial_state_is_rounded_too(dtype: torch.dtype, frames: list[int] | None) -> None:
    """The state's part of a GRU's candidate is a constant: nothing moves in it, and it is computed all the same."""
    for order in ORDERS:
        gru = nn.GRU(2, 4)
        model = popqorn.SequenceClassifier(gru, nn.Linear(4, 2), initial_state=torch.ones(1, 4, dtype=torch.float64)).double()
        with torch.no_grad():
            for parameter in gru.parameters():
                parameter.zero_()
            gru.weight_hh_l0[8] = torch.tensor(order, dtype=torch.float64)
        inputs = torch.ones(1, 2, 2, dtype=torch.float64)
        sides = popqorn.bounds(model, inputs, 0.0, frames=frames, dtype=dtype)
        for low, value, high in zip(sides.lower[0], exact.outputs(model, inputs[0]), sides.upper[0], strict=True):
            assert float(low) <= value <= float(high), order


def test_an_offset_is_rounded_with_the_rest() -> None:
    """1 + 2^-30 is 1 in float32: what is proven must hold for the number that was given."""
    model, inputs = cancelling("head", (1.0, 0.0, 0.0, 0.0)), torch.zeros(1, 2, 4)
    with torch.no_grad():
        model.head[1].bias[0] = 1.0
    below = popqorn.Property([[1.0, 0.0]], [-(1.0 + 2.0**-30)])
    assert not popqorn.verify(model, inputs, 0.0, spec=below, dtype=torch.float32).certified.any()


@each_dtype
def test_the_sum_of_two_biases_is_rounded_too(dtype: torch.dtype) -> None:
    model, inputs = cancelling("head", (1.0, 0.0, 0.0, 0.0)), torch.zeros(1, 2, 4)
    with torch.no_grad():
        model.rnn.bias_ih_l0[0], model.rnn.bias_hh_l0[0] = 2.0**54, -1.0
    lower, _ = popqorn.bounds(model, inputs, 0.0, dtype=dtype)
    assert int(lower[0, 0]) <= exact.outputs(model, inputs[0])[0] == 2**54 - 1


@each_dtype
def test_a_batch_norm_whose_shifts_cancel_is_rounded_too(dtype: torch.dtype) -> None:
    """Its mean, times its factor, is its bias but for rounding: what is left is no zero."""
    norm = nn.BatchNorm1d(8)
    model = nn.Sequential(norm, nn.Linear(8, 9)).double().eval()
    with torch.no_grad():
        norm.running_mean.copy_(1e3 * torch.arange(1, 9))
        norm.running_var.copy_(torch.arange(2, 10))
        norm.bias.copy_(norm.running_mean * (norm.running_var + norm.eps).rsqrt())
        model[1].weight.copy_(torch.eye(9)[:, :8])
        model[1].bias.copy_(1e3 * torch.eye(9)[8])  # one output is large: to agree with the model is to agree beside that
    for x in (0.0, 1.0):
        inputs = torch.full((1, 8), x, dtype=torch.float64)
        lower, upper = (side[0].tolist() for side in popqorn.bounds(model, inputs, 0.0, dtype=dtype))
        for low, high, mean, variance, bias in zip(lower, upper, norm.running_mean, norm.running_var, norm.bias, strict=False):
            factor = 1 / mpmath.sqrt(mpmath.mpf(float(variance)) + mpmath.mpf(norm.eps))
            value = (mpmath.mpf(x) - mpmath.mpf(float(mean))) * factor + mpmath.mpf(float(bias.detach()))
            assert math.isfinite(low), "the tape is the model"
            assert mpmath.mpf(low) <= value <= mpmath.mpf(high)


@pytest.mark.parametrize("place", ["head", "inputs", "state"])
def test_where_nothing_moves_the_sign_is_proven_all_the_same(place: str) -> None:
    """A set of one point needs no search, but a proof."""
    for order in ORDERS:
        model, inputs = cancelling(place, order), torch.ones(1, 2, 4)
        for region in (popqorn.Ball(clip=(1, 1)), popqorn.Box(1, 1)):
            found = popqorn.certify(model, inputs, labels=[0], region=region)
            assert found.status != (popqorn.Status.UNBOUNDED,), order
        single = popqorn.sensitivity(model, inputs, labels=[0], region=popqorn.Box(1, 1))
        assert (single.radius == 0).all(), order


def mpmath_of(value: object) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator if hasattr(value, "numerator") else mpmath.mpf(value)


@each_dtype
@pytest.mark.parametrize("name", ["tanh", "sigmoid", "exp", "log", "log1p", "sqrt", "atan", "erf", "pow", "sin", "cos", "expm1"])
def test_elementary_functions_are_as_exact_as_stated(name: str, dtype: torch.dtype) -> None:
    """Against mpmath over the whole range: half of what is allowed for, or less."""
    positive = name in ("log", "log1p", "sqrt", "pow")
    low, high = (-300, 300) if dtype == torch.float64 else (-37, 37)
    points = torch.logspace(low, high, 1500, dtype=torch.float64)
    near = torch.linspace(-30, 30, 1501, dtype=torch.float64)
    x = torch.cat([points, near] if positive else [-points, points, near]).to(dtype)
    if positive:
        x = x[x > 0]
    by_hand = {"sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)), "pow": lambda v: v ** mpmath.mpf(1.5)}
    exact_function = by_hand.get(name) or getattr(mpmath, name)
    found = x.pow(1.5) if name == "pow" else getattr(torch, name)(x)
    worst = 0.0
    for point, value in zip(x.tolist(), found.tolist(), strict=True):
        if name in ("exp", "expm1") and abs(point) > 600:
            continue
        true = exact_function(mpmath.mpf(point))
        if not math.isfinite(value) or abs(true) < torch.finfo(dtype).tiny:
            continue
        worst = max(worst, float(abs(mpmath.mpf(value) - true) / abs(true)) / (2 * unit(dtype)))
    assert worst <= ELEMENTARY / 2, worst


@each_dtype
@pytest.mark.parametrize("exact_one", EXACT, ids=lambda exact_one: exact_one.activation.name)
def test_activations_are_as_exact_as_their_lines_assume(exact_one: Exact, dtype: torch.dtype) -> None:
    """A few elementary functions deep; smooth ones beside their argument, as `x * something` rounds to a share of `x`."""
    activation, finfo = exact_one.activation, torch.finfo(dtype)
    powers = torch.logspace(math.log10(finfo.tiny), math.log10(finfo.max), 120, dtype=torch.float64)[1:-1]
    near = torch.cat([torch.linspace(-30, 30, 121, dtype=torch.float64), math.pi / 2 * torch.arange(1, 40), 1 + powers[:60]])
    x = torch.cat([powers, -powers, near, -near]).to(dtype)
    if activation.defined is not None:
        x = x[activation.defined(x, x)]
    for point, value in zip(x.tolist(), activation.function(x).tolist(), strict=True):
        true = exact_one.function(mpmath.mpf(point))
        size = max(abs(true), abs(point) if isinstance(activation.shape, Smooth) else 0)
        room = activation.slack + 4 * ELEMENTARY * unit(dtype) * size + finfo.tiny
        assert not math.isfinite(value) or abs(mpmath.mpf(value) - true) <= room, point


def test_what_is_lost_by_underflow_widens_walked_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If so much is lost that walks say nothing, what is left are the boxes of intervals."""
    model, inputs = extreme("tanh", 0)
    tape = tape_of(model, 2, dtype=torch.float64, device=torch.device("cpu"))
    monkeypatch.setattr(Errors, "underflow", lambda self, box: torch.full_like(box.lower[:, 0], 1e9))
    walked, plain = (relax(tape, around(inputs, 0.1), METHODS[method]) for method in ("planes", "interval"))
    for box, other in zip(walked.boxes, plain.boxes, strict=True):
        torch.testing.assert_close(box.upper - box.lower, other.upper - other.lower)
    assert (walked.lower(torch.ones(1, 1, 2, dtype=torch.float64)) < -1e9).all()


def test_a_tolerance_pays_for_the_error_of_its_reference() -> None:
    model, inputs = extreme("tanh", 1)
    (task,) = Question.read(model, inputs, lengths=None, region=popqorn.Ball(), spec=popqorn.Tolerance(0.1)).tasks
    ready = task.prepared()
    assert ready.center is not None
    error = ready.center.errors[-1]
    assert (error > 0).all()
    assert (task.margins.offset - ready.margins.offset >= 0.999 * error.repeat(1, 2)).all(), "on both sides"


@each_dtype
def test_sums_are_rounded_down(dtype: torch.dtype) -> None:
    terms = [torch.tensor([value], dtype=dtype) for value in (2.0**54, -1.0, -(2.0**54), 0.5)]
    for order in permutations(terms):
        assert sum_below(order) <= -0.5
    ones = [torch.ones(3, dtype=dtype)] * 1000
    assert (sum_below(ones) >= 1000 * (1 - 2 * gamma(1100, dtype))).all()


def test_so_many_products_prove_nothing() -> None:
    assert gamma(2**30, torch.float32) == math.inf
