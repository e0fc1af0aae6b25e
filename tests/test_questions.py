"""Every region x every spec x certify, verify, bounds, attack: attacked and sampled inside what was certified."""

import itertools

import pytest
import torch
from torch import Tensor

import popqorn
from popqorn import Status
from popqorn.regions.region import AllowedSet, Region
from popqorn.sequences import Sequences
from popqorn.specs.spec import Spec
from questions import BATCH, REGIONS, SPECS, inputs, network

pytestmark = pytest.mark.shapes

each_region = pytest.mark.parametrize("region", REGIONS)
each_spec = pytest.mark.parametrize("spec", SPECS)
SAMPLES = 300


def sequences() -> Sequences:
    values = inputs()
    return Sequences(values, torch.arange(BATCH), BATCH, values.shape[1])


def drawn(allowed: AllowedSet, count: int = SAMPLES) -> Tensor:
    """Allowed points, `[count, batch, frames, features]`: random ones, and some of the furthest."""
    generator = torch.Generator().manual_seed(0)
    choices = allowed.choices
    if choices is None:
        forms = torch.randn(count // 2, *allowed.center.shape, dtype=torch.float64)
        return torch.stack([*(allowed.random(generator) for _ in forms), *map(allowed.lowest, forms)])
    points = []
    for _ in range(count):
        weights = choices.allowed.double().flatten(0, 1)
        picked = torch.multinomial(weights, 1, generator=generator).reshape(choices.options.shape[:2])
        order = torch.rand(picked.shape, generator=generator).argsort(-1).argsort(-1)
        picked = torch.where(order < allowed.eps.unsqueeze(1), picked, 0)
        points.append(choices.table[choices.options.gather(-1, picked.unsqueeze(-1)).squeeze(-1)])
    return torch.stack(points)


def holds_everywhere(model: popqorn.SequenceClassifier, region: Region, spec: Spec, eps: Tensor) -> Tensor:
    """The lowest margin met on points of the set of size `eps`, per sample."""
    group = sequences()
    points = drawn(region.around(group).at(eps))
    margins = spec.margins(model(group.values), group)
    outputs = model(points.flatten(0, 1)).flatten(1).unflatten(0, points.shape[:2])
    return torch.stack([margins.of(output) for output in outputs]).amin((0, 2))


OTHERS = [
    (kind, spec, region)
    for kind, spec in [
        ("tagger", "decision"),
        ("tagger", "property"),
        ("max", "tolerance"),
        ("lstm", "decision"),
        ("gru", "property"),
    ]
    for region in ("ball 2, some frames", "ball inf, clipped", "box", "words")
]


EVERY_SECOND = [
    ("rnn", spec, region)
    for (row, spec), (column, region) in itertools.product(enumerate(SPECS), enumerate(REGIONS))
    if (row + column) % 2 == 0
]


@pytest.mark.parametrize(("kind", "spec", "region"), [*EVERY_SECOND, *OTHERS])
def test_nothing_breaks_what_was_certified(kind: str, spec: str, region: str) -> None:
    model, what, claim = network(kind), REGIONS[region](), SPECS[spec]()
    if spec == "property" and kind == "tagger":
        claim = popqorn.Property(torch.eye(9).reshape(9, 3, 3), 4.0)
    found = popqorn.certify(model, inputs(), region=what, spec=claim, tolerance=0.1)
    attacked = popqorn.attack(model, inputs(), region=what, spec=claim, restarts=1)
    assert ((found.radius < attacked.radius) | (found.radius == 0)).all()
    for sample, status in enumerate(found.status):
        assert status in (Status.CERTIFIED, Status.UNBOUNDED, Status.NOT_CERTIFIED), (sample, status)
        assert (status is Status.NOT_CERTIFIED) == (found.radius[sample] == 0)
    assert (found.radius > 0).any()
    assert (holds_everywhere(model, what, claim, found.radius) > 0).all()
    for sample in attacked.success.nonzero().squeeze(1).tolist():
        allowed = what.around(sequences()).at(attacked.radius * (1 + 1e-9))
        point = attacked.adversarial[sample]
        box = allowed.box()
        assert ((point >= box.lower[sample] - 1e-9) & (point <= box.upper[sample] + 1e-9)).all()
        group = sequences()
        margins = claim.margins(model(group.values), group)
        broken = margins.of(model(attacked.adversarial).flatten(1))[sample]
        assert (broken < 0).any()


@each_region
@each_spec
def test_verify_proves_at_a_size_what_certify_found(region: str, spec: str) -> None:
    model, what, claim = network("rnn"), REGIONS[region](), SPECS[spec]()
    found = popqorn.certify(model, inputs(), region=what, spec=claim, tolerance=0.02)
    again = popqorn.verify(model, inputs(), found.radius, region=what, spec=claim)
    assert torch.equal(again.certified, torch.tensor([status is not Status.NOT_CERTIFIED for status in found.status]))
    torch.testing.assert_close(again.margins, found.margins)
    lowest = holds_everywhere(model, what, claim, found.radius)
    assert (lowest >= again.margins.flatten(1).amin(-1) - 1e-9).all()
    if not what.around(sequences()).greatest.isinf().any():
        whole = popqorn.verify(model, inputs(), region=what, spec=claim)
        assert torch.equal(whole.eps, what.around(sequences()).greatest)


@each_region
@pytest.mark.parametrize(
    ("kind", "method"),
    [("rnn", "lines"), ("rnn", "constants"), ("rnn", "interval"), ("lstm", "planes"), ("tagger", "planes"), ("max", "planes")],
)
def test_bounds_hold_every_output(region: str, kind: str, method: str) -> None:
    model, what = network(kind), REGIONS[region]()
    for eps in (0.0, 1.0):
        lower, upper = popqorn.bounds(model, inputs(), eps, region=what, method=method)
        outputs = model(drawn(what.around(sequences()).at(torch.full((BATCH,), eps, dtype=torch.float64)), 100).flatten(0, 1))
        outputs = outputs.unflatten(0, (-1, BATCH))
        assert (outputs >= lower - 1e-9).all()
        assert (outputs <= upper + 1e-9).all()
        assert lower.shape == model(inputs()).shape
        if eps == 0:
            torch.testing.assert_close(lower, upper)


@each_region
def test_sensitivity_answers_for_every_frame(region: str) -> None:
    model, what = network("rnn"), REGIONS[region]()
    found = popqorn.sensitivity(model, inputs(), region=what)
    whole = popqorn.certify(model, inputs(), region=what)
    assert found.radius.shape == (BATCH, inputs().shape[1])
    assert all(len(row) == inputs().shape[1] for row in found.status)
    moves = what.around(sequences()).moves.expand(BATCH, -1)
    assert all(
        status is Status.UNBOUNDED
        for row, moving in zip(found.status, moves.tolist(), strict=True)
        for status, moved in zip(row, moving, strict=True)
        if not moved
    )
    if not what.around(sequences()).whole:
        assert (found.radius >= whole.radius.unsqueeze(1) * (1 - 2e-3))[moves].all()


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "max", "mean", "tagger"])
def test_planes_are_never_wider_than_intervals(kind: str) -> None:
    """Also where the region is so large that walks have nothing to say."""
    model = network(kind)
    for eps in (0.3, 3.0, 1e6):
        wide = popqorn.bounds(model, inputs(), eps, method="interval")
        for method in ("planes", "lines", "constants"):
            tight = popqorn.bounds(model, inputs(), eps, method=method)
            assert (tight.lower >= wide.lower - 1e-9).all(), (method, eps)
            assert (tight.upper <= wide.upper + 1e-9).all(), (method, eps)
        margins, plain = (popqorn.verify(model, inputs(), eps, method=method).margins for method in ("planes", "interval"))
        assert (margins >= plain - 1e-9).all()


