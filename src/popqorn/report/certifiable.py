"""Certified training as a report: what every way of training costs in accuracy and gives in certificates."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev

from popqorn.experiments.results import Results
from popqorn.report import figures
from popqorn.report.page import Cell, Report, Section, Table
from popqorn.runs.store import Row

Key = tuple[str, str, float]
COLUMNS = (
    "network",
    "training",
    "seeds",
    "clean, %",
    "held back, %",
    "certified, %",
    "not broken, %",
    "certified radius",
    "attacked radius",
    "certified / attacked",
    "times plain",
)


def report(results: Results) -> Report:
    """Everything from the tables `networks` and `samples`."""
    runs = _runs(results)
    if not runs:
        raise ValueError(f"{str(results.folder)!r} holds no networks yet; run the experiment for a while before its report")
    inside = sum(
        row["attacked"] is not None and row["attacked"] < row["certified"] for row in results.rows("samples") if "attacked" in row
    )
    table = _table(runs)
    gains = [row[-1] for row in table.rows if isinstance(row[-1], float) and str(row[1]).startswith("certified")]
    return Report(
        title="Networks that can be certified",
        lead=(
            "The same networks, trained in several ways and certified by planes, p = inf. Certified training is adversarial "
            "training with one more term in the loss: the logarithm of the squared widths of the boxes that certificates rest on."
        ),
        facts=[
            (f"{inside}", "attacks inside a certified radius"),
            *([(f"{max(gains):.1f} x", "the certified radius of plain training, at most")] if gains else []),
        ],
        sections=[Section("What each way of training costs and gives", [table])],
        settings=results.about,
        figures={"fronts.png": lambda path: figures.fronts(_fronts(runs), path)},
    )


def _runs(results: Results) -> dict[Key, list[Row]]:
    """Per network and way of training, one row of means for every seed."""
    samples: dict[tuple[str, str, float, int], list[Row]] = defaultdict(list)
    for row in results.rows("samples"):
        samples[row["network"], row["way"], row["strength"], row["seed"]].append(row)
    runs: dict[Key, list[Row]] = defaultdict(list)
    for network in results.rows("networks"):
        rows = samples[network["network"], network["way"], network["strength"], network["seed"]]
        if rows:
            runs[network["network"], network["way"], network["strength"]].append({**network, **_means(rows)})
    return dict(runs)


def _means(rows: Sequence[Row]) -> Row:
    both = [row for row in rows if row.get("certified") and row.get("attacked") is not None]
    return {
        "proven": fmean(row["proven"] for row in rows),
        "unbroken": fmean(not row["broken"] for row in rows),
        "certified": fmean(row["certified"] for row in both) if both else None,
        "attacked": fmean(row["attacked"] for row in both) if both else None,
        "ratio": fmean(row["certified"] / row["attacked"] for row in both) if both else None,
    }


def _table(runs: dict[Key, list[Row]]) -> Table:
    plain = {network: _mean(rows, "certified") for (network, way, _), rows in runs.items() if way == "plain"}
    lines: list[list[Cell]] = []
    for (network, way, strength), rows in runs.items():
        radius, before = _mean(rows, "certified"), plain.get(network)
        shares = [_spread(rows, name) for name in ("clean", "held", "proven", "unbroken")]
        radii: list[Cell] = [_mean(rows, name) for name in ("certified", "attacked", "ratio")]
        gain = round(radius / before, 2) if radius and before else None
        lines.append([network, f"{way} {strength:g}" if strength else way, len(rows), *shares, *radii, gain])
    note = "Means over seeds, and the deviation between them. Radii: of the samples that are decided rightly and can be broken."
    return Table("training", COLUMNS, lines, note)


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return fmean(values) if values else None


def _spread(rows: Sequence[Row], name: str) -> str:
    values = [100 * row[name] for row in rows]
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _fronts(runs: dict[Key, list[Row]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    panels: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for (network, way, _), rows in runs.items():
        panels[network][way] += [(100 * row["clean"], 100 * row["proven"]) for row in rows]
    return {network: dict(ways) for network, ways in panels.items()}
