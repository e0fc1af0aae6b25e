"""`Property`: any linear inequalities of the outputs."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popqorn.reading import read_tensor
from popqorn.sequences import Sequences
from popqorn.specs.spec import Margins, plain_margins


@dataclass(frozen=True, eq=False)
class Property:
    """`rows @ output + offset > 0`, in every row.

    `rows` is `[rows, *output]`, or `[batch, rows, *output]` for each sample its own; `offset` a number, `[rows]` or `[batch,
    rows]`.

    >>> popqorn.Property([[1.0, 0.0], [-1.0, 0.0]], [0.5, 2.0])  # -0.5 < output[0] < 2
    """

    rows: Any
    offset: Any = 0.0

    def margins(self, outputs: Tensor, sequences: Sequences) -> Margins:
        """The rows and offsets as given, checked against outputs `[batch, *output]`."""
        rows = self._read_rows(outputs, sequences)
        count = rows.shape[1]
        offset = read_tensor(self.offset, "offset").to(outputs)
        if offset.dim() == 2 and len(offset) == sequences.batch:
            offset = sequences.of_batch(offset)
        try:
            offset = offset.expand(len(outputs), count)
        except RuntimeError:
            raise ValueError(
                f"offset has shape {tuple(offset.shape)}; pass a number, [rows] = ({count},) or "
                f"[batch, rows] = ({sequences.batch}, {count})"
            ) from None
        if not torch.isfinite(offset).all():
            raise ValueError("offset holds NaN or infinite values; pass finite numbers")
        return plain_margins(rows, offset, outputs.flatten(1), torch.arange(count, device=outputs.device), (count,))

    def _read_rows(self, outputs: Tensor, sequences: Sequences) -> Tensor:
        """`[batch or 1, rows, outputs]`."""
        tensor = read_tensor(self.rows, "rows").to(outputs)
        shape = tuple(outputs.shape[1:])
        if len(shape) == 2 and tensor.dim() >= 3 and tensor.shape[-2] == sequences.longest:
            tensor = tensor[..., : sequences.frames, :]  # steps beyond the end do not count
        every = tensor.dim() == len(shape) + 2 and len(tensor) == sequences.batch
        if tensor.dim() != len(shape) + 1 + every or tuple(tensor.shape[-len(shape) :]) != shape or not tensor.numel():
            wanted = ", ".join(map(str, shape))
            raise ValueError(
                f"rows have shape {tuple(tensor.shape)}; pass [rows, {wanted}], or [batch, rows, {wanted}] "
                f"with batch = {sequences.batch}"
            )
        if not torch.isfinite(tensor).all():
            raise ValueError("rows hold NaN or infinite values; pass finite numbers")
        rows = sequences.of_batch(tensor) if every else tensor.unsqueeze(0)
        return rows.reshape(rows.shape[0], rows.shape[1], math.prod(shape))
