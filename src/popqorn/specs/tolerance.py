"""`Tolerance`: no output moves by more than so much."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from popqorn.reading import read_tensor
from popqorn.sequences import Sequences
from popqorn.specs.spec import Margins, plain_margins


@dataclass(frozen=True, eq=False)
class Tolerance:
    """`|output - output at the input| < delta`, for every output: what regression is asked.

    `delta` is a positive number, or one per output (an array that broadcasts to `[batch, *output]`).
    """

    delta: Any

    def margins(self, outputs: Tensor, sequences: Sequences) -> Margins:
        """Two rows per output, `delta - (output - outputs)` and `delta + (output - outputs)`, for outputs `[batch, *output]`."""
        count = outputs[0].numel()
        delta = self._read(outputs, sequences).flatten(1)
        identity = torch.eye(count, dtype=outputs.dtype, device=outputs.device)
        flat = outputs.flatten(1)
        place = torch.arange(count, device=outputs.device).repeat(2)
        rows, offset = torch.cat([identity, -identity]), torch.cat([delta - flat, delta + flat], dim=1)
        return replace(plain_margins(rows, offset, flat, place, outputs.shape[1:]), relative=flat)

    def _read(self, outputs: Tensor, sequences: Sequences) -> Tensor:
        tensor = read_tensor(self.delta, "delta").to(outputs)
        if not (torch.isfinite(tensor) & (tensor > 0)).all():
            raise ValueError(
                f"delta holds {float(tensor[~(tensor > 0) | ~tensor.isfinite()].flatten()[0]):g}; pass finite positive numbers"
            )
        per_step = outputs.dim() == 3
        if tensor.dim() == outputs.dim() and len(tensor) == sequences.batch:
            tensor = sequences.of_batch(tensor, frames=per_step)
        elif per_step and tensor.dim() == 2 and len(tensor) == sequences.longest:
            tensor = tensor[: sequences.frames]
        try:
            return tensor.expand(outputs.shape)
        except RuntimeError:
            raise ValueError(
                f"delta has shape {tuple(tensor.shape)}; pass a number, or an array that broadcasts to the outputs, "
                f"{(sequences.batch, *outputs.shape[1:])}"
            ) from None
