"""Only a sigmoid, or one less a sigmoid, times something is a gate."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import popqorn

WRITTEN_OUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "open": lambda v, z: torch.sigmoid(v) * z,
    "closing": lambda v, z: (1 - torch.sigmoid(v)) * torch.tanh(z),
    "another shift": lambda v, z: (0.5 - torch.sigmoid(v)) * z,
    "another shift in one entry": lambda v, z: (torch.tensor([1.0, 0.25]) - torch.sigmoid(v)) * z,
    "another factor": lambda v, z: (1 - 2 * torch.sigmoid(v)) * z,
    "another sign": lambda v, z: (1 + torch.sigmoid(v)) * z,
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_what_is_written_out_is_bounded_as_it_is(name: str) -> None:
    class Gated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return WRITTEN_OUT[name](x[:, :2], x[:, 2:])

    inputs = torch.randn(3, 4, dtype=torch.float64)
    for eps in (0.0, 0.3):
        found = popqorn.bounds(Gated(), inputs, eps)
        assert all(status is popqorn.Status.CERTIFIED for status in found.status)
        for _ in range(20):
            values = Gated()(inputs + eps * (2 * torch.rand(3, 4, dtype=torch.float64) - 1))
            assert (values >= found.lower - 1e-12).all()
            assert (values <= found.upper + 1e-12).all()
