"""Certified training as a report: what every way of training costs in accuracy and gives in certificates."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from popqorn.experiments.results import Results
from popqorn.experiments.ways import CERTIFIED, PLAIN, WAYS
from popqorn.report import figures
from popqorn.report.page import Cell, Report, Section, Table, Text
from popqorn.runs.store import Row

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
GAINS = (
    "network",
    "eps",
    "training",
    "accuracy lost, points",
    "lost on held back",
    "certified, %",
    "times the plain radius",
    "certified / attacked",
)
JOINT = ("network", "training", "samples", "tight / planes", "planes / attacked", "tight / attacked")
WHAT = (
    "Clean: right decisions on the test set; held back: on a tenth of the training set. Certified: samples of the test set that "
    "are decided rightly and proven up to eps; not broken: right, and no attack of size eps was found. Radii: means over samples "
    "decided rightly; attacked radii, and ratios, over those that an attack broke. The eps of questions is a number of words "
    "exchanged at once; their radii would be without end where all words may go, and are left out. With several seeds: "
    "means, and the deviation between seeds. The LSTM of 14 frames is trained for 1.5 eps."
)


@dataclass(frozen=True)
class Line:
    """One way of training one network: a record of means for every seed."""

    network: str
    way: str
    strength: float
    seeds: tuple[Row, ...]

    @property
    def training(self) -> str:
        return f"{self.way} {self.strength:g}" if self.strength else self.way

    def each(self, name: str) -> list[float]:
        """One number per seed."""
        return [row[name] for row in self.seeds if row[name] is not None]

    def mean(self, name: str) -> float | None:
        values = self.each(name)
        return fmean(values) if values else None


def report(results: Results) -> Report:
    """Everything from the tables `networks`, `samples` and `tight`."""
    lines = _lines(results)
    if not lines:
        raise ValueError(f"{str(results.folder)!r} holds no networks yet; run the experiment for a while before its report")
    plain = {line.network: line for line in lines if line.way == PLAIN}
    gains = [fmean(gains) for line in lines if line.way == CERTIFIED and (gains := _gains(line, plain))]
    rows = _rows_by_network(results)
    sections = [
        Section("What certified training costs and gives", [_summary(lines, plain), Text(WHAT)]),
        Section("Every way of training", [_table(lines, plain)]),
    ]
    joint = _joint(results, rows)
    if joint.rows:
        sections.append(Section("Joint bounds beside planes", [joint]))
    return Report(
        title="Networks that can be certified",
        lead=(
            "The same networks, trained in several ways and certified by planes, p = inf (questions: synonyms of any words). "
            "Certified training is adversarial training with one more term in the loss: the logarithm of the squared widths of "
            "the boxes that certificates rest on. Small boxes: SABR, Mueller et al. 2023; intervals: Gowal et al. 2018."
        ),
        facts=[
            (f"{_inside(results, rows)}", "attacks inside a certified radius"),
            *([(f"{max(gains):.1f} x", "the certified radius of plain training, at most")] if gains else []),
        ],
        sections=sections,
        settings=results.about,
        figures={"fronts.png": lambda path: figures.fronts(_fronts(lines), path)},
    )


# ---- what was measured -------------------------------------------------------------------------------------------------------


def _rows_by_network(results: Results) -> dict[tuple[str, str, float, int], dict[int, Row]]:
    found: dict[tuple[str, str, float, int], dict[int, Row]] = defaultdict(dict)
    for row in results.rows("samples"):
        found[_key(row)][row["sample"]] = row
    return found


def _key(row: Row) -> tuple[str, str, float, int]:
    return row["network"], row["way"], row["strength"], row["seed"]


def _lines(results: Results) -> list[Line]:
    """Networks in the order in which they were begun, the ways of training of each from plain to the strongest."""
    samples = _rows_by_network(results)
    seeds: dict[tuple[str, str, float], list[Row]] = defaultdict(list)
    for network in results.rows("networks"):
        rows = list(samples[_key(network)].values())
        if rows:
            seeds[_key(network)[:3]].append({**network, **_means(rows)})
    networks = list(dict.fromkeys(network for network, _, _ in seeds))
    order = sorted(seeds, key=lambda key: (networks.index(key[0]), WAYS.index(key[1]), key[2]))
    return [Line(*key, tuple(seeds[key])) for key in order]


def _means(rows: Sequence[Row]) -> Row:
    """Of one network. Radii are left out where some have no end."""
    searched = [row for row in rows if row["right"] and "certified" in row]
    endless = any(row["certified"] is None for row in searched)
    broken = [] if endless else [row for row in searched if row["attacked"] is not None]
    return {
        "proven": fmean(row["proven"] for row in rows),
        "unbroken": fmean(not row["broken"] for row in rows),
        "certified": fmean(row["certified"] for row in searched) if searched and not endless else None,
        "attacked": fmean(row["attacked"] for row in broken) if broken else None,
        "ratio": fmean(row["certified"] / row["attacked"] for row in broken) if broken else None,
    }


def _inside(results: Results, rows: dict[tuple[str, str, float, int], dict[int, Row]]) -> int:
    """Samples where an attack contradicts a proof; there are none unless something is wrong."""
    samples = [row for each in rows.values() for row in each.values()]
    of_planes = [_contradicted(row, row["certified"]) for row in samples if "certified" in row]
    at_eps = [bool(row["proven"] and row["broken"]) for row in samples]
    tight = [_contradicted(rows[_key(row)].get(row["sample"], {}), row["tight"]) for row in results.rows("tight")]
    return sum(of_planes) + sum(at_eps) + sum(tight)


def _contradicted(row: Row, radius: float | None) -> bool:
    attacked = row.get("attacked")
    return attacked is not None and (radius is None or 0 < attacked <= radius)


# ---- tables ------------------------------------------------------------------------------------------------------------------


def _summary(lines: Iterable[Line], plain: dict[str, Line]) -> Table:
    rows: list[list[Cell]] = []
    for line in lines:
        if line.way != CERTIFIED or line.network not in plain:
            continue
        lost = [_paired(line, plain[line.network], name, lambda now, then: 100 * (then - now)) for name in ("clean", "held")]
        gain = _gains(line, plain)
        ratio = line.each("ratio")
        shares = [100 * share for share in line.each("proven")]
        told: list[Cell] = [*map(_spread, lost), _spread(shares, 1), _spread(gain, 1) or None, _spread(ratio) or None]
        rows.append([line.network, line.seeds[0]["eps"], line.training, *told])
    note = "Beside plain training with the same seeds; a negative loss of accuracy is a gain."
    return Table("gains", GAINS, rows, note)


def _table(lines: Iterable[Line], plain: dict[str, Line]) -> Table:
    rows: list[list[Cell]] = []
    for line in lines:
        shares = [_spread([100 * share for share in line.each(name)]) for name in ("clean", "held", "proven", "unbroken")]
        radii: list[Cell] = [line.mean(name) for name in ("certified", "attacked", "ratio")]
        rows.append([line.network, line.training, len(line.seeds), *shares, *radii, _spread(_gains(line, plain), 1) or None])
    return Table("training", COLUMNS, rows)


def _joint(results: Results, rows: dict[tuple[str, str, float, int], dict[int, Row]]) -> Table:
    """The radii of joint bounds, of planes and of attacks on the same samples."""
    found: dict[tuple[str, str, float, int], list[tuple[float, float, float]]] = defaultdict(list)
    for row in results.rows("tight"):
        beside = rows[_key(row)].get(row["sample"], {})
        if row["tight"] and beside.get("certified") and beside.get("attacked"):
            found[_key(row)].append((row["tight"], beside["certified"], beside["attacked"]))
    told: list[list[Cell]] = []
    for (network, way, strength, _), radii in found.items():
        ratios = [
            fmean(tight / planes for tight, planes, _ in radii),
            fmean(planes / attacked for _, planes, attacked in radii),
            fmean(tight / attacked for tight, _, attacked in radii),
        ]
        told.append([network, Line(network, way, strength, ()).training, len(radii), *(round(ratio, 3) for ratio in ratios)])
    return Table("tight", JOINT, told, 'method="tight" (effort 1) beside planes, first seed, the first samples of the test set.')


def _gains(line: Line, plain: dict[str, Line]) -> list[float]:
    """The certified radius over that of plain training, seed by seed."""
    before = plain.get(line.network)
    return _paired(line, before, "certified", lambda now, then: now / then) if before is not None else []


def _paired(line: Line, other: Line, name: str, of: Callable[[float, float], float]) -> list[float]:
    """For every seed that both have, what becomes of both numbers."""
    there = {row["seed"]: row[name] for row in other.seeds}
    both = [(row[name], there.get(row["seed"])) for row in line.seeds]
    return [of(value, beside) for value, beside in both if value and beside]


def _spread(values: Sequence[float], digits: int = 2) -> str:
    if not values:
        return ""
    return f"{fmean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def _fronts(lines: Iterable[Line]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    panels: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        panels[line.network][line.way] += [(100 * row["clean"], 100 * row["proven"]) for row in line.seeds]
    return {network: dict(ways) for network, ways in panels.items()}
