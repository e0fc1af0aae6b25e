"""Joint bounds: the identity they rest on, every step of the proof on its own, and all of them end to end."""

import math
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import popqorn
from popqorn.bounds.inner import relax
from popqorn.bounds.joint.bounds import Joint
from popqorn.bounds.joint.elimination import proven, stages_of
from popqorn.bounds.joint.forms import Form, Matrix
from popqorn.bounds.joint.greatest import Memory, greatest
from popqorn.bounds.joint.spectrum import estimate
from popqorn.bounds.joint.transfer import Known, operand_columns, transferred
from popqorn.relax.methods import METHODS
from popqorn.task import Question, Task
from test_soundness import BATCH, FRAMES, MODELS, attack, on_the_sphere, random_inputs, random_model

POINTS = 200
REGIONS: dict[str, Any] = {
    "p = inf": popqorn.Ball(),
    "p = 2": popqorn.Ball(2),
    "p = 1": popqorn.Ball(1),
    "p = 3, one budget": popqorn.Ball(3, total=True),
    "inside a range": popqorn.Ball(clip=(-0.9, 0.9)),
    "p = 2 inside a range": popqorn.Ball(2, clip=(-0.9, 0.9)),
    "one frame": popqorn.Ball(2, frames=[1]),
    "shares": popqorn.Ball(scale=torch.linspace(0, 1, FRAMES)),
}
each_model = pytest.mark.parametrize("name", MODELS)


def task_of(name: str, region: Any = None, pooling: str = "last") -> Task:
    """A random network and inputs; the rows are those of its outputs' bounds."""
    model, inputs = random_model(name, pooling=pooling), random_inputs().clamp(-0.9, 0.9)
    asked = Question.read(model, inputs, lengths=None, region=region or popqorn.Ball(), spec=None, method=METHODS["tight"])
    return asked.tasks[0]


def joint_of(task: Task, eps: float) -> tuple[Joint, Tensor]:
    """Joint bounds of all nodes, and of the rows of the task."""
    allowed = task.allowed.at(torch.full((BATCH,), eps, dtype=torch.float64))
    joint = Joint.around(task.tape, allowed, prove=True, memory={})
    with torch.inference_mode():
        return joint, relax(task.tape, allowed, METHODS["tight"], joint=joint).lower(task.margins.rows)


@cache
def bounded(name: str, eps: float, pooling: str = "last") -> tuple[Task, Joint]:
    """The same for all tests, whatever each of them draws afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        task = task_of(name, pooling=pooling)
    return task, joint_of(task, eps)[0]


def points_of(task: Task, eps: float) -> Tensor:
    """Allowed points, `[points, batch, frames, features]`: at random, and where random forms are least."""
    allowed = task.allowed.at(torch.full((BATCH,), eps, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    forms = torch.randn(POINTS // 2, *allowed.center.shape, generator=generator, dtype=torch.float64)
    return torch.stack([allowed.random(generator) for _ in range(POINTS // 2)] + [allowed.lowest(form) for form in forms])


def displaced(joint: Joint, points: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Displacements of inputs, in units, and of every node: `[points, batch, ...]`."""
    frames = list(joint.linear.layout.frames)
    radius = joint.linear.radius[:, frames]
    moved = torch.where(radius > 0, (points - joint.linear.point)[:, :, frames] / radius.clamp(min=1e-300), 0.0).flatten(2)
    values = joint.tape.values(points.flatten(0, 1))
    found = [
        value.expand(points.shape[0] * BATCH, -1).unflatten(0, points.shape[:2]) - joint.linear.values[n]
        for n, value in enumerate(values)
    ]
    return moved, found


def columns_times(columns: Tensor, vectors: Tensor) -> Tensor:
    return torch.einsum("kbc,bcw->kbw", vectors, columns)


