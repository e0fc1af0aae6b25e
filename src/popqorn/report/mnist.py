"""Experiment I as a report: the paper's table beside ours, brackets and distributions."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from statistics import fmean, geometric_mean, median, pstdev

from popqorn import plot
from popqorn.experiments.results import Results
from popqorn.report import paper
from popqorn.report.drawn import Drawn, sheet
from popqorn.report.frames import bracket_tips
from popqorn.report.page import Cell, Report, Section, Table, Text, number
from popqorn.runs.store import Row

METHODS = {"certified": "POPQORN", "clever": "CLEVER-RNN", "cw": "C&W-Ada", "best": "best attack"}
Group = dict[tuple[str, str], list[Row]]


def report(results: Results) -> Report:
    """Everything from the tables `networks` and `radii`."""
    networks = results.rows("networks")
    groups = _decided_rightly(results.rows("radii"))
    total = sum(map(len, groups.values()))
    violations = sum(not 0 < row["certified"] < row["best"] for rows in groups.values() for row in rows if row["best"])
    ratios = [row["best"] / row["certified"] for rows in groups.values() for row in rows if row["best"] and row["certified"]]
    samples = max((len({row["sample"] for row in rows}) for rows in groups.values()), default=0)
    seconds = [row["seconds"]["certified"] for rows in groups.values() for row in rows]
    euclidean = {network: rows for (network, norm), rows in groups.items() if norm == "2"}
    panels = [(network, _brackets(network, rows).draw) for network, rows in euclidean.items()]
    lead = (
        f"For {samples} MNIST digits and {len(networks)} recurrent networks this page brackets how far every slice of the image "
        "may move before the network takes the digit for a given other one: the certified radius is proven safe, the attack "
        f"shows a change that fools it. No attack succeeded inside a certified radius ({total} searches)."
        if not violations
        else f"{violations} of {total} attacks succeeded inside a certified radius: a fault in this program. Please report it."
    )
    facts = [
        (f"{total}", "certified radii of correctly decided digits"),
        (f"{violations}", "attacks inside a certified radius"),
        (number(median(ratios)) if ratios else "-", "attacked / certified radius (median): what is still open"),
        (f"{1e3 * fmean(seconds):.0f} ms" if seconds else "-", "mean time of one certified radius"),
    ]
    return Report(
        title="Experiment I: MNIST digits in slices",
        lead=lead,
        facts=facts,
        sections=[
            Section("The paper's table", [_table(networks, groups), *_remarks(networks, groups)]),
            Section("Networks", [_networks(networks)]),
            *(Section(f"{network}, p = 2", _charts(network, rows)) for network, rows in euclidean.items()),
            Section("Every sample", [_samples(groups)]),
        ],
        settings=results.about,
        figures={
            "brackets.png": partial(sheet, panels=panels, columns=4, size=(3.0, 2.3), share="xy"),
            "radii.png": partial(
                sheet, panels=_radii(groups), columns=1, size=(max(4.0, 1.6 + 0.5 * len(networks)), 1.9), share="x"
            ),
        },
    )


def _decided_rightly(rows: Sequence[Row]) -> Group:
    groups: Group = defaultdict(list)
    for row in rows:
        if row["status"] != "misclassified":
            groups[row["network"], row["norm"]].append(row)
    return dict(groups)


def _mean(rows: Sequence[Row], name: str) -> float:
    return fmean(row[name] for row in rows if row[name] is not None)


def _spread(rows: Sequence[Row], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{fmean(values):.4f}/{pstdev(values):.4f}" if values else "-"


def _table(networks: Sequence[Row], groups: Group) -> Table:
    pairs = [(name, f"{name}, paper") for name in ("POPQORN", "CLEVER-RNN", "C&W-Ada")]
    columns = ["network", "norm", *pairs[0], "ours / paper", *pairs[1], *pairs[2], "best attack"]
    rows: list[list[Cell]] = []
    for network in networks:
        for norm in ("inf", "2", "1"):
            found = groups.get((network["network"], norm), [])
            if found:
                printed = paper.MNIST.get((network["network"], norm))
                theirs = [f"{mean:.4f}/{spread:.4f}" for mean, spread in printed] if printed else [None] * 3
                ratio = round(_mean(found, "certified") / printed[0][0], 2) if printed else None
                ours = [_spread(found, name) for name in METHODS]
                rows.append(
                    [network["network"], norm, ours[0], theirs[0], ratio, ours[1], theirs[1], ours[2], theirs[2], ours[3]]
                )
    note = (
        "Mean/standard deviation over correctly decided digits, as in the paper's Table 2, whose numbers stand beside ours (it "
        "has no GRUs). The paper's networks are not public, ours were trained anew: radii compare networks as well as methods. "
        "Certified / attacked, which compares methods on the same network, is in the remarks below."
    )
    return Table("table", columns, rows, note)


def _remarks(networks: Sequence[Row], groups: Group) -> list[Text]:
    def is_below(rows: Sequence[Row]) -> bool:
        return all(_mean(rows, "certified") < _mean(rows, name) for name in ("clever", "cw", "best"))

    exceptions = [f"{network} p = {norm}" for (network, norm), rows in groups.items() if not is_below(rows)]
    ordered = (
        f"The certified mean is not below CLEVER-RNN's and the attacks' in: {', '.join(exceptions)}."
        if exceptions
        else f"In every one of the {len(groups)} rows the certified mean lies below CLEVER-RNN's and below both attacks'."
    )
    return [Text(remark) for remark in (ordered, *_trends(networks, groups), *_against_paper(groups))]


def _against_paper(groups: Group) -> list[str]:
    """Ours / paper's certified radius; and certified / attacked, which compares methods whatever the networks."""
    printed = {key: paper.MNIST[key] for key in groups if key in paper.MNIST}
    if not printed:
        return []

    def ours(name: str) -> float:
        return geometric_mean([_mean(groups[key], "certified") / _mean(groups[key], name) for key in printed])

    ratios = [_mean(groups[key], "certified") / certified for key, ((certified, _), _, _) in printed.items()]
    theirs = geometric_mean([certified / attacked for (certified, _), _, (attacked, _) in printed.values()])
    return [
        f"Ours / paper's certified radius: {min(ratios):.2f} to {max(ratios):.2f}, geometric mean {geometric_mean(ratios):.2f}.",
        f"Certified / C&W-Ada, geometric mean: {ours('cw'):.3f} here, {theirs:.3f} in the paper; certified / best attack: "
        f"{ours('best'):.3f}.",
    ]


