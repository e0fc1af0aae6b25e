"""Charts as inline SVG: plain functions from numbers to markup.

Colours come from the page's style sheet (classes) except on the sensitivity scale. Whatever carries `data-tip` shows it when
pointed at; marks that share a `data-frame` within one figure light up together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 40
SCALE = ((178, 24, 43), (239, 138, 98), (223, 200, 190), (103, 169, 207), (33, 102, 172))  # least radius to greatest
BARS = 40


def number(value: float) -> str:
    """A number for people: three digits."""
    if value != value:
        return "-"
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"


def colour(share: float) -> str:
    """The sensitivity scale: 0 (red, the least radius) to 1 (blue)."""
    place = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    at = min(int(place), len(SCALE) - 2)
    mixed = [round(low + (place - at) * (high - low)) for low, high in zip(SCALE[at], SCALE[at + 1], strict=True)]
    return f"#{mixed[0]:02x}{mixed[1]:02x}{mixed[2]:02x}"


def shares(radii: Sequence[float]) -> list[float]:
    """Where each radius lies between the least and the greatest, on a logarithmic scale."""
    logs = [math.log(max(radius, 1e-12)) for radius in radii]
    low, high = min(logs), max(logs)
    return [(value - low) / (high - low) if high > low else 0.5 for value in logs]


@dataclass(frozen=True)
class Axis:
    """From values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    @staticmethod
    def around(values: Sequence[float], start: float, stop: float, *, log: bool = False) -> "Axis":
        """An axis that holds all values; a logarithmic one holds the positive ones."""
        kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = min(kept), max(kept)
        if log:
            return Axis(low / 1.15, high * 1.15, start, stop, True)
        margin = 0.05 * (high - low) or 0.5
        return Axis(0.0 if low >= 0 else low - margin, high + margin, start, stop)

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        place = ((math.log(max(value, self.low)) if self.log else value) - low) / (high - low)
        return self.start + min(max(place, -0.02), 1.02) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self.log:
            whole = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if math.log10(self.high / self.low) < 2.5 else (1,)
            ticks = [step * 10.0**power for power in whole for step in steps]
        else:
            rough = (self.high - self.low) / 5
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
            ticks = [step * index for index in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def chart(body: str, horizontal: Axis | None, vertical: Axis, labels: tuple[str, str], alt: str, height: int = HEIGHT) -> str:
    """A frame with ticks and labels around `body`."""
    parts = []
    for tick in vertical.ticks():
        y = vertical(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    if horizontal is not None:
        for tick in horizontal.ticks():
            x = horizontal(tick)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{height - BOTTOM + 16}" text-anchor="middle">{number(tick)}</text>')
    middle, centre = (LEFT + WIDTH - RIGHT) / 2, (TOP + height - BOTTOM) / 2
    parts.append(f'<text class="label" x="{middle}" y="{height - 6}" text-anchor="middle">{escape(labels[0])}</text>')
    parts.append(
        f'<text class="label" transform="translate(13 {centre}) rotate(-90)" text-anchor="middle">{escape(labels[1])}</text>'
    )
    return drawing("".join(parts) + body, WIDTH, height, alt)


def drawing(body: str, width: float, height: float, alt: str) -> str:
    return f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(alt)}">{body}</svg>'


def tip(text: str) -> str:
    return f'data-tip="{escape(text)}" tabindex="0"'


def brackets(names: Sequence[str], lower: Sequence[float], upper: Sequence[float], estimate: Sequence[float | None]) -> str:
    """One vertical line per sample from what is certified to what an attack reaches; a dot for the estimate."""
    vertical = Axis.around([*lower, *upper], HEIGHT - BOTTOM, TOP, log=True)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(names))
    width = min(10.0, 0.6 * step)
    marks = []
    for index, (name, low, high, middle) in enumerate(zip(names, lower, upper, estimate, strict=True)):
        x = LEFT + (index + 0.5) * step
        about, dot = f"{name}: certified {number(low)}, attacked {number(high)}", ""
        if middle:
            about += f", CLEVER estimate {number(middle)}"
            dot = f'<circle class="estimate" cx="{x:.1f}" cy="{vertical(middle):.1f}" r="{max(1.5, width / 4):.1f}"/>'
        marks.append(
            f'<g class="bracket" {tip(about)}><rect class="open" x="{x - width / 2:.1f}" width="{width:.1f}" '
            f'y="{vertical(high):.1f}" height="{vertical(low) - vertical(high):.1f}"/>'
            f'<rect class="safe" x="{x - width / 2:.1f}" width="{width:.1f}" y="{vertical(low):.1f}" '
            f'height="{HEIGHT - BOTTOM - vertical(low):.1f}"/>{dot}</g>'
        )
    alt = f"Certified and attacked radius of {len(names)} samples"
    return chart("".join(marks), None, vertical, ("samples, least certified radius first", "radius"), alt)


