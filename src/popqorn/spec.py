"""What must hold: margins, rows of logits that have to stay positive."""

from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Float, Int


@dataclass(frozen=True)
class Margins:
    """The rows `logit[label] - logit[target]`; `targets[b, r]` is the class that row `r` of sample `b` guards against."""

    labels: Int[Tensor, " batch"]
    targets: Int[Tensor, "batch rows"]
    classes: int

    def rows(self, dtype: torch.dtype) -> Float[Tensor, "batch rows classes"]:
        """Coefficients on the logits, one row per margin: never two bounds subtracted."""
        eye = torch.eye(self.classes, dtype=dtype, device=self.labels.device)
        return eye[self.labels].unsqueeze(1) - eye[self.targets]

    def select(self, index: Tensor) -> "Margins":
        """The margins of some samples."""
        return Margins(self.labels[index], self.targets[index], self.classes)


def untargeted(labels: Int[Tensor, " batch"], classes: int) -> Margins:
    """Every class but the label is a target."""
    others = torch.arange(classes - 1, device=labels.device).expand(labels.shape[0], -1)
    return Margins(labels, others + (others >= labels.unsqueeze(1)), classes)


def targeted(labels: Int[Tensor, " batch"], targets: Int[Tensor, " batch"], classes: int) -> Margins:
    """One target per sample."""
    return Margins(labels, targets.unsqueeze(1), classes)
