"""The greatest value of a quadratic form over the allowed inputs: errors priced, the eigenvalue estimated and proven."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.arithmetic import FEW, gamma, tiny
from popqorn.bounds.joint.elimination import Stage, proven, stages_of, widest_stage
from popqorn.bounds.joint.forms import Form, Matrix, paired
from popqorn.bounds.joint.spectrum import Estimate, estimate
from popqorn.bounds.joint.transfer import Known, nothing, operand_columns, transferred

MARGIN = 1.01  # how far above its estimate an eigenvalue is tried first
RAISES = (1.0, 1.02, 1.06, 1.2, 1.6, 4.0)
TRANSFER_BYTES = 2**21  # of an adjoint: what is in the cache still when the next operation reads it
ELIMINATION_BYTES = 2**22  # of the matrices of one stage, likewise
MOST_ELIMINATED = 2**11  # columns of a stage: more take hours

NEAR = 0.04  # how far, relatively, a size may be from where prices were computed: in estimates they are then scaled instead


@dataclass(frozen=True)
class Past:
    """What was found of a form at sizes `eps` (`[batch]`): its greatest value, and the prices of its errors at some nodes."""

    guess: Estimate
    prices: Mapping[int, Tensor]
    eps: Tensor

    def select(self, sample: int) -> "Past":
        """That of one sample."""
        one = slice(sample, sample + 1)
        return Past(self.guess.select(sample), {node: price[one] for node, price in self.prices.items()}, self.eps[one])

    @staticmethod
    def joined(parts: "list[Past]") -> "Past":
        """Those of several samples; prices of the nodes that all of them have."""
        nodes = set.intersection(*(set(part.prices) for part in parts))
        prices = {node: torch.cat([part.prices[node] for part in parts]) for node in sorted(nodes)}
        return Past(Estimate.joined([part.guess for part in parts]), prices, torch.cat([part.eps for part in parts]))

    def near(self, eps: Tensor) -> Bool[Tensor, " batch"]:
        """Whether sizes are so near that prices are hardly others than these, in proportion."""
        return (eps / self.eps - 1).abs() < NEAR


Memory = dict[tuple[int, int, float], Past]
"""What helps the next call: by node, number of columns, and the way its rows were walked."""


def greatest(known: Known, index: int, form: Form, memory: Memory, way: float, *, prove: bool) -> Float[Tensor, "batch rows"]:
    """An upper bound of `1/2 delta' Q delta` for a form of rows at node `index`; an estimate of one, unless it is to be proven.

    `way` tells apart the forms that one node has.
    """
    linear, layout = known.linear, known.linear.layout
    if widest_stage(layout, index) > MOST_ELIMINATED:
        return torch.full_like(next(iter(form.values())).squares[0][..., 0], torch.inf)
    count = layout.columns(max(layout.stages[node] for node in form))
    key = index, count, way
    past, eps = memory.get(key), known.allowed.eps
    if past is not None and not prove and bool(past.near(eps).all()):
        prices, priced_at = past.prices, past.eps
        priced, cost = _priced_as_before(known, form, past)
    else:
        priced, cost, prices = _priced(known, form, linear.radius.dtype if prove else torch.float32)
        priced_at = eps
    guess = estimate(linear, known.allowed, priced, None if past is None else past.guess, torch.float32)
    memory[key] = Past(guess, prices, priced_at)
    value, weights = (each.to(cost) for each in (MARGIN * guess.value, guess.weights))
    spread = known.allowed.spread(weights.unflatten(-1, (-1, layout.tape.features))) * (1 + gamma(count + FEW, cost.dtype))
    apart = _by_columns(known, priced, count)
    if prove:
        stages = stages_of(linear, index, frozenset(priced))
        # rows without any form to speak of are tried, too
        tried = torch.maximum(value, 1e-9 * value.amax(-1, keepdim=True))
        value = _proven(stages, priced, tried, weights, tried * spread < apart)
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


def _priced(known: Known, form: Form, dtype: torch.dtype) -> tuple[Form, Tensor, dict[int, Tensor]]:
    """The form with the errors' price in it, what they cost besides, and the prices to remember; some rows at a time."""
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
    prices = {node: torch.cat([part.prices[node] for part in parts], dim=1).float() for node in parts[0].prices}
    return together, torch.cat([part.cost for part in parts], dim=1), prices


def _priced_as_before(known: Known, form: Form, past: Past) -> tuple[Form, Tensor]:
    """The same with prices of a size nearby, scaled: `C = |Phi' Q (J d + e / 2)|` grows with the size, as `J d` does.

    A guess: what it makes of a form is no bound.
    """
    nodes = known.linear.layout.tape.nodes
    some = next(iter(form.values())).squares[0]
    scale = (known.allowed.eps / past.eps)[:, None, None]
    priced, cost = dict(form), some.new_zeros(some.shape[:2])
    for node, before in past.prices.items():
        price, both = before.to(some) * scale, known.tangents[node].both
        priced[node] = (form[node] if node in form else nothing(nodes[node], some)).plus(price, both)
        cost = cost + (price @ both.slack.unsqueeze(-1)).squeeze(-1)
    return {node: priced[node] for node in sorted(priced, reverse=True)}, cost


def _proven(stages: list[Stage], form: Form, value: Tensor, weights: Tensor, sought: Bool[Tensor, "batch rows"]) -> Tensor:
    """The least of some multiples of `value` that is proven, for the rows that are sought; inf where none is."""
    largest = max(stage.state + stage.frame.stop - stage.frame.start for stage in stages)
    each = max(1, ELIMINATION_BYTES // (8 * largest**2))
    found = torch.full_like(value, torch.inf)
    together = max(1, each // value.shape[1])
    for start in range(0, len(value), together):
        samples = slice(start, start + together)
        own = [stage.select(samples) for stage in stages]
        for raised in RAISES:
            open_rows = (found[samples].isinf() & sought[samples]).any(0).nonzero().squeeze(1)
            for rows in open_rows.split(each) if len(open_rows) else ():
                tried = raised * value[samples, rows]
                piece = {node: matrix.of(samples).select(rows) for node, matrix in form.items()}
                good = proven(own, piece, tried, weights[samples, rows])
                found[samples, rows] = torch.minimum(found[samples, rows], torch.where(good, tried, torch.inf))
    return found
