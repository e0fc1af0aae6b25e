"""Regions: the least value of a linear form is the least, and everything a set says of itself fits together."""

import itertools
import math
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import popqorn
from popqorn import Ball, Box, Words, bundled
from popqorn.regions import clip
from popqorn.regions.region import AllowedSet
from sets import around

pytestmark = pytest.mark.shapes

BATCH, FRAMES, FEATURES = 3, 3, 4
NORMS = (1.0, 1.5, 2.0, 3.0, math.inf)


def inputs_in_range() -> Tensor:
    """In [0, 1], a third of the entries at an end of it, as pixels are."""
    values = torch.rand(BATCH, FRAMES, FEATURES, dtype=torch.float64)
    return (2 * values - 0.5).clamp(0, 1)


def scales() -> Tensor:
    scale = torch.rand(BATCH, FRAMES, FEATURES, dtype=torch.float64) + 0.2
    scale[:, 1, 2] = 0
    scale[1, 0] *= 5
    return scale


def least(allowed: AllowedSet, forms: Tensor) -> Tensor:
    """The least of `forms @ (x - center)`, for forms `[batch, rows, frames, features]`."""
    return allowed.least({k: allowed.part(k, forms[:, :, k]) for k in range(forms.shape[2])})


def solved(form: np.ndarray[Any, Any], share: Any, low: Any, high: Any, eps: float, norm: float, total: bool) -> float:
    """The same by a convex solver, for one sample and one form."""
    move = cvxpy.Variable(form.shape)
    constraints = [move >= low, move <= high, move[share == 0] == 0]
    units = cvxpy.multiply(move, 1 / np.where(share > 0, share, 1))
    balls = [cvxpy.vec(units, order="C")] if total else [units[frame] for frame in range(len(form))]
    constraints += [cvxpy.norm(ball, norm) <= eps for ball in balls]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.multiply(form, move))), constraints)
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return float(problem.value)


@pytest.mark.parametrize("total", [False, True], ids=["each frame", "total"])
@pytest.mark.parametrize("norm", NORMS)
def test_least_over_ball_and_range_is_a_convex_solvers_minimum(norm: float, total: bool) -> None:
    """To 1e-6, over sizes from nearly nothing to all of the range, shares of 0, and inputs at the ends of the range."""
    inputs, scale = inputs_in_range(), scales()
    forms = torch.randn(BATCH, 1, FRAMES, FEATURES, dtype=torch.float64)
    forms[0, 0, 0, 0] = 0
    region = Ball(norm, scale=scale, clip=(0, 1), total=total)
    for eps in (1e-3, 0.1, 0.4, 1.0, 3.0, 50.0):
        allowed = around(inputs, eps, region)
        found = least(allowed, forms)
        for sample in range(BATCH):
            ends = -inputs[sample].numpy(), 1 - inputs[sample].numpy()
            exact = solved(forms[sample, 0].numpy(), scale[sample].numpy(), *ends, eps, norm, total)
            assert float(found[sample, 0]) == pytest.approx(exact, abs=1e-6 * max(1.0, abs(exact)))
        where = allowed.lowest(forms[:, 0])
        reached = (forms[:, 0] * (where - inputs)).flatten(1).sum(-1)
        torch.testing.assert_close(reached, found[:, 0], rtol=1e-6, atol=1e-9)
        assert (allowed.size_of(where) <= eps * (1 + 1e-9)).all()
        assert ((where >= 0) & (where <= 1)).all()