def distributions(series: dict[str, Sequence[float]], label: str) -> str:
    """Histograms as steps over one logarithmic axis, one class of line per series."""
    horizontal = Axis.around([value for values in series.values() for value in values], LEFT, WIDTH - RIGHT, log=True)
    edges = np.geomspace(horizontal.low, horizontal.high, BARS + 1)
    counts = {name: np.histogram(values, edges)[0] / max(1, len(values)) for name, values in series.items()}
    vertical = Axis(0.0, 1.08 * max((float(count.max()) for count in counts.values()), default=1.0) or 1.0, HEIGHT - BOTTOM, TOP)
    lines = []
    for place, (name, count) in enumerate(counts.items()):
        path = f"M{horizontal(edges[0]):.1f} {vertical(0):.1f}"
        for share, left, right in zip(count, edges[:-1], edges[1:], strict=True):
            path += f"L{horizontal(left):.1f} {vertical(share):.1f}L{horizontal(right):.1f} {vertical(share):.1f}"
        path += f"L{horizontal(edges[-1]):.1f} {vertical(0):.1f}"
        values = np.asarray(series[name])
        about = f"{name}: median {number(float(np.median(values)))}, mean {number(float(values.mean()))}" if values.size else name
        lines.append(f'<path class="series s{place}" d="{path}" {tip(about)}/>')
    return chart("".join(lines), horizontal, vertical, (label, "share of samples"), f"Distributions of {', '.join(series)}")


def curve(points: Sequence[tuple[float, float, float, float]], labels: tuple[str, str], *, log: bool = False) -> str:
    """Points `(x, low, middle, high)`: a line through the middles within a band."""
    horizontal = Axis.around([point[0] for point in points], LEFT, WIDTH - RIGHT)
    vertical = Axis.around([value for point in points for value in point[1:]], HEIGHT - BOTTOM, TOP, log=log)
    upper = [f"{horizontal(x):.1f},{vertical(high):.1f}" for x, _, _, high in points]
    lower = [f"{horizontal(x):.1f},{vertical(low):.1f}" for x, low, _, _ in points]
    middle = " ".join(f"{horizontal(x):.1f},{vertical(value):.1f}" for x, _, value, _ in points)
    dots = "".join(
        f'<circle class="dot" cx="{horizontal(x):.1f}" cy="{vertical(value):.1f}" r="4" '
        f"{tip(f'{labels[0]} {number(x)}: median {number(value)}, half of all between {number(low)} and {number(high)}')}/>"
        for x, low, value, high in points
    )
    band = f'<polygon class="band" points="{" ".join([*upper, *reversed(lower)])}"/><polyline class="line" points="{middle}"/>'
    return chart(band + dots, horizontal, vertical, labels, f"{labels[1]} by {labels[0]}")


def bars(radii: Sequence[float], names: Sequence[str], height: int = 110) -> str:
    """One bar per frame, coloured by sensitivity."""
    vertical = Axis.around([0.0, *radii], height - 18, 8)
    step = WIDTH / len(radii)
    marks = [
        f'<rect data-frame="{index}" x="{index * step + 0.1 * step:.1f}" width="{0.8 * step:.1f}" y="{vertical(radius):.1f}" '
        f'height="{height - 18 - vertical(radius):.1f}" fill="{colour(share)}" {tip(f"{name}: radius {number(radius)}")}/>'
        for index, (radius, share, name) in enumerate(zip(radii, shares(radii), names, strict=True))
    ]
    top = f'<text class="tick" x="2" y="12">{number(max(radii))}</text>'
    foot = f'<text class="label" x="{WIDTH / 2}" y="{height - 4}" text-anchor="middle">radius by frame</text>'
    return drawing("".join(marks) + top + foot, WIDTH, height, "Certified radius of every frame")


