"""Figures: plain functions from arrays to files. Nothing here knows of models."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from popqorn.report.svg import colour, shares


@contextmanager
def _subplots(path: Path, count: int, columns: int, size: tuple[float, float], **options: Any) -> Iterator[tuple[Any, Any]]:
    """A figure of `count` axes, without a display, saved to `path` at the end; axes beyond `count` are hidden."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(columns, max(1, count))
    rows = max(1, -(-count // columns))
    figure, axes = plt.subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False, layout="constrained", **options
    )
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    yield figure, axes
    figure.savefig(path, dpi=130)
    plt.close(figure)


def brackets(panels: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]], label: str, path: Path) -> None:
    """Per panel the certified, estimated and attacked radius of every sample, in order of the first."""
    with _subplots(path, len(panels), 4, (3.0, 2.3), sharey=True) as (figure, axes):
        for axis, (title, (lower, estimate, upper)) in zip(axes.flat, panels.items(), strict=False):
            places = np.arange(len(lower))
            axis.vlines(places, lower, upper, color="#e9a57f", linewidth=1.5, label="open")
            axis.plot(places, upper, ".", color="#b2182b", markersize=3, label="attacked")
            axis.plot(places, estimate, ".", color="#6a51a3", markersize=3, label="CLEVER-RNN")
            axis.plot(places, lower, ".", color="#2166ac", markersize=3, label="certified")
            axis.set(yscale="log", title=title, xlabel="samples")
        for axis in axes[:, 0]:
            axis.set_ylabel(label)
        axes.flat[0].legend(fontsize=7)
        figure.get_layout_engine().set(w_pad=0.06)


