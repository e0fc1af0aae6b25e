"""From results to their report: which experiment they are of decides."""

from collections.abc import Callable
from dataclasses import replace

from popqorn.experiments.results import Results
from popqorn.report import certifiable, mnist, relaxations, signals, strokes, words
from popqorn.report.page import Report
from popqorn.runs.store import Row

MOST_NAMED = 10
REPORTS: dict[str, Callable[[Results], Report]] = {
    "mnist": mnist.report,
    "relaxations": relaxations.report,
    "strokes": strokes.report,
    "training": certifiable.report,
    "questions": words.report_questions,
    "news": words.report_news,
    "speech": signals.report_speech,
    "ecg": signals.report_ecg,
}


def report_of(results: Results) -> Report:
    name = results.about["experiment"]
    if name not in REPORTS:
        raise ValueError(f"{str(results.folder)!r} holds results of {name!r}; reports exist for {', '.join(REPORTS)}")
    report = REPORTS[name](results)
    missing = [_told(*one) for one in results.missing()]
    if not missing:
        return report
    notice = "This run was stopped before it was done. Missing: " + "; ".join(missing) + ". The same command goes on from there."
    return replace(report, lead=f"{notice} {report.lead}")


def _told(table: str, group: Row, samples: list[int]) -> str:
    shown = ", ".join(map(str, samples[:MOST_NAMED])) + (", ..." if len(samples) > MOST_NAMED else "")
    of = "".join(f", {name} {value}" for name, value in group.items())
    return f"{len(samples)} rows of {table}{of} (samples {shown})"