def pen(points: Sequence[Sequence[float]], radii: Sequence[float], circled: Sequence[int], size: int = 240) -> str:
    """A digit as the pen draws it: steps coloured by sensitivity, pen-up moves dashed, the start marked, some steps circled.

    `points` are rows `(dx, dy, end of stroke, end of digit)`; the first is the starting point itself.
    """
    places = np.cumsum(np.asarray(points, dtype=float)[:, :2], axis=0)
    low, span = places.min(0), max(float((places.max(0) - places.min(0)).max()), 1.0)
    offset = (span - (places.max(0) - low)) / 2
    places = 16 + (places - low + offset) / span * (size - 32)
    marks = []
    for index, (share, radius) in enumerate(zip(shares(radii), radii, strict=True)):
        x, y = places[index]
        about = tip(f"frame {index + 1} of {len(radii)}: radius {number(radius)}")
        if index == 0:
            marks.append(f'<circle class="start" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
        else:
            before = places[index - 1]
            lifted = ' stroke-dasharray="3 4" stroke-width="2"' if points[index - 1][2] else ' stroke-width="5"'
            marks.append(
                f'<line data-frame="{index}" class="step" x1="{before[0]:.1f}" y1="{before[1]:.1f}" x2="{x:.1f}" y2="{y:.1f}" '
                f'stroke="{colour(share)}"{lifted} {about}/>'
            )
        marks.append(f'<circle data-frame="{index}" cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour(share)}" {about}/>')
        if index in circled:
            marks.append(f'<circle class="circled" cx="{x:.1f}" cy="{y:.1f}" r="8"/>')
    return drawing("".join(marks), size, size, "The digit as it was drawn, coloured by sensitivity")


def columns(picture: Sequence[Sequence[float]], radii: Sequence[float], names: Sequence[str], height: int = 150) -> str:
    """A spectrogram: one column of grey cells per frame (lowest band at the bottom), a sensitivity strip above."""
    cells = np.asarray(picture, dtype=float)
    low, span = cells.min(), max(float(cells.max() - cells.min()), 1e-9)
    frames, bands = cells.shape
    step, tall = WIDTH / frames, (height - 16) / bands
    marks = []
    for frame in range(frames):
        for band in range(bands):
            dark = (cells[frame, band] - low) / span
            marks.append(
                f'<rect class="cell" x="{frame * step:.1f}" y="{height - (band + 1) * tall:.1f}" width="{step + 0.3:.1f}" '
                f'height="{tall + 0.3:.1f}" fill-opacity="{dark:.2f}"/>'
            )
    for index, (share, radius, name) in enumerate(zip(shares(radii), radii, names, strict=True)):
        about = tip(f"{name}: radius {number(radius)}")
        marks.append(f'<rect x="{index * step:.1f}" y="0" width="{step:.1f}" height="13" fill="{colour(share)}"/>')
        marks.append(
            f'<rect data-frame="{index}" class="veil" x="{index * step:.1f}" y="0" width="{step:.1f}" height="{height}" {about}/>'
        )
    return drawing("".join(marks), WIDTH, height, "Spectrogram, frames coloured by sensitivity")


def trace(samples: Sequence[Sequence[float]], radii: Sequence[float], names: Sequence[str], height: int = 150) -> str:
    """A signal cut into frames of several samples, each frame on a background of its sensitivity."""
    values = [value for frame in samples for value in frame]
    vertical = Axis.around([min(values) - 1e-9, *values], height - 8, 8)
    step = WIDTH / len(radii)
    marks = [
        f'<rect data-frame="{index}" class="shade" x="{index * step:.1f}" y="0" width="{step:.1f}" height="{height}" '
        f'fill="{colour(share)}" {tip(f"{name}: radius {number(radius)}")}/>'
        for index, (share, radius, name) in enumerate(zip(shares(radii), radii, names, strict=True))
    ]
    path = " ".join(f"{(index + 0.5) * WIDTH / len(values):.1f},{vertical(value):.1f}" for index, value in enumerate(values))
    marks.append(f'<polyline class="signal" points="{path}"/>')
    return drawing("".join(marks), WIDTH, height, "Signal, frames coloured by sensitivity")
