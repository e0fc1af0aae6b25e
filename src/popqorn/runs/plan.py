"""The settings of a run: plain values that a file can hold, and the regions and specs they stand for."""

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn.readers.text import TextClassifier
from popqorn.reading import read_choice, read_count, read_device, read_dtype, read_norm, read_seed, read_tolerance
from popqorn.regions.ball import Ball
from popqorn.regions.region import Region
from popqorn.relax.methods import read_method
from popqorn.runs.data import Samples
from popqorn.runs.store import Row
from popqorn.specs.decision import Decision
from popqorn.specs.property import Property
from popqorn.specs.spec import Spec
from popqorn.specs.tolerance import Tolerance

NEITHER = {"batch"}  # settings that decide no number
COMMANDS = ("certify", "verify", "attack", "bracket", "sensitivity")


@dataclass(frozen=True)
class Plan:
    """The settings of a run.

    - `command`: `certify`, `verify`, `attack`, `bracket` or `sensitivity`.
    - `norm`, `clip`, `total`, `frames`: the `Ball` in which inputs move; `scale`: each feature's own share of its size, `"std"`
      for their standard deviations in the data; `eps`: its size, for `verify`.
    - `synonyms`: a .json file of words and what may stand for them, for models that take sentences: `Words`, at most `most` at
      once.
    - `within`: outputs must stay so close to what they are (a `Tolerance`); `inequalities`: an .npz file with `rows` and
      `offset` of a `Property`. Else the decision must stay as it is.
    - `method`, `effort`, `seconds`, `tolerance`, `dtype`, `seed`: as in `certify` and `attack`.
    - `device`: where the model and the samples go; `batch`: how many samples are asked about at once.

    >>> plan = Plan(command="verify", norm=2, eps=0.01, clip=(0, 1))
    """

    command: str = "certify"
    norm: float = math.inf
    clip: tuple[float, float] | None = None
    total: bool = False
    frames: tuple[int, ...] | None = None
    scale: str | tuple[float, ...] | None = None
    synonyms: str | None = None
    most: int | None = None
    eps: float | None = None
    within: float | None = None
    inequalities: str | None = None
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
        object.__setattr__(self, "norm", read_norm(self.norm))
        for name, kind in (("clip", float), ("frames", int), ("scale", float)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, tuple(kind(entry) for entry in value))
        if self.command == "sensitivity" and self.frames is not None:
            raise ValueError("frames are given, but `sensitivity` asks every frame alone; leave them out")
        if self.eps is None and self.command == "verify" and self.synonyms is None:
            raise ValueError("eps is not given, the size at which `verify` is to prove; pass --eps (eps= of a Plan)")
        if self.eps is not None and (self.command != "verify" or self.synonyms is not None):
            raise ValueError(f"eps is {self.eps}, but this run needs none: `{self.command}` finds the sizes; leave it out")
        if self.eps is not None and not 0 <= self.eps < math.inf:
            raise ValueError(f"eps is {self.eps}; pass a finite size, not negative")
        if self.synonyms is not None:
            _read_synonyms(self.synonyms)
            if self.command == "sensitivity":
                raise ValueError("synonyms are given, but `sensitivity` moves one word's vector at a time; leave them out")
        if self.most is not None and self.synonyms is None:
            raise ValueError(f"most is {self.most}, but no words are exchanged; pass synonyms, or leave it out")
        if self.within is not None and self.inequalities is not None:
            raise ValueError("within and inequalities are given; what must hold is one of them")
        if self.within is not None and not 0 < self.within < math.inf:
            raise ValueError(f"within is {self.within}; pass a finite positive number")
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip is {self.clip}; pass the least and the greatest value, in this order")
        if isinstance(self.scale, tuple) and not (all(0 <= share < math.inf for share in self.scale) and any(self.scale)):
            raise ValueError(f"scale is {self.scale}; pass finite shares, not negative and not all 0")
        read_count("batch", self.batch)
        read_seed(self.seed)
        read_tolerance(self.tolerance)
        read_device(self.device)
        read_dtype(getattr(torch, self.dtype, self.dtype))
        read_method(self.method, self.effort, self.seconds, frames=self.command == "sensitivity")
        _ = self.ball, self.spec(None)

    # ---- what they stand for -------------------------------------------------------------------------------------------------

    @property
    def ball(self) -> Ball:
        """Where inputs move, but for each feature's share."""
        return Ball(self.norm, frames=self.frames, clip=self.clip, total=self.total)

    @property
    def decides_classes(self) -> bool:
        """Whether what must hold is a decision."""
        return self.within is None and self.inequalities is None

    def region(self, model: Any, inputs: Any) -> Region:
        """What may happen to these inputs, which have one shape."""
        if self.synonyms is not None:
            if not isinstance(model, TextClassifier):
                raise ValueError("synonyms are given, but the model takes no sentences; pass a popqorn.TextClassifier")
            return model.exchanges(inputs, _read_synonyms(self.synonyms), self.most)
        if self.scale is None:
            return self.ball
        return replace(self.ball, scale=self._share(inputs[0]))

    def _share(self, sample: Any) -> Tensor:
        """Each feature's share, for all frames."""
        assert not isinstance(self.scale, str)  # `settled`
        shape = (1, *sample.shape) if isinstance(sample, Tensor) and sample.dim() == 1 else getattr(sample, "shape", ())
        share = torch.tensor(self.scale, dtype=torch.float64)
        if len(shape) != 2 or shape[1] != len(share):
            raise ValueError(f"scale has {len(share)} numbers, for samples of shape {tuple(shape)}; pass one per feature")
        return share.expand(shape)

    def spec(self, labels: Sequence[Any] | None) -> Spec:
        """What must hold of samples with these labels."""
        if self.within is not None:
            return Tolerance(self.within)
        if self.inequalities is not None:
            return _read_property(self.inequalities)
        return Decision(labels)

    def settled(self, data: Samples) -> "Plan":
        """With what the data decide."""
        if not isinstance(self.scale, str):
            return self
        read_choice("scale", self.scale, ("std",))
        arrays = [one for one in data.inputs if isinstance(one, Tensor)]
        frames = [one.unsqueeze(0) if one.dim() == 1 else one.flatten(1) for one in arrays]
        if len({frame.shape[1] for frame in frames}) != 1:
            raise ValueError("scale is 'std', but the samples have no features in common; pass one number per feature")
        values = torch.cat(frames).double()
        spread = values[values.isfinite().all(1)].std(0, correction=0)
        return replace(self, scale=tuple(spread.tolist()))

    # ---- as files ------------------------------------------------------------------------------------------------------------

    def decides(self) -> Row:
        """Everything here that decides what is found, files by what they hold."""
        ignored = NEITHER | ({"seed"} if self.command in ("certify", "verify") else set())
        settings = {name: value for name, value in asdict(self).items() if name not in ignored}
        given = {name: settings[name] for name in ("synonyms", "inequalities") if settings[name] is not None}
        return settings | {name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for name, file in given.items()}

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
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


# ---- files of settings -------------------------------------------------------------------------------------------------------


def _read_synonyms(file: str) -> dict[str, list[str]]:
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not all(isinstance(words, list) for words in found.values()):
            raise ValueError("it is no object of lists")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"synonyms: {file!r} cannot be read ({error}); pass a .json object of words and lists of words"
        ) from error
    return found


def _read_property(file: str) -> Property:
    try:
        with np.load(file, allow_pickle=False) as found:
            return Property(found["rows"], found["offset"] if "offset" in found.files else 0.0)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"inequalities: {file!r} cannot be read ({error}); pass an .npz file with rows and offset") from error
