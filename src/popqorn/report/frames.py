"""What the reports of Experiments II and III and of signals share: brackets, distributions, radius by position."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

import numpy as np
from scipy.stats import spearmanr

from popqorn import plot
from popqorn.experiments.results import Results
from popqorn.report.drawn import Drawn
from popqorn.report.page import Part, Section, Table, Text, number
from popqorn.runs.store import Row

BINS = 10


@dataclass(frozen=True)
class Frames:
    """The rows of the table `frames`; `right` are those that were decided rightly and so have radii."""

    network: Row
    rows: list[Row]

    @staticmethod
    def of(results: Results) -> "Frames":
        networks, rows = results.rows("networks"), results.rows("frames")
        if not networks or not any(row["radii"] for row in rows):
            raise ValueError(f"{str(results.folder)!r} holds no radii yet; run the experiment for a while before its report")
        return Frames(networks[0], rows)

    @property
    def right(self) -> list[Row]:
        return [row for row in self.rows if row["radii"]]

    @property
    def accuracy(self) -> str:
        return f"{100 * self.network['accuracy']:.2f} %"

    @property
    def violations(self) -> int:
        """Attacks that got inside a certified radius: none, or the program is wrong."""
        pairs = [pair for row in self.right for pair in zip(row["attacked"], row["radii"], strict=True)]
        return sum(attacked is not None and attacked < radius for attacked, radius in pairs)

    def facts(self, unit: str) -> list[tuple[str, str]]:
        ratios = [high / low for low, high in (weakest(row) for row in self.right) if high]
        return [
            (self.accuracy, f"test accuracy of the network ({self.network['network']})"),
            (str(sum(len(row["radii"]) for row in self.right)), f"{unit}s certified, each alone, in {len(self.right)} samples"),
            (str(self.violations), f"attacks on a {unit} inside its certified radius"),
            (number(median(ratios)) if ratios else "-", f"attacked / certified radius of the most sensitive {unit} (median)"),
        ]

    def soundness(self) -> str:
        return (
            f"{self.violations} attacks succeeded inside a certified radius: a fault in this program. Please report it."
            if self.violations
            else "No attack succeeded inside a certified radius."
        )

    def overview(self, unit: str) -> list[Section]:
        """Brackets of the most sensitive frame of every sample, and the distribution of all radii."""
        rows = sorted((row for row in self.right if weakest(row)[1]), key=weakest)
        lower, upper = [min(row["radii"]) for row in rows], [weakest(row)[1] or 0.0 for row in rows]
        names = [f"sample {row['sample']} ({row['label']}), {unit} {1 + int(np.argmin(row['radii']))}" for row in rows]
        caption = f"The most sensitive {unit} of every sample: how far it alone may move (p = 2), proven and attacked."
        radii = [radius for row in self.right for radius in row["radii"]]
        series = {f"every {unit}": radii, f"the most sensitive {unit}": [min(row["radii"]) for row in self.right]}
        spread = partial(plot.distributions, series, label="radius, p = 2")
        draw = partial(plot.brackets, lower, upper, label="radius, p = 2")
        brackets = Drawn("brackets", draw, caption, tips=bracket_tips(names, lower, upper))
        return [
            Section("From certified to attacked", [brackets if rows else Text("No attack succeeded.")]),
            Section("Distribution of radii", [Drawn("distributions", spread, f"Radii of every {unit} alone.")]),
        ]

    def table(self, unit: str) -> Table:
        columns = [
            "sample",
            "label",
            f"{unit}s",
            "least radius",
            "median radius",
            "greatest radius",
            f"weakest {unit}",
            "attacked",
        ]
        rows = [
            [
                row["sample"],
                str(row["label"]),
                len(row["radii"]),
                min(row["radii"]),
                median(row["radii"]),
                max(row["radii"]),
                1 + int(np.argmin(row["radii"])),
                weakest(row)[1],
            ]
            for row in self.right
        ]
        wrong = len(self.rows) - len(self.right)
        note = f"{wrong} more samples are decided wrongly and have no radius." if wrong else ""
        return Table("samples", columns, rows, note)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's; NaN for fewer than three values, and where all are equal."""
    if len(first) < 3 or min(len(set(first)), len(set(second))) < 2:
        return float("nan")
    return float(spearmanr(first, second).statistic)