@given(
    st.lists(st.floats(0, 10), min_size=6, max_size=6),
    st.lists(st.one_of(st.just(0.0), st.just(math.inf), st.floats(0, 2)), min_size=6, max_size=6),
    st.sampled_from([1.0, 1 + 1e-6, 1.2, 2.0, 5.0, 1000.0]),
)
@settings(max_examples=300)
def test_no_allowed_move_falls_further(beta: list[float], kappa: list[float], norm: float) -> None:
    """Sound for every p, also next to 1 and huge, where powers overflow and vanish; and no looser than ball or range alone."""
    weights, limits = torch.tensor([beta], dtype=torch.float64), torch.tensor([kappa], dtype=torch.float64)
    fall, sigma = clip.greatest_fall(weights, limits, norm)
    generator = torch.Generator().manual_seed(0)
    tries = torch.rand(500, 6, generator=generator, dtype=torch.float64) ** torch.tensor([1.0, 4.0, 30.0]).repeat(200)[:500, None]
    tries = torch.cat([tries, torch.eye(6, dtype=torch.float64)])
    largest = tries.amax(-1, keepdim=True).clamp(min=1e-300)
    tries = torch.minimum(tries / (largest * torch.linalg.vector_norm(tries / largest, norm, dim=-1, keepdim=True)), limits)
    slack = 1e-9 * (1 + sum(beta))
    assert fall.isfinite().all()
    assert ((tries * weights).sum(-1) <= fall + slack).all()
    q = math.inf if norm == 1 else norm / (norm - 1)
    assert float(fall) <= float(popqorn.regions.geometry.length(weights, q)) + slack
    finite = torch.where(weights > 0, limits, 0.0)
    assert float(fall) <= float((finite * weights).nan_to_num(nan=0.0).sum()) + slack
    assert (sigma <= limits + 1e-12).all()


