"""End to end: nothing sampled and no gradient attack inside the certified region flips a decision or leaves the bounds."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn

FRAMES, FEATURES, HIDDEN, CLASSES, BATCH = 3, 4, 5, 3, 5
NORMS = (1.0, 1.5, 2.0, 3.0, math.inf)
MODELS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "rnn": (nn.RNN, {}),
    "relu rnn": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "stacked rnn": (nn.RNN, {"num_layers": 3}),
    "stacked lstm": (nn.LSTM, {"num_layers": 2}),
    "stacked gru": (nn.GRU, {"num_layers": 2}),
    "bidirectional lstm": (nn.LSTM, {"bidirectional": True}),
    "bidirectional stacked gru": (nn.GRU, {"bidirectional": True, "num_layers": 2}),
    "projected lstm": (nn.LSTM, {"proj_size": 3}),
}
each_model = pytest.mark.parametrize("name", MODELS)
# Every norm on the plain cells; the two that matter most on all the others.
each_model_and_norm = pytest.mark.parametrize(
    ("name", "norm"),
    [(name, norm) for name in MODELS for norm in NORMS if name in ("rnn", "lstm", "gru") or norm in (2.0, math.inf)],
)


def random_model(name: str, spread: float = 0.6, pooling: str = "last") -> popqorn.SequenceClassifier:
    kind, options = MODELS[name]
    rnn = kind(FEATURES, HIDDEN, **options)
    width = (options.get("proj_size") or HIDDEN) * (2 if options.get("bidirectional") else 1)
    head = nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    model = popqorn.SequenceClassifier(rnn, head, pooling).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=spread)
    return model


def random_inputs() -> Tensor:
    return torch.randn(BATCH, FRAMES, FEATURES, dtype=torch.float64)


def project(delta: Tensor, norm: float, radius: Tensor) -> Tensor:
    """Scale every frame of `delta` back to the ball (`radius` per sample and frame)."""
    length = torch.linalg.vector_norm(delta, ord=norm, dim=-1)
    return delta * (radius / length.clamp(min=1e-300)).clamp(max=1).unsqueeze(-1)


def on_the_sphere(shape: tuple[int, ...], norm: float, radius: Tensor) -> Tensor:
    """Random points, most of them on the boundary: dense ones, sparse ones and vertices."""
    delta = torch.randn(shape, dtype=torch.float64)
    third = shape[0] // 3
    delta[:third] = delta[:third].sign() * (torch.rand(delta[:third].shape) < 0.3)
    if math.isinf(norm):
        delta[third:] = delta[third:].sign()
    scaled = project(1e9 * delta, norm, radius)
    scaled[-shape[0] // 4 :] *= torch.rand(shape[0] // 4, *([1] * (len(shape) - 1)), dtype=torch.float64)
    return scaled


def steepest(gradient: Tensor, norm: float) -> Tensor:
    """The direction of the unit ball along which a linear function falls fastest (Hoelder's equality)."""
    if math.isinf(norm):
        return -gradient.sign()
    if norm == 1:
        best = gradient.abs().argmax(-1, keepdim=True)
        return torch.zeros_like(gradient).scatter(-1, best, -gradient.gather(-1, best).sign())
    q = norm / (norm - 1)
    magnitude = gradient.abs() / gradient.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    direction = -gradient.sign() * magnitude.pow(q - 1)
    return direction / torch.linalg.vector_norm(direction, ord=norm, dim=-1, keepdim=True).clamp(min=1e-300)


def attack(model: nn.Module, inputs: Tensor, value: Any, norm: float, radius: Tensor, steps: int = 20) -> Tensor:
    """Projected gradient descent on `value(logits)` inside the region; the last iterate."""
    delta = project(torch.randn_like(inputs), norm, radius)
    for step in range(steps):
        delta = delta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(value(model(inputs + delta)).sum(), delta)
        size = radius.unsqueeze(-1) * (1 if step == 0 else 1.5 / (step + 1))
        delta = project(delta + size * steepest(gradient, norm), norm, radius)
    return inputs + delta.detach()


@each_model_and_norm
def test_no_attack_succeeds_within_the_radius(name: str, norm: float) -> None:
    model, inputs = random_model(name), random_inputs()
    certificate = popqorn.certify(model, inputs, norm=norm, tolerance=0.02)
    labels = model(inputs).argmax(-1)
    assert (certificate.radius > 0).all()
    radius = certificate.radius.clamp(max=1e3).unsqueeze(-1).expand(-1, FRAMES)
    samples = inputs + on_the_sphere((300, *inputs.shape), norm, radius)
    decisions = model(samples.flatten(0, 1)).argmax(-1).unflatten(0, (300, BATCH))
    assert (decisions == labels).all()
    aims = torch.eye(CLASSES, dtype=torch.float64)
    margins = (aims[labels] - aims.unsqueeze(1)).flatten(0, 1)  # to every class, one after the other
    found = attack(model, inputs.repeat(CLASSES, 1, 1), margins.mul, norm, radius.repeat(CLASSES, 1))
    assert (model(found).argmax(-1) == labels.repeat(CLASSES)).all()


@each_model_and_norm
def test_logits_never_leave_their_bounds(name: str, norm: float) -> None:
    model, inputs = random_model(name), random_inputs()
    one = torch.eye(CLASSES, dtype=torch.float64)
    aims = torch.cat([one, -one]).repeat_interleave(BATCH, 0)  # every output as small, and as large, as can be
    tolerance = 1e-12
    for eps in (1e-12, 0.05, 0.5):
        lower, upper = popqorn.bounds(model, inputs, eps, norm=norm)
        radius = torch.full((BATCH, FRAMES), eps, dtype=torch.float64)
        samples = inputs + on_the_sphere((200, *inputs.shape), norm, radius)
        logits = model(samples.flatten(0, 1)).unflatten(0, (200, BATCH))
        assert (logits >= lower - tolerance).all()
        assert (logits <= upper + tolerance).all()
        found = attack(model, inputs.repeat(2 * CLASSES, 1, 1), aims.mul, norm, radius.repeat(2 * CLASSES, 1))
        logits = model(found).unflatten(0, (2 * CLASSES, BATCH))
        assert (logits >= lower - tolerance).all()
        assert (logits <= upper + tolerance).all()


@each_model
def test_huge_weights_and_huge_eps_stay_sound(name: str) -> None:
    """Saturated gates and boxes of width up to 1e4."""
    model, inputs = random_model(name, spread=8.0), 5 * random_inputs()
    for eps in (0.1, 10.0, 100.0):
        lower, upper = popqorn.bounds(model, inputs, eps)
        radius = torch.full((BATCH, FRAMES), eps, dtype=torch.float64)
        samples = inputs + on_the_sphere((200, *inputs.shape), math.inf, radius)
        logits = model(samples.flatten(0, 1)).unflatten(0, (200, BATCH))
        assert lower.isfinite().all()
        assert upper.isfinite().all()
        slack = 1e-9 * (1 + lower.abs() + upper.abs())
        assert (logits >= lower - slack).all()
        assert (logits <= upper + slack).all()


@each_model
@pytest.mark.parametrize("method", ["tight", "planes", "lines", "constants", "interval"])
def test_single_frames_and_masks_stay_sound(name: str, method: str) -> None:
    """Frames that may not move make boxes of no width; other programs have got those wrong."""
    model, inputs = random_model(name, pooling="mean"), random_inputs()
    for moving in ([0], [FRAMES - 1], [1, 2]):
        eps = 0.3
        lower, upper = popqorn.bounds(model, inputs, eps, norm=2, frames=moving, method=method)
        radius = torch.zeros(BATCH, FRAMES, dtype=torch.float64)
        radius[:, moving] = eps
        samples = inputs + on_the_sphere((200, *inputs.shape), 2.0, radius)
        logits = model(samples.flatten(0, 1)).unflatten(0, (200, BATCH))
        assert (logits >= lower - 1e-12).all()
        assert (logits <= upper + 1e-12).all()


@each_model
def test_bounds_close_as_eps_vanishes(name: str) -> None:
    """At eps = 0 both bounds are the logits, and they part at the rate of the gradient's dual norm."""
    model, inputs = random_model(name), random_inputs()
    logits = model(inputs)
    lower, upper = popqorn.bounds(model, inputs, 0.0)
    torch.testing.assert_close(lower, logits, rtol=0, atol=1e-10)
    torch.testing.assert_close(upper, logits, rtol=0, atol=1e-10)
    eps = 1e-6
    lower, _ = popqorn.bounds(model, inputs, eps, norm=2)
    moved = inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(moved)[:, 0].sum(), moved)
    rate = torch.linalg.vector_norm(gradient, dim=-1).sum(-1)
    torch.testing.assert_close((logits - lower)[:, 0] / eps, rate, rtol=1e-3, atol=1e-4)


