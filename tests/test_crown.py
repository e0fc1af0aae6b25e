"""Networks without any recurrence: their bounds are those of plain CROWN, and certificates hold."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import crown_reference
import popqorn
from crown_reference import Bend, Layer, crown

FEATURES, CLASSES, BATCH = 6, 3, 3
IMAGE = (2, 4, 5)
BENDS: dict[str, tuple[Bend, type[nn.Module]]] = {
    "relu": (crown_reference.RELU, nn.ReLU),
    "sigmoid": (crown_reference.SIGMOID, nn.Sigmoid),
}
each_bend = pytest.mark.parametrize("bend", BENDS)
each_norm = pytest.mark.parametrize("norm", [math.inf, 2.0])


def mlp(bend: str, hidden: tuple[int, ...] = (7, 5, 6)) -> nn.Sequential:
    widths = [FEATURES, *hidden, CLASSES]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), BENDS[bend][1]()]
    return loud(nn.Sequential(*layers[:-1]), bend)


def cnn(bend: str) -> nn.Sequential:
    """Convolutions with strides, padding and groups, and a mean pooling."""
    kind = BENDS[bend][1]
    layers = [nn.Conv2d(2, 4, 3, padding=1, groups=2), kind(), nn.AvgPool2d(2), nn.Conv2d(4, 3, 2, stride=(1, 2)), kind()]
    return loud(nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, CLASSES)), bend)


def loud(model: nn.Sequential, bend: str) -> nn.Sequential:
    """Weights large enough that no unit stays on one side, or near the middle, of its activation."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if bend == "sigmoid" else 1.5)
    return model.double().eval()


def layers_of(model: nn.Sequential, shape: tuple[int, ...]) -> list[Layer]:
    """The affine maps between the activations, each found by asking for its columns."""
    found: list[Layer] = []
    linear: list[nn.Module] = []
    for module in [*model, None]:
        if isinstance(module, nn.ReLU | nn.Sigmoid) or module is None:
            part = nn.Sequential(*linear)
            zero = torch.zeros(1, *shape, dtype=torch.float64)
            columns = torch.eye(math.prod(shape), dtype=torch.float64).unflatten(1, shape)
            with torch.no_grad():
                bias = part(zero)
                weight = (part(columns) - bias).flatten(1).mT
            found.append((weight.numpy(), bias.flatten().numpy()))
            linear, shape = [], tuple(bias.shape[1:])
        else:
            linear.append(module)
    return found


def reference(model: nn.Sequential, bend: str, inputs: Tensor, eps: float, norm: float, rows: Tensor) -> Tensor:
    """Lower bounds of `rows[sample] @ outputs`, sample by sample."""
    layers = layers_of(model, tuple(inputs.shape[1:]))
    kind = BENDS[bend][0]
    each = [crown(layers, kind, x.flatten().numpy(), eps, norm, row.numpy()) for x, row in zip(inputs, rows, strict=True)]
    return torch.from_numpy(np.stack(each))


def network(name: str, bend: str) -> tuple[nn.Sequential, Tensor]:
    """A network and inputs on which its outputs differ little: no decision is safe from everything."""
    model = cnn(bend) if name == "cnn" else mlp(bend, (8,) if name == "shallow mlp" else (7, 5, 6))
    inputs = torch.randn(BATCH, *(IMAGE if name == "cnn" else (FEATURES,)), dtype=torch.float64)
    with torch.no_grad():
        model[-1].bias -= model(inputs).mean(0)
    return model, inputs


@each_bend
@each_norm
@pytest.mark.parametrize("name", ["mlp", "shallow mlp", "cnn"])
def test_bounds_are_those_of_plain_crown(name: str, bend: str, norm: float) -> None:
    model, inputs = network(name, bend)
    identity = torch.eye(CLASSES, dtype=torch.float64).expand(BATCH, -1, -1)
    for eps in (0.0, 0.1, 1.5):
        found = popqorn.bounds(model, inputs, eps, norm=norm)
        torch.testing.assert_close(found.lower, reference(model, bend, inputs, eps, norm, identity), rtol=0, atol=1e-9)
        torch.testing.assert_close(found.upper, -reference(model, bend, inputs, eps, norm, -identity), rtol=0, atol=1e-9)


