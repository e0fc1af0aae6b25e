"""Spoken digits and heart beats as reports: sensitivity over the spectrogram and over the beat."""

from collections.abc import Callable, Sequence
from functools import partial

from popqorn import plot
from popqorn.experiments.results import Results
from popqorn.experiments.signals import BEAT_SAMPLES, HOP, RATE
from popqorn.report.drawn import Drawn, sheet
from popqorn.report.frames import Frames, frame_tips, position_picture, position_section, trend_told
from popqorn.report.page import Report, Scale, Section, Text
from popqorn.runs.store import Row

SHOWN = 20
BEAT_RATE = 120  # samples a second
BEFORE_PEAK = 0.3  # seconds from the first sample to the R mark


def report_speech(results: Results) -> Report:
    def picture(row: Row) -> Drawn:
        return _drawn(row, partial(plot.spectrogram, row["picture"]), _moments(row, HOP / RATE))

    text = (
        "Each column is 25 ms of sound in 20 mel bands (low frequencies at the bottom); the strip above and the bars below are "
        "the certified radius of that moment alone (p = 2, in standard deviations of the bands)."
    )
    return _report(
        results, "Spoken digits: the moments that decide", "recordings of spoken digits", text, picture, "spectrograms.png"
    )


def report_ecg(results: Results) -> Report:
    def picture(row: Row) -> Drawn:
        moments = _moments(row, BEAT_SAMPLES / len(row["radii"]) / BEAT_RATE, -BEFORE_PEAK)
        return _drawn(row, partial(plot.signal, row["trace"]), moments)

    text = (
        "Each beat is 0.7 s of the signal in 14 frames of 50 ms around its R mark; the background and the bars are the certified "
        "radius of that frame alone (p = 2, in mV)."
    )
    return _report(results, "Heart beats: the moments that decide", "heart beats", text, picture, "beats.png")


def _drawn(row: Row, draw: Callable[..., None], moments: Sequence[str]) -> Drawn:
    """What was recorded, and the radius of every frame below it."""
    radii = row["radii"]
    return Drawn(
        name=f"sample-{row['sample']}",
        draw=partial(draw, radii),
        caption=f"sample {row['sample']}: {row['label']}",
        size=(6.2, 2.4),
        tips=frame_tips(radii, moments),
        below=partial(plot.bars, radii),
    )


def _moments(row: Row, seconds: float, start: float = 0.0) -> list[str]:
    return [f"{1000 * (start + place * seconds):.0f} ms" for place in range(len(row["radii"]))]


def _report(
    results: Results,
    title: str,
    kind: str,
    text: str,
    picture: Callable[[Row], Drawn],
    file: str,
) -> Report:
    found = Frames.of(results)
    shown: Sequence[Row] = found.right[:SHOWN]
    claim = f"Do later moments matter less? Over time {trend_told(found.right)}"
    panels = [(str(row["label"]), picture(row).draw) for row in shown[:12]]
    return Report(
        title=title,
        lead=(
            f"For {len(found.right)} {kind} this page shows how far every single moment may be changed before the network could "
            f"decide otherwise. {found.soundness()}"
        ),
        facts=found.facts("frame"),
        sections=[
            Section("Samples", [Text(text), Scale(), *(picture(row) for row in shown)]),
            position_section(found.right, "frame", [Text(claim)]),
            *found.overview("frame"),
            Section("Every sample", [found.table("frame")]),
        ],
        settings=results.about,
        figures={
            file: partial(sheet, panels=panels, columns=4, size=(2.8, 2.0)),
            "position.png": position_picture(found.right, "frame").write,
        },
    )