def _trends(networks: Sequence[Row], groups: Group) -> list[str]:
    """Do radii grow with the hidden size and shrink with the number of frames?"""
    return [
        *_trend(networks, groups, "hidden", "frames", "Radii grow with the hidden size", growing=True),
        *_trend(networks, groups, "frames", "hidden", "Radii shrink with the number of frames", growing=False),
    ]


def _trend(networks: Sequence[Row], groups: Group, varied: str, fixed: str, text: str, *, growing: bool) -> list[str]:
    """How many pairs of networks that differ in `varied` alone agree, and which do not."""
    pairs, against, bound_alone = 0, [], 0
    for smaller, larger in permutations(networks, 2):
        if larger["kind"] == smaller["kind"] and larger[fixed] == smaller[fixed] and larger[varied] > smaller[varied]:
            for norm in ("inf", "2", "1"):
                before, after = groups.get((smaller["network"], norm)), groups.get((larger["network"], norm))
                if before and after:
                    pairs += 1
                    low, high = _mean(before, "certified"), _mean(after, "certified")
                    if (high > low) != growing:
                        against.append(f"{smaller['network']} to {larger['network']}, p = {norm} ({low:.4f} to {high:.4f})")
                        bound_alone += (_mean(after, "best") > _mean(before, "best")) == growing
    if not pairs:
        return []
    told = f"{text} in {pairs - len(against)} of {pairs} comparisons"
    if against:
        told += (
            f"; not from {'; '.join(against)}. In {bound_alone} of these {len(against)} the attacked radius does as expected: "
            "there it is the bound that grows looser, not the network that grows weaker"
        )
    return [f"{told}."]


def _networks(networks: Sequence[Row]) -> Table:
    rows = [[row["network"], row["kind"], row["frames"], row["hidden"], round(100 * row["accuracy"], 2)] for row in networks]
    return Table("networks", ["network", "cell", "frames", "hidden", "test accuracy, %"], rows)


def _charts(network: str, rows: Sequence[Row]) -> list[Drawn]:
    series = {title: [row[name] for row in rows if row[name]] for name, title in METHODS.items()}
    spread = partial(plot.distributions, series, label="radius, p = 2")
    return [_brackets(network, rows), Drawn(f"distributions-{network}", spread, "Distribution of radii.")]


def _brackets(network: str, rows: Sequence[Row]) -> Drawn:
    """Every digit that an attack fooled the network on."""
    ordered = sorted((row for row in rows if row["best"]), key=lambda row: (row["certified"], row["best"]))
    names = [f"digit {row['sample']} ({row['label']} to {row['target']})" for row in ordered]
    lower, upper, estimate = ([row[name] for row in ordered] for name in ("certified", "best", "clever"))
    caption = "Every digit: certified, estimated by CLEVER-RNN, and attacked."
    draw = partial(plot.brackets, lower, upper, estimate=estimate, label="radius, p = 2")
    return Drawn(f"brackets-{network}", draw, caption, tips=bracket_tips(names, lower, upper, estimate))


def _radii(groups: Group) -> list[tuple[str, Callable[..., None]]]:
    """Mean radii of all methods, one panel per norm."""
    tables: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for (network, norm), rows in groups.items():
        tables[norm][network] = {title: _mean(rows, name) for name, title in METHODS.items()}
    return [(f"p = {norm}", partial(plot.means, tables[norm])) for norm in sorted(tables, reverse=True)]


def _samples(groups: Group) -> Table:
    columns = ["network", "norm", "digit", "label", "target", *METHODS.values(), "attack / certified"]
    rows: list[list[Cell]] = []
    for (network, norm), found in groups.items():
        for row in found:
            ratio = row["best"] / row["certified"] if row["best"] and row["certified"] else None
            rows.append([network, norm, row["sample"], row["label"], row["target"], *(row[name] for name in METHODS), ratio])
    return Table("samples", columns, rows)
