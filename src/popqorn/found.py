"""What a search found."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from popqorn._typing import Bool, Float, Int


@dataclass(frozen=True)
class SearchResult:
    """Per sample: the largest eps proven, the least eps that failed (inf if none did), the margins proven, and the cost.

    `open` samples ran out of evaluations before their bracket was closed; `ended` is False for those that the user stopped.
    `broken` is the least size at which a counterexample was met (inf: none was), `points` are these: where searches look for any.
    """

    eps: Float[Tensor, " batch"]
    failed: Float[Tensor, " batch"]
    margins: Float[Tensor, "batch rows"]
    evaluations: Int[Tensor, " batch"]
    open: Bool[Tensor, " batch"]
    ended: Bool[Tensor, " batch"]
    broken: Tensor | None = None
    points: Tensor | None = None

    @staticmethod
    def joined(parts: "list[SearchResult]") -> "SearchResult":
        """The results of all blocks."""

        def together(name: str) -> Any:
            column = [getattr(part, name) for part in parts]
            return None if column[0] is None else torch.cat(column)

        return SearchResult(*(together(field.name) for field in fields(SearchResult)))
