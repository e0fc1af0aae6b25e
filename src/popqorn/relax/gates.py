"""The two gates of recurrent cells."""

from enum import Enum

import torch
from torch import Tensor


class GateKind(Enum):
    """What a gate `s(v)` multiplies: `z` itself, or `tanh(z)`."""

    IDENTITY = "s(v)*z"
    TANH = "s(v)*tanh(z)"

    def factor(self, z: Tensor) -> Tensor:
        """The second factor of the gate."""
        return torch.tanh(z) if self is GateKind.TANH else z
