"""What a reader makes of a model: a `Network`, which reads inputs and gives, for every length of sequence, a `Reading`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from popqorn._typing import Float
from popqorn.sequences import Sequences
from popqorn.tape.tape import Tape

LEFT_OFF: dict[str, Callable[..., Tensor]] = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


@dataclass(frozen=True)
class Reading:
    """A network for sequences of one length: its tape, and the model itself, to be asked.

    `at_inputs` are the model's own outputs at the inputs it was read for, flattened; `own` gives them anywhere. `left_off` names
    a softmax at the end that the tape is without, as it changes no decision; `axis` is its, of an output with its batch axis.
    """

    tape: Tape
    at_inputs: Float[Tensor, "batch outputs"]
    own: Callable[[Float[Tensor, "batch frames features"]], Float[Tensor, "batch outputs"]]
    dtype: torch.dtype
    left_off: str | None = None
    axis: int = -1

    def finished(self, outputs: Float[Tensor, "batch outputs"]) -> Float[Tensor, "batch outputs"]:
        """The tape's outputs, as the model itself gives them."""
        if self.left_off is None:
            return outputs
        return LEFT_OFF[self.left_off](outputs.unflatten(1, self.tape.shape), self.axis).flatten(1)


class Network(ABC):
    """A model that can be read."""

    @abstractmethod
    def sequences(self, inputs: Any, lengths: Any, dtype: torch.dtype) -> list[Sequences]:
        """The inputs of a call, one group per length."""

    @abstractmethod
    def reading(self, group: Sequences, *, decides: bool) -> Reading:
        """The model for one group; without a final softmax if only decisions count."""

    @abstractmethod
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that decides what the model computes, by name."""

    def live(self, group: Sequences) -> Tape:
        """The tape for one group with the model's own weights, for training: gradients reach them. Made anew for every step."""
        raise TypeError(
            f"model is a {type(self).__name__}, whose weights cannot be trained; pass the nn.Module that it was made from"
        )

    def words(self, inputs: Any) -> tuple[tuple[str, ...], ...] | None:
        """What the frames of the inputs stand for, if they are words."""
        return None

    @torch.no_grad()
    def check(self) -> None:
        """Refuse weights with which nothing can be proven."""
        for name, tensor in self.tensors():
            if is_lazy(tensor):
                raise ValueError(f"model: {name} has no values yet; run the model once, on inputs as it will get them")
            if tensor.is_meta:
                raise ValueError(
                    f"model: {name} is on the device 'meta' and has no values; load its weights (to_empty, load_state_dict)"
                )
            bad = int((~torch.isfinite(tensor)).sum()) if tensor.is_floating_point() else 0
            if bad:
                raise ValueError(
                    f"model: {name} holds {bad} value(s) that are NaN or infinite; nothing can be proven, load sound weights"
                )
