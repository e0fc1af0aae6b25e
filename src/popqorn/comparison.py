"""`bracket`: what is proven, what is estimated and what an attack reaches, for the same samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from popqorn._typing import Float
from popqorn.api import certify
from popqorn.attacks.run import AttackResult, attack
from popqorn.certificate import Certificate, Status
from popqorn.estimate import CleverResult, clever


@dataclass(frozen=True)
class Bracket:
    """`lower <= true minimum <= upper` for every sample; `estimate` (CLEVER-RNN) comes without a guarantee.

    The three results it was made from are kept: `certificate`, `clever`, `attack`.
    """

    certificate: Certificate
    clever: CleverResult
    attack: AttackResult

    @property
    def lower(self) -> Float[Tensor, " batch"]:
        return self.certificate.radius

    @property
    def estimate(self) -> Float[Tensor, " batch"]:
        return self.clever.score

    @property
    def upper(self) -> Float[Tensor, " batch"]:
        return self.attack.radius

    @property
    def ratio(self) -> Float[Tensor, " batch"]:
        """`upper / lower`: how much of the truth is still open; NaN for samples that are decided wrongly."""
        return self.upper / self.lower

    @property
    def seconds(self) -> float:
        return self.certificate.seconds + self.clever.seconds + self.attack.seconds

    def __str__(self) -> str:
        """The table: one line per sample, and the means over those decided rightly."""
        heading = f"{'sample':>6} {'certified':>10} {'CLEVER':>10} {'attack':>10} {'attack/certified':>16}"
        columns = (self.lower, self.estimate, self.upper, self.ratio)
        lines = [heading]
        for sample, status in enumerate(self.certificate.status):
            if status is Status.MISCLASSIFIED:
                lines.append(f"{sample:6} {status}")
            else:
                low, middle, high, ratio = (float(column[sample]) for column in columns)
                lines.append(f"{sample:6} {low:10.5g} {middle:10.5g} {high:10.5g} {ratio:16.3g}")
        right = torch.tensor([status is not Status.MISCLASSIFIED for status in self.certificate.status])
        if right.any():
            low, middle, high, ratio = (float(column.cpu()[right].mean()) for column in columns)
            lines.append(f"{'mean':>6} {low:10.5g} {middle:10.5g} {high:10.5g} {ratio:16.3g}")
        return "\n".join(lines)


@torch.inference_mode(False)
def bracket(
    model: nn.Module,
    inputs: Any,
    *,
    labels: Any = None,
    targets: Any = None,
    norm: float = math.inf,
    frames: Any = None,
    scale: Any = None,
    attack_method: str = "best",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    progress: Callable[[int, int], None] | None = None,
) -> Bracket:
    """Certificate, CLEVER estimate and attack for the same samples; the arguments are those of `certify` and `attack`.

    >>> print(bracket(model, digits, norm=2))
    """
    problem = {"labels": labels, "targets": targets, "norm": norm, "frames": frames, "scale": scale, "dtype": dtype}
    return Bracket(
        certificate=certify(model, inputs, **problem),
        clever=clever(model, inputs, seed=seed, progress=progress, **problem),
        attack=attack(model, inputs, method=attack_method, seed=seed, progress=progress, **problem),
    )
