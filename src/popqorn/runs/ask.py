"""The commands of a run: the calls of the library they stand for, and one row per sample."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from popqorn.api import certify, sensitivity, verify
from popqorn.attacks.run import AttackResult, attack
from popqorn.runs.plan import Plan
from popqorn.runs.store import Row
from popqorn.status import Status

Labels = Sequence[Any] | None


Inputs = Tensor | Sequence[str]  # samples of one shape, or sentences


def ask(plan: Plan, model: Any, inputs: Inputs, labels: Labels) -> list[Row]:
    """One row for each of the inputs."""
    return ASKS[plan.command](plan, model, inputs, labels)


def _given(plan: Plan, model: Any, inputs: Inputs, labels: Labels) -> Row:
    """What all calls take."""
    return {
        "region": plan.region(model, inputs),
        "spec": plan.spec(labels),
        "dtype": getattr(torch, plan.dtype),
    }


def _certify(plan: Plan, model: Any, inputs: Inputs, labels: Labels) -> list[Row]:
    given = _given(plan, model, inputs, labels)
    found = certify(model, inputs, tolerance=plan.tolerance, **_bounded(plan), **given)
    return _rows(found, radius=found.radius, status=found.status, margin=_least(found.margins), difference=found.difference)


def _verify(plan: Plan, model: Any, inputs: Inputs, labels: Labels) -> list[Row]:
    given = _given(plan, model, inputs, labels)
    found = verify(model, inputs, plan.eps, **_bounded(plan), **given)
    proven = torch.where(found.certified, found.eps, 0.0)
    return _rows(found, radius=proven, status=found.status, margin=_least(found.margins), difference=found.difference)


def _attack(plan: Plan, model: Any, inputs: Inputs, labels: Labels) -> list[Row]:
    found = attack(model, inputs, seed=plan.seed, **_given(plan, model, inputs, labels))
    return _rows(found, radius=[None] * len(found.status), attacked=found.radius, status=found.status, reached=_reached(found))


def _bracket(plan: Plan, model: Any, inputs: Inputs, labels: Labels) -> list[Row]:
    """What is proven and what an attack reaches."""
    pairs = zip(_certify(plan, model, inputs, labels), _attack(plan, model, inputs, labels), strict=True)
    stopped = Status.STOPPED.name.lower()
    return [
        {**high, **low, "attack_status": high["status"], "status": stopped if high["status"] == stopped else low["status"]}
        for low, high in pairs
    ]


def _sensitivity(plan: Plan, model: Any, inputs: Inputs, labels: Labels) -> list[Row]:
    """The radius of every frame when it alone moves, proven and attacked, and the least of those proven."""
    given = _given(plan, model, inputs, labels)
    found = sensitivity(model, inputs, tolerance=plan.tolerance, **_bounded(plan), **given)
    radii = [radii[: len(status)] for radii, status in zip(found.radius.tolist(), found.status, strict=True)]
    status = [_of_frames(*each) for each in zip(radii, found.status, strict=True)]
    words: Sequence[Any] = [None] * len(radii) if found.words is None else found.words
    named = zip(inputs, [None] * len(inputs) if labels is None else labels, map(len, radii), strict=True)
    attacked = [_frames_attacked(plan, model, *each) for each in named]
    return _rows(found, radius=[min(row) for row in radii], status=status, frames=radii, frames_attacked=attacked, words=words)


def _of_frames(radii: Sequence[float], status: Sequence[Status]) -> Status:
    """That of the frame with the least radius, but for what was stopped."""
    if Status.STOPPED in status:
        return Status.STOPPED
    return status[min(range(len(radii)), key=radii.__getitem__)]


def _frames_attacked(plan: Plan, model: Any, sample: Any, label: Any, frames: int) -> list[float]:
    """What an attack on every frame alone reaches."""
    copies = [sample] * frames if isinstance(sample, str) else sample.expand(frames, *sample.shape)
    given = _given(plan, model, copies, None if label is None else [label] * frames)
    given["region"] = replace(given["region"], frames=torch.eye(frames, dtype=torch.bool), total=False)
    found = attack(model, copies, **given, method="pgd", seed=plan.seed)
    if found.stopped:
        raise KeyboardInterrupt
    return found.radius.tolist()


ASKS: dict[str, Callable[[Plan, Any, Inputs, Labels], list[Row]]] = {
    "certify": _certify,
    "verify": _verify,
    "attack": _attack,
    "bracket": _bracket,
    "sensitivity": _sensitivity,
}


def _bounded(plan: Plan) -> Row:
    return {"method": plan.method, "effort": plan.effort, "seconds": plan.seconds}


def _reached(found: AttackResult) -> list[int | None]:
    """The class that the adversarial input is given, where there is one."""
    if found.decisions is None or found.decisions.dim() != 1:
        return [None] * len(found.status)
    pairs = zip(found.decisions.tolist(), found.success.tolist(), strict=True)
    return [decision if success else None for decision, success in pairs]


def _least(margins: torch.Tensor) -> torch.Tensor:
    return margins.flatten(1).amin(-1)


def _rows(found: Any, **columns: Any) -> list[Row]:
    """Columns as plain rows; statuses by name."""
    plain = {name: column.tolist() if isinstance(column, torch.Tensor) else list(column) for name, column in columns.items()}
    rows = [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]
    return [{name: value.name.lower() if isinstance(value, Status) else value for name, value in row.items()} for row in rows]