def by_position(rows: Sequence[Row]) -> list[tuple[float, float, float, float]]:
    """Radius as a multiple of its sample's median, by relative position: (position, lower quartile, median, upper quartile)."""
    bins: list[list[float]] = [[] for _ in range(BINS)]
    for row in rows:
        middle = median(row["radii"])
        for place, radius in enumerate(row["radii"]):
            bins[min(BINS - 1, int(BINS * place / max(1, len(row["radii"]) - 1)))].append(radius / middle)
    found = []
    for place, values in enumerate(bins):
        if values:
            low, mid, high = np.quantile(values, (0.25, 0.5, 0.75))
            found.append(((place + 0.5) / BINS, float(low), float(mid), float(high)))
    return found


def weakest(row: Row) -> tuple[float, float | None]:
    """The least certified radius of a sample's frames, and the attacked radius of that frame."""
    place = int(np.argmin(row["radii"]))
    return row["radii"][place], row["attacked"][place]


def trend(rows: Sequence[Row], name: str, skip: int = 0) -> tuple[float, float]:
    """The mean rank correlation of position and `name` (radii or attacked) over samples, and the share where it is positive.

    The first `skip` frames, and frames that no attack succeeded on, are left out.
    """
    found = []
    for row in rows:
        pairs = [(place, value) for place, value in enumerate(row[name]) if place >= skip and value is not None]
        if len(pairs) >= 3:
            found.append(rank_correlation(*zip(*pairs, strict=True)))
    return (fmean(found), fmean(value > 0 for value in found)) if found else (float("nan"), float("nan"))


def trend_told(rows: Sequence[Row], skip: int = 0) -> str:
    """Do later frames have larger radii, and is that the network's doing or the bounds'?"""
    proven, share = trend(rows, "radii", skip)
    attacked, share_attacked = trend(rows, "attacked", skip)
    return (
        f"the rank correlation of position and certified radius is {proven:+.2f} on average and positive in "
        f"{100 * share:.0f} % of {len(rows)} samples; with the radius that attacks reach it is {attacked:+.2f} "
        f"({100 * share_attacked:.0f} %). Bounds grow looser with every frame a perturbation passes through, so the attacks tell "
        "how much of the trend is the network's own."
    )


def position_section(rows: Sequence[Row], unit: str, text: Sequence[Part]) -> Section:
    """The curve of radius by position, after `text`."""
    return Section(f"Which {unit}s: radius by position", [*text, position_picture(rows, unit)])


def position_picture(rows: Sequence[Row], unit: str) -> Drawn:
    points = by_position(rows)
    tips = [
        f"position {place:.2f}: median {number(middle)}, half of all between {number(low)} and {number(high)}"
        for place, low, middle, high in points
    ]
    caption = f"Median and quartiles over {len(rows)} samples; position 0 is the first {unit}, 1 the last."
    dots = [[(place, middle)] for place, _, middle, _ in points]
    return Drawn("position", partial(plot.positions, *zip(*points, strict=True)), caption, tips=tips, lines=dots)


def bracket_tips(
    samples: Sequence[str], lower: Sequence[float], upper: Sequence[float], estimate: Sequence[float] | None = None
) -> list[str]:
    """What is told of samples between what is certified and what an attack reaches."""
    pairs = zip(samples, lower, upper, strict=True)
    tips = [f"{sample}: certified {number(low)}, attacked {number(high)}" for sample, low, high in pairs]
    if estimate is None:
        return tips
    return [f"{told}, CLEVER estimate {number(middle)}" for told, middle in zip(tips, estimate, strict=True)]


def frame_tips(radii: Sequence[float], moments: Sequence[str] = ()) -> list[str]:
    """What is told of every frame of a sample."""
    at = [f", {moment}" for moment in moments] or [""] * len(radii)
    told = enumerate(zip(at, radii, strict=True), start=1)
    return [f"frame {place} of {len(radii)}{moment}: radius {number(radius)}" for place, (moment, radius) in told]
