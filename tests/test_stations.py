"""Long sequences: walks that end at stations prove nothing false, lose little, and change nothing where sequences are short."""

import math
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

import exact
import popqorn
from popqorn import Ball, Box
from popqorn.bounds.errors import Errors
from popqorn.bounds.ground import Ground, Replaced
from popqorn.bounds.inner import RelaxedTape, relax
from popqorn.bounds.pieces import Walks
from popqorn.bounds.stations import LinearBounds, Plan, plan_of
from popqorn.readers.classifier import tape_of
from popqorn.regions.region import AllowedSet, Region
from popqorn.relax.methods import METHODS
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.nonlinear import Gate
from popqorn.tape.tape import Tape
from sets import around

FRAMES, FEATURES, HIDDEN, CLASSES, BATCH = 9, 2, 3, 3, 2
CELLS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "rnn": (nn.RNN, {}),
    "relu rnn": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "projected lstm": (nn.LSTM, {"proj_size": 2}),
    "stacked lstm": (nn.LSTM, {"num_layers": 2}),
    "stacked gru": (nn.GRU, {"num_layers": 2}),
    "bidirectional lstm": (nn.LSTM, {"bidirectional": True}),
    "bidirectional stacked rnn": (nn.RNN, {"bidirectional": True, "num_layers": 2}),
}
REGIONS: dict[str, Region] = {
    "p = 1": Ball(1),
    "p = 2": Ball(2),
    "p = 3": Ball(3),
    "p = inf": Ball(),
    "one budget": Ball(2, total=True),
    "clipped": Ball(2, clip=(-0.6, 0.6)),
    "clipped, p = inf": Ball(clip=(-0.6, 0.6)),
    "one budget, clipped": Ball(2, clip=(-0.6, 0.6), total=True),
    "some frames": Ball(2, frames=[3, 4, 7]),
    "box": Box(lower=-0.7, upper=0.7),
}
each_cell = pytest.mark.parametrize("cell", CELLS)


def network(cell: str, *, frames: int = FRAMES, seed: int = 0, spread: float = 0.7) -> Tape:
    torch.manual_seed(seed)
    kind, options = CELLS[cell]
    width = (options.get("proj_size") or HIDDEN) * (2 if options.get("bidirectional") else 1)
    model = popqorn.SequenceClassifier(kind(FEATURES, HIDDEN, **options), nn.Linear(width, CLASSES)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=spread)
    return tape_of(model, frames, dtype=torch.float64, device=torch.device("cpu"))


