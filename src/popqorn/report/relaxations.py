"""Appendix B.1 as a report: radii and word pairs per relaxation."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from statistics import fmean, geometric_mean

from popqorn import plot
from popqorn.experiments.relaxations import METHODS
from popqorn.experiments.results import Results
from popqorn.report import paper
from popqorn.report.drawn import Drawn
from popqorn.report.page import Cell, Report, Section, Table, Text
from popqorn.runs.store import Row

Radii = dict[str, dict[str, list[float]]]


def report(results: Results) -> Report:
    """Everything from the tables `networks`, `radii`, `pairs` and `vocabulary`."""
    radii = _by_network(results.rows("radii"))
    if not radii:
        raise ValueError(f"{str(results.folder)!r} holds no radii yet; run the experiment for a while before its report")
    gains = {name: _gain(found) for name, found in radii.items()}
    samples = max(len(values) for found in radii.values() for values in found.values())
    lead = (
        f"The same networks and the same {samples} digits, certified with four ways to bound a gate. Planes certify "
        f"{min(gains.values()):.1f} to {max(gains.values()):.1f} times the radius of the paper's 1-D lines."
    )
    draw = partial(plot.means, _means(radii), label="mean certified radius, p = 2")
    overview = Drawn("relaxations", draw, "Mean certified radius of every way to bound a gate.")
    return Report(
        title="Appendix B.1: what better relaxations are worth",
        lead=lead,
        facts=[(f"{gain:.1f} x", f"planes / lines on {name} (mean radius)") for name, gain in gains.items()],
        sections=[
            Section(
                "Mean certified radius on MNIST, p = 2", [overview, _table(radii), *(Text(text) for text in _remarks(radii))]
            ),
            Section("Distribution of radii", [_chart(name, found) for name, found in radii.items()]),
            Section("Word pairs of the question classifier", [_pairs(results)]),
            Section("Networks", [Table("networks", ["network", "test accuracy, %"], _networks(results))]),
        ],
        settings=results.about,
        figures={"relaxations.png": overview.write},
    )


def _by_network(rows: Sequence[Row]) -> Radii:
    found: Radii = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["status"] != "misclassified":
            found[row["network"]][row["method"]].append(row["radius"])
    return {name: dict(methods) for name, methods in found.items() if set(methods) == set(METHODS)}


def _means(radii: Radii) -> dict[str, dict[str, float]]:
    return {name: {method: fmean(found[method]) for method in METHODS} for name, found in radii.items()}


def _gain(found: dict[str, list[float]]) -> float:
    return fmean(found["planes"]) / fmean(found["lines"])


def _table(radii: Radii) -> Table:
    columns = ["network", *METHODS, "planes / lines", "paper: planes", "paper: lines", "paper: constants"]
    rows: list[list[Cell]] = []
    for name, found in radii.items():
        means: list[Cell] = [fmean(found[method]) for method in METHODS]
        rows.append([name, *means, round(_gain(found), 2), *paper.RELAXATIONS.get(name, (None, None, None))])
    note = "Means over correctly decided digits, a random target each. The paper has no GRUs and no intervals."
    return Table("relaxations", columns, rows, note)


def _remarks(radii: Radii) -> list[str]:
    told = []
    for frames in ("4", "7", "14"):
        gains = [_gain(found) for name, found in radii.items() if name.split("_")[1].split("x")[0] == frames]
        if gains:
            told.append(f"At {frames} frames planes certify at least {min(gains):.1f} times the radius of lines.")
    return told


def _chart(name: str, found: dict[str, list[float]]) -> Drawn:
    series = {method: found[method] for method in METHODS}
    return Drawn(f"distributions-{name}", partial(plot.distributions, series, label="radius, p = 2"), name)


def _pairs(results: Results) -> Table:
    rows: list[list[Cell]] = []
    latest = {row["method"]: row for row in results.rows("vocabulary")}
    for method in METHODS:
        found = [row for row in results.rows("pairs") if row["method"] == method and row["right"]]
        positive = [radius for row in found for radius in row["radii"] if radius > 0]
        if found and method in latest:
            typical = geometric_mean(positive) if positive else 0.0
            within = sum(row["substitutes"] for row in found)
            rows.append([method, len(found), latest[method]["radius"], typical, latest[method]["pairs"], within])
    columns = ["method", "questions", "mean radius", "typical radius", "pairs within the mean radius", "substitutes proven safe"]
    note = (
        "Radius of a word alone, p = 2. Pairs: of the 50 million pairs of the 10,000 most frequent words, how many are no "
        "further apart than the mean radius (the paper's count). Substitutes: how many words of these could take the place of a "
        "word of the questions without changing its class, as proven word by word."
    )
    return Table("pairs", columns, rows, note)


def _networks(results: Results) -> list[list[Cell]]:
    return [[row["network"], round(100 * row["accuracy"], 2)] for row in results.rows("networks")]
