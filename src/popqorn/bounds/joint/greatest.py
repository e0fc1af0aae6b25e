"""The greatest value of a quadratic form over the allowed inputs: errors priced, the eigenvalue estimated and proven."""

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import FEW, gamma, tiny
from popqorn.bounds.joint.elimination import Stage, proven, stages_of, widest_stage
from popqorn.bounds.joint.forms import Form, Matrix, paired
from popqorn.bounds.joint.spectrum import Estimate, estimate
from popqorn.bounds.joint.transfer import Known, operand_columns, transferred

MARGIN = 1.01  # how far above its estimate an eigenvalue is tried first
RAISES = (1.0, 1.02, 1.06, 1.2, 1.6, 4.0)
TRANSFER_BYTES = 2**24  # of an adjoint
ELIMINATION_BYTES = 2**26  # of the matrices of one stage
MOST_ELIMINATED = 2**11  # columns of a stage: more take hours

Memory = dict[tuple[int, int, float], Estimate]
"""What helps the next call: estimates by node, number of columns, and the way its rows were walked."""


def greatest(known: Known, index: int, form: Form, memory: Memory, way: float, *, prove: bool) -> Float[Tensor, "batch rows"]:
    """An upper bound of `1/2 delta' Q delta` for a form of rows at node `index`; an estimate of one, unless it is to be proven.

    `way` tells apart the forms that one node has.
    """
    linear, layout = known.linear, known.linear.layout
    if widest_stage(layout, index) > MOST_ELIMINATED:
        return torch.full_like(next(iter(form.values())).squares[0][..., 0], torch.inf)
    priced, cost = _priced(known, form, linear.radius.dtype if prove else torch.float32)
    count = layout.columns(max(layout.stages[node] for node in priced))
    key = index, count, way
    guess = memory[key] = estimate(linear, known.allowed, priced, memory.get(key), torch.float32)
    value, weights = (each.to(cost) for each in (MARGIN * guess.value, guess.weights))
    spread = known.allowed.spread(weights.unflatten(-1, (-1, layout.tape.features))) * (1 + gamma(count + FEW, cost.dtype))
    apart = _by_columns(known, priced, count)
    if prove:
        stages = stages_of(linear, index, frozenset(priced))
        # rows without any form to speak of are tried, too
        tried = torch.maximum(value, 1e-9 * value.amax(-1, keepdim=True))
        value = _proven(stages, priced, tried, weights, (tried * spread < apart).any(0))
    sources = {node: layout.tape.nodes[node].sources for node in priced}
    unsure = {node: [linear.unsure(source) for source in own] for node, own in sources.items()}
    far = {node: [linear.size(source) + known.off[source].magnitude for source in own] for node, own in sources.items()}
    rounded = 4 * paired(priced, unsure, far)
    summed = FEW + sum(matrix.squares[0].shape[-1] for matrix in priced.values())  # what the cost and the rounding add up
    return (torch.fmin(value * spread, apart) / 2 + cost + rounded) * (1 + gamma(summed, cost.dtype))


def _by_columns(known: Known, form: Form, count: int) -> Float[Tensor, "batch rows"]:
    """An upper bound of `d' J' Q J d` by the lengths of single columns: `||sum d_i m_i|| <= sum |d_i| ||m_i||`.

    `m_i` are the columns of `R J` with `R' R` diagonal and above `Q`. No match for an eigenvalue where many inputs move at once,
    but better where they must share a budget (p = 1).
    """
    linear, layout = known.linear, known.linear.layout
    some = next(iter(form.values())).squares[0]
    total = some.new_zeros(*some.shape[:2], count)
    for node, matrix in form.items():
        sources = layout.tape.nodes[node].sources
        squares = [square.clamp(min=0) for square in matrix.squares]
        if matrix.cross is not None:
            sizes = [linear.size(source).clamp(min=tiny(total.dtype)).unsqueeze(1) for source in sources]
            ratio = (sizes[1] / sizes[0]).clamp(1e-9, 1e9)
            squares = [squares[0] + matrix.cross.abs() * ratio, squares[1] + matrix.cross.abs() / ratio]
        for source, square in zip(sources, squares, strict=True):
            if source in linear.jacobian:
                total = total + square @ linear.jacobian[source][:, :count].square().mT
    lengths = total.sqrt().unflatten(-1, (-1, layout.tape.features)).unsqueeze(-1)
    up = 1 + gamma(count + 4 * sum(matrix.squares[0].shape[-1] for matrix in form.values()) + FEW, total.dtype)
    return known.allowed.reach(lengths).squeeze(-1).square() * up


def _priced(known: Known, form: Form, dtype: torch.dtype) -> tuple[Form, Tensor]:
    """The form with the errors' price in it, and what they cost besides; some rows at a time."""
    layout = known.linear.layout
    batch, rows, _ = next(iter(form.values())).squares[0].shape
    widest = max(node.width for node in layout.tape.nodes if not node.linear)
    each = max(1, TRANSFER_BYTES // (batch * layout.inputs * widest * torch.finfo(dtype).bits // 8))
    columns = operand_columns(known, form, dtype)
    parts = []
    for start in range(0, rows, each):
        piece = {node: matrix.select(slice(start, start + each)) for node, matrix in form.items()}
        parts.append(transferred(known, columns, piece, dtype))
    together = {node: Matrix.joined([part.form[node] for part in parts]) for node in parts[0].form}
    return together, torch.cat([part.cost for part in parts], dim=1)


def _proven(stages: list[Stage], form: Form, value: Tensor, weights: Tensor, sought: Bool[Tensor, " rows"]) -> Tensor:
    """The least of some multiples of `value` that is proven, for the rows that are sought; inf where none is."""
    largest = max(stage.state + stage.frame.stop - stage.frame.start for stage in stages)
    each = max(1, ELIMINATION_BYTES // (8 * len(value) * largest**2))
    found = torch.full_like(value, torch.inf)
    for raised in RAISES:
        open_rows = (found.isinf().any(0) & sought).nonzero().squeeze(1)
        if not len(open_rows):
            break
        for rows in open_rows.split(each):
            tried = raised * value[:, rows]
            good = proven(stages, {node: matrix.select(rows) for node, matrix in form.items()}, tried, weights[:, rows])
            found[:, rows] = torch.minimum(found[:, rows], torch.where(good, tried, torch.inf))
    return found
