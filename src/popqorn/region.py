"""What the adversary may do: every frame moves inside its own l_p ball."""

import math
from dataclasses import dataclass

from torch import Tensor

from popqorn._typing import Float


@dataclass(frozen=True)
class Region:
    """All sequences `x` with `||(x_k - center_k) / share_k||_p <= eps` in every frame `k`.

    `eps` is per sample. `share` (`[batch or 1, frames, features or 1]`, not negative) is every feature's own part of `eps`;
    where it is 0 the input may not move. `still` names frames in which nothing moves, in any sample: what depends on them alone
    need not be bounded.
    """

    center: Float[Tensor, "batch frames features"]
    eps: Float[Tensor, " batch"]
    share: Float[Tensor, "#batch frames _"]
    norm: float
    still: frozenset[int] = frozenset()

    def select(self, samples: slice) -> "Region":
        """The region of some samples."""
        share = self.share if self.share.shape[0] == 1 else self.share[samples]
        return Region(self.center[samples], self.eps[samples], share, self.norm, self.still)

    @property
    def dual_norm(self) -> float:
        """`q` with `1/p + 1/q = 1`."""
        if math.isinf(self.norm):
            return 1.0
        return math.inf if self.norm == 1 else self.norm / (self.norm - 1)
