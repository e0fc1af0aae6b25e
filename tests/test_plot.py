"""Pictures from arrays."""

import math

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

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


def test_the_scale_runs_from_the_least_radius_to_the_greatest() -> None:
    least, middle, greatest = ("#{:02x}{:02x}{:02x}".format(*plot.SCALE[place]) for place in (0, 2, 4))
    assert plot.colours([1.0, 10.0, 100.0]) == [least, middle, greatest]
    assert plot.colours([2.0, 2.0]) == [middle, middle]
    assert plot.colours([0.0, 3.0, math.inf]) == [least, greatest, greatest]


def test_axes_hold_their_values_and_have_ticks() -> None:
    for values in ([0.02, 3.0], [0.11, 0.13], [1e-4, 1e12], [0.5, 0.5]):
        for axis in (plot.distributions({"one": values}), plot.means({"a": {"x": values[0]}, "b": {"x": values[1]}})):
            axis.figure.canvas.draw()
            which = axis.xaxis if axis.get_xlabel() else axis.yaxis
            low, high = sorted(which.get_view_interval())
            assert low <= min(values) <= max(values) <= high
            assert sum(low <= tick <= high for tick in which.get_majorticklocs()) >= 1 + (values[0] < values[1])


def test_frames_stand_where_their_number_says() -> None:
    """Of a signal, a spectrogram and bars: the same frames lie under each other."""
    radii, frames = [0.5, 0.1, 0.9], [[0, 1], [1, -2], [2, 3]]
    axes = [plot.signal(frames, radii), plot.spectrogram(frames, radii), plot.bars(radii)]
    assert {axis.get_xlim() for axis in axes} == {(-0.5, 2.5)}
    for axis in axes:
        boxes = axis.collections[0]
        assert [path.vertices[:4, 0].mean() for path in boxes.get_paths()] == pytest.approx([0, 1, 2])
        assert [to_hex(colour) for colour in boxes.get_facecolor()] == plot.colours(radii)
    heights = [path.vertices[:, 1].max() for path in axes[2].collections[0].get_paths()]
    assert heights == radii
    (wave,) = axes[0].lines
    assert wave.get_ydata().tolist() == [0, 1, 1, -2, 2, 3]
    assert wave.get_xdata().tolist() == [-0.25, 0.25, 0.75, 1.25, 1.75, 2.25]
    (picture,) = axes[1].images
    assert picture.get_array()[..., 3].T.tolist() == pytest.approx(np.add(frames, 2) / 5)


def test_the_pen_is_lifted_where_a_stroke_has_ended() -> None:
    points = [[5, 5, 0, 0], [3, 0, 1, 0], [0, 4, 0, 0], [-3, 1, 1, 1]]
    axis = plot.strokes(points, [0.5, 0.1, 0.9, 0.3], circled=[1])
    steps = axis.collections[0]
    assert [path.vertices.tolist() for path in steps.get_paths()] == [[[5, 5], [8, 5]], [[8, 5], [8, 9]], [[8, 9], [5, 10]]]
    assert [bool(style[1]) for style in steps.get_linestyle()] == [False, True, False]


def test_shares_of_a_distribution_sum_to_all_that_is_positive() -> None:
    axis = plot.distributions({"one": [0.1, 0.2, 0.0, math.inf], "none": []})
    assert [round(float(stairs.get_data().values.sum())) for stairs in axis.patches] == [100, 0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["one: median 0.15", "none: none"]
