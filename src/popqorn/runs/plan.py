"""What a run asks of every sample: plain settings that a file can hold, and the calls of the library they stand for."""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from popqorn.api import certify, sensitivity, verify
from popqorn.attacks.run import AttackResult, attack
from popqorn.reading import read_choice, read_count, read_dtype
from popqorn.regions.ball import Ball
from popqorn.relax.methods import read_method
from popqorn.runs.store import Row
from popqorn.specs.tolerance import Tolerance
from popqorn.status import Status

NEITHER = {"batch"}  # settings that decide no number


@dataclass(frozen=True)
class Plan:
    """The settings of a run.

    - `command`: `certify`, `verify`, `attack`, `bracket` or `sensitivity`.
    - `norm`, `clip`, `total`, `frames`: the `Ball` in which inputs move; `eps`: its size, for `verify`.
    - `within`: outputs must stay so close to what they are (a `Tolerance`), instead of the decision.
    - `method`, `effort`, `seconds`, `tolerance`, `dtype`, `seed`: as in `certify` and `attack`.
    - `device`: where the model and the samples go; `batch`: how many samples are asked about at once.

    >>> plan = Plan(command="verify", norm=2, eps=0.01, clip=(0, 1))
    """

    command: str = "certify"
    norm: float = math.inf
    clip: tuple[float, float] | None = None
    total: bool = False
    frames: tuple[int, ...] | None = None
    eps: float | None = None
    within: float | None = None
    method: str = "planes"
    effort: int | None = None
    seconds: float | None = None
    tolerance: float = 1e-3
    dtype: str = "float64"
    seed: int = 0
    device: str = "cpu"
    batch: int = 16

    def __post_init__(self) -> None:
        read_choice("command", self.command, COMMANDS)
        if (self.eps is None) == (self.command == "verify"):
            raise ValueError(f"eps is {self.eps}; `verify` needs one, the other commands search for it")
        read_count("batch", self.batch)
        read_dtype(getattr(torch, self.dtype, self.dtype))
        read_method(self.method, self.effort, self.seconds, frames=self.command == "sensitivity")
        _ = self.region, self.spec

    @property
    def region(self) -> Ball:
        """What may happen to the inputs."""
        return Ball(self.norm, frames=self.frames, clip=self.clip, total=self.total)

    @property
    def spec(self) -> Tolerance | None:
        """What must hold; None for the decision."""
        return None if self.within is None else Tolerance(self.within)

    def decides(self) -> Row:
        """The settings that decide what is found."""
        return {name: value for name, value in asdict(self).items() if name not in NEITHER}

    def ask(self, model: Any, inputs: Sequence[Any], labels: Sequence[int] | None) -> list[Row]:
        """One row for each of the inputs."""
        given: Row = {"region": self.region, "spec": self.spec, "dtype": getattr(torch, self.dtype)}
        if labels is not None and self.spec is None:
            given["labels"] = list(labels)
        return COMMANDS[self.command](self, model, list(inputs), given)

    def write(self, path: Path) -> None:
        """As a file that `read` reads."""
        lines = [f"{name} = {_toml(value)}" for name, value in asdict(self).items() if value is not None]
        path.write_text("\n".join(lines) + "\n")

    @staticmethod
    def of(settings: Mapping[str, Any]) -> "Plan":
        """The plan with these settings, as files and stores hold them."""
        given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
        return Plan(**given)

    @staticmethod
    def read(path: Path) -> Row:
        """The settings in a file; unknown ones are refused."""
        try:
            found = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"config: {str(path)!r} cannot be read ({error}); pass a .toml file as a run writes it") from error
        unknown = set(found) - {field.name for field in fields(Plan)}
        if unknown:
            raise ValueError(f"config: {path.name} holds {', '.join(sorted(unknown))}, which are no settings; leave them out")
        return found


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# ---- the commands: one row per sample ---------------------------------------------------------------------------------------


def _certify(plan: Plan, model: Any, inputs: list[Any], given: Row) -> list[Row]:
    found = certify(model, inputs, tolerance=plan.tolerance, **_bounded(plan), **given)
    return _rows(found, radius=found.radius, status=found.status, margin=_least(found.margins), difference=found.difference)


def _verify(plan: Plan, model: Any, inputs: list[Any], given: Row) -> list[Row]:
    found = verify(model, inputs, plan.eps, **_bounded(plan), **given)
    proven = torch.where(found.certified, found.eps, 0.0)
    return _rows(found, radius=proven, status=found.status, margin=_least(found.margins), difference=found.difference)


def _attack(plan: Plan, model: Any, inputs: list[Any], given: Row) -> list[Row]:
    found = attack(model, inputs, seed=plan.seed, **given)
    return _rows(found, attacked=found.radius, status=found.status, reached=_reached(found))


def _bracket(plan: Plan, model: Any, inputs: list[Any], given: Row) -> list[Row]:
    """What is proven and what an attack reaches."""
    proven = _certify(plan, model, inputs, given)
    reached = attack(model, inputs, seed=plan.seed, **given)
    broken = _rows(reached, attacked=reached.radius, attack_status=reached.status, reached=_reached(reached))
    return [
        {**low, **high, "status": high["attack_status"] if _stopped(high) else low["status"]}
        for low, high in zip(proven, broken, strict=True)
    ]


def _sensitivity(plan: Plan, model: Any, inputs: list[Any], given: Row) -> list[Row]:
    """The radius of every frame when it alone moves, proven and attacked, and the least of those proven."""
    found = sensitivity(model, inputs, tolerance=plan.tolerance, **_bounded(plan), **given)
    radii = [radii[: len(status)] for radii, status in zip(found.radius.tolist(), found.status, strict=True)]
    status = [Status.STOPPED if Status.STOPPED in row else row[0] for row in found.status]
    words: Sequence[Any] = [None] * len(radii) if found.words is None else found.words
    attacked = [_frames_attacked(plan, model, inputs, given, sample, len(row)) for sample, row in enumerate(radii)]
    return _rows(found, radius=[min(row) for row in radii], status=status, frames=radii, frames_attacked=attacked, words=words)


def _frames_attacked(plan: Plan, model: Any, inputs: list[Any], given: Row, sample: int, frames: int) -> list[float]:
    """What an attack on every frame alone reaches."""
    region = Ball(plan.norm, frames=torch.eye(frames, dtype=torch.bool), clip=plan.clip)
    labels = {"labels": [given["labels"][sample]] * frames} if "labels" in given else {}
    found = attack(model, [inputs[sample]] * frames, **{**given, "region": region, **labels}, method="pgd", seed=plan.seed)
    if found.stopped:
        raise KeyboardInterrupt
    return found.radius.tolist()


COMMANDS: dict[str, Callable[[Plan, Any, list[Any], Row], list[Row]]] = {
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


def _stopped(row: Row) -> bool:
    return row.get("attack_status") == Status.STOPPED.name.lower()


def _rows(found: Any, **columns: Any) -> list[Row]:
    """Columns as plain rows; statuses by name."""
    plain = {name: column.tolist() if isinstance(column, torch.Tensor) else list(column) for name, column in columns.items()}
    rows = [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]
    return [{name: value.name.lower() if isinstance(value, Status) else value for name, value in row.items()} for row in rows]
