"""Pictures for notebooks and pages: plain functions from arrays to matplotlib axes. Nothing here knows of models.

>>> found = popqorn.bracket(model, digits)
>>> popqorn.plot.accuracy(found.lower, found.upper)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

PROVEN, OPEN, BROKEN, INK = "#2166ac", "#e9a57f", "#b2182b", "#1d2330"


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
        unbroken = 100 * holding(upper, sizes)
        axis.step(sizes, unbroken, where="post", color=BROKEN, label="not broken by an attack", gid="unbroken")
        axis.fill_between(sizes, proven, unbroken, step="post", color=OPEN, alpha=0.35, linewidth=0, label="open")
    if require is not None:
        axis.axvline(require, color=INK, linestyle="--", linewidth=1, label=f"required: {require:g}")
    axis.set(xlabel="size of the perturbation", ylabel="samples, %", ylim=(0, 103), xlim=(0, sizes[-1]))
    axis.legend(fontsize=8)
    return axis


def brackets(certified: ArrayLike, attacked: ArrayLike, *, axis: Any = None) -> Any:
    """What is proven and what an attack reaches, one bar per sample, in order of the first; what lies between is open."""
    axis, lower = _axis(axis), _numbers("certified", certified)
    upper = _numbers("attacked", attacked, like=lower)
    order = np.lexsort((upper, lower))
    places, lower, upper = np.arange(len(lower)), lower[order], upper[order]
    broken = np.isfinite(upper)
    axis.vlines(places[broken], lower[broken], upper[broken], color=OPEN, linewidth=max(1.0, min(6.0, 240 / max(len(lower), 1))))
    axis.plot(places[broken], upper[broken], ".", color=BROKEN, markersize=4, label="attacked")
    axis.plot(places, lower, ".", color=PROVEN, markersize=4, label="certified")
    if (lower > 0).any():
        axis.set_yscale("log", nonpositive="mask")
    axis.set(xlabel="samples, in order of what is certified", ylabel="size of the perturbation")
    axis.legend(fontsize=8)
    return axis


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
    for place, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if np.isfinite(high) and low > 0:
            axis.bar(place, high - low, bottom=low, width=0.7, color=OPEN, gid=f"open-{place}")
    axis.plot(places, np.where(np.isfinite(upper), upper, np.nan), "v", color=BROKEN, markersize=4, label="attacked")
    axis.plot(places, lower, "^", color=PROVEN, markersize=4, label="certified")
    if require is not None:
        axis.axhline(require, color=INK, linestyle="--", linewidth=1)
    if (lower > 0).any():
        axis.set_yscale("log", nonpositive="mask")
    if names is not None:
        axis.set_xticks(places, names, rotation=60 if max(map(len, names)) > 3 else 0, fontsize=8)
    axis.set(xlabel="" if names is not None else "frame", ylabel="size, it alone moving")
    axis.legend(fontsize=8)
    return axis


def holding(radii: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of samples whose radius is at least each size; radii of 0 and NaN hold at none."""
    return np.asarray([float(np.mean((radii >= size) & (radii > 0))) for size in sizes])


def _sizes(radii: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where something changes, from 0 to a little beyond the greatest."""
    finite = radii[np.isfinite(radii) & (radii > 0)]
    greatest = finite.max() if finite.size else 1.0
    return np.unique([0.0, *finite, *np.nextafter(finite, np.inf), 1.05 * greatest])


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