@each_model
def test_displacements_are_linear_in_inputs_and_errors(name: str) -> None:
    """`delta = J d + Phi eps`, with the errors of all tangents, at inputs far away."""
    task, joint = bounded(name, 0.3, "max" if name == "lstm" else "last")
    moved, delta = displaced(joint, points_of(task, 0.3))
    layout = joint.linear.layout
    errors = torch.zeros(POINTS, BATCH, layout.errors, dtype=torch.float64)
    for n, place in layout.injected.items():
        node = task.tape.nodes[n]
        own = delta[n] - (joint.tangents[n].value - joint.linear.values[n])
        for slope, source in zip(joint.linear.slopes[n], node.sources, strict=True):
            own = own - slope * delta[source]
        errors[..., layout.places[place]] += own
    for n in joint.linear.jacobian:
        if layout.injected.get(n, n) != n:
            continue  # its error enters at the sum that alone uses it
        found = columns_times(joint.linear.jacobian[n], moved) + columns_times(joint.linear.errors[n], errors)
        torch.testing.assert_close(found, delta[n], rtol=1e-9, atol=1e-10)


def assert_boxes_and_ranges_hold(joint: Joint, moved: Tensor, delta: list[Tensor]) -> None:
    """Every node's value lies in its box, and what is not linear in its displacement in the range of that."""
    for n, (box, off) in enumerate(zip(joint.boxes.values(), joint.off.values(), strict=True)):
        value = joint.linear.values[n] + delta[n]
        allowed = 1e-14 * (1 + value.abs().amax())
        assert (value >= box.lower - allowed).all()
        assert (value <= box.upper + allowed).all()
        rest = delta[n] - (columns_times(joint.linear.jacobian[n], moved) if n in joint.linear.jacobian else 0.0)
        assert (rest >= off.lower - allowed).all()
        assert (rest <= off.upper + allowed).all()


@pytest.mark.parametrize(
    ("name", "region"),
    [(name, region) for name in MODELS for region in REGIONS if name in ("lstm", "gru") or region == "p = inf"],
)
def test_boxes_and_ranges_hold_at_every_node(name: str, region: str) -> None:
    task = task_of(name, REGIONS[region])
    for eps in (1e-9, 0.1):
        joint, lower = joint_of(task, eps)
        points = points_of(task, eps)
        moved, delta = displaced(joint, points)
        assert_boxes_and_ranges_hold(joint, moved, delta)
        outputs = joint.linear.values[len(task.tape.nodes) - 1] + delta[-1]
        assert (torch.einsum("bro,kbo->kbr", task.margins.rows, outputs) >= lower - 1e-13).all()


def some_form(joint: Joint, top: int, rows: int) -> Form:
    """A random quadratic form, neither definite nor small, of the nodes that `top` depends on."""
    before = set(joint.linear.layout.ancestors(top))
    form = {}
    for n in joint.choices:
        if n in before:
            shape = (BATCH, rows, joint.tape.nodes[n].width)
            squares = tuple(torch.randn(shape, dtype=torch.float64) for _ in joint.tape.nodes[n].sources)
            form[n] = Matrix(squares, torch.randn(shape, dtype=torch.float64) if len(squares) == 2 else None)
    return form


def whole_matrix(joint: Joint, form: Form) -> Tensor:
    """`J' Q J`, `[batch, rows, columns, columns]`."""
    total: Any = 0
    for n, matrix in form.items():
        columns = [
            joint.linear.jacobian.get(
                source, torch.zeros(BATCH, joint.linear.layout.inputs, joint.tape.nodes[source].width).double()
            )
            for source in joint.tape.nodes[n].sources
        ]
        shaped = Matrix(
            tuple(each.unsqueeze(2) for each in matrix.squares), None if matrix.cross is None else matrix.cross.unsqueeze(2)
        )
        for own, weighed in zip(columns, shaped.times(*(each.unsqueeze(1) for each in columns)), strict=True):
            total = total + own.unsqueeze(1) @ weighed.mT
    return total


