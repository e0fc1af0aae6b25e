"""Random, tiny, huge, one-sided and empty intervals, for Hypothesis to draw and shrink."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from popqorn.relax.relaxation import Interval

LIMIT = 1e3

_centers = st.one_of(st.floats(-2, 2), st.floats(-40, 40), st.floats(-LIMIT, LIMIT), st.just(0.0))
_widths = st.one_of(st.just(0.0), st.just(1e-12), st.floats(0, 1e-6), st.floats(0, 1), st.floats(0, 10), st.floats(0, 2 * LIMIT))


@st.composite
def _interval(draw: st.DrawFn) -> tuple[float, float]:
    center, width = draw(_centers), draw(_widths)
    shape = draw(st.sampled_from(["around", "above", "below", "from zero", "to zero"]))
    lower, upper = {
        "around": (center - width / 2, center + width / 2),
        "above": (center, center + width),
        "below": (center - width, center),
        "from zero": (0.0, width),
        "to zero": (-width, 0.0),
    }[shape]
    lower, upper = max(-LIMIT, min(lower, LIMIT)), max(-LIMIT, min(upper, LIMIT))
    return min(lower, upper), max(lower, upper)


@st.composite
def boxes(draw: st.DrawFn, size: int = 16) -> Interval:
    """A box of `size` intervals."""
    drawn = draw(st.lists(_interval(), min_size=size, max_size=size))
    ends = torch.tensor(drawn, dtype=torch.float64)
    return Interval(ends[:, 0].clone(), ends[:, 1].clone())


def points(box: Interval, count: int, seed: int = 0) -> Tensor:
    """`[count, size]` points of the box: both ends, the middle, zero if inside, points crowding the ends, and uniform ones."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(count, *box.lower.shape, generator=generator, dtype=box.lower.dtype)
    crowded = share[: count // 4] ** 8
    share[: count // 8], share[count // 8 : count // 4] = crowded[: count // 8], 1 - crowded[count // 8 :]
    share[:3] = torch.tensor([0.0, 1.0, 0.5], dtype=share.dtype).reshape(3, *[1] * box.lower.dim())
    x = box.lower + share * (box.upper - box.lower)
    x[3] = 0.0
    return torch.maximum(torch.minimum(x, box.upper), box.lower)
