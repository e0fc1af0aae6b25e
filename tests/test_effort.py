"""More effort: planes chosen row by row are sound for every row, and more effort never proves less."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import popqorn
from popqorn.bounds.inner import relax
from popqorn.bounds.joint.bounds import Joint
from popqorn.bounds.joint.fan import fanned, worst_values
from popqorn.bounds.walk import Ground, walk_forms
from popqorn.relax.gates import GateKind
from popqorn.relax.methods import read_method
from popqorn.relax.relaxation import Interval, Linear, Relaxation
from popqorn.tape.ops.nonlinear import Gate
from popqorn.task import Task
from test_joint import REGIONS, assert_boxes_and_ranges_hold, displaced, points_of, task_of
from test_soundness import BATCH, FRAMES, MODELS, attack, on_the_sphere, random_inputs, random_model

BOXES, SAMPLES, SEVERAL = 300, 400, 2
EFFORTS: list[dict[str, Any]] = [
    {"method": "tight", "effort": 1},
    {"method": "tight", "effort": 2},
    {"method": "tight", "effort": 3, "seconds": 0.3},
]


def some_boxes() -> tuple[Interval, Interval]:
    """Boxes of all sizes and places, `[1, boxes]`."""
    ends = []
    for _ in range(2):
        middle, half = 4 * torch.randn(1, BOXES, dtype=torch.float64), 10 ** (3 * torch.rand(1, BOXES, dtype=torch.float64) - 2.5)
        ends.append(Interval(middle - half, middle + half))
    return ends[0], ends[1]


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("kind", GateKind)
def test_every_plane_of_a_fan_stays_on_its_side(kind: GateKind, closing: bool) -> None:
    gate = Gate((0, 1), kind, BOXES, closing)
    v, z = some_boxes()
    planes = gate.planes(v, z)
    share = torch.rand(2, SAMPLES, 1, BOXES, dtype=torch.float64)
    share = torch.where(torch.rand_like(share) < 0.2, share.round(), share)  # edges and corners
    at = [box.lower + part * (box.upper - box.lower) for box, part in zip((v, z), share, strict=True)]
    value, better = gate.evaluate(*at), 0.0
    fan = gate.fan(planes, v, z)
    assert len(fan) == 4
    for each in fan:
        assert (each.lower(*at) <= value).all()
        assert (each.upper(*at) >= value).all()
        better = max(better, float((each.lower(*at) > planes.lower(*at) + 1e-6).double().mean()))
    assert better > 0.05  # somewhere it is worth having


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("kind", GateKind)
def test_a_plane_of_any_slopes_rests_on_the_gate(kind: GateKind, closing: bool) -> None:
    """On its side of the gate everywhere, and hardly off it where it rests; its offset changes as the envelope theorem says."""
    gate = Gate((0, 1), kind, BOXES, closing)
    v, z = some_boxes()
    slopes = [0.5 * torch.randn(1, 3, BOXES, dtype=torch.float64) for _ in range(4)]
    lower, upper = (slopes[0], slopes[1]), (slopes[2], slopes[3])
    found = gate.resting(lower, upper, v, z)
    share = torch.rand(2, SAMPLES, 1, 1, BOXES, dtype=torch.float64)
    at = [box.lower + part * (box.upper - box.lower) for box, part in zip((v, z), share, strict=True)]
    value = gate.evaluate(*at)
    assert (found.relaxation.lower(*at) <= value).all()
    assert (found.relaxation.upper(*at) >= value).all()
    assert all((given == own).all() for given, own in zip(lower, found.relaxation.lower.slopes, strict=True))
    assert all((given == own).all() for given, own in zip(upper, found.relaxation.upper.slopes, strict=True))
    for plane, place in ((found.relaxation.lower, found.below), (found.relaxation.upper, found.above)):
        torch.testing.assert_close(plane(*place), gate.evaluate(*place), rtol=1e-6, atol=1e-6)
    step = 1e-6
    moved = gate.resting((lower[0] + step, lower[1]), (upper[0], upper[1] + step), v, z)
    for new, old, place in (
        (moved.relaxation.lower, found.relaxation.lower, found.below[0]),
        (moved.relaxation.upper, found.relaxation.upper, found.above[1]),
    ):
        agree = ((new.offset - old.offset) / step + place).abs() < 1e-3 * (1 + place.abs())
        assert agree.double().mean() > 0.98  # all but where the place jumps


def joint_of(task: Task, eps: float, effort: int = 2) -> tuple[Joint, Any]:
    """Bounds of all nodes by rows with planes of their own; at an effort of 3, a few steps of training for the last rows."""
    allowed = task.allowed.at(torch.full((BATCH,), eps, dtype=torch.float64))
    joint = Joint.around(task.tape, allowed, prove=True, memory={}, effort=effort, seconds=0.2)
    with torch.inference_mode():
        return joint, relax(task.tape, allowed, read_method("tight", effort), joint=joint)


@pytest.mark.parametrize(
    ("name", "region"),
    [
        (name, region)
        for name in MODELS
        for region in REGIONS
        if (name == "lstm") != (region == "p = inf") and "stacked" not in name
    ],
)
def test_boxes_and_ranges_hold_when_rows_choose_their_planes(name: str, region: str) -> None:
    task = task_of(name, REGIONS[region])
    joint, relaxed = joint_of(task, 0.15, 3)
    moved, delta = displaced(joint, points_of(task, 0.15))
    assert_boxes_and_ranges_hold(joint, moved, delta)
    outputs = joint.linear.values[len(task.tape.nodes) - 1] + delta[-1]
    assert (torch.einsum("bro,kbo->kbr", task.margins.rows, outputs) >= relaxed.lower(task.margins.rows) - 1e-13).all()


@pytest.mark.parametrize("name", ["lstm", "gru", "bidirectional lstm"])
def test_every_row_walks_through_its_own_planes(name: str) -> None:
    """All rows at once, each with relaxations of its own, are the rows one by one; and each of its planes is one of the fan."""
    task = task_of(name)
    joint, relaxed = joint_of(task, 0.1)
    top, rows = len(task.tape.nodes) - 1, task.margins.rows
    known, allowed = relaxed.known, joint.allowed
    with torch.inference_mode():
        form = walk_forms(Ground(task.tape, relaxed.relaxations, known, allowed), top, rows)
        own = joint._fanned(form, rows.shape[1], {})
        together = walk_forms(Ground(task.tape, {**relaxed.relaxations, **own}, known, allowed), top, rows)
        assert set(own) == set(form.met)
        differ = False
        for row in range(rows.shape[1]):
            one = slice(row, row + 1)
            single = {n: Relaxation(_of_row(each.lower, row), _of_row(each.upper, row)) for n, each in own.items()}
            alone = walk_forms(Ground(task.tape, {**relaxed.relaxations, **single}, known, allowed), top, rows[:, one])
            for frame, part in alone.frames.items():
                torch.testing.assert_close(together.frames[frame][:, one], part)
            torch.testing.assert_close(sum(term[:, one] for term in together.terms), sum(alone.terms))
            plain = form.frames[0][:, one]
            differ = differ or not torch.allclose(plain, together.frames[0][:, one])
        assert differ


def _of_row(plane: Linear, row: int) -> Linear:
    return Linear(tuple(slope[:, row] for slope in plane.slopes), plane.offset[:, row])


def test_the_chosen_plane_is_the_best_at_the_worst_input_of_its_row() -> None:
    task = task_of("lstm")
    joint, relaxed = joint_of(task, 0.2)
    top, rows = len(task.tape.nodes) - 1, task.margins.rows
    with torch.inference_mode():
        form = walk_forms(Ground(task.tape, relaxed.relaxations, relaxed.known, joint.allowed), top, rows)
        fallback = joint.linear.point, joint.linear.radius
        at = worst_values(task.tape, joint.allowed, form.frames, rows.shape[1], fallback)
    whole = torch.stack([form.frames[frame] for frame in range(FRAMES)], dim=2)
    for row in range(rows.shape[1]):
        lowest = joint.allowed.lowest(whole[:, row])
        torch.testing.assert_close(at[-1][:, row], task.tape(lowest))
    for n, candidates in joint.fans.items():
        point = [at[source] for source in task.tape.nodes[n].sources]
        found = fanned(candidates, point, None)
        values = [[getattr(each, side).slopes for each in candidates] for side in ("lower", "upper")]
        assert len(values[0]) == (5 if isinstance(task.tape.nodes[n], Gate) else 1)
        for side, sign in (("lower", 1.0), ("upper", -1.0)):
            own = sign * getattr(found, side)(*point)
            for each in candidates:
                plane = getattr(each, side)
                rowwise = Linear(tuple(slope.unsqueeze(1) for slope in plane.slopes), plane.offset.unsqueeze(1))
                assert (own >= sign * rowwise(*point) - 1e-12).all()


def test_planes_of_a_fan_are_moved_outwards_like_all_others() -> None:
    """Each by what `Errors` says of its own slopes: more than the plane itself was rounded by."""
    task = task_of("lstm")
    joint, _ = joint_of(task, 0.1)
    for n, node in enumerate(task.tape.nodes):
        if isinstance(node, Gate) and n in joint.fans:
            boxes = [joint.boxes[source] for source in node.sources]
            for widened, own in zip(joint.fans[n][1:], node.fan(node.planes(*boxes), *boxes), strict=True):
                assert (widened.lower.offset < own.lower.offset).all()
                assert (widened.upper.offset > own.upper.offset).all()


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_training_raises_the_bound_and_ends_in_time(name: str) -> None:
    task = task_of(name)
    bounds = []
    for effort in (2, 3):
        _, relaxed = joint_of(task, 0.2, effort)
        bounds.append(relaxed.lower(task.margins.rows))
    assert (bounds[1] >= bounds[0] - 1e-12).all()
    assert (bounds[1] > bounds[0] + 1e-4).any()


def test_trained_planes_are_moved_outwards_like_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what `widen` takes off, bounds would be higher: by far more than rounding, if it takes off as much."""
    task = task_of("lstm")
    joint, relaxed = joint_of(task, 0.2, 3)
    calls = 0

    def widened(planes: Relaxation) -> Relaxation:
        nonlocal calls
        calls += 1
        return planes.widened(torch.full_like(planes.lower.offset, 1e3))

    plain = relaxed.lower(task.margins.rows)
    monkeypatch.setattr(joint, "widens", dict.fromkeys(joint.widens, widened))
    again = relaxed.lower(task.margins.rows)
    assert calls > 0
    assert not (again > plain + 1e-2).any()
    with torch.inference_mode():
        top = len(task.tape.nodes) - 1
        alone = joint._trained(top, task.margins.rows, relaxed.relaxations, relaxed.known, None)
        start = joint._one_way(top, task.margins.rows, relaxed.relaxations, relaxed.known, None)[0]
        monkeypatch.setattr(joint, "effort", 1)
        start = torch.fmax(start, joint._one_way(top, task.margins.rows, relaxed.relaxations, relaxed.known, None)[0])
    assert (alone <= start + 1e-9).all()  # what is trained is worth nothing once it has been moved so far