@each_model
def test_elimination_accepts_what_is_above_the_greatest_eigenvalue_alone(name: str) -> None:
    task, joint = bounded(name, 0.1)
    top = len(task.tape.nodes) - 1
    form = some_form(joint, top, 4)
    if not form:
        assert name == "relu rnn"
        return
    weights = torch.rand(BATCH, 4, joint.linear.layout.inputs, dtype=torch.float64) + 0.05
    root = weights.rsqrt()
    value = torch.linalg.eigvalsh(root.unsqueeze(-1) * whole_matrix(joint, form) * root.unsqueeze(-2))[..., -1]
    stages = stages_of(joint.linear, top, frozenset(form))
    assert (value > 0).all()
    assert proven(stages, form, value * (1 + 1e-5), weights).all()
    assert not proven(stages, form, value * (1 - 1e-5), weights).any()
    assert not proven(stages, form, torch.full_like(value, math.nan), weights).any()


@each_model
def test_a_form_is_never_greater_than_what_is_proven_of_it(name: str) -> None:
    """With the price of all errors, over inputs far enough that errors count."""
    task, joint = bounded(name, 0.2)
    top = len(task.tape.nodes) - 1
    form = some_form(joint, top, 6)
    if not form:
        return
    known = Known(joint.linear, joint.allowed, joint.tangents, joint.off)
    bound = greatest(known, top, form, {}, 1.0, prove=True)
    _, delta = displaced(joint, points_of(task, 0.2))
    found: Any = 0
    for n, matrix in form.items():
        own = [delta[source].unsqueeze(2) for source in task.tape.nodes[n].sources]
        for vector, weighed in zip(own, matrix.times(*own), strict=True):
            found = found + (vector * weighed).sum(-1) / 2
    assert (found <= bound + 1e-12).all()
    assert bound.isfinite().all()


@each_model
def test_every_price_is_at_least_what_it_pays_for(name: str) -> None:
    """`C_g >= |Phi_g' Q (J d + e / 2)|` at every input, with the form as it is when all is priced."""
    task, joint = bounded(name, 0.3)
    form = some_form(joint, len(task.tape.nodes) - 1, 3)
    if not form:
        return
    known = Known(joint.linear, joint.allowed, joint.tangents, joint.off)
    priced = transferred(known, operand_columns(known, form, torch.float64), form, torch.float64)
    moved, delta = displaced(joint, points_of(task, 0.3))
    linear = joint.linear
    arrived: Any = 0
    for n, matrix in priced.form.items():
        own = []
        for source in task.tape.nodes[n].sources:
            first = (
                columns_times(linear.jacobian[source], moved) if source in linear.jacobian else torch.zeros_like(delta[source])
            )
            own.append(((first + delta[source]) / 2).unsqueeze(2))  # J d + e / 2
        for source, vector in zip(task.tape.nodes[n].sources, matrix.times(*own), strict=True):
            if source in linear.errors:
                arrived = arrived + torch.einsum("kbrw,biw->kbri", vector, linear.errors[source])
    assert priced.prices
    used = []
    for n, price in priced.prices.items():
        paid = arrived[..., linear.layout.places[linear.layout.injected[n]]].abs()
        assert (paid <= price + 1e-12).all()
        used.append((paid.amax(0) / price.clamp(min=1e-300)).amax())
    assert max(used) > 0.5  # prices are no larger than they need to be


