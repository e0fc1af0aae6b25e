"""What must hold: closed forms on linear networks, decisions at every step, tables of results."""

import math

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn import Status
from popqorn.regions.geometry import dual
from questions import network
from test_attacks import linear_network

pytestmark = pytest.mark.shapes

NORMS = (1.0, 2.0, 3.0, math.inf)
STEPS = 3


def rates(model: popqorn.SequenceClassifier, inputs: Tensor, rows: Tensor, norm: float) -> tuple[Tensor, Tensor]:
    """`rows @ output` of a linear network, and how fast each falls per unit of eps: `[batch, rows]` both."""
    x = inputs.clone().requires_grad_()
    values = model(x).flatten(1) @ rows.mT
    columns = [torch.autograd.grad(values[:, row].sum(), x, retain_graph=True)[0] for row in range(len(rows))]
    lengths = [torch.linalg.vector_norm(gradient, dual(norm), dim=-1).sum(-1) for gradient in columns]
    return values.detach(), torch.stack(lengths, dim=1)


@pytest.mark.parametrize("norm", NORMS)
def test_tolerance_of_a_linear_network_is_its_closed_form(norm: float) -> None:
    model, inputs = linear_network()
    delta = torch.tensor([0.1, 0.2, 0.05, 0.4], dtype=torch.float64)
    _, fall = rates(model, inputs, torch.eye(4, dtype=torch.float64), norm)
    found = popqorn.certify(model, inputs, norm=norm, spec=popqorn.Tolerance(delta), tolerance=1e-6, per_target=True)
    torch.testing.assert_close(found.radius, (delta / fall).amin(-1), rtol=3e-6, atol=0)
    assert found.target_radius is not None
    torch.testing.assert_close(found.target_radius, delta / fall, rtol=3e-6, atol=0)
    eps = 0.3 * found.radius
    proof = popqorn.verify(model, inputs, eps, norm=norm, spec=popqorn.Tolerance(delta))
    torch.testing.assert_close(proof.margins, delta - eps.unsqueeze(1) * fall, rtol=1e-9, atol=1e-9)
    assert proof.certified.all()
    assert proof.labels is None
    attacked = popqorn.attack(model, inputs, norm=norm, spec=popqorn.Tolerance(delta), restarts=1)
    torch.testing.assert_close(attacked.radius, found.radius, rtol=2e-3, atol=0)
    assert attacked.decisions is None


@pytest.mark.parametrize("norm", NORMS)
def test_property_of_a_linear_network_is_its_closed_form(norm: float) -> None:
    model, inputs = linear_network()
    rows = torch.tensor([[1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 1.0, -2.0], [-1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    values, fall = rates(model, inputs, rows, norm)
    offset = 0.3 - values.amin(0) + torch.tensor([0.0, 0.1, 0.2])
    found = popqorn.certify(model, inputs, norm=norm, spec=popqorn.Property(rows, offset), tolerance=1e-6)
    torch.testing.assert_close(found.radius, ((values + offset) / fall).amin(-1), rtol=3e-6, atol=0)
    each = popqorn.Property(rows.repeat(len(inputs), 1, 1), (offset - values).detach() + 1)
    own = popqorn.certify(model, inputs, norm=norm, spec=each, tolerance=1e-6)
    torch.testing.assert_close(own.radius, ((offset + 1) / fall).amin(-1), rtol=3e-6, atol=0)


def test_a_property_that_the_input_breaks_says_so() -> None:
    model, inputs = linear_network()
    outputs = model(inputs)
    row = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    claim = popqorn.Property(row, -outputs[:, 0].median())
    found = popqorn.certify(model, inputs, spec=claim)
    broken = outputs[:, 0] <= outputs[:, 0].median()
    assert [status is Status.VIOLATED for status in found.status] == broken.tolist()
    assert torch.equal(found.radius == 0, broken)
    torch.testing.assert_close(found.margins[broken], (outputs[:, :1] - outputs[:, 0].median())[broken])
    assert torch.equal(popqorn.verify(model, inputs, 0.0, spec=claim).certified, ~broken)
    attacked = popqorn.attack(model, inputs, spec=claim, method="fgsm")
    assert torch.equal(attacked.radius == 0, broken)


def test_margins_of_a_misclassified_sample_are_the_true_ones() -> None:
    model, inputs = linear_network()
    logits = model(inputs)
    wrong = (logits.argmax(-1) + 1) % 4
    found = popqorn.certify(model, inputs, labels=wrong)
    assert set(found.status) == {Status.MISCLASSIFIED}
    true = (logits.gather(1, wrong.unsqueeze(1)) - logits).scatter(1, wrong.unsqueeze(1), math.inf)
    torch.testing.assert_close(found.margins, true)


def test_one_output_is_asked_otherwise() -> None:
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.LSTM(3, 4), nn.Linear(4, 1)).double()
    inputs = torch.randn(4, 5, 3, dtype=torch.float64)
    found = popqorn.certify(model, inputs, spec=popqorn.Tolerance(0.05))
    attacked = popqorn.attack(model, inputs, spec=popqorn.Tolerance(0.05))
    assert ((found.radius > 0) & (found.radius < attacked.radius)).all()
    lower, upper = popqorn.bounds(model, inputs, found.radius)
    assert (lower >= model(inputs) - 0.05 - 1e-9).all()
    assert (upper <= model(inputs) + 0.05 + 1e-9).all()
    moved = model(attacked.adversarial) - model(inputs)
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.05), rtol=1e-3, atol=0)