def decided(model: Any, inputs: Tensor) -> tuple[Tensor, Any]:
    labels = model(inputs).argmax(-1)

    def runner_up(logits: Tensor) -> Tensor:
        own = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
        return own - logits.scatter(1, labels.unsqueeze(1), -math.inf).amax(-1)

    return labels, runner_up


@pytest.mark.parametrize(("name", "norm"), [("lstm", 2.0)])
def test_more_effort_never_ends_below_less_and_is_never_attacked(name: str, norm: float) -> None:
    model, inputs = random_model(name), random_inputs()[:1]
    radii = [
        popqorn.certify(model, inputs, norm=norm, tolerance=0.2, **options).radius for options in ({"method": "planes"}, *EFFORTS)
    ]
    for less, more in itertools.pairwise(radii):
        assert (more >= less).all()
    radius = radii[-1].clamp(max=1e3).unsqueeze(-1).expand(-1, FRAMES)
    labels, runner_up = decided(model, inputs)
    samples = inputs + on_the_sphere((300, *inputs.shape), norm, radius)
    assert (model(samples.flatten(0, 1)).argmax(-1).unflatten(0, (300, 1)) == labels).all()
    assert (model(attack(model, inputs, runner_up, norm, radius)).argmax(-1) == labels).all()


def test_margins_and_bounds_only_grow_with_effort() -> None:
    model, inputs = random_model("lstm"), random_inputs()[:SEVERAL]
    for eps in (0.2,):
        margins = [popqorn.verify(model, inputs, eps, **options).margins for options in ({"method": "planes"}, *EFFORTS)]
        for less, more in itertools.pairwise(margins):
            kept = ~less.isnan()
            assert (more[kept] >= less[kept]).all()
        sides = [popqorn.bounds(model, inputs, eps, **options) for options in EFFORTS]
        for less, more in itertools.pairwise(sides):
            assert (more.lower >= less.lower).all()
            assert (more.upper <= less.upper).all()


def test_words_and_single_frames_take_effort() -> None:
    """Sets that do not say where forms are least, and frames that stand still."""
    model, inputs = random_model("gru"), random_inputs()[:SEVERAL]
    table = torch.randn(12, inputs.shape[-1], dtype=torch.float64) / 4
    tokens = torch.randint(12, (SEVERAL, FRAMES))
    words = popqorn.Words.within(table, tokens, 0.7)
    for asked in ({"inputs": table[tokens], "eps": 1, "region": words}, {"inputs": inputs, "eps": 0.2, "norm": 2, "frames": [1]}):
        found = [popqorn.verify(model, **asked, **options).margins.nan_to_num(0.0) for options in EFFORTS]
        for less, more in itertools.pairwise(found):
            assert (more >= less).all()
