"""The greatest value of a quadratic form over the allowed inputs: errors priced, the eigenvalue estimated and proven."""

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.arithmetic import FEW, gamma
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
    if prove:
        stages = stages_of(linear, index, frozenset(priced))
        # rows without any form to speak of are tried, too
        value = _proven(stages, priced, torch.maximum(value, 1e-9 * value.amax(-1, keepdim=True)), weights)
    spread = known.allowed.spread(weights.unflatten(-1, (-1, layout.tape.features)))
    sources = {node: layout.tape.nodes[node].sources for node in priced}
    unsure = {node: [linear.unsure(source) for source in own] for node, own in sources.items()}
    far = {node: [linear.size(source) + known.off[source].magnitude for source in own] for node, own in sources.items()}
    rounded = 4 * paired(priced, unsure, far)
    up = 1 + gamma(count + FEW, spread.dtype)
    return (value * spread * up / 2 + cost + rounded) * (1 + gamma(FEW, spread.dtype))


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


def _proven(stages: list[Stage], form: Form, value: Tensor, weights: Tensor) -> Tensor:
    """The least of some multiples of `value` that is proven, row by row; inf where none is."""
    largest = max(stage.state + stage.frame.stop - stage.frame.start for stage in stages)
    each = max(1, ELIMINATION_BYTES // (8 * len(value) * largest**2))
    found = torch.full_like(value, torch.inf)
    for raised in RAISES:
        open_rows = found.isinf().any(0).nonzero().squeeze(1)
        if not len(open_rows):
            break
        for rows in open_rows.split(each):
            tried = raised * value[:, rows]
            good = proven(stages, {node: matrix.select(rows) for node, matrix in form.items()}, tried, weights[:, rows])
            found[:, rows] = torch.minimum(found[:, rows], torch.where(good, tried, torch.inf))
    return found