@pytest.mark.parametrize("norm", [1.5, 2.0, 3.0])
def test_every_multiplier_is_sound(norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few steps are made towards the best: stopped early, the bound is looser, never wrong."""
    generator = torch.Generator().manual_seed(0)
    beta = torch.rand(200, 6, generator=generator, dtype=torch.float64)
    kappa = torch.rand(200, 6, generator=generator, dtype=torch.float64) ** 2
    exact, _ = clip.greatest_fall(beta, kappa, norm)
    falls = []
    for steps in (0, 1, 2):
        monkeypatch.setattr(clip, "STEPS", steps)
        falls.append(clip.greatest_fall(beta, kappa, norm)[0])
        assert (falls[-1] >= exact - 1e-12).all()
    assert (falls[0] > exact + 1e-3).any()
    assert (falls[2] <= falls[0] + 1e-12).all()


@pytest.mark.parametrize(("kind", "norm"), [*(("rnn", norm) for norm in NORMS), ("lstm", 2.0), ("gru", math.inf)])
def test_a_range_never_lowers_a_radius(kind: str, norm: float) -> None:
    inputs, labels = bundled.load_digits(2)
    model = bundled.load_model(kind)
    plain = popqorn.certify(model, inputs, labels=labels, norm=norm).radius
    clipped = popqorn.certify(model, inputs, labels=labels, region=Ball(norm, clip=(0, 1))).radius
    assert (clipped >= plain * (1 - 2e-3)).all()
    assert (clipped > 1.05 * plain).any()
    wide = popqorn.certify(model, inputs, labels=labels, region=Ball(norm, clip=(-1e9, 1e9))).radius
    torch.testing.assert_close(wide, plain, rtol=2e-3, atol=0)


def test_one_budget_for_the_whole_sequence() -> None:
    """Every frame's ball holds the whole's, and a ball of the whole holds those of eps over the number of frames (p = 1)."""
    inputs, labels = bundled.load_digits(2)
    model = bundled.load_model("rnn")
    for norm in NORMS:
        each = popqorn.certify(model, inputs, labels=labels, region=Ball(norm)).radius
        whole = popqorn.certify(model, inputs, labels=labels, region=Ball(norm, total=True)).radius
        assert (whole >= each * (1 - 2e-3)).all()
        assert (whole <= 4 ** (0 if math.isinf(norm) else 1 / norm) * each * 1.6).all()
        if math.isinf(norm):
            torch.testing.assert_close(whole, each, rtol=2e-3, atol=0)
        else:
            assert (whole > 1.05 * each).all()


def test_scales_of_every_sample_are_its_own() -> None:
    inputs, labels = bundled.load_digits(3)
    model = bundled.load_model("rnn")
    scale = torch.rand(3, 4, 196, dtype=torch.float64) + 0.5
    together = popqorn.certify(model, inputs, labels=labels, norm=2, scale=scale).radius
    for sample in range(3):
        alone = popqorn.certify(model, inputs[sample : sample + 1], labels=labels[sample], norm=2, scale=scale[sample]).radius
        torch.testing.assert_close(together[sample : sample + 1], alone, rtol=1e-9, atol=0)


# ---- what a set says of itself -----------------------------------------------------------------------------------------------


SETS = {
    **{f"ball {norm}": Ball(norm) for norm in NORMS},
    **{f"clipped ball {norm}": Ball(norm, clip=(0, 1)) for norm in NORMS},
    **{f"total ball {norm}": Ball(norm, total=True) for norm in NORMS},
    "total clipped": Ball(2, clip=(0, 1), total=True),
    "some frames": Ball(2, frames=[0, -1]),
    "box": Box(-0.3, 1.5),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("eps", [0.0, 0.05, 0.7])
def test_what_a_set_says_of_itself_fits_together(name: str, eps: float) -> None:
    inputs = inputs_in_range()
    allowed = around(inputs, eps, SETS[name])
    generator = torch.Generator().manual_seed(0)
    box = allowed.box()
    forms = torch.randn(BATCH, 5, FRAMES, FEATURES, dtype=torch.float64)
    lowest = least(allowed, forms)
    slack = 1e-9
    for _ in range(50):
        points = allowed.random(generator)
        assert (points >= box.lower - slack).all()
        assert (points <= box.upper + slack).all()
        assert (allowed.size_of(points) <= eps * (1 + slack) + slack).all()
        torch.testing.assert_close(allowed.nearest(points), points, rtol=0, atol=1e-12)
        assert (torch.einsum("brkf,bkf->br", forms, points - inputs) >= lowest - slack).all()
    far = allowed.nearest(inputs + torch.randn(inputs.shape, dtype=torch.float64))
    assert (allowed.size_of(far) <= eps * (1 + slack) + slack).all()
    for row in range(5):
        where = allowed.lowest(forms[:, row])
        torch.testing.assert_close((forms[:, row] * (where - inputs)).flatten(1).sum(-1), lowest[:, row], rtol=1e-6, atol=1e-9)
    held = allowed.only(torch.eye(FRAMES, dtype=torch.bool))  # sample k moves in frame k alone
    moved = (held.random(generator) != inputs).any(-1)
    assert not (moved & ~torch.eye(FRAMES, dtype=torch.bool)).any()
    assert (least(held, forms) >= lowest - slack).all()


@pytest.mark.parametrize("name", SETS)
def test_sets_grow(name: str) -> None:
    """A larger set holds the smaller: its least values are no higher; beyond `greatest` it does not grow."""
    inputs = inputs_in_range()
    forms = torch.randn(BATCH, 5, FRAMES, FEATURES, dtype=torch.float64)
    sizes = [least(around(inputs, eps, SETS[name]), forms) for eps in (0.0, 0.1, 0.5, 1.0)]
    assert (sizes[0].abs() < 1e-300).all()
    assert all((larger <= smaller + 1e-12).all() for smaller, larger in itertools.pairwise(sizes))
    allowed = around(inputs, 1.0, SETS[name])
    if "clipped" in name:
        most = least(allowed.at(allowed.greatest), forms)
        torch.testing.assert_close(least(allowed.at(10 * allowed.greatest), forms), most, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", SETS)
def test_rates_are_how_fast_forms_fall_at_first(name: str) -> None:
    inputs = inputs_in_range()
    allowed = around(inputs, 1e-7, SETS[name])
    forms = torch.randn(BATCH, 5, FRAMES, FEATURES, dtype=torch.float64)
    torch.testing.assert_close(allowed.rates(forms).sum(-1), -least(allowed, forms) / 1e-7, rtol=1e-5, atol=1e-6)


def test_samples_are_selected_together_with_all_that_is_theirs() -> None:
    inputs = inputs_in_range()
    forms = torch.randn(BATCH, 2, FRAMES, FEATURES, dtype=torch.float64)
    index = torch.tensor([2, 0, 2, 1])
    for region in (Ball(2, scale=scales(), clip=(0, 1)), Ball(3), Box(inputs - scales(), inputs + 1), words(inputs)):
        allowed = around(inputs, torch.tensor([1.0, 2.0, 1.0]), region)
        torch.testing.assert_close(least(allowed.select(index), forms[index]), least(allowed, forms)[index], rtol=0, atol=0)
        torch.testing.assert_close(least(allowed.select(slice(1, 3)), forms[1:3]), least(allowed, forms)[1:3], rtol=0, atol=0)


# ---- words -------------------------------------------------------------------------------------------------------------------


def words(inputs: Tensor, most: int | None = None) -> Words:
    """A table whose first rows are the inputs, with a few others as neighbours."""
    table = torch.cat([inputs.flatten(0, 1), torch.rand(6, FEATURES, dtype=torch.float64)])
    count = BATCH * FRAMES
    tokens = torch.arange(count).reshape(BATCH, FRAMES)
    neighbours = {word: [count + (word + shift) % 6 for shift in range(word % 4)] for word in range(count)}
    return Words(table, tokens, neighbours, most)


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_least_over_words_is_that_of_all_combinations(most: int) -> None:
    inputs = inputs_in_range()
    region = words(inputs)
    allowed = around(inputs, float(most), region)
    forms = torch.randn(BATCH, 6, FRAMES, FEATURES, dtype=torch.float64)
    found, box = least(allowed, forms), allowed.box()
    for sample in range(BATCH):
        options = [[int(word), *region.neighbours[int(word)]] for word in region.tokens[sample]]
        texts = [
            text for text in itertools.product(*options) if sum(map(int.__ne__, text, region.tokens[sample].tolist())) <= most
        ]
        points = region.table[torch.tensor(texts)]
        values = torch.einsum("rkf,tkf->tr", forms[sample], points - inputs[sample])
        torch.testing.assert_close(found[sample], values.amin(0))
        torch.testing.assert_close(box.lower[sample], points.amin(0))
        torch.testing.assert_close(box.upper[sample], points.amax(0))


def test_words_count_themselves() -> None:
    inputs = inputs_in_range()
    region = words(inputs)
    allowed = around(inputs, 1.0, region)
    assert allowed.whole
    movable = torch.tensor([[bool(region.neighbours[int(word)]) for word in row] for row in region.tokens])
    assert torch.equal(allowed.moves, movable)
    assert torch.equal(allowed.greatest, movable.sum(-1).double())
    assert torch.equal(around(inputs, 1.0, words(inputs, 1)).greatest, movable.sum(-1).clamp(max=1).double())
    changed = inputs.clone()
    changed[:, 1] = region.table[-1]
    assert allowed.size_of(changed).tolist() == [1, 1, 1]
    assert region.tokens_of(changed)[:, 1].tolist() == [len(region.table) - 1] * BATCH
    assert (region.tokens_of(changed + 0.5)[:, 1] == -1).all()


def test_words_within_a_distance() -> None:
    table = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    region = Words.within(table, [[0, 3], [1, 1]], 1.1)
    assert region.neighbours == {0: [1], 1: [0, 2], 3: []}
    assert Words.within(table, [[0, 3]], 1.1, norm=math.inf).neighbours[0] == [1, 2]


# ---- ranges with one side much longer than the other, or without end ---------------------------------------------------------


def threshold_network() -> tuple[popqorn.SequenceClassifier, Tensor]:
    """Decides by whether its one input exceeds 0.8; the input is 0.5."""
    rnn = torch.nn.RNN(1, 1, nonlinearity="relu", bias=False)
    model = popqorn.SequenceClassifier(rnn, torch.nn.Linear(1, 2)).double()
    with torch.no_grad():
        rnn.weight_ih_l0.fill_(1)
        rnn.weight_hh_l0.fill_(0)
        model.head.weight.copy_(torch.tensor([[0.0], [1.0]]))
        model.head.bias.copy_(torch.tensor([0.8, 0.0]))
    return model, torch.full((1, 1, 1), 0.5, dtype=torch.float64)


@pytest.mark.parametrize("low", [-1e3, -1e9, -1e15, -1e20, -1e200])
@pytest.mark.parametrize("method", ["planes", "interval"])
def test_the_short_side_of_a_lopsided_region_counts(low: float, method: str) -> None:
    """A middle and a half width would round it away, and certify an input that is allowed and decides otherwise."""
    model, inputs = threshold_network()
    assert not popqorn.verify(model, inputs, region=Box(low, 1.0), method=method).certified.any()
    assert popqorn.bounds(model, inputs, region=Box(low, 1.0), method=method).upper[0, 1] >= 1.0
    radius = float(popqorn.certify(model, inputs, region=Box(low, 1.0), method=method).radius)
    # next to a side of 1e15 the rounding of a walk is as long as the short side is
    assert radius == pytest.approx(0.6, rel=2e-3) if low > -1e12 else radius <= 0.6
    for norm in (1.0, 2.0, math.inf):
        clipped = Ball(norm, clip=(-math.inf, 1))
        assert not popqorn.verify(model, inputs, -low, region=clipped, method=method).certified.any()
        assert float(popqorn.certify(model, inputs, region=clipped, method=method).radius) == pytest.approx(0.3, rel=2e-3)
    table = torch.tensor([[0.5], [1.0], [low]], dtype=torch.float64)
    assert popqorn.certify(model, inputs, region=Words(table, [[0]], {0: [1, 2]}), method=method).radius == 0


def test_ranges_without_end_are_no_ranges() -> None:
    """Also where some frames may not move."""
    model, inputs = bundled.load_model("rnn"), bundled.load_digits(2).inputs
    for options in ({"frames": [0, 2]}, {"scale": [1.0, 0.0, 2.0, 0.0]}):
        plain = popqorn.certify(model, inputs, region=Ball(2, **options)).radius
        endless = popqorn.certify(model, inputs, region=Ball(2, clip=(-math.inf, math.inf), **options)).radius
        torch.testing.assert_close(endless, plain, rtol=2e-3, atol=0)
    plain, endless = (
        popqorn.sensitivity(model, inputs, region=Ball(2, clip=clip)).radius for clip in (None, (-math.inf, math.inf))
    )
    torch.testing.assert_close(endless, plain, rtol=2e-3, atol=0)
    with pytest.raises(ValueError, match="eps is missing"):
        popqorn.verify(model, inputs, region=Ball(2, frames=[0], clip=(0, math.inf)))


def test_inputs_outside_their_range_by_rounding_widen_it() -> None:
    """Data sets are float32, ranges are written in float64."""
    raw = torch.rand(2, 3, 4)
    raw[0, 0, 0], raw[1, 1, 1] = 0.0, 1.0
    inputs = (raw - 0.1307) / 0.3081
    ends = ((0 - 0.1307) / 0.3081, (1 - 0.1307) / 0.3081)
    allowed = around(inputs.double(), 1e9, Ball(clip=ends))
    assert (allowed.box().lower <= inputs).all()
    assert (allowed.box().upper >= ends[1] - 1e-6).all()
    precise = torch.rand(2, 3, 4, dtype=torch.float64)
    box = around(precise.float().double(), 1.0, Box(precise, precise + 0.1)).box()
    assert (box.lower <= precise + 1e-15).all()


@pytest.mark.parametrize("region", [Ball(2, frames=[1]), Ball(2, frames=[1], clip=(0, 1)), Ball(1, frames=[1], total=True)])
def test_a_frame_that_cannot_move_does_no_harm(region: Ball) -> None:
    model, inputs = bundled.load_model("rnn"), bundled.load_digits(2).inputs
    found = popqorn.sensitivity(model, inputs, region=region)
    assert found.radius[:, [0, 2, 3]].isinf().all()
    assert found.radius[:, 1].isfinite().all()
    assert found.status[0][0] is popqorn.Status.UNBOUNDED


def test_sensitivity_of_words_is_each_words_own() -> None:
    """Every exchange of one word alone, tried; other words stay."""
    torch.manual_seed(3)
    table = torch.randn(30, 4, dtype=torch.float64)
    tokens = torch.arange(12).reshape(4, 3)
    neighbours = {word: [12 + word, 13 + word, 14 + word] for word in range(12)}
    model = popqorn.SequenceClassifier(torch.nn.RNN(4, 5), torch.nn.Linear(5, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    found = popqorn.sensitivity(model, table[tokens], region=Words(table, tokens, neighbours))
    labels = model(table[tokens]).argmax(-1)
    harmless = []
    for sample, row in enumerate(tokens.tolist()):
        for place, word in enumerate(row):
            texts = tokens[sample].repeat(3, 1)
            texts[:, place] = torch.tensor(neighbours[word])
            harmless.append(bool((model(table[texts]).argmax(-1) == labels[sample]).all()))
            assert found.radius[sample, place] == 0 or harmless[-1]
    assert (found.radius == 1).any()
    assert not all(harmless)


def test_boxes_count_only_what_may_move() -> None:
    inputs = inputs_in_range()
    lower, upper = inputs - 0.5, inputs + 1.0
    lower[:, 0], upper[:, 0] = inputs[:, 0], inputs[:, 0]
    allowed = around(inputs, 1.0, Box(lower, upper))
    moved = inputs.clone()
    moved[:, 1, 0] += 0.25
    moved[:, 2, 0] -= 0.25
    assert allowed.size_of(moved).tolist() == [0.5] * BATCH
    assert allowed.still == {0}
