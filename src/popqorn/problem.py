"""The arguments that all public functions share, checked and turned into tensors."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from popqorn import checks
from popqorn._typing import Bool, Float
from popqorn._version import __version__
from popqorn.bounds.relaxed import RelaxedTape, relax
from popqorn.memory import block_bytes
from popqorn.models.classifier import SequenceClassifier, tape_of
from popqorn.program import Tape
from popqorn.region import Region
from popqorn.relax.methods import Method
from popqorn.spec import Margins, targeted, untargeted

MOST_ENTRIES = 1024  # more at once gains nothing, and would hold a search open for its slowest sample


@dataclass(frozen=True)
class Problem:
    """One entry per sample (or sample and target, or sample and frame): what bounds, searches and attacks need, as tensors."""

    model: SequenceClassifier
    tape: Tape
    inputs: Float[Tensor, "batch frames features"]
    share: Float[Tensor, "#batch frames _"]
    still: frozenset[int]
    norm: float
    method: Method
    chunk_rows: int | None

    @staticmethod
    def read(
        model: object,
        inputs: Any,
        norm: Any,
        frames: Any,
        scale: Any,
        *,
        method: Any = "planes",
        chunk_rows: Any = None,
        dtype: Any = torch.float64,
    ) -> "Problem":
        """Check the arguments of a public function; every error names the argument and the remedy."""
        classifier = checks.check_model(model)
        dtype = checks.check_dtype(dtype)
        inputs = checks.check_inputs(inputs, classifier.rnn.input_size, dtype)
        share = checks.check_share(frames, scale, inputs)
        return Problem(
            model=classifier,
            tape=tape_of(classifier, inputs.shape[1], dtype=dtype, device=inputs.device),
            inputs=inputs,
            share=share,
            still=_still(share),
            norm=checks.check_norm(norm),
            method=checks.check_method(method),
            chunk_rows=checks.check_chunk_rows(chunk_rows),
        )

    def margins(self, labels: Any, targets: Any) -> tuple[Margins, Bool[Tensor, " batch"]]:
        """What has to be proven (or broken), and which samples the model decides as labelled."""
        classes = self.tape.outputs
        if classes < 2:
            raise ValueError(f"model: its head has {classes} output; a decision needs at least two classes")
        decisions = self.tape(self.inputs).argmax(-1)
        if labels is None:
            labels = decisions
        else:
            labels = checks.check_classes("labels", labels, len(decisions), classes, decisions.device)
        if targets is None:
            return untargeted(labels, classes), labels == decisions
        return targeted(labels, checks.check_targets(targets, labels, classes), classes), labels == decisions

    def settings(self, **more: Any) -> dict[str, Any]:
        """What decides the numbers of a result: the versions and the problem, and what the caller adds."""
        return {
            "popqorn": __version__,
            "torch": torch.__version__,
            "norm": checks.describe(self.norm),
            **more,
            "dtype": str(self.inputs.dtype).removeprefix("torch."),
            "device": str(self.inputs.device),
            "shape": list(self.inputs.shape),
        }

    def select(self, index: Tensor) -> "Problem":
        """Some of the entries."""
        share = self.share if self.share.shape[0] == 1 else self.share[index]
        return replace(self, inputs=self.inputs[index], share=share)

    def alone(self, frame: Tensor) -> "Problem":
        """The same entries, each with a single frame that may move."""
        share = self.share * nn.functional.one_hot(frame, self.tape.frames).unsqueeze(-1)
        return replace(self, share=share, still=_still(share))

    @property
    def depth(self) -> Float[Tensor, "#batch"]:
        """How many frames a perturbation passes through: from the first frame that may move to the last of all."""
        moves = (self.share > 0).any(-1).to(self.share.dtype)
        return self.tape.frames - moves.argmax(-1).to(self.share.dtype)

    def region(self, eps: Tensor) -> Region:
        return Region(self.inputs, eps, self.share, self.norm, self.still)

    def relaxed(self, eps: Tensor) -> RelaxedTape:
        return relax(self.tape, self.region(eps), self.method, self.chunk_rows)

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """Entries in blocks that fit the memory: two bounds and up to six coefficients per value, and a value per row twice."""
        values = sum(node.size for node in self.tape.nodes)
        per_entry = self.inputs.element_size() * values * (8 + 2 * rows)
        size = min(MOST_ENTRIES, max(1, block_bytes(self.inputs.device) // per_entry))
        yield from torch.arange(len(self.inputs), device=self.inputs.device).split(size)


def _still(share: Tensor) -> frozenset[int]:
    """The frames in which no entry has a share."""
    moves = (share > 0).any(-1).any(0).tolist()
    return frozenset(frame for frame, may_move in enumerate(moves) if not may_move)
