"""`bracket`: what is proven, what is estimated and what an attack reaches, for the same samples."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.api import certify
from popqorn.arithmetic import in_full_precision
from popqorn.attacks.run import AttackResult, attack
from popqorn.certificate import Certificate
from popqorn.clever import CleverResult, clever
from popqorn.readers.models import Model
from popqorn.status import Status
from popqorn.task import Question, read_region, read_spec


@dataclass(frozen=True)
class Bracket:
    """`lower <= true minimum <= upper` for every sample; `estimate` (CLEVER-RNN) comes without a guarantee.

    The three results it was made from are kept: `certificate`, `clever` (None for words, which have no gradients), `attack`.
    Those that were not begun when the user stopped the call are None.
    """

    certificate: Certificate
    clever: CleverResult | None
    attack: AttackResult | None

    @property
    def lower(self) -> Float[Tensor, " batch"]:
        """The certified radii: what is proven."""
        return self.certificate.radius

    @property
    def estimate(self) -> Float[Tensor, " batch"]:
        """The CLEVER-RNN scores; NaN where there are none."""
        return torch.full_like(self.lower, torch.nan) if self.clever is None else self.clever.score

    @property
    def refuted(self) -> Bool[Tensor, " batch"]:
        """Where the estimate lies below what is proven, or above what was broken: it is wrong there, and known to be."""
        return (self.estimate < self.lower) | (self.estimate > self.upper)

    @property
    def upper(self) -> Float[Tensor, " batch"]:
        """The attacked radii: what is refuted; inf where no attack succeeded."""
        return torch.full_like(self.lower, torch.inf) if self.attack is None else self.attack.radius

    @property
    def status(self) -> tuple[Status, ...]:
        """What the certified radii mean."""
        return self.certificate.status

    @property
    def ratio(self) -> Float[Tensor, " batch"]:
        """`upper / lower`: how much of the truth is still open; NaN for samples that are decided wrongly."""
        return self.upper / self.lower

    @property
    def seconds(self) -> float:
        """The time of all three."""
        return sum(part.seconds for part in (self.certificate, self.clever, self.attack) if part is not None)

    @property
    def stopped(self) -> bool:
        """Whether the user stopped one of the three before it was done."""
        parts = (self.certificate, self.clever, self.attack)
        return self.attack is None or any(part.stopped for part in parts if part is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers of all three, ready for JSON."""
        parts = {"certificate": self.certificate, "clever": self.clever, "attack": self.attack}
        return {name: None if part is None else part.to_dict() for name, part in parts.items()}

    def __str__(self) -> str:
        """The table: one line per sample, and the means over those decided rightly."""
        heading = f"{'sample':>6} {'certified':>10} {'CLEVER':>10} {'attack':>10} {'attack/certified':>16}"
        columns = (self.lower, self.estimate, self.upper, self.ratio)
        lines = [heading]
        for sample, status in enumerate(self.certificate.status):
            if status in _WRONG:
                lines.append(f"{sample:6} {status}")
            else:
                low, middle, high, ratio = (float(column[sample]) for column in columns)
                mark = "  CLEVER refuted" if bool(self.refuted[sample]) else ""
                lines.append(f"{sample:6} {low:10.5g} {middle:10.5g} {high:10.5g} {ratio:16.3g}{mark}")
        right = torch.tensor([status not in _WRONG for status in self.certificate.status], device="cpu")
        if right.any():
            low, middle, high, ratio = (float(column.cpu()[right].mean()) for column in columns)
            lines.append(f"{'mean':>6} {low:10.5g} {middle:10.5g} {high:10.5g} {ratio:16.3g}")
        return "\n".join(lines)


_WRONG = (Status.MISCLASSIFIED, Status.VIOLATED, Status.DIFFERS)


@in_full_precision
def bracket(
    model: Model,
    inputs: Any,
    *,
    region: Any = None,
    spec: Any = None,
    labels: Any = None,
    targets: Any = None,
    norm: float | None = None,
    frames: Any = None,
    scale: Any = None,
    lengths: Any = None,
    attack_method: str = "best",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> Bracket:
    """Certificate, CLEVER estimate and attack for the same samples; the arguments are those of `certify` and `attack`.

    >>> print(bracket(model, digits, norm=2))
    """
    asked: dict[str, Any] = {
        "region": read_region(region, norm, frames, scale),
        "spec": read_spec(spec, labels, targets),
        "lengths": lengths,
        "dtype": dtype,
    }
    finite = Question.read(model, inputs, **asked).tasks[0].allowed.choices is not None
    proven = certify(model, inputs, progress=progress, **asked)
    if proven.stopped:
        return Bracket(proven, None, None)
    estimated = None if finite else clever(model, inputs, seed=seed, progress=progress, **asked)
    if estimated is not None and estimated.stopped:
        return Bracket(proven, estimated, None)
    return Bracket(proven, estimated, attack(model, inputs, method=attack_method, seed=seed, progress=progress, **asked))
