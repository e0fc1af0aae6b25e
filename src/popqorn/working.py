"""A run at the command line: what it will do, how far it is, what it found; a log beside the store; exit codes for scripts."""

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from popqorn.report.evidence import radius_of
from popqorn.report.page import Proven, number
from popqorn.runs.export import export
from popqorn.runs.run import Prepared, Run
from popqorn.runs.store import FAILED, Row

EVERY = 60.0  # seconds between lines where there is no terminal
MET, NOT_MET, USAGE, INTERRUPTED = 0, 1, 2, 3
PICTURES = (".png", ".svg", ".pdf")
SIZES = 10  # of a curve
TOLD = 3  # samples that failed for one reason; the log has them all

log = logging.getLogger("popqorn")


def worked(console: Console, prepared: Prepared, engine: Any) -> bool:
    """Do what is left; False if the user stopped it."""
    plan, total, left = prepared.worker.plan, len(prepared.keys), len(prepared.left)
    how = "" if plan.command == "attack" else f"{plan.method}, "
    region = f"p = {plan.norm:g}" if plan.synonyms is None else "words"
    what = (
        f"{plan.command}: {total} samples, {total - left} done before; {how}{region}, {plan.dtype}, "
        f"{engine.workers} worker(s). Rows are kept in {prepared.run.store.path} (run {prepared.run.name})."
    )
    say(console, what)
    try:
        with logged(prepared.run.store.path.with_name(f"{prepared.run.name}.log")):
            log.info("%s", what)
            with _progress(console, plan.command, total - left, total) as tell:
                prepared.work(engine, tell)
            log.info("done")
    except KeyboardInterrupt:
        console.print("Stopped. What is done is kept; the same command goes on from there.")
        return False
    return True


@contextmanager
def _progress(console: Console, what: str, before: int, total: int) -> Iterator[Any]:
    """A bar with the time left; where there is no terminal, a line after the first batch and one a minute."""
    started = said = time.perf_counter()
    counted = 0
    failures = Counter[str]()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[proven]}"),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what, total=total, completed=before, proven="")

    def tell(done: int, total: int, rows: list[Row]) -> None:
        nonlocal said, counted
        counted += sum(row["status"] == "broken" if what == "attack" else radius_of(row) > 0 for row in rows)
        for row in rows:
            if row["status"] == FAILED:
                log.warning("sample %d failed: %s", row["sample"], row["error"])
                reason = re.sub(r"\d+", "", row["error"])
                failures[reason] += 1
                if failures[reason] <= TOLD:
                    say(console, f"sample {row['sample']} failed: {row['error']}", "yellow")
                if failures[reason] == TOLD:
                    say(console, "More that fail for this reason are in the log.", "yellow")
        spent, new = time.perf_counter() - started, done - before
        share = f"{100 * counted / new:.0f} % {'broken' if what == 'attack' else 'proven'}" if new else ""
        bar.update(task, completed=done, proven=share)
        log.info("%d of %d done, %s", done, total, share)
        first = said == started
        if not console.is_terminal and (first or time.perf_counter() - said >= EVERY):
            said = time.perf_counter()
            console.print(
                f"{what}: {done} of {total}, {spent:.0f} s, about {spent / max(new, 1) * (total - done):.0f} s left, {share}"
            )
            console.file.flush()

    with bar:
        yield tell


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Everything that is logged goes to a file as well, line by line."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)
        handler.close()


# ---- what was found ------------------------------------------------------------------------------------------------------------


def show_rows(console: Console, run: Run, out: Path | None) -> None:
    """How many samples have which status, and the median radius of each."""
    counts = Counter[str]()
    radii: dict[str, list[float]] = {}
    for row in run.rows:
        counts[row["status"]] += 1
        size = row["attacked"] if row["radius"] is None and "attacked" in row else row["radius"]
        if size is not None:
            radii.setdefault(row["status"], []).append(size)
    table = Table("status", "samples", "median size")
    for status, count in counts.most_common():
        table.add_row(status.replace("_", " "), str(count), number(Proven(median(radii[status]))) if status in radii else "")
    console.print(table)
    if out is not None:
        export(run.rows, out)
        say(console, f"{sum(counts.values())} rows in {out}.")


def show_curve(console: Console, run: Run, out: Path | None) -> None:
    """Shares of samples that are proven, and not broken, at sizes up to the greatest that is proven."""
    from popqorn import plot

    rows = list(run.rows)
    lower = np.array([radius_of(row) for row in rows] or [0.0])
    upper = np.array([math.inf if row["status"] == FAILED else row["attacked"] for row in rows] or [0.0])
    greatest = max(lower[np.isfinite(lower)].max(initial=0.0), 1e-9)
    sizes = np.array([Proven(greatest * step / SIZES).down() for step in range(1, SIZES + 1)])
    proven, unbroken = plot.holding(lower, sizes), plot.left(upper, sizes)
    table = Table("size", "certified, %", "not broken, %")
    found = [{"size": s, "certified": low, "unbroken": high} for s, low, high in zip(sizes, proven, unbroken, strict=True)]
    for row in found:
        table.add_row(f"{row['size']:.3g}", f"{100 * row['certified']:.1f}", f"{100 * row['unbroken']:.1f}")
    console.print(table)
    if out is not None and out.suffix.lower() in PICTURES:
        from popqorn.report.drawn import Drawn

        Drawn("accuracy", lambda axis: plot.accuracy(lower, upper, axis=axis), "").write(out)
    elif out is not None:
        export(({name: float(value) for name, value in row.items()} for row in found), out, first=())
    if out is not None:
        say(console, f"Curve in {out}.")


@contextmanager
def told(console: Console) -> Iterator[None]:
    """Bad input ends with a sentence, not with a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        say(console, "Stopped. What is done is kept; the same command goes on from there.")
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError) as error:
        say(console, f"Error: {error}", "bold red")
        raise typer.Exit(USAGE) from error


def say(console: Console, text: str, style: str = "") -> None:
    """A line as it is: brackets in names and messages are no markup."""
    console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)
