"""Figures: plain functions from arrays to files. Nothing here knows of models."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


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
