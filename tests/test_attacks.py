"""Attacks: geometry that holds, results that the model confirms, and the order certified <= attacked."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn import bundled
from popqorn.readers.classifier import outputs_of
from popqorn.regions import geometry as balls

NORMS = (1.0, 1.5, 2.0, 3.0, math.inf)
METHODS = ("pgd", "cw", "fgsm", "best")
each_norm = pytest.mark.parametrize("norm", NORMS)
each_method = pytest.mark.parametrize("method", METHODS)


def linear_network() -> tuple[popqorn.SequenceClassifier, Tensor]:
    """A relu RNN whose units never switch off near the inputs: a linear network, whose true radius is known."""
    torch.manual_seed(3)
    rnn = nn.RNN(5, 6, nonlinearity="relu").double()
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.mul_(0.3)
        rnn.bias_ih_l0.add_(8.0)
    model = popqorn.SequenceClassifier(rnn, nn.Linear(6, 4).double())
    with torch.no_grad():
        model.head.bias.sub_(model(torch.zeros(1, 4, 5, dtype=torch.float64))[0])  # so that the decision is the inputs'
    return model, torch.randn(5, 4, 5, dtype=torch.float64)


def closed_form(model: popqorn.SequenceClassifier, inputs: Tensor, norm: float) -> Tensor:
    """`margin / sum over frames of ||gradient||_q`, the least over the classes."""
    dual = {1.0: math.inf, math.inf: 1.0}.get(norm, norm / (norm - 1) if norm > 1 else math.inf)
    x = inputs.clone().requires_grad_()
    logits = model(x)
    labels = logits.argmax(-1, keepdim=True)
    radii = []
    for other in range(logits.shape[1]):
        margin = (logits.gather(1, labels) - logits[:, other : other + 1]).squeeze(1)
        (gradient,) = torch.autograd.grad(margin.sum(), x, retain_graph=True)
        radius = margin / torch.linalg.vector_norm(gradient, ord=dual, dim=-1).sum(-1)
        radii.append(torch.where(labels.squeeze(1) == other, math.inf, radius.detach()))
    return torch.stack(radii).amin(0)


@pytest.fixture(scope="module")
def lstm() -> popqorn.SequenceClassifier:
    return bundled.load_model("lstm")


@pytest.fixture(scope="module")
def digits() -> Tensor:
    return bundled.load_digits(4)[0]


# ---- geometry ----------------------------------------------------------------------------------------------------------------


@each_norm
def test_projection_ends_in_the_ball_and_leaves_what_is_inside(norm: float) -> None:
    points = 10 ** torch.linspace(-3, 3, 60, dtype=torch.float64)[:, None] * torch.randn(60, 7, dtype=torch.float64)
    radius = torch.rand(60, dtype=torch.float64)
    projected = balls.project(points, norm, radius)
    assert (balls.length(projected, norm) <= radius * (1 + 1e-12)).all()
    inside = balls.length(points, norm) <= radius
    assert inside.any()
    torch.testing.assert_close(projected[inside], points[inside], rtol=1e-12, atol=0)


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_projection_is_the_nearest_point(norm: float) -> None:
    """The nearest point `x` of a convex set has `(p - x) @ (y - x) <= 0` for all its other points `y`."""
    points = 3 * torch.randn(40, 6, dtype=torch.float64)
    radius = torch.ones(40, dtype=torch.float64)
    nearest = balls.project(points, norm, radius)
    generator = torch.Generator().manual_seed(0)
    others = balls.sample((2000, 40, 6), norm, generator, points)
    corners = balls.steepest(torch.randn(2000, 40, 6, dtype=torch.float64), norm)
    for y in (others, corners):
        assert (((points - nearest) * (y - nearest)).sum(-1) <= 1e-12).all()


@each_norm
def test_steepest_attains_the_dual_norm(norm: float) -> None:
    gradient = torch.randn(50, 6, dtype=torch.float64)
    dual = {1.0: math.inf, math.inf: 1.0}.get(norm) or norm / (norm - 1)
    point = balls.steepest(gradient, norm)
    torch.testing.assert_close(balls.length(point, norm), torch.ones(50, dtype=torch.float64))
    torch.testing.assert_close((gradient * point).sum(-1), balls.length(gradient, dual))
    assert (balls.steepest(torch.zeros(3, 4), norm) == 0).all()


@each_norm
def test_samples_are_uniform_in_the_ball(norm: float) -> None:
    """`||x||^n` is uniform on [0, 1], signs are fair, and coordinates share one distribution."""
    generator = torch.Generator().manual_seed(1)
    points = balls.sample((20_000, 3), norm, generator, torch.zeros(1, dtype=torch.float64))
    volume = balls.length(points, norm).pow(3)
    quantiles = torch.quantile(volume, torch.linspace(0.1, 0.9, 9, dtype=torch.float64))
    torch.testing.assert_close(quantiles, torch.linspace(0.1, 0.9, 9, dtype=torch.float64), rtol=0, atol=0.015)
    assert (points.mean(0).abs() < 0.02).all()
    spread = points.abs().mean(0)
    torch.testing.assert_close(spread, spread.mean().expand(3), rtol=0.03, atol=0)


@each_norm
def test_samples_of_a_few_free_entries_fill_their_ball(norm: float) -> None:
    moves = torch.zeros(40, dtype=torch.bool)
    moves[[3, 7]] = True
    generator = torch.Generator().manual_seed(1)
    points = balls.sample((5000, 40), norm, generator, torch.zeros(1, dtype=torch.float64), moves)
    assert (points[:, ~moves] == 0).all()
    quantiles = torch.quantile(balls.length(points, norm).pow(2), torch.linspace(0.1, 0.9, 9, dtype=torch.float64))
    torch.testing.assert_close(quantiles, torch.linspace(0.1, 0.9, 9, dtype=torch.float64), rtol=0, atol=0.03)


@pytest.mark.parametrize("norm", [20.0, 1000.0, 1e5])
def test_samples_survive_large_p(norm: float) -> None:
    points = balls.sample((500, 30), norm, torch.Generator().manual_seed(1), torch.zeros(1, dtype=torch.float32))
    assert (points == 0).double().mean() < 0.01
    assert points.abs().mean() > 0.4


# ---- attacks -----------------------------------------------------------------------------------------------------------------


@cache
def attacked(method: str, norm: float) -> popqorn.AttackResult:
    """What is found from the first digits, by a fresh copy of the network."""
    return popqorn.attack(bundled.load_model("lstm"), bundled.load_digits(4)[0], norm=norm, method=method, restarts=1)


@cache
def certified_radius(norm: float) -> Tensor:
    return popqorn.certify(bundled.load_model("lstm"), bundled.load_digits(4)[0], norm=norm, tolerance=0.02).radius


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@each_method
def test_every_success_is_real_and_as_far_as_it_says(
    method: str, norm: float, lstm: popqorn.SequenceClassifier, digits: Tensor
) -> None:
    found, certified = attacked(method, norm), certified_radius(norm)
    assert found.success.any()
    moved = balls.length(found.adversarial - digits, norm).amax(-1)
    torch.testing.assert_close(moved[found.success], found.radius[found.success])
    assert torch.equal(found.decisions, lstm(found.adversarial.float()).argmax(-1))
    assert (found.decisions != found.labels)[found.success].all()
    assert torch.equal(found.adversarial[~found.success], digits[~found.success])
    assert (certified < found.radius).all()


def test_best_is_no_worse_than_any() -> None:
    radii = {method: attacked(method, 2.0).radius for method in METHODS}
    for method in METHODS:
        assert (radii["best"] <= radii[method]).all(), method


@each_method
def test_the_same_seed_gives_the_same_bits(method: str, lstm: popqorn.SequenceClassifier, digits: Tensor) -> None:
    first, second = (popqorn.attack(lstm, digits[:2], norm=1, method=method, restarts=2, seed=7) for _ in range(2))
    assert torch.equal(first.radius, second.radius)
    assert torch.equal(first.adversarial, second.adversarial)


@each_norm
def test_attack_and_certificate_meet_on_a_linear_network(norm: float) -> None:
    model, inputs = linear_network()
    exact = closed_form(model, inputs, norm)
    certified = popqorn.certify(model, inputs, norm=norm, tolerance=1e-4)
    attacked = popqorn.attack(model, inputs, norm=norm, method="best")
    torch.testing.assert_close(certified.radius, exact, rtol=2e-4, atol=0)
    torch.testing.assert_close(attacked.radius, exact, rtol=1e-3, atol=0)
    assert (certified.radius <= attacked.radius).all()


@pytest.mark.parametrize("options", [{"frames": [1]}, {"scale": [1.0, 0.0, 2.0, 0.5]}, {"targets": 3}], ids=str)
def test_regions_mean_what_they_mean_to_certify(options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    model = popqorn.SequenceClassifier(nn.GRU(5, 6), nn.Linear(6, 4)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    inputs = torch.randn(6, 4, 5, dtype=torch.float64)
    inputs = inputs[model(inputs).argmax(-1) != 3]
    certified = popqorn.certify(model, inputs, norm=2, **options)
    found = popqorn.attack(model, inputs, norm=2, **options)
    assert found.success.any()
    assert (certified.radius <= found.radius).all()
    moved = balls.length(found.adversarial - inputs, 2.0)
    allowed = torch.tensor(options.get("scale", [1.0] * 4), dtype=torch.float64)
    if "frames" in options:
        allowed = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    reached = found.radius.masked_fill(~found.success, 0)[:, None] * allowed
    assert (moved <= reached * (1 + 1e-9) + 1e-12).all()
    if "targets" in options:
        logits = outputs_of(model, found.adversarial[found.success])
        assert (logits[:, 3] > logits.gather(1, found.labels[found.success].unsqueeze(1)).squeeze(1)).all()


def test_wrong_decisions_have_radius_zero(lstm: popqorn.SequenceClassifier, digits: Tensor) -> None:
    wrong = (lstm(digits.float()).argmax(-1) + 1) % 10
    found = popqorn.attack(lstm, digits, labels=wrong, method="fgsm")
    assert (found.radius == 0).all()
    assert found.success.all()
    assert torch.equal(found.adversarial, digits)


def test_successes_stand_one_by_one(lstm: popqorn.SequenceClassifier) -> None:
    """The model sums in another order for another batch size: a success must not rest on its rounding."""
    inputs, _ = bundled.load_digits(40)
    found = popqorn.attack(lstm, inputs, norm=2, restarts=1)
    for sample in found.success.nonzero().squeeze(1).tolist():
        alone = lstm(found.adversarial[sample : sample + 1].float()).argmax(-1)
        assert alone != found.labels[sample]


def test_nothing_to_attack_is_no_error(lstm: popqorn.SequenceClassifier, digits: Tensor) -> None:
    wrong = (lstm(digits.float()).argmax(-1) + 1) % 10
    calls: list[tuple[int, int]] = []
    popqorn.attack(lstm, digits, labels=wrong, progress=lambda *step: calls.append(step))
    assert calls == [(4, 4)]


def test_vanishing_gradients_are_no_error(digits: Tensor) -> None:
    model = bundled.load_model("rnn")
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    found = popqorn.attack(model, digits, method="best", restarts=1)
    assert not found.success.any()
    assert (popqorn.clever(model, digits, batches=3, samples=4).score == 0).all()


def test_inference_mode_is_no_error(lstm: popqorn.SequenceClassifier, digits: Tensor) -> None:
    expected = popqorn.attack(lstm, digits, method="fgsm").radius
    with torch.inference_mode():
        inside = digits.clone()
        found = popqorn.attack(lstm, inside, method="fgsm")
        certified = popqorn.certify(lstm, inside)
    assert torch.equal(found.radius, expected)
    assert not certified.radius.is_inference()


def test_attacks_leave_the_model_as_it_was(lstm: popqorn.SequenceClassifier, digits: Tensor) -> None:
    model = bundled.load_model("gru").train()
    model.head.eval()
    calls: list[tuple[int, int]] = []
    popqorn.attack(model, digits[:2], method="fgsm", progress=lambda done, total: calls.append((done, total)))
    assert model.training
    assert model.rnn.training
    assert not model.head.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert calls == [(2, 2)]


def test_foolbox_succeeds_nowhere_that_is_called_safe(lstm: popqorn.SequenceClassifier) -> None:
    """An independent PGD at eps finds nothing where ours needs more than 1.1 eps (p = inf: foolbox has no norms per frame)."""
    foolbox = pytest.importorskip("foolbox", reason="foolbox comes with the test extra")
    inputs, _ = bundled.load_digits(12)
    model = bundled.load_model("lstm").double().eval()
    labels = model(inputs).argmax(-1)
    ours = popqorn.attack(model, inputs, norm=math.inf).radius
    bounded = foolbox.PyTorchModel(model, bounds=(-9, 9), device="cpu")
    theirs = foolbox.attacks.LinfProjectedGradientDescentAttack(steps=60, random_start=True)
    grid = [float(quantile) for quantile in np.quantile(ours.numpy(), [0.1, 0.3, 0.5, 0.7, 0.9])]
    torch.manual_seed(0)
    _, _, succeeded = theirs(bounded, inputs, labels, epsilons=grid)
    assert succeeded.any(), "the comparison is empty if foolbox never succeeds"
    for eps, row in zip(grid, succeeded, strict=True):
        assert not (row & (ours > 1.1 * eps)).any()
