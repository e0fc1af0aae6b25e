"""What a search found."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from popqorn._typing import Bool, Float, Int


@dataclass(frozen=True)
class SearchResult:
    """Per sample: the largest eps proven, the least eps that failed (inf if none did), the margins proven, and the cost.

    `open` samples ran out of evaluations before their bracket was closed; `ended` is False for those that the user stopped.
    """

    eps: Float[Tensor, " batch"]
    failed: Float[Tensor, " batch"]
    margins: Float[Tensor, "batch rows"]
    evaluations: Int[Tensor, " batch"]
    open: Bool[Tensor, " batch"]
    ended: Bool[Tensor, " batch"]

    @staticmethod
    def joined(parts: "list[SearchResult]") -> "SearchResult":
        """The results of all blocks."""
        return SearchResult(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(SearchResult)))
