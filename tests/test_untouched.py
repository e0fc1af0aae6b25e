"""Modules that write: to their inputs, their buffers, themselves. They are read as they are run, and left as they were."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import popqorn
from popqorn import Status

INPUTS = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Writing(nn.Module):
    """A linear layer behind what `before` makes of the inputs; it may write to anything here."""

    def __init__(self, before: Callable[["Writing", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.positions = nn.Embedding(5, 4, max_norm=0.5)
        self.register_buffer("mean", torch.full((4,), 0.3))
        self.register_buffer("count", torch.zeros(()))
        self.last: Tensor | None = None
        self.seen: list[Tensor] = []
        self.calls = 0
        self.before = before
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.before(self, x)).mean(dim=1)


def _relu(_: Writing, x: Tensor) -> Tensor:
    return functional.relu(x, inplace=True)


def _subtract(module: Writing, x: Tensor) -> Tensor:
    x -= module.mean
    return x


def _clear(_: Writing, x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x


def _double(_: Writing, x: Tensor) -> Tensor:
    return x.mul_(2)


def _counted(module: Writing, x: Tensor) -> Tensor:
    module.count += 1
    module.calls += 1
    return x


def _kept(module: Writing, x: Tensor) -> Tensor:
    module.last = x.detach()
    module.seen.append(x.detach())
    return x


def _averaged(module: Writing, x: Tensor) -> Tensor:
    module.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=(0, 1)))
    return x


def _scaled_rows(module: Writing, x: Tensor) -> Tensor:
    return x + module.positions(torch.arange(3))


def _unwritten(before: Callable[[Writing, Tensor], Tensor]) -> Callable[[Writing, Tensor], Tensor]:
    """The same without writing, for those that have such a form."""
    plain: dict[Any, Callable[[Writing, Tensor], Tensor]] = {
        _relu: lambda module, x: functional.relu(x),
        _subtract: lambda module, x: x - module.mean,
        _clear: lambda module, x: x * torch.tensor([0.0, 1.0, 1.0]).reshape(3, 1),
        _double: lambda module, x: 2 * x,
        _scaled_rows: lambda module, x: x + functional.embedding(torch.arange(3), module.positions.weight.clone(), max_norm=0.5),
    }
    return plain.get(before, lambda module, x: x)


@pytest.mark.parametrize("before", [_relu, _subtract, _clear, _double, _counted, _kept, _averaged, _scaled_rows])
def test_a_module_that_writes_is_read_by_what_it_returns_and_left_as_it_was(before: Any) -> None:
    module, inputs = Writing(before), INPUTS.clone()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    found = popqorn.certify(module, inputs)
    assert set(found.status) == {Status.CERTIFIED}
    torch.testing.assert_close(found.radius, popqorn.certify(Writing(_unwritten(before)), INPUTS).radius)
    assert torch.equal(inputs, INPUTS)
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert (module.last, module.seen, module.calls) == (None, [], 0)


def _carried(module: Writing, x: Tensor) -> Tensor:
    x = x if module.last is None or len(module.last) != len(x) else x + module.last
    module.last = x.detach()
    return x


def _grown(module: Writing, x: Tensor) -> Tensor:
    module.count += 1
    return x * module.count


def _moved(module: Writing, x: Tensor) -> Tensor:
    return _averaged(module, x) - module.mean


@pytest.mark.parametrize("before", [_carried, _grown, _moved])
def test_outputs_that_depend_on_earlier_runs_are_refused(before: Any) -> None:
    with pytest.raises(ValueError, match=r"two runs on the same input give different outputs, .* earlier run"):
        popqorn.certify(Writing(before), INPUTS)


def test_a_constant_that_forward_writes_to_is_told() -> None:
    class Constant(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.total = torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            self.total += 1
            return super().forward(x)

    module = Constant()
    with pytest.raises(TypeError, match=r"total is mutated .* \(register_buffer\)"):
        popqorn.certify(module, torch.randn(2, 4))
    assert not module.total.any()


def test_words_that_are_scaled_down_are_those_that_are_looked_up() -> None:
    def text(max_norm: float | None, table: Tensor) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding.from_pretrained(table, max_norm=max_norm), nn.Flatten(), nn.Linear(12, 2).double())

    table, tokens = torch.randn(5, 4, dtype=torch.float64), torch.tensor([[0, 3, 2]])
    module = text(0.5, table.clone())
    found = popqorn.certify(module, tokens)
    assert torch.equal(module[0].weight, table)
    scaled = functional.embedding(torch.arange(5), table.clone(), max_norm=0.5)
    torch.testing.assert_close(found.radius, popqorn.certify(text(None, scaled), tokens).radius)


def test_weights_that_are_not_written_keep_their_version() -> None:
    """Whoever differentiates through them is not disturbed."""
    module = Writing(_relu)
    loss = module(INPUTS.clone()).sum()
    popqorn.verify(module, INPUTS, 0.1)
    loss.backward()
