"""The page for one's own model: what is required, proven and open, in the order of ISO/IEC 24029-2."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from popqorn import plot
from popqorn.report.drawn import Drawn
from popqorn.report.evidence import WRONG, Evidence, radius_of
from popqorn.report.frames import bracket_tips, rank_correlation
from popqorn.report.page import Cell, Part, Proven, Report, Section, Table, Text, number
from popqorn.runs.store import FAILED, Row

SCHEMA = "popqorn-report-1"
SHOWN = 12
STEPS = 20
POINTED = 500  # samples with tips: more would make the page heavy, and the parts to point at too small
ARITHMETIC = (
    "Every certified radius is a proof about the network as a real function of its stored weights: bounds are rounded outwards, "
    "whatever the order of summation. What another program computes with these weights may differ by its own rounding."
)
NOT_COVERED = (
    "Perturbations outside the region above: other norms, other sizes than those proven, sequences that grow or shrink.",
    "Samples other than those of the data file: certified accuracy is that of this file, not of the field.",
    "What comes before the model's input (sensors, preprocessing, tokenisation) and after its outputs.",
    "Rounding and code of the program that runs the model in the field; the weights it loads.",
    "Whether the labels are right, and whether the data stand for what the model will meet.",
)


def report(found: Evidence, require: float | None = None) -> Report:
    if not found.certified:
        raise ValueError("the store holds no certified radii of this model; run `popqorn certify` or `bracket` first")
    return Report(
        title=f"Robustness of {Path(found.about['model']).name}",
        lead=_verdict(found, require),
        facts=_facts(found, require),
        sections=[
            Section("1. Domain: what may happen to the inputs", _domain(found)),
            Section("2. Stability: how far the decision is proven to stay", _stability(found, require)),
            Section("3. Sensitivity: frame by frame, both sides", _sensitivity(found, require)),
            Section("4. Relevance: what the decisions rest on", _relevance(found)),
            Section("5. Reachability: what a perturbation can make of a decision", _reachability(found)),
            Section("Samples to look at first", _first(found)),
            Section("Every sample", [_table("samples", found, found.samples)]),
            Section("What is not covered", [Text(f"{place}. {text}") for place, text in enumerate(NOT_COVERED, start=1)]),
        ],
        settings=_settings(found),
        data=as_data(found, require),
        met=None if require is None else bool(_requirement(found, require)["met"]),
        figures={picture.name + ".png": picture.write for picture in _pictures(found, require)},
    )


def as_data(found: Evidence, require: float | None) -> Row:
    """The page for programs; report.schema.json says what it holds."""
    sizes = _sizes(found)
    rows = [
        {
            "sample": sample,
            "label": row["label"],
            "decision": row["decision"],
            "status": row["status"],
            "certified": _finite(radius_of(row)),
            "attacked": _finite(high),
        }
        for (sample, row), high in zip(found.certified.items(), found.upper(found.samples), strict=True)
    ]
    frames = [
        {"sample": sample, "certified": list(map(_finite, row["frames"])), "attacked": list(map(_finite, row["frames_attacked"]))}
        for sample, row in found.frames.items()
        if row["status"] != FAILED
    ]
    return {
        "schema": SCHEMA,
        "about": {**found.about, **{part: _plain(found.about[part]) for part in ("plan", "decides")}},
        "requirement": None if require is None else _requirement(found, require),
        "accuracy": {"clean": _share(found, len(found.right)), "curve": _curve(found, sizes)},
        "samples": rows,
        "sensitivity": frames,
        "not_covered": list(NOT_COVERED),
    }


# ---- on top ------------------------------------------------------------------------------------------------------------------


def _requirement(found: Evidence, require: float) -> Row:
    proven = len(found.meeting(require))
    return {"eps": require, "proven": proven, "broken": len(found.broken(require)), "met": proven == len(found.asked)}


def _verdict(found: Evidence, require: float | None) -> str:
    total = len(found.asked)
    done = f" {total - len(found.certified)} samples have no result yet." if len(found.certified) < total else ""
    fault = f" {len(found.violations)} attacks succeeded inside a certified radius: a fault, please report it." * bool(
        found.violations
    )
    if require is None:
        return (
            f"No requirement was given (--require EPS). Of {total} samples {len(found.right)} are decided rightly.{done}{fault}"
        )
    proven, broken = len(found.meeting(require)), len(found.broken(require))
    wrong = sum(row["status"] in WRONG for row in found.certified.values())
    state = "met" if _requirement(found, require)["met"] else "not met"
    rest = (
        f"{wrong} are decided wrongly as they are, {broken} are broken by an attack within that size, "
        f"{max(0, len(found.certified) - proven - wrong - broken)} are open or failed."
    )
    return f"Requirement {state}: {proven} of {total} samples are proven to the size {require:g}; {rest}{done}{fault}"


def _facts(found: Evidence, require: float | None) -> list[tuple[str, str]]:
    lower = found.lower(found.right)
    ratios = [high / low for low, high in zip(lower, found.upper(found.right), strict=True) if low > 0 and math.isfinite(high)]
    facts = [
        (f"{100 * _share(found, len(found.right)):.1f} %", "decided rightly as they are"),
        (number(Proven(median(lower))) if lower else "-", "certified radius, the median of those decided rightly"),
        (number(Proven(min(lower))) if lower else "-", "certified radius, the least of those decided rightly"),
        (number(median(ratios)) if ratios else "-", "attacked / certified radius (median): what is still open"),
    ]
    if require is not None:
        share = 100 * _share(found, len(found.meeting(require)))
        facts.insert(0, (f"{share:.1f} %", f"certified accuracy at {require:g}"))
    return facts


# ---- sections ----------------------------------------------------------------------------------------------------------------


def _domain(found: Evidence) -> list[Part]:
    plan = found.about["plan"]
    text = f"{_moving(plan)} What is proven of every sample: {_claim(plan)}."
    classes = Counter(row["label"] for row in found.certified.values())
    rows = [
        ["no label" if label is None else label, count] for label, count in sorted(classes.items(), key=lambda item: str(item))
    ]
    return [Text(text), Table("classes", ["class", "samples"], rows)]


def _moving(plan: Row) -> str:
    """What may happen to the inputs, in words."""
    if plan["synonyms"] is not None:
        most = "All of them" if plan["most"] is None else f"At most {plan['most']}"
        words = f"Words may be exchanged for those that {plan['synonyms']} names."
        return f"{words} {most} may be exchanged at once; sizes are numbers of words."
    moved = "All frames together have one budget" if plan["total"] else "Every frame has a budget of its own"
    which = "" if plan["frames"] is None else f" Only frames {', '.join(map(str, plan['frames']))} move."
    scale = "" if plan["scale"] is None else " Every feature has its own share of the size (scale, below)."
    clip = "" if plan["clip"] is None else f" Inputs never leave [{plan['clip'][0]:g}, {plan['clip'][1]:g}]."
    norm = "maximum norm" if math.isinf(plan["norm"]) else f"l_{plan['norm']:g} norm"
    return f"{moved} in the {norm}.{which}{scale}{clip}"


def _claim(plan: Row) -> str:
    if plan["within"] is not None:
        return f"every output stays within {plan['within']:g} of what it is"
    if plan["inequalities"] is not None:
        return f"the inequalities of {plan['inequalities']} hold"
    return "the decision stays"


def _pictures(found: Evidence, require: float | None) -> list[Drawn]:
    samples = found.samples
    lower, upper = found.lower(samples), found.upper(samples)
    known = [high for high in upper if not math.isnan(high)]
    both = upper if len(known) == len(upper) else None
    caption = "Certified accuracy over sizes" + (", and accuracy under attack: the truth lies between." if both else ".")
    pictures = [Drawn("accuracy", partial(plot.accuracy, lower, both, require=require), caption)]
    if any(math.isfinite(high) for high in found.upper(found.right)):
        bounds = np.array([found.lower(found.right), found.upper(found.right)])
        order = np.lexsort(bounds[::-1])
        names = [f"sample {found.right[place]}" for place in order[:POINTED]]
        tips = bracket_tips(names, *bounds[:, order[:POINTED]].tolist())
        caption = "Every sample decided rightly: from what is certified to what an attack reaches."
        pictures.append(Drawn("brackets", partial(plot.brackets, *bounds), caption, tips=tips))
    return pictures


def _stability(found: Evidence, require: float | None) -> list[Part]:
    curve = _curve(found, _sizes(found))
    rows = [
        [each["eps"], 100 * each["certified"], None if each["attacked"] is None else 100 * each["attacked"]] for each in curve
    ]
    table = Table("curve", ["size", "certified, %", "not broken by an attack, %"], rows)
    missing = [sample for sample in found.right if sample not in found.attacked]
    note = [Text(f"{len(missing)} samples were not attacked; popqorn attack fills this in.")] if missing else []
    return [*_pictures(found, require), *note, table]


def _sensitivity(found: Evidence, require: float | None) -> list[Part]:
    shown = [(sample, row) for sample, row in found.frames.items() if row["status"] not in (FAILED, *WRONG)][:SHOWN]
    if not shown:
        return [Text("No sample was asked frame by frame; popqorn sensitivity fills this in.")]
    text = (
        "How far each frame alone may move. Where bounds are loose the certified side shows the bound's trend, not the "
        "network's: read both sides, and trust an order of frames only where the bars do not overlap."
    )
    return [Text(text), *(_frames(sample, row, require) for sample, row in shown)]


def _frames(sample: int, row: Row, require: float | None) -> Drawn:
    names = row.get("words")
    tips = [
        f"{names[place] if names else f'frame {place}'}: certified {number(Proven(low))}, attacked {number(high)}"
        for place, (low, high) in enumerate(zip(row["frames"], row["frames_attacked"], strict=True))
    ]
    draw = partial(plot.sensitivity, row["frames"], row["frames_attacked"], names=names, require=require)
    told = f"sample {sample}" + ("" if row["label"] is None else f", class {row['label']}")
    return Drawn(f"frames-{sample}", draw, told, (6.2, 2.1), tips)


def _relevance(found: Evidence) -> list[Part]:
    rows: list[list[Cell]] = []
    for sample, row in found.frames.items():
        if row["status"] in (FAILED, *WRONG) or len(row["frames"]) < 3:
            continue
        low, high = row["frames"], row["frames_attacked"]
        names = row.get("words") or [str(place) for place in range(len(low))]
        first = sorted(range(len(low)), key=lambda place: high[place])[:3]
        rows.append([sample, ", ".join(names[place] for place in first), _agreement(low, high)])
    if not rows:
        return [Text("Without sensitivities nothing can be said; popqorn sensitivity fills this in.")]
    text = (
        "The frames whose change an attack needs least of: an expert should find in them what the decision ought to rest on. "
        "The last column is the rank correlation of the certified and the attacked side (1: both put the frames in one order)."
    )
    columns = ["sample", "frames that an attack needs to move least", "agreement of both sides"]
    return [Text(text), Table("relevance", columns, rows)]


def _agreement(low: Sequence[float], high: Sequence[float]) -> float | None:
    pairs = [(a, b) for a, b in zip(low, high, strict=True) if math.isfinite(b)]
    found = rank_correlation(*zip(*pairs, strict=True)) if pairs else math.nan
    return None if math.isnan(found) else found


def _reachability(found: Evidence) -> list[Part]:
    reached: dict[tuple[Any, Any], list[float]] = {}
    for sample in found.right:
        row = found.attacked.get(sample)
        if row is not None and row.get("reached") is not None:
            reached.setdefault((found.certified[sample]["decision"], row["reached"]), []).append(row["attacked"])
    if not reached:
        return [Text("No attack reached another decision, or none was tried (popqorn attack).")]
    rows = [
        [*pair, len(sizes), min(sizes), median(sizes)] for pair, sizes in sorted(reached.items(), key=lambda item: min(item[1]))
    ]
    text = (
        "The decisions that attacks reached, and how far they had to go; below the certified radius none can be reached at all."
    )
    return [Text(text), Table("reached", ["from class", "to class", "samples", "least size", "median size"], rows)]


def _first(found: Evidence) -> list[Part]:
    wrong = [sample for sample, row in found.certified.items() if row["status"] in WRONG]
    odd = [sample for sample, row in found.certified.items() if row["status"] in (FAILED, "differs")]
    least = sorted(found.right, key=lambda sample: radius_of(found.certified[sample]))[:SHOWN]
    parts: list[Part] = [
        Text("Of those decided rightly, the ones with the least certified radius:"),
        _table("least", found, least),
    ]
    if wrong:
        parts += [Text(f"Decided otherwise than labelled: {_listed(wrong)}.")]
    if odd:
        parts += [Text(f"Failed, or the model itself computes something else than what was read: {_listed(odd)}.")]
        errors: list[list[Cell]] = [[sample, str(found.certified[sample].get("error", ""))] for sample in odd[:SHOWN]]
        parts += [Table("failures", ["sample", "why"], errors)]
    return parts


def _table(name: str, found: Evidence, samples: Sequence[int]) -> Table:
    columns = ["sample", "label", "decision", "certified", "attacked", "attacked / certified", "status"]
    rows: list[list[Cell]] = []
    for sample, low, high in zip(samples, found.lower(samples), found.upper(samples), strict=True):
        row = found.certified[sample]
        ratio = high / low if low > 0 and math.isfinite(high) else None
        rows.append([sample, row["label"], row["decision"], Proven(low), _finite(high), ratio, row["status"].replace("_", " ")])
    return Table(name, columns, rows)


def _settings(found: Evidence) -> Row:
    about = {name: value for name, value in found.about.items() if name not in ("plan", "decides")}
    plan = {name: value for name, value in found.about["plan"].items() if value is not None}
    return {**about, **plan, "arithmetic": ARITHMETIC}


# ---- numbers -----------------------------------------------------------------------------------------------------------------


def _share(found: Evidence, count: int) -> float:
    return count / len(found.asked)


def _sizes(found: Evidence) -> list[float]:
    finite = [radius for radius in [*found.lower(found.right), *found.upper(found.right)] if math.isfinite(radius)]
    greatest = max(finite, default=1.0) or 1.0
    return sorted({Proven(greatest * (step + 1) / STEPS).down() for step in range(STEPS)})


def _curve(found: Evidence, sizes: Sequence[float]) -> list[Row]:
    lower, upper = found.lower(found.samples), found.upper(found.samples)
    known = not any(math.isnan(high) for high in upper)
    return [
        {
            "eps": size,
            "certified": _share(found, sum(low >= size for low in lower)),
            "attacked": _share(found, sum(high > size for high in upper)) if known else None,
        }
        for size in sizes
    ]


def _plain(settings: Row) -> Row:
    return {name: _finite(value) for name, value in settings.items()}


def _finite(value: Any) -> Any:
    """JSON has no infinite numbers: null, or their name where a setting is meant."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _listed(samples: Sequence[int]) -> str:
    return ", ".join(map(str, samples[:SHOWN])) + (f" and {len(samples) - SHOWN} more" if len(samples) > SHOWN else "")
