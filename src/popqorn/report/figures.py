"""Pictures that only reports draw: plain functions from arrays to matplotlib axes or files. Nothing here knows of models."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from popqorn.plot import SMALL, colours
from popqorn.report.drawn import RESOLUTION, figure_of, sheet


def sentence(words: Sequence[str], radii: Sequence[float], caption: str, axis: Any) -> None:
    """Words on a background of their sensitivity, the three most sensitive bold."""
    axis.set_axis_off()
    axis.text(0, 0.55, caption, fontsize=SMALL, color="grey", transform=axis.transAxes, va="bottom")
    bold = np.argsort(radii, kind="stable")[:3]
    before: dict[str, Any] = {"xy": (0, 0), "xycoords": axis.transAxes}
    for index, (word, colour) in enumerate(zip(words, colours(radii), strict=True)):
        box = {"facecolor": colour, "alpha": 0.35, "edgecolor": "none", "pad": 1.5}
        weight = "bold" if index in bold else "normal"
        text = axis.annotate(word, **before, va="bottom", fontsize=9, weight=weight, bbox=box)
        before = {"xy": (1, 0), "xycoords": text, "xytext": (6, 0), "textcoords": "offset points"}


def fronts(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], path: Path) -> None:
    """Per network clean against certified accuracy (in %), one series of points per way of training, alike in all panels."""
    ways = list(dict.fromkeys(way for points in panels.values() for way in points))
    styles = {way: {"marker": mark, "color": f"C{place}"} for place, (way, mark) in enumerate(zip(ways, "os^vDP", strict=False))}
    sheet(path, [(title, partial(_front, points, styles)) for title, points in panels.items()], columns=3, size=(3.4, 2.8))


def _front(ways: Mapping[str, Sequence[tuple[float, float]]], styles: Mapping[str, Mapping[str, Any]], axis: Any) -> None:
    for way, points in ways.items():
        axis.plot(*zip(*points, strict=True), linestyle="", label=way, markersize=5, alpha=0.8, **styles[way])
    axis.set(xlabel="clean accuracy, %", ylabel="certified accuracy, %")
    axis.grid(alpha=0.3)


def frame_sensitivity(images: NDArray[np.floating], radii: NDArray[np.floating], titles: Sequence[str], path: Path) -> None:
    """Images `[samples, height, width]` cut into horizontal frames, each tinted by its radius `[samples, frames]`."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    positive = radii[radii > 0]
    limits = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    tints = ScalarMappable(LogNorm(*limits) if limits[0] < limits[1] else LogNorm(limits[0] / 2, limits[1] * 2), "RdYlBu")
    columns = min(5, len(images))
    rows = -(-len(images) // columns)
    with figure_of((2.1 * columns + 1.0, 2.4 * rows), path.name) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, image, radius, title in zip(axes.flat, images, radii, titles, strict=False):
            _slices(image, radius, tints, axis)
            axis.set_title(title)
        bar = figure.colorbar(tints, ax=axes, label="certified radius of the frame alone (p = 2)", shrink=0.8)
        bar.ax.yaxis.set_major_formatter("{x:.2g}")
        bar.ax.yaxis.set_minor_formatter("{x:.2g}")
        figure.savefig(path, dpi=RESOLUTION)


def _slices(image: NDArray[np.floating], radii: NDArray[np.floating], tints: Any, axis: Any) -> None:
    height, width = image.shape
    axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
    for frame in np.flatnonzero(radii > 0):
        top, bottom = frame * height / len(radii) - 0.5, (frame + 1) * height / len(radii) - 0.5
        axis.axhspan(top, bottom, color=tints.to_rgba(radii[frame]), alpha=0.45, linewidth=0)
        axis.text(width - 1, (top + bottom) / 2, f"{radii[frame]:.2g}", ha="right", va="center", fontsize=7)