# ---- decisions at every step -------------------------------------------------------------------------------------------------


def tagging(seed: int = 0) -> tuple[popqorn.SequenceClassifier, Tensor]:
    model = network("tagger")
    torch.manual_seed(seed)
    return model, torch.rand(2, STEPS, 3, dtype=torch.float64)


@pytest.mark.parametrize("norm", [2.0])
def test_steps_are_sound_under_attack(norm: float) -> None:
    """Within the radius of all steps none changes; within a step's own radius that one does not."""
    model, inputs = tagging()
    found = popqorn.certify(model, inputs, norm=norm, per_step=True)
    assert found.step_radius is not None
    assert found.step_radius.shape == (2, STEPS)
    assert found.margins.shape == (2, STEPS, 3)
    torch.testing.assert_close(found.step_radius.amin(-1), found.radius, rtol=3e-3, atol=0)
    assert (popqorn.attack(model, inputs, norm=norm, restarts=1).radius > found.radius).all()
    labels = model(inputs).argmax(-1)
    for step in range(STEPS):
        rows = torch.zeros(2, 2, STEPS, 3, dtype=torch.float64)
        for sample in range(2):
            label = int(labels[sample, step])
            for row, other in enumerate(other for other in range(3) if other != label):
                rows[sample, row, step, label], rows[sample, row, step, other] = 1, -1
        alone = popqorn.attack(model, inputs, norm=norm, spec=popqorn.Property(rows), restarts=1)
        assert (alone.radius > found.step_radius[:, step]).all()
        same = popqorn.certify(model, inputs, norm=norm, spec=popqorn.Property(rows)).radius
        torch.testing.assert_close(same, found.step_radius[:, step], rtol=3e-3, atol=0)


def test_a_wrong_step_spoils_the_sample_but_not_its_other_steps() -> None:
    model, inputs = tagging()
    labels = model(inputs).argmax(-1)
    labels[1, 2] = (labels[1, 2] + 1) % 3
    found = popqorn.certify(model, inputs, labels=labels, per_step=True)
    right = popqorn.certify(model, inputs, per_step=True)
    assert found.status[1] is Status.MISCLASSIFIED
    assert found.radius[1] == 0
    assert found.step_radius is not None
    assert right.step_radius is not None
    expected = right.step_radius.clone()
    expected[1, 2] = 0
    torch.testing.assert_close(found.step_radius, expected, rtol=2e-3, atol=0)
    assert torch.equal(found.labels, labels)


def test_later_frames_do_not_matter_to_earlier_steps() -> None:
    """A step's radius is what the sequence cut off after it has."""
    model, inputs = tagging()
    found = popqorn.certify(model, inputs, per_step=True, tolerance=1e-5).step_radius
    assert found is not None
    for step in range(STEPS):
        cut = popqorn.certify(model, inputs[:, : step + 1], per_step=True, tolerance=1e-5).step_radius
        assert cut is not None
        torch.testing.assert_close(found[:, step], cut[:, step], rtol=3e-5, atol=0)


def test_targets_of_steps() -> None:
    model, inputs = tagging()
    labels = model(inputs).argmax(-1)
    targets = (labels + 1) % 3
    one, every = (popqorn.certify(model, inputs, targets=chosen) for chosen in (targets, None))
    assert (one.radius >= every.radius * (1 - 2e-3)).all()
    assert torch.equal(one.targets, targets)
    assert (one.margins.isfinite().sum(-1) == 1).all()


def test_a_tagger_with_one_frame_is_a_classifier() -> None:
    model, inputs = tagging()
    classifier = popqorn.SequenceClassifier(model.rnn, model.head, "last")
    torch.testing.assert_close(
        popqorn.certify(model, inputs[:, :1]).radius, popqorn.certify(classifier, inputs[:, :1]).radius, rtol=2e-3, atol=0
    )