def inputs_of(frames: int = FRAMES, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(BATCH, frames, FEATURES, generator=generator, dtype=torch.float64) - 0.5


def soon(tape: Tape) -> Plan:
    """Stations as near to each other, and walks as short, as can be: what cutting loses is greatest."""
    plan = plan_of(tape, long=2, spacing=1, apart=1)
    assert len(plan.stations) > 2
    return plan


def cut(tape: Tape, allowed: AllowedSet) -> RelaxedTape:
    return relax(tape, allowed, METHODS["planes"], plan=soon(tape))


def uncut(tape: Tape, allowed: AllowedSet) -> RelaxedTape:
    return relax(tape, allowed, METHODS["planes"], plan=Plan(tape))


def points_of(allowed: AllowedSet, tape: Tape, rows: Tensor) -> Tensor:
    """Random allowed inputs, those where random forms are least, and where every row is least to first order, again and again:
    `[points, batch, frames, features]`.
    """
    generator = torch.Generator().manual_seed(2)
    found = [allowed.random(generator) for _ in range(20)]
    found += [allowed.lowest(torch.randn(allowed.center.shape, generator=generator, dtype=torch.float64)) for _ in range(20)]
    for row in rows:
        point = allowed.center
        for _ in range(3):
            point = point.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((tape(point) @ row).sum(), point)
            point = allowed.lowest(gradient)
            found.append(point)
    return torch.stack(found).detach()


def values_at(tape: Tape, points: Tensor) -> list[Tensor]:
    """The values of every node, `[points, batch, width]`."""
    count, batch = points.shape[:2]
    values = (value.expand(count * batch, -1) for value in tape.values(points.flatten(0, 1)))
    return [value.unflatten(0, (count, batch)) for value in values]


def holds_everything(relaxed: RelaxedTape, points: Tensor, *, slack: float = 1e-9) -> None:
    """Boxes hold every node's values, and the bound of every row is below its value."""
    rows = torch.cat([torch.eye(CLASSES), -torch.eye(CLASSES)]).double()
    lower = relaxed.lower(rows.unsqueeze(0))
    values = values_at(relaxed.tape, points)
    for box, value in zip(relaxed.boxes, values, strict=True):
        assert (value >= box.lower - slack).all()
        assert (value <= box.upper + slack).all()
    assert (values[-1] @ rows.mT >= lower - slack).all()


@each_cell
@pytest.mark.parametrize("name", REGIONS)
def test_no_allowed_input_leaves_the_bounds_of_walks_that_were_cut(cell: str, name: str) -> None:
    if name not in ("p = 2", "p = inf", "some frames") and cell not in ("rnn", "lstm", "bidirectional stacked rnn"):
        pytest.skip("the others have been asked of similar networks")
    tape, inputs = network(cell), inputs_of()
    for eps in (0.02, 0.3) if name == "p = 2" else (0.3,):
        allowed = around(inputs, eps, REGIONS[name])
        holds_everything(cut(tape, allowed), points_of(allowed, tape, torch.eye(CLASSES).double()))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[LinearBounds]:
    """The linear bounds of all stations, in order, of whatever is relaxed while this is there."""
    found: list[LinearBounds] = []
    original = Errors.of_station

    def keep(self: Errors, station: LinearBounds, frames: Interval) -> tuple[Tensor, Tensor]:
        found.append(station)
        return original(self, station, frames)

    monkeypatch.setattr(Errors, "of_station", keep)
    return found


@each_cell
def test_linear_bounds_of_stations_hold_at_every_allowed_input(cell: str, kept: list[LinearBounds]) -> None:
    """Not only over the whole set: pointwise."""
    tape, allowed = network(cell), around(inputs_of(), 0.3)
    cut(tape, allowed)
    points = points_of(allowed, tape, torch.eye(CLASSES).double())
    values, moved = values_at(tape, points), points - allowed.center
    for index, station in zip(sorted(soon(tape).stations), kept, strict=True):
        least = (station.forms @ moved[:, :, list(station.frames)].flatten(2).unsqueeze(-1)).squeeze(-1) + station.constants
        assert (least <= torch.cat([values[index], -values[index]], dim=-1) + 1e-12).all()


@each_cell
def test_cutting_only_ever_loses(cell: str) -> None:
    """Stations are bounded through the same relaxations: where these are the same, a cut walk proves no more than a whole one."""
    tape, allowed = network(cell), around(inputs_of(), 0.05)
    rows = torch.eye(CLASSES).double().unsqueeze(0)
    shorter, whole = cut(tape, allowed), uncut(tape, allowed)
    assert (shorter.lower(rows) <= whole.lower(rows) + 1e-9).all()
    assert any(not torch.equal(box.lower, other.lower) for box, other in zip(shorter.boxes, whole.boxes, strict=True))


def test_little_is_lost_at_the_tapes_own_stations() -> None:
    for cell in ("rnn", "lstm", "gru"):
        tape, inputs = network(cell, frames=40, spread=0.4), inputs_of(40)
        allowed, rows = around(inputs, 0.02), torch.eye(CLASSES).double().unsqueeze(0)
        center = tape(inputs)
        assert plan_of(tape).stations
        shorter, whole = relax(tape, allowed, METHODS["planes"]).lower(rows), uncut(tape, allowed).lower(rows)
        assert (center - shorter <= 1.02 * (center - whole)).all(), cell


def test_short_sequences_have_no_stations() -> None:
    for cell, frames in product(CELLS, (1, 8, 32)):
        assert not plan_of(network(cell, frames=frames)).stations


@each_cell
def test_walks_of_long_sequences_are_short(cell: str) -> None:
    """From every node, all ways back end at a station within some 30 frames, or at an input that is no further."""
    if cell == "bidirectional stacked rnn":
        pytest.skip("its second layer walks through the first as well")
    tape = network(cell, frames=150)
    plan, layers = plan_of(tape), 2 if "stacked" in cell else 1
    for start in range(0, len(tape.nodes), 7):
        if start in plan.stations:
            continue
        ends, met, waiting = plan.ends(start), {start}, [start]
        while waiting:
            index = waiting.pop()
            fresh = set() if index in ends else set(tape.nodes[index].sources) - met
            met |= fresh
            waiting.extend(fresh)
        per_frame = len(tape.nodes) / 150
        assert len(met) <= 40 * per_frame * layers


# ---- rounding ------------------------------------------------------------------------------------------------------------------


def mpmath_of(value: Any) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def cancelling_station(weights: tuple[float, ...], frames: int) -> popqorn.SequenceClassifier:
    """A ReLU network that keeps four ones for all frames but the last, where their sum with `weights` is taken."""
    size = len(weights)
    rnn = nn.RNN(1, size + 1, nonlinearity="relu", batch_first=True)
    head = nn.Linear(size + 1, 2)
    state = torch.cat([torch.ones(1, size), torch.zeros(1, 1)], dim=1).double()
    model = popqorn.SequenceClassifier(rnn, head, initial_state=state).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        rnn.weight_hh_l0[:size, :size] = torch.eye(size, dtype=torch.float64)
        rnn.weight_ih_l0[:size, 0] = 1.0  # inputs of zero; they move, so that nothing is a constant
        rnn.weight_hh_l0[size, :size] = torch.tensor(weights, dtype=torch.float64)
        rnn.bias_ih_l0[size] = 1.0
        head.weight[0, size], head.bias[0] = 1.0, -1.0
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_that_cancel_at_a_station_prove_nothing_false(dtype: torch.dtype) -> None:
    frames = 6
    for order in ((2.0**54, -1.0, -(2.0**54), 0.5), (-1.0, 2.0**54, 0.5, -(2.0**54)), (0.5, -1.0, 2.0**54, -(2.0**54))):
        model = cancelling_station(order, frames)
        tape = tape_of(model, frames, dtype=dtype, device=torch.device("cpu"))
        inputs = torch.zeros(1, frames, 1, dtype=dtype)
        value = exact.outputs(model, inputs[0].double())[0]
        rows = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=dtype)
        found = relax(tape, around(inputs, 0.0), METHODS["planes"], plan=soon(tape)).lower(rows)[0].tolist()
        assert found[0] <= value <= -found[1], order


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_stations_pay_for_the_rounding_of_their_own_walks(dtype: torch.dtype, kept: list[LinearBounds]) -> None:
    """A unit that is 1/2 at every frame, as 1 + 2^54 - 1 - 2^54 + 1/2, is at least as low as its station says, and as high."""
    for order in permutations((2.0**54, -1.0, -(2.0**54), 0.5)):
        kept.clear()
        tape = tape_of(cancelling_station(order, 6), 6, dtype=dtype, device=torch.device("cpu"))
        relax(tape, around(torch.zeros(1, 6, 1, dtype=dtype), 0.0), METHODS["planes"], plan=soon(tape))
        for station in kept:
            if station.constants.shape[1] == 10:
                below, above = station.constants[0, 4].item(), -station.constants[0, 9].item()
                assert below <= 0.5 <= above, order
        assert len(kept) > 2


