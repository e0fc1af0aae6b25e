"""Pictures for notebooks and pages: plain functions from arrays to matplotlib axes. Nothing here knows of models.

>>> found = popqorn.bracket(model, digits)
>>> popqorn.plot.accuracy(found.lower, found.upper)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

PROVEN, OPEN, BROKEN, OTHER, INK = "#2166ac", "#e9a57f", "#b2182b", "#6a51a3", "#1d2330"
SERIES = (PROVEN, OTHER, OPEN, BROKEN)
SCALE = ((184, 30, 48), (239, 138, 98), (223, 200, 190), (103, 169, 207), (38, 106, 176))  # least radius to greatest
STEPS = 40
SMALL = 8  # points


def accuracy(certified: ArrayLike, attacked: ArrayLike | None = None, *, require: float | None = None, axis: Any = None) -> Any:
    """Certified accuracy over sizes, and accuracy under attack above it: the truth lies between.

    One radius per sample; 0 for those that are decided wrongly, NaN where nothing is known. `require` marks a size.
    """
    axis, lower = _axis(axis), _numbers("certified", certified)
    upper = None if attacked is None else _numbers("attacked", attacked, like=lower)
    sizes = _sizes(lower if upper is None else np.concatenate([lower, upper]))
    proven = 100 * holding(lower, sizes)
    axis.step(sizes, proven, where="post", color=PROVEN, label="certified", gid="proven")
    if upper is not None:
        unbroken = 100 * left(upper, sizes)
        axis.step(sizes, unbroken, where="post", color=BROKEN, label="not broken by an attack", gid="unbroken")
        axis.fill_between(sizes, proven, unbroken, step="post", color=OPEN, alpha=0.35, linewidth=0, label="open")
    if require is not None:
        axis.axvline(require, color=INK, linestyle="--", linewidth=1, label=f"required: {require:g}")
    axis.set(xlabel="size of the perturbation", ylabel="samples, %", ylim=(0, 103), xlim=(0, sizes[-1]))
    return _explained(axis)


def brackets(
    certified: ArrayLike,
    attacked: ArrayLike,
    *,
    estimate: ArrayLike | None = None,
    label: str = "size of the perturbation",
    axis: Any = None,
) -> Any:
    """What is proven and what an attack reaches, one bar per sample, in order of the first; what lies between is open."""
    axis, lower = _axis(axis), _numbers("certified", certified)
    upper = _numbers("attacked", attacked, like=lower)
    order = np.lexsort((upper, lower))
    places, lower, upper = np.arange(len(lower)), lower[order], upper[order]
    broken = np.isfinite(upper)
    axis.vlines(places[broken], lower[broken], upper[broken], color=OPEN, linewidth=max(1.0, min(6.0, 240 / max(len(lower), 1))))
    axis.plot(places[broken], upper[broken], ".", color=BROKEN, markersize=4, label="attacked")
    if estimate is not None:
        axis.plot(places, _numbers("estimate", estimate, like=lower)[order], ".", color=OTHER, markersize=4, label="estimated")
    axis.plot(places, lower, ".", color=PROVEN, markersize=4, label="certified")
    _logarithmic(axis, "y", np.concatenate([lower, upper]))
    axis.set(xlabel="samples, in order of what is certified", ylabel=label)
    return _explained(axis)


def sensitivity(
    certified: ArrayLike,
    attacked: ArrayLike,
    *,
    names: Sequence[str] | None = None,
    require: float | None = None,
    axis: Any = None,
) -> Any:
    """Frames (or words) one by one: how far each alone may move for certain, and what an attack on it alone reaches."""
    axis, lower = _axis(axis), _numbers("certified", certified)
    upper = _numbers("attacked", attacked, like=lower)
    places = np.arange(len(lower))
    between = np.isfinite(upper) & (lower > 0)
    _boxes(axis, places[between], 0.7, lower[between], upper[between], facecolors=OPEN)
    axis.plot(places, np.where(np.isfinite(upper), upper, np.nan), "v", color=BROKEN, markersize=4, label="attacked")
    axis.plot(places, lower, "^", color=PROVEN, markersize=4, label="certified")
    if require is not None:
        axis.axhline(require, color=INK, linestyle="--", linewidth=1)
    _logarithmic(axis, "y", np.concatenate([lower, upper]))
    if names is not None:
        axis.set_xticks(places, names, rotation=60 if max(map(len, names)) > 3 else 0, fontsize=SMALL)
    axis.set(xlabel="" if names is not None else "frame", ylabel="size, it alone moving")
    return _explained(axis)


def distributions(series: Mapping[str, ArrayLike], *, label: str = "size of the perturbation", axis: Any = None) -> Any:
    """How radii are spread: a histogram over one logarithmic axis for each series, of what is positive and finite in it."""
    axis = _axis(axis)
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in series.items()}
    kept = {name: values[np.isfinite(values) & (values > 0)] for name, values in arrays.items()}
    every = np.concatenate([*kept.values(), [] if any(map(len, kept.values())) else [1.0]])
    edges = np.geomspace(every.min() / 1.15, every.max() * 1.15, STEPS + 1)
    for (name, values), colour in zip(kept.items(), SERIES, strict=False):
        counts = np.histogram(values, edges)[0] / max(1, len(values))
        about = f"{name}: median {np.median(values):.3g}" if values.size else f"{name}: none"
        axis.stairs(100 * counts, edges, color=colour, linewidth=1.5, label=about)
    _logarithmic(axis, "x", every)
    axis.set(xlabel=label, ylabel="samples, %", xlim=(edges[0], edges[-1]))
    axis.set_ylim(bottom=0)
    return _explained(axis)


def means(networks: Mapping[str, Mapping[str, float]], *, label: str = "mean radius", axis: Any = None) -> Any:
    """Mean radius of every method, per network."""
    axis, names = _axis(axis), list(networks)
    for method, marker, colour in zip(next(iter(networks.values())), "os^v", SERIES, strict=False):
        axis.plot(names, [networks[name][method] for name in names], marker, color=colour, label=method, markersize=5)
    _logarithmic(axis, "y", np.array([value for found in networks.values() for value in found.values()]))
    axis.set_ylabel(label)
    axis.tick_params(axis="x", rotation=60 if len(names) > 6 else 0)
    axis.grid(alpha=0.3)
    return _explained(axis)


def positions(places: ArrayLike, low: ArrayLike, middle: ArrayLike, high: ArrayLike, *, axis: Any = None) -> Any:
    """Something over positions in the sequence: a line through the medians, within a band that holds half of all."""
    axis = _axis(axis)
    axis.axhline(1, color=INK, linewidth=0.8, alpha=0.5)
    axis.fill_between(places, low, high, color=PROVEN, alpha=0.2, linewidth=0, label="half of all")
    axis.plot(places, middle, "o-", color=PROVEN, markersize=4, label="median")
    axis.set(xlabel="position in the sequence", ylabel="radius / its sample's median")
    axis.set_ylim(bottom=0)
    return _explained(axis)


# ---- what was certified, coloured by sensitivity -----------------------------------------------------------------------------


def colours(radii: ArrayLike) -> list[str]:
    """The sensitivity scale: from red, the least radius, to blue, the greatest; logarithmic."""
    logs = np.log(np.maximum(_numbers("radii", radii), 1e-12))
    finite = logs[np.isfinite(logs)] if np.isfinite(logs).any() else np.zeros(1)
    span = np.ptp(finite)
    shares = np.clip((logs - finite.min()) / span, 0, 1) if span > 0 else np.full(len(logs), 0.5)
    mixed = [np.interp(shares, np.linspace(0, 1, len(SCALE)), channel).round() for channel in zip(*SCALE, strict=True)]
    return [f"#{int(red):02x}{int(green):02x}{int(blue):02x}" for red, green, blue in zip(*mixed, strict=True)]


def bars(radii: ArrayLike, *, axis: Any = None) -> Any:
    """The radius of every frame as a bar."""
    axis, heights = _axis(axis), _numbers("radii", radii)
    _boxes(axis, np.arange(len(heights)), 0.8, np.zeros(len(heights)), heights, facecolors=colours(heights))
    axis.set(xticks=[], xlabel="radius of every frame", xlim=(-0.5, len(heights) - 0.5))
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="y", nbins=3)
    return axis


def signal(frames: ArrayLike, radii: ArrayLike, *, axis: Any = None) -> Any:
    """A signal `[frames, samples of a frame]`, every frame on a background of its sensitivity."""
    axis, rows = _axis(axis), np.asarray(frames, dtype=np.float64)
    low, high = _margins(rows)
    _strip(axis, radii, low, high, alpha=0.55)
    axis.plot((np.arange(rows.size) + 0.5) / rows.shape[1] - 0.5, rows.ravel(), color=INK, linewidth=1.5)
    axis.set(xticks=[], xlim=(-0.5, len(rows) - 0.5), ylim=(low, high))
    axis.locator_params(axis="y", nbins=4)
    return axis


def spectrogram(frames: ArrayLike, radii: ArrayLike, *, axis: Any = None) -> Any:
    """A spectrogram `[frames, bands]`, the lowest band at the bottom, under a strip of its frames' sensitivity."""
    axis, cells = _axis(axis), np.asarray(frames, dtype=np.float64).T
    bands, count = cells.shape
    picture = np.zeros((bands, count, 4))
    picture[..., :3] = [int(INK[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    picture[..., 3] = (cells - cells.min()) / max(float(np.ptp(cells)), 1e-9)
    axis.imshow(picture, origin="lower", aspect="auto", interpolation="none")
    _strip(axis, radii, bands - 0.5, 1.1 * bands)
    axis.spines[:].set_visible(False)
    axis.set(xticks=[], yticks=[], xlim=(-0.5, count - 0.5), ylim=(-0.5, 1.1 * bands))
    return axis


def strokes(points: ArrayLike, radii: ArrayLike, *, circled: Sequence[int] = (), axis: Any = None) -> Any:
    """What a pen drew, steps coloured by sensitivity, moves with the pen lifted dashed, the start and some points circled.

    `points` are rows `(dx, dy, end of stroke, ...)`; the first is the starting point itself.
    """
    axis, rows, tints = _axis(axis), np.asarray(points, dtype=np.float64), colours(radii)
    from matplotlib.collections import LineCollection

    places = pen_places(rows)
    lifted = rows[:-1, 2] > 0
    styles = [(0, (2, 2)) if up else "-" for up in lifted]
    steps = np.stack([places[:-1], places[1:]], axis=1)
    axis.add_collection(LineCollection(list(steps), colors=tints[1:], linestyles=styles, linewidths=np.where(lifted, 1.2, 4.0)))
    axis.scatter(*places.T, c=tints, s=10, zorder=3, clip_on=False)
    axis.scatter(*places[0], s=110, facecolors="none", edgecolors=INK, zorder=4, clip_on=False)
    axis.scatter(*places[list(circled)].T, s=80, facecolors="none", edgecolors=BROKEN, zorder=4, clip_on=False)
    axis.set_aspect("equal")
    axis.margins(0.1)
    axis.invert_yaxis()
    axis.set_axis_off()
    return axis


def pen_places(points: ArrayLike) -> NDArray[np.float64]:
    """Where the pen is after each of its moves."""
    return np.cumsum(np.asarray(points, dtype=np.float64)[:, :2], axis=0)


def holding(radii: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of samples whose radius is at least each size; radii of 0 and NaN hold at none."""
    return np.asarray([float(np.mean((radii >= size) & (radii > 0))) for size in sizes])


def left(radii: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of samples that no attack breaks up to each size: at its own radius an attack has succeeded."""
    return np.asarray([float(np.mean(radii > size)) for size in sizes])


def _sizes(radii: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where something changes, from 0 to a little beyond the greatest."""
    finite = radii[np.isfinite(radii) & (radii > 0)]
    greatest = finite.max() if finite.size else 1.0
    return np.unique([0.0, *finite, *np.nextafter(finite, np.inf), 1.05 * greatest])


def _logarithmic(axis: Any, which: str, values: NDArray[np.float64]) -> None:
    """A logarithmic axis with few round ticks, where something is positive."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    kept = values[np.isfinite(values) & (values > 0)]
    if not kept.size:
        return
    getattr(axis, f"set_{which}scale")("log", nonpositive="mask")
    ratio, ticks = kept.max() / kept.min(), getattr(axis, f"{which}axis")
    ticks.set_major_locator(MaxNLocator(4) if ratio < 4 else LogLocator(subs=(1, 2, 5) if ratio < 300 else (1,)))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter("{x:g}")


def _strip(axis: Any, radii: ArrayLike, low: float, high: float, alpha: float = 1.0) -> None:
    """A background between two heights, in the colour of every frame's sensitivity."""
    tints = colours(radii)
    ends = np.full(len(tints), low), np.full(len(tints), high)
    _boxes(axis, np.arange(len(tints)), 1.0, *ends, facecolors=tints, alpha=alpha, antialiased=False, zorder=0)


def _boxes(axis: Any, middles: NDArray[Any], width: float, low: NDArray[Any], high: NDArray[Any], **style: Any) -> None:
    """Upright boxes as one collection, which is drawn much sooner than as many bars."""
    from matplotlib.collections import PolyCollection

    left, right = middles - width / 2, middles + width / 2
    corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
    axis.add_collection(PolyCollection(list(corners), linewidth=0, **style))
    axis.autoscale_view()


def _margins(values: NDArray[np.float64]) -> tuple[float, float]:
    margin = 0.08 * float(np.ptp(values)) or 0.5
    return float(values.min()) - margin, float(values.max()) + margin


def _explained(axis: Any) -> Any:
    """A legend above the axis, where it hides nothing."""
    labels = axis.get_legend_handles_labels()[1]
    columns = 4 if sum(map(len, labels)) < 80 else 2
    axis.legend(fontsize=SMALL, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, frameon=False)
    return axis


def _numbers(name: str, values: ArrayLike, like: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    numbers = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64)
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(f"{name} has shape {numbers.shape}; pass a radius per sample or frame")
    if like is not None and len(numbers) != len(like):
        raise ValueError(f"{name} has {len(numbers)} entries, and certified has {len(like)}; pass one for each")
    return numbers


def _axis(axis: Any) -> Any:
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        raise ImportError("pictures are drawn with matplotlib; pip install 'popqorn[report]'") from None
    return plt.subplots(figsize=(7, 3), layout="constrained")[1] if axis is None else axis
