"""Experiment III and its appendix as a report: sentences coloured by sensitivity, and what swapping words really does."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
from scipy.stats import bootstrap

from popqorn.experiments.frames import most_sensitive
from popqorn.experiments.results import Results
from popqorn.report.drawn import sheet
from popqorn.report.figures import sentence
from popqorn.report.frames import Frames, position_picture, position_section
from popqorn.report.page import Cell, Report, Scale, Section, Table, Text, Words
from popqorn.runs.store import Row

UNDERLINED = 3
SHOWN = 40
OFTEN = 3
RESAMPLES = 2000
QUESTION_WORDS = frozenset(("what", "which", "who", "whom", "whose", "when", "where", "why", "how"))
FUNCTION_WORDS = frozenset(
    (
        *("a", "an", "the", "this", "that", "these", "those", "not", "no", "and", "or", "but"),
        *("of", "in", "on", "at", "to", "from", "for", "with", "by", "as", "'s"),
        *("is", "are", "was", "were", "be", "been", "do", "does", "did", "has", "have", "had", "can", "could", "will", "would"),
        *("it", "its", "he", "she", "they", "his", "her", "their", "i", "you", "we"),
    )
)
Place = tuple[Row, int]
Choose = Callable[[Row], Sequence[int]]


@dataclass(frozen=True)
class Swaps:
    """How often a decision changes when one word is exchanged for a near one, for the chosen words and for the others."""

    chosen: float
    others: float
    low: float
    high: float
    sentences: int

    @staticmethod
    def of(rows: Sequence[Row], choose: Choose) -> "Swaps":
        """Rates are means over sentences; `low` to `high` holds their difference with 95 % (bootstrap over sentences)."""
        pairs = []
        for row in rows:
            chosen = set(choose(row))
            rates = {place: _changed(row, place) for place in range(len(row["words"])) if row["swaps"][place]}
            inside = [rate for place, rate in rates.items() if place in chosen]
            outside = [rate for place, rate in rates.items() if place not in chosen]
            if inside and outside:
                pairs.append((fmean(inside), fmean(outside)))
        if not pairs:
            nothing = float("nan")
            return Swaps(nothing, nothing, nothing, nothing, 0)
        table = np.array(pairs)
        rate, others = table.mean(0)
        differences = table[:, 0] - table[:, 1]
        low = high = differences.mean()
        if np.ptp(differences):
            interval = bootstrap((differences,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=0).confidence_interval
            low, high = interval
        return Swaps(float(rate), float(others), float(low), float(high), len(pairs))

    def __str__(self) -> str:
        return (
            f"{100 * self.chosen:.1f} % of all tries, swapping another word in {100 * self.others:.1f} % (difference "
            f"{100 * (self.chosen - self.others):+.1f} points, 95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f}, "
            f"{self.sentences} sentences)"
        )


def sensitive_words(row: Row) -> list[int]:
    """The words that are underlined."""
    return most_sensitive(row["radii"], UNDERLINED)


def verdict(rows: Sequence[Row]) -> str:
    """Do the words of least radius matter more than others, and is that more than their place in the sentence?"""
    swaps = Swaps.of(rows, sensitive_words)
    if swaps.sentences == 0:
        return "There are no swaps to judge by yet."
    sure = "supports" if swaps.low > 0 else "refutes" if swaps.high < 0 else "neither supports nor refutes"
    return (
        f"Swapping one of the three most sensitive words for a near one changes the decision in {swaps}: this {sure} the paper's "
        "reading that the words of least radius are those that matter."
    )


def rival(rows: Sequence[Row]) -> str:
    """The simpler reading: the first words matter, and happen to have the least radii."""
    first = Swaps.of(rows, lambda row: range(UNDERLINED))
    underlined = [place for row in rows for place in sensitive_words(row)]
    share = fmean(place < UNDERLINED for place in underlined)
    return (
        f"A simpler reading is that the first words matter: {100 * share:.0f} % of the underlined words are among the first "
        f"three of their sentence, and swapping one of the first three changes the decision in {first}."
    )


def report_questions(results: Results) -> Report:
    return _report(results, "Experiment III: the words that decide a question's class", "questions")


def report_news(results: Results) -> Report:
    return _report(results, "Appendix B.4: the words that decide the topic of a news title", "news titles")


def _report(results: Results, title: str, kind: str) -> Report:
    found = Frames.of(results)
    rows = found.right
    swaps = Swaps.of(rows, sensitive_words)
    panels = [("", partial(sentence, row["words"], row["radii"], _caption(row))) for row in rows[:10]]
    return Report(
        title=title,
        lead=(
            f"For {len(rows)} {kind} this page shows how far every single word's vector may move before the network could decide "
            f"otherwise. {found.soundness()} {verdict(rows)}"
        ),
        facts=[
            *found.facts("word"),
            (f"{100 * swaps.chosen:.1f} %", "swaps of one of the three most sensitive words that change the decision"),
            (f"{100 * swaps.others:.1f} %", "swaps of another word that change the decision"),
        ],
        sections=[
            Section(
                "Sentences",
                [
                    Text(
                        "Colour and the small number are the certified radius of each word alone (p = 2, in GloVe units); the "
                        "three most sensitive words are underlined. Point at a word to see which near words change the decision."
                    ),
                    Scale(),
                    *(_sentence(row) for row in rows[:SHOWN]),
                ],
            ),
            Section("Does it matter to swap them?", [Text(verdict(rows)), Text(rival(rows))]),
            Section("Which words", [_word_table(rows), _kind_table(rows)]),
            position_section(rows, "word", [_position_table(rows)]),
            *found.overview("word"),
            Section("Every sentence", [found.table("word")]),
        ],
        settings=results.about,
        figures={
            "position.png": position_picture(rows, "word").write,
            "sentences.png": partial(sheet, panels=panels, columns=1, size=(9.0, 0.62)),
        },
    )


def _caption(row: Row) -> str:
    return f"sentence {row['sample']}: {row['decision']}"


def _sentence(row: Row) -> Words:
    remarks = []
    for outcomes in row["swaps"]:
        changing = [f"{word} ({decision})" for word, decision in outcomes.items() if decision != row["decision"]]
        remarks.append(
            "" if not outcomes else f"Changed by: {', '.join(changing)}" if changing else "No near word changes the decision"
        )
    return Words(row["words"], row["radii"], sensitive_words(row), _caption(row), remarks)


def _changed(row: Row, place: int) -> float:
    return fmean(decision != row["decision"] for decision in row["swaps"][place].values())


def _places(rows: Sequence[Row]) -> tuple[list[Place], list[Place]]:
    """All words, and those among the three most sensitive of their sentence."""
    every = [(row, place) for row in rows for place in range(len(row["words"]))]
    return every, [(row, place) for row in rows for place in sensitive_words(row)]


def _word_table(rows: Sequence[Row]) -> Table:
    every, sensitive = (Counter(row["words"][place] for row, place in places) for places in _places(rows))
    often = [word for word, count in sensitive.most_common() if every[word] >= OFTEN][:30]
    cells: list[list[Cell]] = [[word, sensitive[word], every[word], sensitive[word] / every[word]] for word in often]
    columns = ["word", "times among the three", "occurrences", "share"]
    return Table("words", columns, cells, f"Words that occur at least {OFTEN} times, the most often sensitive first.")


def _kind(word: str) -> str:
    if word in QUESTION_WORDS:
        return "question word"
    if not any(letter.isalnum() for letter in word):
        return "punctuation"
    return "function word" if word in FUNCTION_WORDS else "content word"


def _kind_table(rows: Sequence[Row]) -> Table:
    every, sensitive = (Counter(_kind(row["words"][place]) for row, place in places) for places in _places(rows))
    cells: list[list[Cell]] = [[kind, sensitive[kind], count, sensitive[kind] / count] for kind, count in every.most_common()]
    return Table("kinds", ["kind of word", "times among the three", "occurrences", "share"], cells)


def _position_table(rows: Sequence[Row]) -> Table:
    """The two words at either end, and all between."""

    def part(row: Row, place: int) -> str:
        names = {0: "first word", 1: "second word", len(row["words"]) - 1: "last word", len(row["words"]) - 2: "last but one"}
        return names.get(place, "between")

    every, sensitive = (Counter(part(row, place) for row, place in places) for places in _places(rows))
    order = [name for name in ("first word", "second word", "between", "last but one", "last word") if every[name]]
    cells: list[list[Cell]] = [[name, sensitive[name], every[name], sensitive[name] / every[name]] for name in order]
    return Table("parts", ["part of the sentence", "times among the three", "occurrences", "share"], cells)
