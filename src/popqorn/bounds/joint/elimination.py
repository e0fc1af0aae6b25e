"""Proof that `lambda d' T d >= (J d)' Q (J d)` for all `d`: block elimination along time (docs/theory.md, Elimination).

The network to first order is a state-space system. In stage `k` it reads a frame `d_k`; what later stages need of everything
before is the state `z_k`. Displacements of the stage's operands are `G (z_k, d_k)`, the next state is `E (z_k, d_k)`. From the
last stage to the first, `Pi` bounds what later operands take of the form, `sum (later) <= z' Pi z + lambda d' T d (later)`:

    M = E' Pi E + G' Q G,    N = lambda T_k - M_dd must be positive definite,    Pi <- M_zz + M_zd N^-1 M_dz.

That is a Riccati recursion for a recurrent network, and one step of Cholesky's for others. Every step is rounded upwards.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import gamma
from popqorn.bounds.joint.forms import Form
from popqorn.bounds.joint.linear import Layout, Linearised, pushed

SHIFT = 1e-7  # of the mean diagonal: how far from singular a matrix must be


@dataclass(frozen=True)
class Stage:
    """One stage: `following` is `E'` (`[batch, state + frame, next state]`; None after the last), `operands` is `G'` of its
    nonlinear `nodes`, all operands side by side, and `partners` the same with both operands of each node exchanged; `state` is
    how much of the columns is the state, `frame` which columns of `J` the rest is.
    """

    following: Tensor | None
    nodes: tuple[int, ...]
    operands: Tensor | None
    partners: Tensor | None
    state: int
    frame: slice

    def select(self, samples: slice) -> "Stage":
        """That of some samples."""
        parts = (self.following, self.operands, self.partners)
        following, operands, partners = (None if part is None else part[samples] for part in parts)
        return Stage(following, self.nodes, operands, partners, self.state, self.frame)


def stages_of(linear: Linearised, top: int, nodes: frozenset[int]) -> list[Stage]:
    """The stages of a form over some nonlinear `nodes` that node `top` depends on, first to last."""
    layout = linear.layout
    order = layout.ancestors(top)
    last = max(layout.stages[node] for node in nodes)
    live = [*(_live(layout, order, stage) for stage in range(last)), []]  # after the last, nothing counts
    found = []
    for stage in range(1, last + 1):
        positions = [position for position in order if layout.stages[position] == stage]
        found.append(_stage(linear, stage, positions, live[stage - 1], live[stage], nodes))
    return found


def widest_stage(layout: Layout, top: int) -> int:
    """How many columns the widest stage before a node has."""
    order = layout.ancestors(top)
    widths = [sum(layout.tape.nodes[n].width for n in _live(layout, order, stage)) for stage in range(layout.stages[top])]
    return max(widths) + layout.tape.features


def _live(layout: Layout, order: list[int], stage: int) -> list[int]:
    """The nodes up to a stage that later ones use."""
    used = {source for position in order if layout.stages[position] > stage for source in layout.tape.nodes[position].sources}
    return sorted(source for source in used if 0 < layout.stages[source] <= stage)


def _stage(
    linear: Linearised, stage: int, positions: list[int], before: list[int], after: list[int], nodes: frozenset[int]
) -> Stage:
    """The stage of some `positions`; `before` and `after` it, these nodes are the state."""
    layout = linear.layout
    tape, radius = layout.tape, linear.radius
    widths = [tape.nodes[position].width for position in before]
    state = sum(widths)
    total, batch = state + tape.features, len(radius)
    columns: dict[int, Tensor] = {}
    start = 0
    for position, width in zip(before, widths, strict=True):
        block = radius.new_zeros(1, total, width)
        block[0, start : start + width] = torch.eye(width, dtype=radius.dtype, device=radius.device)
        columns[position] = block.expand(batch, -1, -1)
        start += width
    operands: dict[int, tuple[Tensor, ...]] = {}
    for position in positions:
        node = tape.nodes[position]
        if not node.sources:
            block = radius.new_zeros(batch, total, node.width)
            block[:, state:] = torch.diag_embed(radius[:, layout.frames[stage - 1]])
            columns[position] = block
            continue
        columns[position] = pushed(tape, node, linear.slopes.get(position), columns)
        if position in nodes:
            nothing = (radius.new_zeros(batch, total, tape.nodes[source].width) for source in node.sources)
            operands[position] = tuple(columns.get(source, zero) for source, zero in zip(node.sources, nothing, strict=True))
    following = torch.cat([columns[position] for position in after], dim=-1) if after else None
    own = [each for pair in operands.values() for each in pair]
    partners = [each for pair in operands.values() for each in (pair[::-1] if len(pair) == 2 else pair)]
    frame = slice(layout.columns(stage - 1), layout.columns(stage))
    return Stage(following, tuple(operands), _side_by_side(own), _side_by_side(partners), state, frame)


def _side_by_side(parts: list[Tensor]) -> Tensor | None:
    return torch.cat(parts, dim=-1) if parts else None


def proven(
    stages: list[Stage], form: Form, bound: Float[Tensor, "batch rows"], weights: Float[Tensor, "batch rows columns"]
) -> Bool[Tensor, "batch rows"]:
    """Whether `bound * d' T d >= (J d)' Q (J d)` is proven, row by row, for the displacements that `stages` make."""
    good = torch.ones_like(bound, dtype=torch.bool)
    pi: Tensor | None = None
    for stage in reversed(stages):
        matrix = _gathered(stage, form, pi)
        if matrix is None:
            continue
        state = stage.state
        budget = bound.unsqueeze(-1) * weights[..., stage.frame]
        inner = -matrix[..., state:, state:]
        shift = SHIFT * budget.mean(-1)
        inner.diagonal(dim1=-2, dim2=-1).add_(budget - 2 * shift.unsqueeze(-1))
        factor, failed = torch.linalg.cholesky_ex(inner)
        # Cholesky's rounding, and that of the sums behind it, is far below the shift where the factor exists
        size = inner.diagonal(dim1=-2, dim2=-1).abs().sum(-1)
        good = good & (failed == 0) & (gamma(4 * inner.shape[-1], inner.dtype) * size < shift)
        if state == 0:
            break
        across = torch.linalg.solve_triangular(factor, matrix[..., state:, :state], upper=False)
        off = gamma(inner.shape[-1], inner.dtype) * _size(factor) * _size(across)
        pi = matrix[..., :state, :state] + across.mT @ across
        more = 2 * _size(across) * off / shift.sqrt() + off.square() / shift
        more = more + gamma(4 * inner.shape[-1], inner.dtype) * (_size(across).square() + _size(pi))
        pi = torch.where(good[..., None, None], pi, 0.0)
        pi.diagonal(dim1=-2, dim2=-1).add_(torch.where(good, more, 0.0).unsqueeze(-1))
    return good & bound.isfinite()


def _gathered(stage: Stage, form: Form, pi: Tensor | None) -> Tensor | None:
    """`E' Pi E + G' Q G` of a stage, rounded upwards: `[batch, rows, state + frame, state + frame]`; None if there is nothing."""
    total: Tensor | None = None
    rounded: Tensor | None = None
    if pi is not None and stage.following is not None:
        following = stage.following
        total = _times(_times(pi, following.mT).mT, following.mT)  # Pi is symmetric
        rounded = _size(following).square().unsqueeze(-1) * _size(pi) * gamma(4 * following.shape[-1], pi.dtype)
    if stage.operands is not None and stage.partners is not None:
        squares, crosses = _diagonals(form, stage.nodes)
        operands = stage.operands
        weighed = (squares.unsqueeze(-2) * operands.unsqueeze(1)).addcmul_(crosses.unsqueeze(-2), stage.partners.unsqueeze(1))
        part = _times(weighed, operands.mT)
        more = _size(operands).unsqueeze(-1) * _size(weighed) * gamma(4 * operands.shape[-1], part.dtype)
        total = part if total is None else total.add_(part)
        rounded = more if rounded is None else rounded + more
    if total is None or rounded is None:
        return None
    total.diagonal(dim1=-2, dim2=-1).add_(2 * rounded.unsqueeze(-1))
    return total


def _times(matrices: Tensor, factor: Tensor) -> Tensor:
    """`[batch, rows, ...]` matrices, each times its sample's factor: one product for all rows."""
    found: Tensor = (matrices.flatten(1, 2) @ factor).unflatten(1, matrices.shape[1:3])
    return found


def _diagonals(form: Form, nodes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The squares of all operands of some nodes side by side, `[batch, rows, operands]`, and the cross terms likewise."""
    squares: list[Tensor] = []
    crosses: list[Tensor] = []
    for node in nodes:
        matrix = form[node]
        squares.extend(matrix.squares)
        cross = torch.zeros_like(matrix.squares[0]) if matrix.cross is None else matrix.cross
        crosses.extend([cross] * len(matrix.squares))
    return torch.cat(squares, dim=-1), torch.cat(crosses, dim=-1)


def _size(matrix: Tensor) -> Tensor:
    """The Frobenius norm."""
    size: Tensor = torch.linalg.vector_norm(matrix, dim=(-2, -1))
    return size
