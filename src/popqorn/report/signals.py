"""Spoken digits and heart beats as reports: sensitivity over the spectrogram and over the beat."""

from collections.abc import Callable, Sequence

from popqorn.experiments.results import Results
from popqorn.experiments.signals import BEAT_SAMPLES, HOP, RATE
from popqorn.report import figures, svg
from popqorn.report.frames import Frames, by_position, position_section, trend_told
from popqorn.report.page import SENSITIVITY_LEGEND, Chart, Report, Section, Text
from popqorn.runs.store import Row

SHOWN = 20
BEAT_RATE = 120  # samples a second
BEFORE_PEAK = 0.3  # seconds from the first sample to the R mark


def report_speech(results: Results) -> Report:
    def heat(row: Row) -> str:
        return svg.columns(row["picture"], row["radii"], _moments(row, HOP / RATE))

    text = (
        "Each column is 25 ms of sound in 20 mel bands (low frequencies at the bottom); the strip above and the bars below are "
        "the certified radius of that moment alone (p = 2, in standard deviations of the bands)."
    )
    pictures = "spectrograms.png", figures.spectrograms, "picture"
    return _report(results, "Spoken digits: the moments that decide", "recordings of spoken digits", text, heat, pictures)


def report_ecg(results: Results) -> Report:
    def heat(row: Row) -> str:
        return svg.trace(row["trace"], row["radii"], _moments(row, BEAT_SAMPLES / len(row["radii"]) / BEAT_RATE, -BEFORE_PEAK))

    text = (
        "Each beat is 0.7 s of the signal in 14 frames of 50 ms around its R mark; the background and the bars are the certified "
        "radius of that frame alone (p = 2, in mV)."
    )
    return _report(
        results, "Heart beats: the moments that decide", "heart beats", text, heat, ("beats.png", figures.beats, "trace")
    )


def _moments(row: Row, seconds: float, start: float = 0.0) -> list[str]:
    return [f"{1000 * (start + place * seconds):.0f} ms" for place in range(len(row["radii"]))]


def _report(
    results: Results,
    title: str,
    kind: str,
    text: str,
    heat: Callable[[Row], str],
    pictures: tuple[str, Callable[..., None], str],
) -> Report:
    found = Frames.of(results)
    shown: Sequence[Row] = found.right[:SHOWN]
    claim = f"Do later moments matter less? Over time {trend_told(found.right)}"
    charts = [
        Chart(
            heat(row) + svg.bars(row["radii"], [f"frame {place + 1}" for place in range(len(row["radii"]))], 80),
            f"sample {row['sample']}: {row['label']}",
        )
        for row in shown
    ]
    file, draw, content = pictures
    return Report(
        title=title,
        lead=(
            f"For {len(found.right)} {kind} this page shows how far every single moment may be changed before the network could "
            f"decide otherwise. {found.soundness()}"
        ),
        facts=found.facts("frame"),
        sections=[
            Section("Samples", [Text(text), Chart("", "", SENSITIVITY_LEGEND), *charts]),
            position_section(found.right, "frame", [Text(claim)]),
            *found.overview("frame"),
            Section("Every sample", [found.table("frame")]),
        ],
        settings=results.about,
        figures={
            file: lambda path: draw([(str(row["label"]), row[content], row["radii"]) for row in shown[:12]], path),
            "position.png": lambda path: figures.position(by_position(found.right), len(found.right), path),
        },
    )
