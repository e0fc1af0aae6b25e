"""Reading computes in double precision, whatever the model does: what is known of its constants is known to sixteen digits."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import popqorn

Function = Callable[["Known", Tensor], Tensor]


class Known(nn.Module):
    """A function of the inputs and of tensors that do not move: a plain attribute, a buffer and a parameter."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.dtype = torch.float32
        self.plain = torch.tensor([1.7, 0.3, 2.9, 1.1])
        self.weight = nn.Parameter(torch.tensor([0.1, 0.7, 1.3, 2.3]))
        self.table: Tensor
        self.register_buffer("table", torch.tensor([0.9, 1.9, 0.4, 0.6]))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


OF_SINGLE_PRECISION: dict[str, Function] = {
    "a power of a constant": lambda own, x: torch.pow(own.plain, x),
    "a power of one constant": lambda own, x: torch.pow(own.plain[0], x),
    "a logarithm of a constant": lambda own, x: own.plain.log() * x,
    "a root of a buffer": lambda own, x: own.table.sqrt() + x,
    "a weight that is cast": lambda own, x: nn.functional.softplus(own.weight).to(own.dtype) * x,
    "a weight that is cast by position": lambda own, x: own.weight.exp().type(own.dtype) * x,
    "a sum that is cast": lambda own, x: own.weight.exp().sum(0, dtype=own.dtype) * x,
    "a quotient": lambda own, x: x / own.plain,
    "a constant under no_grad": lambda own, x: _without_gradients(own) * x,
    "a batch norm": lambda own, x: nn.functional.batch_norm(x, own.plain, own.table, own.weight, own.plain.exp()),
    "a constant beside the inputs": lambda own, x: torch.cat([x, own.plain.exp()[None].expand(len(x), -1)], dim=1),
}
OF_DOUBLE_PRECISION: dict[str, Function] = {
    "padding": lambda own, x: nn.functional.pad(x, (0, 1), value=0.7),
    "a mask": lambda own, x: x.masked_fill(torch.tensor([True, False, False, True]), 0.7),
    "a mask with a tensor": lambda own, x: x.masked_fill(
        torch.tensor([True, False, False, True]), torch.tensor(0.7, dtype=torch.float64)
    ),
    "a choice": lambda own, x: torch.where(torch.tensor([True, False, False, True]), x, 0.7),
    "a fill": lambda own, x: torch.cat([x, torch.full_like(x, 0.7)], dim=1),
    "places": lambda own, x: x.index_fill(1, torch.tensor([1, 2]), 0.7),
}
CASES = {**OF_SINGLE_PRECISION, **OF_DOUBLE_PRECISION}


def _without_gradients(own: Known) -> Tensor:
    with torch.no_grad():
        return own.plain.log() * own.table


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_in_double_precision_lie_in_bounds_of_a_point(name: str, dtype: torch.dtype) -> None:
    model, inputs = Known(CASES[name]), torch.tensor([[6.5, -3.25, 1.5, 0.875], [0.5, 5.75, -2.5, 4.125]])
    if name in OF_DOUBLE_PRECISION:
        model = model.double()
    found = popqorn.bounds(model, inputs, 0.0, dtype=dtype)
    exact = Known(CASES[name]).double()
    exact.plain, exact.dtype = exact.plain.double(), torch.float64
    truth = exact(inputs.double())
    slack = 1e-12 * truth.abs()  # the truth is computed
    assert (found.lower.reshape(truth.shape) <= truth + slack).all()
    assert (truth - slack <= found.upper.reshape(truth.shape)).all()