def test_an_estimate_that_is_too_low_is_not_taken_for_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    task, joint = bounded("lstm", 0.1)
    top = len(task.tape.nodes) - 1
    form = some_form(joint, top, 5)
    known = Known(joint.linear, joint.allowed, joint.tangents, joint.off)
    right = greatest(known, top, form, {}, 1.0, prove=True)
    module = sys.modules["popqorn.bounds.joint.greatest"]  # popqorn.bounds is a function, too
    monkeypatch.setattr(module, "MARGIN", 0.4)
    assert (greatest(known, top, form, {}, 1.0, prove=True) > 0.95 * right).all()
    monkeypatch.setattr(module, "MARGIN", 0.01)  # too low to be raised to the truth
    monkeypatch.setattr(module, "_by_columns", lambda known, form, count: torch.full_like(right, math.inf))
    assert greatest(known, top, form, {}, 1.0, prove=True).isinf().all()


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_forms_of_displacements_reach_no_further_than_a_region_says(region: Any) -> None:
    task = task_of("lstm", region)
    allowed = task.allowed.at(torch.full((BATCH,), 0.3, dtype=torch.float64))
    point, radius = allowed.units()
    moved = torch.where(radius > 0, (points_of(task, 0.3) - point) / radius.clamp(min=1e-300), 0.0)
    forms, weights = torch.randn(BATCH, 4, *point.shape[1:], dtype=torch.float64), torch.rand(BATCH, 4, *point.shape[1:]).double()
    found = torch.einsum("kbtf,brtf->kbr", moved, forms).abs()
    assert (found <= allowed.reach(forms.unsqueeze(-1)).squeeze(-1) * (1 + 1e-9)).all()
    squares = torch.einsum("kbtf,brtf->kbr", moved.square(), weights)
    assert (squares <= allowed.spread(weights) * (1 + 1e-9)).all()
    assert (squares.amax(0) / allowed.spread(weights)).max() > 0.2


def test_the_estimate_is_near_the_greatest_eigenvalue() -> None:
    task, joint = bounded("lstm", 0.1)
    form = some_form(joint, len(task.tape.nodes) - 1, 5)
    guess = estimate(joint.linear, joint.allowed, form, None, torch.float32)
    root = guess.weights.rsqrt()
    exact = torch.linalg.eigvalsh(root.unsqueeze(-1) * whole_matrix(joint, form) * root.unsqueeze(-2))[..., -1]
    assert ((guess.value / exact - 1).abs() < 0.06).all()
    torch.testing.assert_close(joint.allowed.spread(guess.weights.unflatten(-1, (FRAMES, -1))), torch.ones_like(exact))


@pytest.mark.parametrize(
    ("name", "region"),
    [
        *((name, popqorn.Ball()) for name in MODELS if name != "bidirectional stacked gru"),
        *((name, popqorn.Ball(2)) for name in ("rnn", "lstm", "gru")),
        *((name, popqorn.Ball(2, frames=[0])) for name in ("lstm", "gru")),
    ],
    ids=str,
)
def test_tight_radii_are_never_below_planes_and_never_attacked(name: str, region: popqorn.Ball) -> None:
    model, inputs = random_model(name), random_inputs()[: 3 if name in ("rnn", "lstm", "gru") else 1]
    tolerance = 0.02 if name == "rnn" else 0.1 if name in ("lstm", "gru") else 0.5  # what is gained must be more
    plain, tight = (
        popqorn.certify(model, inputs, region=region, method=method, tolerance=tolerance) for method in ("planes", "tight")
    )
    assert (tight.radius >= plain.radius).all()
    if name in ("rnn", "lstm", "gru") and region.frames is None:
        assert (tight.radius / plain.radius).mean() > 1.005
    moves = torch.ones(FRAMES, dtype=torch.float64) if region.frames is None else torch.eye(FRAMES, dtype=torch.float64)[0]
    radius = tight.radius.clamp(max=1e3).unsqueeze(-1) * moves
    labels = model(inputs).argmax(-1)
    samples = inputs + on_the_sphere((POINTS, *inputs.shape), region.norm, radius)
    assert (model(samples.flatten(0, 1)).argmax(-1).unflatten(0, (POINTS, len(inputs))) == labels).all()

    def runner_up(logits: Tensor) -> Tensor:
        own = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
        return own - logits.scatter(1, labels.unsqueeze(1), -math.inf).amax(-1)

    assert (model(attack(model, inputs, runner_up, region.norm, radius)).argmax(-1) == labels).all()


