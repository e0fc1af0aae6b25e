"""What a store knows of one model on one set of data, brought together from all runs that asked about it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from popqorn.runs.run import proven_to
from popqorn.runs.store import FAILED, Row, Store

QUESTION = ("norm", "clip", "total", "frames", "scale", "synonyms", "most", "within", "inequalities")
WRONG = ("misclassified", "violated")


@dataclass(frozen=True)
class Evidence:
    """The rows by sample: `certified` (of `certify`, `verify` and `bracket`), `attacked` and `frames` (of `sensitivity`)."""

    about: Row
    asked: list[int]
    certified: dict[int, Row]
    attacked: dict[int, Row]
    frames: dict[int, Row]

    @staticmethod
    def of(store: Store, name: str) -> "Evidence":
        """All that was asked about the samples of the run `name`, its model, data and region, by any method of this version: the
        largest proof counts, and the nearest attack.
        """
        runs = store.runs()
        if name not in runs:
            raise ValueError(f"run is {name!r}, which the store does not hold; it holds {', '.join(runs) or 'none'}")
        about = runs[name]
        asked = [tag["sample"] for tag in store.planned(name)]
        certified: dict[int, Row] = {}
        attacked: dict[int, Row] = {}
        frames: dict[int, Row] = {}
        for other, its in runs.items():
            if "plan" not in its or _question(its) != _question(about):
                continue
            for row in store.rows(other):
                command, sample = its["plan"]["command"], row["sample"]
                if sample not in asked:
                    continue
                if command == "sensitivity":
                    frames[sample] = _better(frames.get(sample), row)
                if command in ("certify", "verify", "bracket"):
                    certified[sample] = _better(certified.get(sample), row)
                if command in ("attack", "bracket") and row["status"] != FAILED:
                    before = attacked.get(sample)
                    if before is None or row["attacked"] < before["attacked"]:
                        attacked[sample] = row
        return Evidence(about, asked, dict(sorted(certified.items())), attacked, dict(sorted(frames.items())))

    @property
    def samples(self) -> list[int]:
        return list(self.certified)

    @property
    def right(self) -> list[int]:
        """Those for which the claim holds as they are."""
        return [sample for sample, row in self.certified.items() if row["status"] not in (*WRONG, FAILED)]

    def lower(self, samples: Sequence[int]) -> list[float]:
        """What is proven; 0 where nothing is."""
        return [radius_of(self.certified[sample]) for sample in samples]

    def upper(self, samples: Sequence[int]) -> list[float]:
        """What an attack reaches: infinite where none was found or the sample failed, NaN where none was tried, 0 for what is
        wrong as it is.
        """
        return [self._reached(sample) for sample in samples]

    def _reached(self, sample: int) -> float:
        status = self.certified[sample]["status"]
        if status in WRONG:
            return 0.0
        if status == FAILED:
            return math.inf
        return float(self.attacked[sample]["attacked"]) if sample in self.attacked else math.nan

    def meeting(self, eps: float) -> list[int]:
        """The samples that are proven to the size `eps`."""
        return [sample for sample, row in self.certified.items() if proven_to(row, eps)]

    def broken(self, eps: float) -> list[int]:
        """The samples that are right as they are, and that an attack breaks within `eps`."""
        return [sample for sample in self.right if self._reached(sample) <= eps]

    @property
    def violations(self) -> list[int]:
        """Attacks inside a certified radius: none, or the program is wrong."""
        return [sample for sample in self.right if self._reached(sample) < radius_of(self.certified[sample])]


def radius_of(row: Row) -> float:
    """What a row proves; 0 for failures."""
    return float(row.get("radius") or 0.0)


def _question(about: Row) -> list[Any]:
    return [about["popqorn"], about["model_hash"], about["data_hash"], *(about["decides"][name] for name in QUESTION)]


def _better(first: Row | None, second: Row) -> Row:
    if first is None or first["status"] == FAILED:
        return second
    return second if radius_of(second) > radius_of(first) else first
