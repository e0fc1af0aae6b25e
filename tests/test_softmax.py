"""A softmax is between 0 and 1, however far its entries are apart."""

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn.readers.exported import ModuleNetwork


class Sharp(nn.Module):
    """A softmax of entries that are far apart; of a bounded function, if there is one before it."""

    def __init__(self, classes: int, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, classes), factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.factor * self.linear(x), dim=-1)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("eps", [0.05, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_of_a_softmax_are_shares(classes: int, eps: float, dtype: torch.dtype) -> None:
    model, inputs = Sharp(classes, 1e3), torch.randn(3, 4)
    found = popqorn.bounds(model, inputs, eps, dtype=dtype)
    slack = 1e-12 if dtype == torch.float64 else 1e-4
    assert (found.lower >= -slack).all()
    assert (found.upper <= 1 + slack).all()
    for _ in range(20):
        values = model.double()(inputs.double() + eps * (2 * torch.rand(3, 4, dtype=torch.float64) - 1))
        assert (values >= found.lower).all()
        assert (values <= found.upper).all()


@pytest.mark.parametrize("eps", [1.0, 10.0, 1e3])
def test_margins_are_numbers_also_where_nothing_is_known(eps: float) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x).mean(dim=1))

    found = popqorn.verify(Encoder(), torch.randn(2, 3, 4), eps)
    assert not found.margins.isnan().any()
    assert not found.certified.any()


def test_a_softmax_of_the_one_number_of_one_sample_is_kept() -> None:
    """Its axis is the batch: it is 1, whatever the number is."""

    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x.sum().reshape(1), dim=-1)

    inputs = torch.randn(1, 3)
    network = ModuleNetwork(torch.export.export(Whole(), (inputs,)).module())
    (group,) = network.sequences(inputs, None, torch.float64)
    assert network.reading(group, decides=True).left_off is None