def test_linear_bounds_are_moved_outwards_by_what_the_stations_walk_lost() -> None:
    tape, allowed = network("lstm"), around(inputs_of(), 0.1)
    plan, relaxed = soon(tape), uncut(tape, allowed)
    index = max(plan.stations)
    walks = Walks(tape, allowed, relaxed.relaxations, relaxed.known, plan)
    constants = []
    for less in (0.0, 0.25):
        walks.box(index, torch.full((BATCH, tape.nodes[index].width), less, dtype=torch.float64))
        constants.append(walks.stations[index].constants)
    torch.testing.assert_close(constants[1], constants[0] - 0.25)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products_with_forms_are_off_by_no_more_than_is_charged(dtype: torch.dtype) -> None:
    """Forms and rows whose products cancel, against fractions."""
    tape = tape_of(cancelling_station((1.0, 1.0), 2), 2, dtype=dtype, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    worst = Fraction(0)
    for _ in range(20):
        half = torch.randn(1, 8, 2, generator=generator).to(dtype) * 10 ** (
            4 * torch.rand(1, 8, 2, generator=generator).to(dtype)
        )
        forms = torch.cat([half, -half * (1 + 1e-6)], dim=1)
        station = LinearBounds((0, 1), forms, torch.zeros(1, 16, dtype=dtype))
        rows = torch.rand(1, 1, 16, generator=generator).to(dtype)
        inputs = torch.ones(1, 2, 1, dtype=dtype)
        error, _ = Errors(tape, dtype, 1).of_station(station, Interval(-inputs, inputs))
        computed = (rows @ forms)[0, 0].tolist()
        columns = [[Fraction(value) for value in column] for column in forms[0].T.tolist()]
        exactly = [
            sum(Fraction(row) * value for row, value in zip(rows[0, 0].tolist(), column, strict=True)) for column in columns
        ]
        off = sum((abs(Fraction(value) - true) for value, true in zip(computed, exactly, strict=True)), Fraction(0))
        paid = sum(Fraction(row) * Fraction(cost) for row, cost in zip(rows[0, 0].tolist(), 2 * error[0].tolist(), strict=True))
        assert off <= paid
        worst = max(worst, off)
    assert worst > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("cell", ["relu rnn", "rnn", "lstm", "gru"])
def test_exact_outputs_lie_in_bounds_that_were_cut(cell: str, dtype: torch.dtype) -> None:
    kind, options = CELLS[cell]
    for seed in range(6):
        torch.manual_seed(seed)
        model = popqorn.SequenceClassifier(
            kind(FEATURES, HIDDEN, batch_first=True, **options), nn.Linear(HIDDEN, CLASSES)
        ).double()
        with torch.no_grad():
            for parameter in model.parameters():  # units in pairs, opposite weights of very different sizes: sums cancel
                parameter.copy_(torch.randn_like(parameter) * 10 ** (3 * torch.rand_like(parameter) - 2))
                if parameter.dim() == 2 and parameter.shape[1] > 1:
                    parameter[:, 1] = -parameter[:, 0] * (1 + 1e-9)
        inputs = torch.randn(1, FRAMES, FEATURES).to(dtype)
        tape = tape_of(model, FRAMES, dtype=dtype, device=torch.device("cpu"))
        eye = torch.eye(CLASSES, dtype=dtype)
        for eps in (0.0, 1e-4):
            allowed = around(inputs, eps, Ball())
            bounds = (
                relax(tape, allowed, METHODS["planes"], plan=soon(tape)).lower(torch.cat([eye, -eye]).unsqueeze(0))[0].tolist()
            )
            for number, value in enumerate(exact.outputs(model, inputs[0].double() + eps)):
                low, high = mpmath.mpf(bounds[number]), -mpmath.mpf(bounds[number + CLASSES])
                assert low <= mpmath_of(value) <= high, (cell, seed, eps)


def test_what_a_station_loses_is_charged_to_walks_that_end_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a product with a station's forms could lose a whole unit, so could every bound behind it."""
    tape, allowed = network("lstm"), around(inputs_of(), 0.01)
    rows = torch.eye(CLASSES).double().unsqueeze(0)
    before = cut(tape, allowed).lower(rows)
    original = Errors.of_station

    def more(self: Errors, station: Any, frames: Any) -> tuple[Tensor, Tensor]:
        lost, underflow = original(self, station, frames)
        return lost + 0.01, underflow

    monkeypatch.setattr(Errors, "of_station", more)
    assert (cut(tape, allowed).lower(rows) < before - 1e-3).all()


# ---- products ------------------------------------------------------------------------------------------------------------------


@each_cell
def test_products_are_what_walks_step_by_step_find(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every sample its own, and for rows of either sign: passing relaxed nodes and weights at once changes rounding only."""
    tape, allowed = network(cell), around(inputs_of(), 0.3)
    once = cut(tape, allowed)
    taken = []
    original = Ground.product
    monkeypatch.setattr(Ground, "product", lambda self, *which: taken.append(which) or original(self, *which))
    small = relax(tape, allowed, METHODS["planes"], chunk_rows=5, plan=soon(tape))
    assert taken
    monkeypatch.setattr(Ground, "behind", lambda self, operand: None)
    taken.clear()
    stepwise = cut(tape, allowed)
    assert not taken
    for boxes in (once.boxes, small.boxes):
        for box, other in zip(boxes, stepwise.boxes, strict=True):
            torch.testing.assert_close(box.lower, other.lower, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(box.upper, other.upper, rtol=1e-9, atol=1e-10)


@each_cell
def test_products_sum_up_no_more_than_is_charged(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tape, counts = network(cell), []
    original = Ground.product

    def counted(self: Ground, *which: Any) -> Tensor:
        found = original(self, *which)
        counts.append(found.shape[-2])
        return found

    monkeypatch.setattr(Ground, "product", counted)
    cut(tape, around(inputs_of(), 0.3))
    assert 0 < max(counts) <= tape.most_multiplied


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products_are_off_by_no_more_than_is_charged(dtype: torch.dtype) -> None:
    """Against fractions: rows that pass a gate and weights lose at most the gate's slopes times what its operand carries."""
    worst = Fraction(0)
    for seed in range(4):
        model = popqorn.SequenceClassifier(nn.LSTM(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)).double()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():  # units in pairs, opposite weights of very different sizes: sums cancel
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 3)
                if parameter.dim() == 2 and parameter.shape[1] > 1:
                    parameter[:, 1] = -parameter[:, 0] * (1 + 1e-9)
        tape = tape_of(model, FRAMES, dtype=dtype, device=torch.device("cpu"))
        allowed = around(inputs_of().to(dtype), 0.01)
        relaxed = relax(tape, allowed, METHODS["planes"], plan=soon(tape))
        ground = Ground(tape, relaxed.relaxations, relaxed.known, allowed)
        ground = Ground(tape, relaxed.relaxations, relaxed.known, allowed, whole=ground)
        gate = next(index for index in reversed(range(len(tape.nodes))) if isinstance(tape.nodes[index], Gate))
        operand = next(source for source in tape.nodes[gate].sources if ground.behind(source) is not None)
        affine = ground.behind(operand)
        assert affine is not None
        node, which = tape.nodes[affine], tape.nodes[operand]
        rows = torch.randn(BATCH, 4, tape.nodes[gate].width, generator=generator).to(dtype)
        computed = torch.cat([rows, rows.abs()], dim=-1) @ ground.product(affine, (Replaced((gate,), (operand,), offset=False),))
        slopes, _ = ground.replaced((gate,))
        middle, half = (side[:, 0] for side in slopes[operand])
        _, stacked, moving = ground.moving(node)
        values = torch.cat([relaxed.boxes[source].upper for source, _ in moving], dim=-1)
        carried = relaxed.errors[operand]
        for sample, row in product(range(BATCH), range(4)):
            off = paid = Fraction(0)
            for column in range(stacked.shape[1]):
                true = Fraction(0)
                for place, each in enumerate(rows[sample, row].tolist()):
                    slope = Fraction(middle[sample, place].item()) * Fraction(each)
                    slope += Fraction(half[sample, place].item()) * abs(Fraction(each))
                    true += slope * Fraction(stacked[which.start + place, column].item())
                off += abs(Fraction(computed[sample, row, column].item()) - true) * abs(Fraction(values[sample, column].item()))
            for place, each in enumerate(rows[sample, row].tolist()):
                steepest = abs(Fraction(middle[sample, place].item())) + abs(Fraction(half[sample, place].item()))
                paid += abs(Fraction(each)) * steepest * Fraction(carried[sample, place].item())
            assert off <= paid
            worst = max(worst, off / paid)
    assert worst > 0


# ---- end to end ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "norm"), [(nn.RNN, math.inf), (nn.LSTM, 2.0)])
def test_radii_of_long_sequences_stand_against_attacks(kind: type[nn.RNNBase], norm: float) -> None:
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(kind(FEATURES, 3), nn.Linear(3, CLASSES)).double()
    inputs = inputs_of(33)
    eps = 0.5 if norm == 2 else 0.05
    together = popqorn.verify(model, inputs, eps, norm=norm)
    assert together.certified.all()
    attacked = popqorn.attack(model, inputs, norm=norm, method="pgd", restarts=1)
    assert (attacked.radius > eps).all()
    alone = popqorn.verify(model, inputs[1:2], eps, norm=norm)
    torch.testing.assert_close(alone.margins, together.margins[1:2])


def test_chunks_change_nothing() -> None:
    tape, allowed = network("stacked lstm"), around(inputs_of(), 0.1)
    rows = torch.eye(CLASSES).double().unsqueeze(0)
    whole = cut(tape, allowed)
    small = relax(tape, allowed, METHODS["planes"], chunk_rows=5, plan=soon(tape))
    torch.testing.assert_close(whole.lower(rows), small.lower(rows))


def test_what_follows_still_frames_has_stations_too() -> None:
    """Frames before the first that moves are constants; a station among them is none."""
    tape, inputs = network("lstm"), inputs_of()
    allowed = around(inputs, 0.1, Ball(2, frames=[FRAMES - 3]))
    found = cut(tape, allowed)
    holds_everything(found, points_of(allowed, tape, torch.eye(CLASSES).double()))