def test_scale_shares_out_the_radius() -> None:
    model, inputs = random_model("lstm"), random_inputs()
    scale = torch.rand(FRAMES, FEATURES, dtype=torch.float64) + 0.1
    scale[1, 2] = 0.0
    certificate = popqorn.certify(model, inputs, norm=math.inf, scale=scale)
    labels = model(inputs).argmax(-1)
    signs = (2 * torch.rand(500, *inputs.shape, dtype=torch.float64) - 1).sign()
    samples = inputs + signs * scale * certificate.radius[:, None, None]
    assert (model(samples.flatten(0, 1)).argmax(-1).unflatten(0, (500, BATCH)) == labels).all()
    plain = popqorn.certify(model, inputs, norm=math.inf).radius
    doubled = popqorn.certify(model, inputs, norm=math.inf, scale=torch.full((FRAMES,), 2.0)).radius
    torch.testing.assert_close(doubled, plain / 2, rtol=2e-3, atol=0)


@pytest.mark.parametrize("norm", [1 + 1e-6, 1.0005, 1.001, 1.01, 1.1])
def test_norms_next_to_one_do_not_underflow(norm: float) -> None:
    """The dual exponent is huge there: `|x|^q` vanishes long before the norm does. Balls grow with p, so radii must not."""
    model, inputs = random_model("rnn"), random_inputs()
    with torch.no_grad():
        model.rnn.weight_ih_l0 *= 1e-3
    plain = popqorn.certify(model, inputs, norm=1.0, tolerance=1e-4).radius
    beside = popqorn.certify(model, inputs, norm=norm, tolerance=1e-4).radius
    assert (beside <= plain * (1 + 1e-3)).all()
    assert (beside >= plain * FEATURES ** (1 / norm - 1) * (1 - 1e-3)).all()
