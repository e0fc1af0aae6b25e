"""What matplotlib draws, as a part of a page: inline SVG in the page's colours, with tips that the browser shows."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from popqorn.plot import BROKEN, INK, OPEN, OTHER, PROVEN
from popqorn.report.page import tip

COLOURS = {PROVEN: "var(--safe)", OPEN: "var(--open)", BROKEN: "var(--mark)", OTHER: "var(--third)", INK: "var(--ink)"}
POINTS, RESOLUTION = 72, 150
STYLE: dict[Any, Any] = {
    **{f"{part}.color": INK for part in ("xtick", "ytick", "text")},
    **{f"axes.{part}color": INK for part in ("edge", "label")},
    **{f"{part}size": 9 for part in ("font.", "axes.title")},
    **{f"axes.spines.{side}": False for side in ("top", "right")},
    "font.family": "sans-serif",
    "legend.frameon": False,
    "svg.fonttype": "none",
}
Draw = Callable[..., Any]


@dataclass(frozen=True)
class Drawn:
    """A picture: `draw(axis=...)` draws it, and `below(axis=...)` what stands under it.

    `tips[i]` is shown where the reader points at the `i`-th place along the axis, or at the `i`-th line of `lines` if there are
    any (points in the picture's own coordinates, one after the other). What belongs to one place lights up together.
    """

    name: str
    draw: Draw
    caption: str
    size: tuple[float, float] = (6.2, 2.5)
    tips: Sequence[str] = ()
    lines: Sequence[ArrayLike] = ()
    below: Draw | None = None

    def html(self) -> str:
        text = io.StringIO()
        with self._figure() as (figure, axes):
            figure.savefig(text, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
            marks = "".join(self._marks(figure, axes))
        shown = text.getvalue()
        shown = shown[shown.index("<svg") : shown.rindex("</svg>")] + marks + "</svg>"
        shown = re.sub(r'<style .*?</style>|(?<=<g) id="[^"]*"', "", shown, flags=re.DOTALL)
        for colour, variable in COLOURS.items():
            shown = shown.replace(colour, variable)
        shown = shown.replace("<svg ", f'<svg class="chart" role="img" aria-label="{escape(self.caption)}" ', 1)
        return f"<figure>{shown}<figcaption>{escape(self.caption)}</figcaption></figure>"

    def write(self, path: Path) -> None:
        """As a file of its own."""
        with self._figure() as (figure, _):
            figure.savefig(path, dpi=RESOLUTION)

    @contextmanager
    def _figure(self) -> Iterator[tuple[Any, list[Any]]]:
        draws = [self.draw] if self.below is None else [self.draw, self.below]
        with figure_of(self.size, self.name) as figure:
            axes = list(figure.subplots(len(draws), squeeze=False, height_ratios=(5, 2)[: len(draws)]).flat)
            for axis, draw in zip(axes, draws, strict=True):
                draw(axis=axis)
            yield figure, axes

    def _marks(self, figure: Any, axes: Sequence[Any]) -> Iterator[str]:
        """Where the reader may point: unseen parts over the picture, that light up."""
        height = POINTS * self.size[1]
        for axis in axes:
            frame = axis.get_window_extent()
            for place, told in enumerate(self.tips):
                if self.lines and axis is axes[0]:
                    ends = axis.transData.transform(self.lines[place])
                    path = "L".join(f"{x:.1f} {height - y:.1f}" for x, y in (*ends, ends[-1]))
                    yield f'<path class="line" data-frame="{place}" d="M{path}" {tip(told)}/>'
                else:
                    ends = axis.transData.transform([(place - 0.5, 1), (place + 0.5, 1)])[:, 0]
                    left, right = ends.clip(frame.x0, frame.x1)
                    yield (
                        f'<rect class="column" data-frame="{place}" x="{left:.1f}" y="{height - frame.y1:.1f}" '
                        f'width="{right - left:.1f}" height="{frame.height:.1f}" {tip(told)}/>'
                    )


def sheet(path: Path, panels: Sequence[tuple[str, Draw]], *, columns: int, size: tuple[float, float], share: str = "") -> None:
    """Pictures `(title, draw)` side by side in one file, under one legend; `share` names the axes that are one for all."""
    columns = min(columns, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    with figure_of((size[0] * columns, size[1] * rows), path.name) as figure:
        axes = list(figure.subplots(rows, columns, squeeze=False, sharex="x" in share, sharey="y" in share).flat)
        for axis, (title, draw) in zip(axes, panels, strict=False):
            draw(axis=axis)
            axis.set_title(title)
            if share:
                axis.label_outer()
            if axis.get_legend():
                axis.get_legend().remove()
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        figure.savefig(path, dpi=RESOLUTION)


@contextmanager
def figure_of(size: tuple[float, float], name: str) -> Iterator[Any]:
    """An empty figure in the style of the pages, without pyplot and its state."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**STYLE, "svg.hashsalt": name}):
        yield Figure(figsize=size, dpi=POINTS, layout="constrained")