@each_bend
@each_norm
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_margins_are_those_of_plain_crown(name: str, bend: str, norm: float) -> None:
    model, inputs = network(name, bend)
    labels = model(inputs).argmax(-1)
    identity = torch.eye(CLASSES, dtype=torch.float64)
    rows = identity[labels].unsqueeze(1) - identity
    others = torch.arange(CLASSES) != labels.unsqueeze(1)
    for eps in (0.01, 0.3):
        found = popqorn.verify(model, inputs, eps, norm=norm)
        expected = reference(model, bend, inputs, eps, norm, rows)
        torch.testing.assert_close(found.margins[others], expected[others], rtol=0, atol=1e-9)
        assert torch.equal(found.certified, (expected.masked_fill(~others, math.inf) > 0).all(-1))


@each_bend
@each_norm
def test_radii_are_where_plain_crown_loses_its_margin(bend: str, norm: float) -> None:
    model, inputs = network("mlp", bend)
    found = popqorn.certify(model, inputs, norm=norm, tolerance=1e-4)
    identity = torch.eye(CLASSES, dtype=torch.float64)
    labels = model(inputs).argmax(-1)
    assert torch.equal(found.labels, labels)
    for sample, radius in enumerate(found.radius.tolist()):
        rows = (identity[labels[sample]] - identity)[torch.arange(CLASSES) != labels[sample]].unsqueeze(0)
        one = inputs[sample : sample + 1]
        assert (reference(model, bend, one, radius, norm, rows) > -1e-9).all()
        assert (reference(model, bend, one, radius * (1 + 2e-4), norm, rows) < 1e-9).any()


@each_bend
@pytest.mark.parametrize(("name", "norm"), [("mlp", 1.0), ("mlp", math.inf), ("cnn", 2.0)])
def test_no_attack_succeeds_within_the_radius(name: str, bend: str, norm: float) -> None:
    model, inputs = network(name, bend)
    radius = popqorn.certify(model, inputs, norm=norm).radius
    assert (radius > 0).all()
    labels = model(inputs).argmax(-1)
    delta = torch.randn(500, *inputs.shape, dtype=torch.float64)
    delta = delta.sign() if math.isinf(norm) else delta
    length = torch.linalg.vector_norm(delta.flatten(2), ord=norm, dim=-1)
    share = (radius / length).reshape(500, BATCH, *[1] * (inputs.dim() - 1))
    moved = inputs + (1 - 1e-9) * share * delta
    assert (model(moved.flatten(0, 1)).argmax(-1).unflatten(0, (500, BATCH)) == labels).all()
    assert (popqorn.attack(model, inputs, norm=norm, restarts=1).radius >= radius).all()


@each_bend
def test_the_reference_bounds_what_it_says(bend: str) -> None:
    """The yardstick itself, beside random inputs."""
    model, inputs = network("mlp", bend)
    identity = torch.eye(CLASSES, dtype=torch.float64).expand(BATCH, -1, -1)
    lower, upper = (sign * reference(model, bend, inputs, 0.4, math.inf, sign * identity) for sign in (1, -1))
    moved = inputs + 0.4 * torch.randn(500, *inputs.shape, dtype=torch.float64).sign()
    outputs = model(moved.flatten(0, 1)).unflatten(0, (500, BATCH))
    assert (lower <= outputs).all()
    assert (outputs <= upper).all()


@each_bend
def test_float32_proves_a_little_less(bend: str) -> None:
    """Of a model of float64, too: that its tape rounds more is no other network."""
    model, inputs = network("mlp", bend)
    double, single = (popqorn.bounds(model, inputs, 0.05, dtype=dtype) for dtype in (torch.float64, torch.float32))
    assert set(single.status) == {popqorn.Status.CERTIFIED}
    torch.testing.assert_close(single.lower.double(), double.lower, rtol=0, atol=1e-3)
    assert (single.lower.double() <= double.lower).all()
    assert (single.upper.double() >= double.upper).all()
