"""Experiment II as a report: digits as the pen drew them, coloured by sensitivity, and what position has to do with it."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean, median

from popqorn import plot
from popqorn.experiments.frames import most_sensitive
from popqorn.experiments.results import Results
from popqorn.report.drawn import Drawn, sheet
from popqorn.report.frames import Frames, frame_tips, position_picture, position_section, trend_told
from popqorn.report.page import Gallery, Report, Scale, Section, Text
from popqorn.runs.store import Row

SHOWN = 20
CIRCLED = 3


def report(results: Results) -> Report:
    """Everything from the tables `networks` and `frames`."""
    found = Frames.of(results)
    shown = two_of_every_class(found.right)
    claims = _claims(found.right)
    drawings = [_drawn(row) for row in shown]
    panels = [(f"{row['label']} (digit {row['sample']})", picture.draw) for row, picture in zip(shown, drawings, strict=True)]
    return Report(
        title="Experiment II: the strokes that decide a digit",
        lead=(
            f"For {len(found.right)} handwritten digits this page shows how far every single movement of the pen may be "
            f"changed before the network could read another digit. {found.soundness()} {claims[0]}"
        ),
        facts=found.facts("frame"),
        sections=[
            Section(
                "Digits as the pen drew them",
                [
                    Text(
                        "Colour is the certified radius of each movement alone (p = 2). The pen starts at the black circle, "
                        "moves with the pen lifted are dashed, and the three most sensitive points are circled. Point at a step "
                        "or a bar."
                    ),
                    Scale(),
                    Gallery(drawings),
                ],
            ),
            position_section(found.right, "frame", [Text(claim) for claim in claims]),
            *found.overview("frame"),
            Section("Every digit", [found.table("frame")]),
        ],
        settings=results.about,
        figures={
            "contact_sheet.png": partial(sheet, panels=panels, columns=5, size=(2.4, 2.6)),
            "position.png": position_picture(found.right, "frame").write,
            **{f"digit_{row['label']}_{row['sample']}.png": picture.write for row, picture in zip(shown, drawings, strict=True)},
        },
    )


def two_of_every_class(rows: Sequence[Row]) -> list[Row]:
    """At most twenty digits, as evenly over the classes as there are."""
    turns: dict[int, int] = {}
    ranked = []
    for place, row in enumerate(rows):
        turns[row["label"]] = turns.get(row["label"], -1) + 1
        ranked.append((turns[row["label"]], row["label"], place))
    return [rows[place] for _, _, place in sorted(ranked)[:SHOWN]]


def _drawn(row: Row) -> Drawn:
    """A digit, and the radius of every movement below it."""
    radii, places = row["radii"], plot.pen_places(row["points"])
    return Drawn(
        name=f"digit-{row['sample']}",
        draw=partial(plot.strokes, row["points"], radii, circled=most_sensitive(radii, CIRCLED)),
        caption=f"digit {row['sample']}: a {row['label']}",
        size=(3.0, 4.2),
        tips=frame_tips(radii),
        lines=[places[:1], *(places[index : index + 2] for index in range(len(places) - 1))],
        below=partial(plot.bars, radii),
    )


def _claims(rows: Sequence[Row]) -> list[str]:
    """The paper's two observations as numbers."""
    start = [row["radii"][0] / median(row["radii"]) for row in rows]
    return [
        f"The paper saw that the starting point has a relatively large radius: here it exceeds its digit's median in "
        f"{100 * fmean(ratio > 1 for ratio in start):.0f} % of {len(rows)} digits (median ratio {median(start):.2f}).",
        "It also saw that later points have larger radii than earlier ones: here, the starting point left out, "
        + trend_told(rows, 1),
    ]
