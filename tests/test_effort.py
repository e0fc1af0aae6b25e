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
from popqorn.bounds.walk import walk_forms
from popqorn.relax.gates import GateKind
from popqorn.relax.methods import read_method
from popqorn.relax.relaxation import Interval, Linear, Relaxation
from popqorn.tape.ops.nonlinear import Gate
from popqorn.task import Task
from test_joint import REGIONS, columns_times, displaced, points_of, task_of
from test_soundness import BATCH, FRAMES, MODELS, attack, on_the_sphere, random_inputs, random_model

BOXES, SAMPLES, SEVERAL = 300, 400, 2
EFFORTS: list[dict[str, Any]] = [{"method": "tight", "effort": effort} for effort in (1, 2)]


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


def joint_of(task: Task, eps: float, effort: int = 2) -> tuple[Joint, Any]:
    allowed = task.allowed.at(torch.full((BATCH,), eps, dtype=torch.float64))
    joint = Joint.around(task.tape, allowed, prove=True, memory={}, effort=effort)
    with torch.inference_mode():
        return joint, relax(task.tape, allowed, read_method("tight", effort), joint=joint)


@pytest.mark.parametrize(
    ("name", "region"),
    [(name, region) for name in MODELS for region in REGIONS if name == "lstm" or region == "p = inf"],
)
def test_boxes_and_ranges_hold_when_rows_choose_their_planes(name: str, region: str) -> None:
    task = task_of(name, REGIONS[region])
    joint, relaxed = joint_of(task, 0.15)
    moved, delta = displaced(joint, points_of(task, 0.15))
    for n, (box, off) in enumerate(zip(joint.boxes.values(), joint.off.values(), strict=True)):
        value = joint.linear.values[n] + delta[n]
        allowed = 1e-14 * (1 + value.abs().amax())
        assert (value >= box.lower - allowed).all()
        assert (value <= box.upper + allowed).all()
        rest = delta[n] - (columns_times(joint.linear.jacobian[n], moved) if n in joint.linear.jacobian else 0.0)
        assert (rest >= off.lower - allowed).all()
        assert (rest <= off.upper + allowed).all()
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
        form = walk_forms(task.tape, top, rows, relaxed.relaxations, known, allowed)
        own = joint._fanned(form, rows.shape[1], {})
        together = walk_forms(task.tape, top, rows, {**relaxed.relaxations, **own}, known, allowed)
        assert set(own) == set(form.met)
        differ = False
        for row in range(rows.shape[1]):
            one = slice(row, row + 1)
            single = {n: Relaxation(_of_row(each.lower, row), _of_row(each.upper, row)) for n, each in own.items()}
            alone = walk_forms(task.tape, top, rows[:, one], {**relaxed.relaxations, **single}, known, allowed)
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
        form = walk_forms(task.tape, top, rows, relaxed.relaxations, relaxed.known, joint.allowed)
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


def decided(model: Any, inputs: Tensor) -> tuple[Tensor, Any]:
    labels = model(inputs).argmax(-1)

    def runner_up(logits: Tensor) -> Tensor:
        own = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
        return own - logits.scatter(1, labels.unsqueeze(1), -math.inf).amax(-1)

    return labels, runner_up


@pytest.mark.parametrize(("name", "norm"), [("lstm", math.inf), ("gru", 2.0), ("relu rnn", 2.0)])
def test_more_effort_never_ends_below_less_and_is_never_attacked(name: str, norm: float) -> None:
    model, inputs = random_model(name), random_inputs()[:SEVERAL]
    radii = [
        popqorn.certify(model, inputs, norm=norm, tolerance=0.02, **options).radius
        for options in ({"method": "planes"}, *EFFORTS)
    ]
    for less, more in itertools.pairwise(radii):
        assert (more >= less).all()
    radius = radii[-1].clamp(max=1e3).unsqueeze(-1).expand(-1, FRAMES)
    labels, runner_up = decided(model, inputs)
    samples = inputs + on_the_sphere((300, *inputs.shape), norm, radius)
    assert (model(samples.flatten(0, 1)).argmax(-1).unflatten(0, (300, SEVERAL)) == labels).all()
    assert (model(attack(model, inputs, runner_up, norm, radius)).argmax(-1) == labels).all()


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_margins_and_bounds_only_grow_with_effort(name: str) -> None:
    model, inputs = random_model(name), random_inputs()[:SEVERAL]
    for eps in (0.02, 0.2):
        margins = [popqorn.verify(model, inputs, eps, **options).margins for options in ({"method": "planes"}, *EFFORTS)]
        for less, more in itertools.pairwise(margins):
            kept = ~less.isnan()
            assert (more[kept] >= less[kept]).all()
        sides = [popqorn.bounds(model, inputs, eps, **options) for options in EFFORTS]
        for less, more in itertools.pairwise(sides):
            assert (more.lower >= less.lower).all()
            assert (more.upper <= less.upper).all()


def test_words_and_single_frames_take_effort() -> None:
    model, inputs = random_model("gru"), random_inputs()
    table = torch.randn(12, inputs.shape[-1], dtype=torch.float64) / 4
    tokens = torch.randint(12, (SEVERAL, FRAMES))
    words = popqorn.Words.within(table, tokens, 0.7)
    found = [popqorn.certify(model, table[tokens], region=words, **options).radius for options in EFFORTS]
    for less, more in itertools.pairwise(found):
        assert (more >= less).all()
    alone = [popqorn.sensitivity(model, inputs[:1], tolerance=0.05, **options).radius for options in EFFORTS[:2]]
    assert (alone[1] >= alone[0]).all()
