"""What matplotlib draws, as a part of a page: inline SVG in the page's colours, with tips that the browser shows."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from popqorn.plot import BROKEN, INK, OPEN, PROVEN

COLOURS = {PROVEN: "var(--safe)", OPEN: "var(--open)", BROKEN: "var(--mark)", INK: "var(--ink)"}


@dataclass(frozen=True)
class Drawn:
    """A picture: `draw(axis)` draws it, `tips` says what is shown where the reader points at the part with that `gid`."""

    name: str
    draw: Callable[[Any], Any]
    caption: str
    size: tuple[float, float] = (7.2, 2.9)
    tips: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        text = io.StringIO()
        self._save(text, "svg")
        drawing = text.getvalue()
        drawing = drawing[drawing.index("<svg") :]
        for colour, variable in COLOURS.items():
            drawing = drawing.replace(colour, variable)
        for part, tip in self.tips.items():
            drawing = drawing.replace(f'<g id="{part}">', f'<g id="{self.name}-{part}" data-tip="{escape(tip)}" tabindex="0">')
        shown = drawing.replace("<svg ", f'<svg class="chart" role="img" aria-label="{escape(self.caption)}" ', 1)
        return f"<figure>{shown}<figcaption>{escape(self.caption)}</figcaption></figure>"

    def write(self, path: Path) -> None:
        """As a file of its own."""
        self._save(path, path.suffix.removeprefix("."))

    def _save(self, target: Any, kind: str) -> None:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        style: dict[Any, Any] = {f"{part}.color": INK for part in ("xtick", "ytick", "text")}
        style |= {"axes.edgecolor": INK, "axes.labelcolor": INK, "legend.frameon": False, "font.family": "sans-serif"}
        with rc_context({**style, "svg.fonttype": "none", "svg.hashsalt": self.name}):
            figure = Figure(figsize=self.size, layout="constrained")
            self.draw(figure.subplots())
            if kind == "svg":
                figure.savefig(target, format=kind, transparent=True, metadata={"Date": None})
            else:
                figure.savefig(target, format=kind, dpi=130)
