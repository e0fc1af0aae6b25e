"""Activations that users teach are read wherever they stand."""

import pytest
import torch
from torch import Tensor, nn

import popqorn


class Ceiling(nn.Module):
    """Something torch's operators do not tell: a smooth bump by way of an operator that cannot be read."""

    def __init__(self, height: float) -> None:
        super().__init__()
        self.height = height

    def forward(self, x: Tensor) -> Tensor:
        return self.height * torch.special.erfcx(x.square()) / torch.special.erfcx(torch.zeros(1, dtype=x.dtype))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 5, batch_first=True)
        self.bump = Ceiling(1.5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bump(self.rnn(x)[0].mean(1)))


def test_a_taught_module_is_read_in_any_network() -> None:
    torch.manual_seed(0)
    model = Network().double().eval()
    inputs = torch.randn(3, 4, 3, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"special_erfcx.*test_taught\.py:\d+: .*erfcx.*supported_operations"):
        popqorn.certify(model, inputs)
    popqorn.register_activation(
        Ceiling,
        # f = e^(x^4) erfc(x^2): |f''| is below 5 everywhere
        lambda module: popqorn.Activation(
            "ceiling", module.forward, popqorn.Smooth(lambda lower, upper: torch.full_like(lower, 5 * module.height))
        ),
    )
    plain = model.bump.forward
    lower, upper = popqorn.bounds(model, inputs, 0.1)
    assert model.bump.forward == plain, "the module is left as it was"
    moved = inputs + 0.1 * (2 * torch.rand(300, 3, 4, 3, dtype=torch.float64) - 1)
    outputs = model(moved.flatten(0, 1)).unflatten(0, (300, 3))
    assert (lower <= outputs).all()
    assert (outputs <= upper).all()
    wrapped = popqorn.SequenceClassifier(model.rnn, nn.Sequential(model.bump, model.head), "mean")
    torch.testing.assert_close(popqorn.certify(model, inputs).radius, popqorn.certify(wrapped, inputs).radius)
