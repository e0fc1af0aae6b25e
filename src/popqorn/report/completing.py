"""What a page needs beside certified radii: attacks on the same samples, and some of them frame by frame."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from popqorn.report.evidence import Evidence, radius_of
from popqorn.runs.plan import Plan
from popqorn.runs.run import Prepared, prepare
from popqorn.runs.store import FAILED, Store


def newest(store: Store) -> str:
    """The newest run that certifies something; else the newest of all."""
    runs = {name: about["plan"]["command"] for name, about in store.runs().items() if "plan" in about}
    if not runs:
        raise ValueError(f"store: {str(store.path)!r} holds no runs; `popqorn certify MODEL DATA` writes one")
    proving = [name for name, command in runs.items() if command in ("certify", "verify", "bracket")]
    return (proving or list(runs))[0]


def completing(store: Store, name: str, frames: int) -> Iterator[Prepared]:
    """The runs that are missing, one by one: attacks where none were made, then the sensitivities of `frames` samples.

    Nothing, where the files of model or data are not there any more, or were never files.
    """
    found = Evidence.of(store, name)
    about = found.about
    if not about["files"] or not Path(about["data"]).is_file():
        return
    plan = Plan.of({**about["plan"], "command": "certify", "eps": None})
    missing = [sample for sample in found.right if sample not in found.attacked]
    if missing:
        yield _prepared(found, replace(plan, command="attack"), store, missing)
    alone = plan.frames is None and not plan.total and plan.synonyms is None
    chosen = _spread(found, frames) if alone else []
    done = {sample for sample, row in found.frames.items() if row["status"] != FAILED}
    if not set(chosen) <= done:
        yield _prepared(found, replace(plan, command="sensitivity"), store, chosen)


def _prepared(found: Evidence, plan: Plan, store: Store, samples: list[int]) -> Prepared:
    about = found.about
    prepared = prepare(about["model"], about["data"], plan, store=store.path, samples=samples)
    now = prepared.run.about
    changed = [what for what in ("model", "data") if now[f"{what}_hash"] != about[f"{what}_hash"]]
    changed += [what for what in ("synonyms", "inequalities") if now["decides"][what] != about["decides"][what]]
    if changed:
        names = ", ".join(f"{what} ({about.get(what) or about['plan'][what]})" for what in changed)
        raise ValueError(
            f"{names}: changed since the run, or a factory gives other weights on every call (seed it); certify it anew, or pass "
            "--as-is"
        )
    return prepared


def _spread(found: Evidence, count: int) -> list[int]:
    """Samples from the least certified radius to the greatest, evenly."""
    order = sorted(found.right, key=lambda sample: radius_of(found.certified[sample]))
    if count < 2 or len(order) <= count:
        return order[:count]
    return [order[round(place * (len(order) - 1) / (count - 1))] for place in range(count)]
