"""`Decision`: the label stays ahead of other classes, at the end of the sequence or at every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popqorn.reading import read_classes, read_tensor
from popqorn.sequences import Sequences
from popqorn.specs.spec import Margins
from popqorn.status import Status


@dataclass(frozen=True, eq=False)
class Decision:
    """`output[label] > output[target]`, for every target.

    - `labels`: one class per sample (`[batch]`), or per step for outputs `[batch, steps, classes]` (`[batch, steps]`, padded
      as the inputs are, or a list); by default the model's own decisions.
    - `targets`: the class that must not overtake the label, in the shape of `labels`; by default all others.
    """

    labels: Any = None
    targets: Any = None

    def margins(self, outputs: Tensor, sequences: Sequences) -> Margins:
        """The rows `output[label] - output[target]`, for outputs `[batch, classes]` or `[batch, steps, classes]`."""
        *steps, classes = outputs.shape[1:]
        if classes < 2:
            raise ValueError(
                f"model has {classes} output, which is no decision between classes; say what must hold with "
                "spec=popqorn.Tolerance(delta) or popqorn.Property(rows, offset), or ask for its range with popqorn.bounds"
            )
        decisions = outputs.argmax(-1)
        labels = decisions
        if self.labels is not None:
            labels = _read("labels", self.labels, decisions, sequences, classes)
        others = torch.arange(classes - 1, device=outputs.device).expand(*labels.shape, -1)
        rivals = others + (others >= labels.unsqueeze(-1))
        targets = None
        if self.targets is not None:
            targets = _read("targets", self.targets, decisions, sequences, classes)
            _differ(targets, labels, sequences)
            rivals = targets.unsqueeze(-1)
        count = steps[0] if steps else 1
        place = rivals + classes * torch.arange(count, device=outputs.device).reshape(*steps, 1)
        return Margins(
            rows=_rows(labels.reshape(len(labels), count), rivals.reshape(len(labels), count, -1), classes, outputs.dtype),
            offset=torch.zeros(place.flatten(1).shape, dtype=outputs.dtype, device=outputs.device),
            right=(labels == decisions).unsqueeze(-1).expand_as(rivals).flatten(1),
            place=place.flatten(1),
            shape=(*steps, classes),
            steps=count,
            wrong=Status.MISCLASSIFIED,
            labels=labels,
            targets=targets,
        )


def _rows(labels: Tensor, rivals: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """`[batch, steps * rivals, steps * classes]`: one row per margin, never two bounds subtracted."""
    eye = torch.eye(classes, dtype=dtype, device=labels.device)
    each = eye[labels].unsqueeze(2) - eye[rivals]
    batch, steps, count, _ = each.shape
    if steps == 1:
        return each.squeeze(1)
    rows = each.new_zeros(batch, steps, count, steps, classes)
    step = torch.arange(steps, device=labels.device)
    rows[:, step, :, step] = each.transpose(0, 1)
    return rows.reshape(batch, steps * count, steps * classes)


def _read(name: str, given: Any, decisions: Tensor, sequences: Sequences, classes: int) -> Tensor:
    """Class numbers for these sequences, in the shape of their decisions."""
    per_step = decisions.dim() == 2
    if per_step and isinstance(given, Sequence) and len({len(row) for row in given if hasattr(row, "__len__")}) > 1:
        given = _padded(name, [read_tensor(row, name) for row in given], sequences)
    tensor = read_tensor(given, name).to(decisions.device)
    shape = (sequences.batch, sequences.longest) if per_step else (sequences.batch,)
    if tensor.dim() and tuple(tensor.shape) != shape:
        what = "step of every sample" if per_step else "sample"
        raise ValueError(f"{name} have shape {tuple(tensor.shape)}; pass one class per {what}, shape {shape}")
    own = sequences.of_batch(tensor.expand(shape), frames=per_step)
    return read_classes(name, own, classes)


def _padded(name: str, rows: list[Tensor], sequences: Sequences) -> Tensor:
    """Lists of different lengths as one tensor; what is padded is never read."""
    for sample in sequences.samples.tolist():
        if sample < len(rows) and len(rows[sample]) not in (sequences.frames, sequences.longest):
            raise ValueError(
                f"{name}: sample {sample} has {len(rows[sample])}, but its sequence has {sequences.frames} steps; "
                "pass one class per step"
            )
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _differ(targets: Tensor, labels: Tensor, sequences: Sequences) -> None:
    equal = (targets == labels).reshape(len(labels), -1).any(1)
    if equal.any():
        place = int(equal.nonzero()[0])
        same = int(targets[place][targets[place] == labels[place]].flatten()[0])
        raise ValueError(
            f"targets: sample {int(sequences.samples[place])} has target {same}, "
            "which is its label; choose another class, or leave targets out for untargeted radii"
        )
