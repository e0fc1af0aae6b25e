"""What stands behind a line of `forward`: helper functions, and functions of functions."""

import pytest
import torch
from torch import Tensor, nn

import popqorn


def sorted_elsewhere(x: Tensor) -> Tensor:
    return torch.sort(x, dim=-1).values


def test_the_line_of_a_helper_is_named_and_not_that_of_its_call() -> None:
    class Helped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return sorted_elsewhere(super().forward(x))

    with pytest.raises(TypeError, match=r"aten\.sort\.default, at .*: return torch\.sort\(x, dim=-1\)\.values; popqorn"):
        popqorn.certify(Helped(4, 3), torch.randn(2, 4))


def test_a_function_of_functions_is_refused_without_being_run() -> None:
    """Those of torch.vmap would leave the process in a state in which nothing works."""

    class Mapped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(super().forward)(x)

    with pytest.raises(TypeError, match=r"cannot read torch.vmap or .*, at .*: return torch.vmap\(super"):
        popqorn.certify(Mapped(4, 3), torch.randn(2, 4))
    assert torch._C._functorch.maybe_current_level() is None
    assert popqorn.certify(nn.Linear(4, 3), torch.randn(2, 4)).radius.shape == (2,)
