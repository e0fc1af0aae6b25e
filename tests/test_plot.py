"""Pictures from arrays."""

import math

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from popqorn import plot


@pytest.fixture(autouse=True)
def _closed() -> object:
    yield
    plt.close("all")


def test_shares_that_hold() -> None:
    """Radii of 0 (wrong) and NaN hold at no size, infinite ones at all."""
    radii = np.array([0.0, 0.1, 0.2, math.inf, math.nan])
    assert plot.holding(radii, np.array([0.0, 0.1, 0.15, 0.2, 9.0])).tolist() == [0.6, 0.6, 0.4, 0.4, 0.2]


def test_the_certified_curve_lies_below_the_attacked() -> None:
    axis = plot.accuracy(torch.tensor([0.1, 0.2, 0.0], dtype=torch.float64), [0.3, 0.4, 0.0], require=0.15)
    proven, unbroken = (next(line for line in axis.lines if line.get_gid() == gid) for gid in ("proven", "unbroken"))
    assert (proven.get_ydata() <= unbroken.get_ydata()).all()
    at = dict(zip(proven.get_xdata().tolist(), proven.get_ydata().tolist(), strict=True))
    assert at[0.0] == pytest.approx(200 / 3)
    assert at[0.1] == pytest.approx(200 / 3)
    assert at[float(np.nextafter(0.1, 1))] == pytest.approx(100 / 3)


@pytest.mark.parametrize("attacked", [[math.inf] * 3, [0.2, math.inf, math.nan]])
def test_what_was_never_broken_draws(attacked: list[float]) -> None:
    plot.accuracy([0.1, 0.0, 0.3], attacked)
    plot.brackets([0.1, 0.0, 0.3], attacked)
    axis = plot.sensitivity([0.1, 0.0, 0.3], attacked, names=["what", "is", "it"])
    assert [label.get_text() for label in axis.get_xticklabels()] == ["what", "is", "it"]
    axis.figure.canvas.draw()


def test_bad_arrays_are_named() -> None:
    with pytest.raises(ValueError, match=r"certified has shape \(1, 2\)"):
        plot.accuracy([[0.1, 0.2]])
    with pytest.raises(ValueError, match="attacked has 1 entries"):
        plot.brackets([0.1, 0.2], [0.3])
    with pytest.raises(ValueError, match="certified has shape"):
        plot.sensitivity([], [])