def radii(means: Mapping[tuple[str, str], Mapping[str, float]], path: Path) -> None:
    """Mean radius of every method, per network, one panel per norm."""
    norms = sorted({norm for _, norm in means}, reverse=True)
    networks = list(dict.fromkeys(network for network, _ in means))
    with _subplots(path, len(norms), 1, (max(4.0, 1.6 + 0.5 * len(networks)), 2.4), sharex=True) as (_, axes):
        for axis, norm in zip(axes.flat, norms, strict=True):
            for name, marker in zip(next(iter(means.values())), "os^v", strict=False):
                values = [means[network, norm][name] if (network, norm) in means else np.nan for network in networks]
                axis.plot(networks, values, marker, label=name)
            axis.set(yscale="log", ylabel=f"radius, p = {norm}")
            axis.grid(alpha=0.3)
            axis.tick_params(axis="x", rotation=60)
        axes.flat[0].legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def frame_sensitivity(images: NDArray[np.floating], radii: NDArray[np.floating], titles: list[str], path: Path) -> None:
    """Images `[samples, height, width]` cut into horizontal frames, each tinted by its radius `[samples, frames]`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    samples, height, width = images.shape
    frames = radii.shape[1]
    positive = radii[radii > 0]
    limits = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    colours = ScalarMappable(LogNorm(*limits) if limits[0] < limits[1] else LogNorm(limits[0] / 2, limits[1] * 2), "RdYlBu")
    columns = min(5, samples)
    rows = -(-samples // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.1 * columns + 1.0, 2.4 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, image, radius, title in zip(axes.flat, images, radii, titles, strict=False):
        axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        for frame in np.flatnonzero(radius > 0):
            top, bottom = frame * height / frames - 0.5, (frame + 1) * height / frames - 0.5
            axis.axhspan(top, bottom, color=colours.to_rgba(radius[frame]), alpha=0.45, linewidth=0)
            axis.text(width - 1, (top + bottom) / 2, f"{radius[frame]:.2g}", ha="right", va="center", fontsize=7)
        axis.set_title(title, fontsize=9)
    bar = figure.colorbar(colours, ax=axes, label="certified radius of the frame alone (p = 2)", shrink=0.8)
    bar.ax.yaxis.set_major_formatter("{x:.2g}")
    bar.ax.yaxis.set_minor_formatter("{x:.2g}")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def position(points: Sequence[tuple[float, float, float, float]], samples: int, path: Path) -> None:
    """Median and quartiles of relative radius, by position in the sequence."""
    places, low, middle, high = np.array(points).T
    with _subplots(path, 1, 1, (5.0, 3.0)) as (_, axes):
        axis = axes[0, 0]
        axis.fill_between(places, low, high, color="#2166ac", alpha=0.2, label="half of all")
        axis.plot(places, middle, "o-", color="#2166ac", label="median")
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.set(xlabel="position in the sequence", ylabel="radius / its sample's median", title=f"{samples} samples, p = 2")
        axis.legend()


def pen_strokes(digits: Sequence[tuple[str, Sequence[Sequence[float]], Sequence[float], Sequence[int]]], path: Path) -> None:
    """Digits `(title, pen rows, radii, circled frames)` as the pen drew them, coloured by sensitivity."""
    with _subplots(path, len(digits), 5, (2.4, 2.6)) as (_, axes):
        for axis, (title, points, radii, circled) in zip(axes.flat, digits, strict=False):
            rows = np.asarray(points, dtype=float)
            places = np.cumsum(rows[:, :2], axis=0)
            colours = [colour(share) for share in shares(radii)]
            for index in range(1, len(places)):
                lifted = rows[index - 1, 2] > 0
                style, width = ((0, (2, 2)), 1.2) if lifted else ("-", 3.5)
                axis.plot(*places[index - 1 : index + 1].T, color=colours[index], linestyle=style, linewidth=width)
            axis.scatter(*places.T, c=colours, s=10, zorder=3)
            axis.scatter(*places[0], s=110, facecolors="none", edgecolors="black", zorder=4)
            axis.scatter(*places[list(circled)].T, s=80, facecolors="none", edgecolors="#b2182b", zorder=4)
            axis.set_title(title, fontsize=9)
            axis.set_aspect("equal")
            axis.margins(0.15)
            axis.invert_yaxis()
            axis.set_axis_off()


def sentences(texts: Sequence[tuple[Sequence[str], Sequence[float], str]], path: Path) -> None:
    """Sentences `(words, radii, caption)`, words on a background of their sensitivity, the three most sensitive underlined."""
    with _subplots(path, len(texts), 1, (9.0, 0.62)) as (figure, axes):
        renderer = figure.canvas.get_renderer()
        for axis, (words, radii, caption) in zip(axes.flat, texts, strict=True):
            axis.set_axis_off()
            axis.text(0, 1.0, caption, fontsize=7, color="grey", transform=axis.transAxes, va="top")
            place = 0.0
            for index, (word, share) in enumerate(zip(words, shares(radii), strict=True)):
                weight = "bold" if index in np.argsort(radii, kind="stable")[:3] else "normal"
                box = {"facecolor": colour(share), "alpha": 0.35, "edgecolor": "none", "pad": 1.5}
                text = axis.text(place, 0.1, word, fontsize=9, weight=weight, bbox=box, transform=axis.transAxes)
                place = axis.transAxes.inverted().transform(text.get_window_extent(renderer))[1, 0] + 0.012


def spectrograms(samples: Sequence[tuple[str, Sequence[Sequence[float]], Sequence[float]]], path: Path) -> None:
    """Spectrograms `(title, frames x bands, radii)` with the sensitivity of every frame as a strip above."""
    with _subplots(path, len(samples), 4, (2.8, 2.0)) as (_, axes):
        for axis, (title, picture, radii) in zip(axes.flat, samples, strict=False):
            cells = np.asarray(picture).T
            axis.imshow(cells, origin="lower", aspect="auto", cmap="gray_r")
            for frame, share in enumerate(shares(radii)):
                axis.axvspan(frame - 0.5, frame + 0.5, ymin=0.9, color=colour(share), linewidth=0)
            axis.set(title=title, xticks=[], yticks=[])


def beats(samples: Sequence[tuple[str, Sequence[Sequence[float]], Sequence[float]]], path: Path) -> None:
    """Signals `(title, frames x samples, radii)`, every frame on a background of its sensitivity."""
    with _subplots(path, len(samples), 4, (2.8, 2.0)) as (_, axes):
        for axis, (title, trace, radii) in zip(axes.flat, samples, strict=False):
            signal = np.asarray(trace)
            for frame, share in enumerate(shares(radii)):
                axis.axvspan(frame * signal.shape[1], (frame + 1) * signal.shape[1], color=colour(share), alpha=0.5, linewidth=0)
            axis.plot(np.arange(signal.size) + 0.5, signal.ravel(), color="black", linewidth=1.2)
            axis.set(title=title, xticks=[], yticks=[])


def relaxations(means: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Mean radius of every relaxation, per network."""
    with _subplots(path, 1, 1, (5.5, 3.2)) as (_, axes):
        axis = axes[0, 0]
        for method, marker in zip(next(iter(means.values())), "os^v", strict=True):
            axis.plot(list(means), [found[method] for found in means.values()], marker, label=method)
        axis.set(yscale="log", ylabel="mean certified radius, p = 2")
        axis.grid(alpha=0.3)
        axis.legend()


def fronts(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], path: Path) -> None:
    """Per network clean against certified accuracy (in %), one series of points per way of training, alike in all panels."""
    ways = list(dict.fromkeys(way for points in panels.values() for way in points))
    styles = {
        way: {"marker": marker, "color": f"C{place}"} for place, (way, marker) in enumerate(zip(ways, "os^vDP", strict=False))
    }
    with _subplots(path, len(panels), 3, (3.4, 2.8)) as (figure, axes):
        shown: dict[str, Any] = {}
        for axis, (title, points) in zip(axes.flat, panels.items(), strict=False):
            for way, some in points.items():
                (shown[way],) = axis.plot(
                    *zip(*some, strict=True), label=way, linestyle="", markersize=5, alpha=0.8, **styles[way]
                )
            axis.set(title=title, xlabel="clean accuracy, %", ylabel="certified accuracy, %")
            axis.grid(alpha=0.3)
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown), fontsize=8)
