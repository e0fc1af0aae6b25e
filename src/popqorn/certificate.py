"""The result of a certification: radii, what they mean, and how they were reached."""

import json
import math
import zipfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popqorn._typing import Float, Int

FORMAT = "popqorn-certificate-1"
_TENSORS = ("radius", "margins", "evaluations", "labels", "targets", "target_radius")


class Status(StrEnum):
    """What a sample's radius means."""

    CERTIFIED = "certified"
    MISCLASSIFIED = "misclassified"
    NOT_CERTIFIED = "not certified at any eps tried"
    UNBOUNDED = "certified at every eps tried"


@dataclass(frozen=True)
class Certificate:
    """Certified radii of a batch: inside `radius[b]` no allowed perturbation changes the decision on sample `b`.

    - `radius`: the largest eps proven, to within the tolerance of the search; 0 where nothing was proven.
    - `status`: per sample, what that radius means.
    - `margins`: `[batch, classes]`, the margins `logit[label] - logit[class]` proven at the radius; inf where none was asked for.
    - `target_radius`: `[batch, classes]`, the radius against each class alone (inf for the label), if `per_target` was asked for.
    - `labels`, `targets`: what was certified; `targets` is None for untargeted radii.
    - `evaluations`: how many bounds each sample's search took; `seconds`: the time of the whole call.
    - `settings`: everything that decides the numbers (norm, method, tolerance, dtype, ...).
    """

    radius: Float[Tensor, " batch"]
    status: tuple[Status, ...]
    margins: Float[Tensor, "batch classes"]
    evaluations: Int[Tensor, " batch"]
    labels: Int[Tensor, " batch"]
    targets: Int[Tensor, " batch"] | None
    target_radius: Float[Tensor, "batch classes"] | None
    seconds: float
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON: infinite and missing values are None."""
        tensors = {name: _plain(getattr(self, name)) for name in _TENSORS}
        status = [str(status) for status in self.status]
        settings = {name: _plain(value) for name, value in self.settings.items()}
        return {"format": FORMAT, **tensors, "status": status, "seconds": self.seconds, "settings": settings}

    def save(self, path: str | Path) -> None:
        """Write the certificate to `path` as a compressed npz file (arrays and JSON text, no pickle)."""
        arrays = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        about = {
            "format": FORMAT,
            "status": [status.name for status in self.status],
            "seconds": self.seconds,
            "settings": self.settings,
        }
        text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        with Path(path).open("wb") as file:
            np.savez_compressed(file, about=text, **{name: tensor.cpu().numpy() for name, tensor in arrays.items()})

    @staticmethod
    def load(path: str | Path) -> "Certificate":
        """Read a certificate that `save` wrote."""
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                arrays: dict[str, Any] = {name: _optional_tensor(file, name) for name in _TENSORS}
                about = json.loads(file["about"].tobytes())
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
            return Certificate(
                **arrays,
                status=tuple(Status[name] for name in about["status"]),
                seconds=about["seconds"],
                settings=about["settings"],
            )
        except FileNotFoundError:
            raise
        except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"path: {str(path)!r} is not a readable certificate ({error}); "
                "it may be truncated or of another kind: write it again with Certificate.save"
            ) from error


def _optional_tensor(file: Any, name: str) -> Tensor | None:
    missing = name in ("targets", "target_radius") and name not in file.files
    return None if missing else torch.from_numpy(file[name])


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