@pytest.mark.parametrize("said", [math.nan, -1.0, 0.0])
def test_a_size_that_is_promised_but_not_proven_is_not_kept(said: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = random_model("gru"), random_inputs()[:2]
    plain = popqorn.certify(model, inputs, tolerance=0.1).radius
    estimated = Task.joint_bounds

    def refused(self: Task, eps: Tensor, memory: Any, *, prove: bool) -> Tensor:
        return torch.full_like(self.margins.offset, said) if prove else estimated(self, eps, memory, prove=False)

    monkeypatch.setattr(Task, "joint_bounds", refused)
    assert torch.equal(popqorn.certify(model, inputs, tolerance=0.1, method="tight").radius, plain)


def test_tight_margins_are_never_below_those_of_planes() -> None:
    for name in ("lstm", "stacked gru"):
        model, inputs = random_model(name), random_inputs()
        sizes = torch.tensor([0.01, 0.1, 1.0]).repeat_interleave(BATCH)
        plain, tight = (
            popqorn.verify(model, inputs.repeat(3, 1, 1), sizes, method=method).margins for method in ("planes", "tight")
        )
        kept = ~plain.isnan()
        assert (tight[kept] >= plain[kept]).all()


def test_words_and_boxes_take_tight_bounds() -> None:
    model, inputs = random_model("gru"), random_inputs()
    box = popqorn.Box(inputs - 0.1, inputs + 0.2)
    plain, tight = (popqorn.certify(model, inputs, region=box, method=method, tolerance=0.1) for method in ("planes", "tight"))
    assert (tight.radius >= plain.radius).all()
    table = torch.randn(12, inputs.shape[-1], dtype=torch.float64) / 4
    tokens = torch.randint(12, (BATCH, FRAMES))
    words = popqorn.Words.within(table, tokens, 0.7)
    plain, tight = (popqorn.certify(model, table[tokens], region=words, method=method) for method in ("planes", "tight"))
    assert (tight.radius >= plain.radius).all()


def test_a_proof_never_takes_prices_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates near a known size scale what they remember; a proof computes prices anew."""
    task, joint = bounded("lstm", 0.2)
    top = len(task.tape.nodes) - 1
    form = some_form(joint, top, 5)
    known = Known(joint.linear, joint.allowed, joint.tangents, joint.off)
    module = sys.modules["popqorn.bounds.joint.greatest"]
    scaled, calls = module._priced_as_before, []  # type: ignore[attr-defined]

    def counted(*arguments: Any) -> Any:
        calls.append(scaled(*arguments))
        return calls[-1]

    monkeypatch.setattr(module, "_priced_as_before", counted)
    memory: Memory = {}
    for expected in (0, 1):
        greatest(known, top, form, memory, 1.0, prove=False)
        assert len(calls) == expected
    greatest(known, top, form, memory, 1.0, prove=True)
    assert len(calls) == 1
    priced = module._priced(known, form, torch.float64)[0]  # type: ignore[attr-defined]
    for node, matrix in calls[0][0].items():  # at the same size, they are the same
        torch.testing.assert_close(matrix.squares, priced[node].squares, rtol=1e-4, atol=1e-6)


def test_a_stopped_search_keeps_what_planes_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = random_model("lstm"), random_inputs()

    def interrupted(*given: Any, **more: Any) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(Task, "joint_bounds", interrupted)
    found = popqorn.certify(model, inputs, method="tight", tolerance=0.1)
    assert set(found.status) == {popqorn.Status.STOPPED}
    assert torch.equal(found.radius, popqorn.certify(model, inputs, tolerance=0.1).radius)
    frames = popqorn.sensitivity(model, inputs, method="tight", tolerance=0.1)
    assert (frames.radius > 0).any()
    assert {status for row in frames.status for status in row} == {popqorn.Status.STOPPED}


@pytest.mark.parametrize("effort", [1.0, "high", torch.tensor(2), [1], True, 0])
def test_efforts_are_whole_numbers(effort: Any) -> None:
    with pytest.raises(ValueError, match=r"effort is .*; pass 1"):
        popqorn.certify(random_model("rnn"), random_inputs(), method="tight", effort=effort)


def test_a_number_of_numpys_is_an_effort() -> None:
    found = popqorn.verify(random_model("rnn"), random_inputs()[:1], 1e-3, method="tight", effort=np.int64(2))
    assert found.settings["effort"] == 2
    assert type(found.settings["effort"]) is int