def test_a_box_is_the_ball_of_its_width() -> None:
    model, center = network("rnn"), inputs()
    box = popqorn.verify(model, center, region=popqorn.Box(center - 0.05, center + 0.05)).margins
    ball = popqorn.verify(model, center, 0.05).margins
    torch.testing.assert_close(box, ball, rtol=1e-9, atol=1e-9)
    radius = popqorn.certify(model, center, tolerance=1e-5).radius
    share = popqorn.certify(model, center, region=popqorn.Box(center - 9, center + 9), tolerance=1e-5).radius
    torch.testing.assert_close(9 * share, radius, rtol=3e-5, atol=0)
    small = popqorn.certify(model, center, region=popqorn.Box(center - radius.amin() / 2, center + 1e-9))
    assert set(small.status) == {Status.UNBOUNDED}
    assert small.radius.tolist() == [1.0] * BATCH


def test_short_forms_are_the_same_questions() -> None:
    model, center = network(), inputs()
    scale, labels = torch.rand(3, 3) + 0.5, model(center).argmax(-1)
    short = popqorn.certify(model, center, norm=2, frames=[0, 1], scale=scale, labels=labels, targets=(labels + 1) % 3)
    long = popqorn.certify(
        model,
        center,
        region=popqorn.Ball(2, frames=[0, 1], scale=scale),
        spec=popqorn.Decision(labels, (labels + 1) % 3),
    )
    assert torch.equal(short.radius, long.radius)
    assert short.settings == long.settings
