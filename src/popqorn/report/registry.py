"""From results to their report: which experiment they are of decides."""

from collections.abc import Callable

from popqorn.experiments.store import Store
from popqorn.report import mnist, relaxations, signals, strokes, words
from popqorn.report.page import Report

REPORTS: dict[str, Callable[[Store], Report]] = {
    "mnist": mnist.report,
    "relaxations": relaxations.report,
    "strokes": strokes.report,
    "questions": words.report_questions,
    "news": words.report_news,
    "speech": signals.report_speech,
    "ecg": signals.report_ecg,
}


def report_of(store: Store) -> Report:
    name = store.about["experiment"]
    if name not in REPORTS:
        raise ValueError(f"{str(store.folder)!r} holds results of {name!r}; reports exist for {', '.join(REPORTS)}")
    return REPORTS[name](store)
