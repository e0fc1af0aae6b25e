"""The greatest value of `d' M d`, `M = J' Q J`, over the allowed displacements: an estimate, and the weights it rests on.

For any positive weights `T`, `d' M d <= lambda_max(T^-1/2 M T^-1/2) d' T d`, and `d' T d` is at most the region's `spread`. The
weights are improved by a few multiplicative steps, each towards the squared leading Ritz vectors of a short Lanczos run.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from popqorn.arithmetic import tiny
from popqorn.bounds.joint.forms import Form
from popqorn.bounds.joint.linear import Linearised
from popqorn.regions.region import AllowedSet

STEPS = 8  # of Lanczos, while weights are improved
LAST_STEPS = 10
POWERS = (0.4, 0.25, 0.15, 0.15)  # ever smaller steps of improvement
NEXT_POWER = 0.15  # a smaller step, from one evaluation to the next
MOST_CHANGE = 2.5
SOFTNESS = 0.15  # how far below the greatest Ritz value others still count
LEAST_WEIGHT = 1e-4  # of the mean

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Estimate:
    """Weights `[batch, rows, columns]` of spread 1, and the eigenvalue that goes with them: probably no more than `value`.

    `vectors` and `better` weights are where the estimate of a similar form starts.
    """

    weights: Tensor
    value: Tensor
    vectors: Tensor
    better: Tensor

    def select(self, sample: int) -> "Estimate":
        """That of one sample."""
        return Estimate(*(getattr(self, each.name)[sample : sample + 1] for each in fields(self)))

    @staticmethod
    def joined(parts: "list[Estimate]") -> "Estimate":
        """Those of several samples."""
        return Estimate(*(torch.cat([getattr(part, each.name) for part in parts]) for each in fields(Estimate)))


def estimate(linear: Linearised, allowed: AllowedSet, form: Form, before: Estimate | None, dtype: torch.dtype) -> Estimate:
    """Estimate the greatest value of a form; from the weights and vectors of a similar one, if there are any."""
    layout = linear.layout
    count = layout.columns(max(layout.stages[node] for node in form))
    shape = (count // layout.tape.features, layout.tape.features)
    product, diagonal, unit = _operator(linear, form, count, dtype)

    def normed(weights: Tensor) -> Tensor:
        weights = weights.double()
        weights = weights + LEAST_WEIGHT * weights.mean(-1, keepdim=True) + torch.finfo(torch.float64).tiny
        shaped = allowed.evened(weights.unflatten(-1, shape))
        return (shaped / allowed.spread(shaped)[..., None, None]).flatten(-2)

    def improved(weights: Tensor, values: Tensor, basis: Tensor, power: float) -> Tensor:
        """Weights that are larger where the leading Ritz vectors are."""
        top = values[..., -1:]
        share = torch.softmax((values - top) / (SOFTNESS * top.abs().clamp(min=1e-30)), -1)
        squared = torch.einsum("kbrd,brk->brd", basis.square(), share.to(dtype)).double()
        grouped = allowed.evened(squared.unflatten(-1, shape)).flatten(-2)
        relative = grouped / (weights / weights.sum(-1, keepdim=True))
        return normed(weights * relative.pow(power).clamp(1 / MOST_CHANGE, MOST_CHANGE))

    generator = torch.Generator(diagonal.device).manual_seed(1)
    noise = torch.randn(diagonal.shape, generator=generator, dtype=dtype, device=diagonal.device) / count**0.5
    powers: tuple[float, ...]
    if before is None:
        weights, vectors, powers, last = normed(diagonal.sqrt()), noise, POWERS, LAST_STEPS
    else:
        weights, vectors, powers, last = before.better, before.vectors + 0.1 * noise, (), STEPS
    for power in powers:
        values, basis, _ = lanczos(_weighed(product, weights, dtype), vectors, min(STEPS, count))
        vectors = basis[-1] + 0.05 * noise
        weights = improved(weights, values, basis, power)
    values, basis, residual = lanczos(_weighed(product, weights, dtype), vectors, min(last, count))
    leading = values[..., -1].clamp(min=0).double()
    value = torch.minimum(leading + 0.3 * residual.double(), 1.05 * leading)
    return Estimate(weights, value * unit, basis[-1], improved(weights, values, basis, NEXT_POWER))


def _weighed(product: Product, weights: Tensor, dtype: torch.dtype) -> Product:
    root = weights.rsqrt().to(dtype)
    return lambda x: root * product(root * x)


def _operator(linear: Linearised, form: Form, count: int, dtype: torch.dtype) -> tuple[Product, Tensor, Tensor]:
    """`x -> M x` for rows `[batch, rows, columns]`, a bound of the diagonal of `M`, and the unit of both, `[batch, rows]`.

    Units keep what is tiny within the range of single precision.
    """
    nodes = linear.layout.tape.nodes
    blocks: list[Tensor] = []  # J of all operands, side by side
    plan: list[tuple[int, list[slice]]] = []
    start = 0
    for node in form:
        places = []
        for source in nodes[node].sources:
            width = nodes[source].width
            zero = linear.radius.new_zeros(len(linear.radius), linear.layout.inputs, width)
            blocks.append(linear.jacobian.get(source, zero)[:, :count])
            places.append(slice(start, start + width))
            start += width
        plan.append((node, places))
    stacked = torch.cat(blocks, dim=-1)  # [batch, columns, operands]
    largest = _largest(stacked)
    stacked = (stacked / largest).to(dtype)
    turned = stacked.mT.contiguous()
    some = next(iter(form.values())).squares[0]
    sizes = some.new_empty(*some.shape[:2], start)
    for node, places in plan:
        matrix = form[node].magnitude
        ones = [torch.ones_like(square) for square in matrix.squares]
        for place, vector in zip(places, matrix.times(*ones), strict=True):
            sizes[..., place] = vector
    unit = sizes.amax(-1, keepdim=True).clamp(min=tiny(sizes.dtype))
    matrices = [(form[node].over(unit).to(dtype), places) for node, places in plan]

    def product(x: Tensor) -> Tensor:
        moved = x @ stacked
        for matrix, places in matrices:
            found = matrix.times(*(moved[..., place] for place in places))
            for place, vector in zip(places, found, strict=True):
                moved[..., place] = vector
        return moved @ turned

    return product, (sizes / unit).to(dtype) @ turned.square(), unit.squeeze(-1) * largest.squeeze(-1).square()


def _largest(columns: Tensor) -> Tensor:
    return columns.abs().amax((-2, -1), keepdim=True).clamp(min=tiny(columns.dtype))


def lanczos(product: Product, start: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values `[batch, rows, steps]` (ascending) and vectors `[steps, batch, rows, columns]`, and the last one's residual."""
    batch, rows, columns = start.shape
    basis = start.new_empty(steps, batch, rows, columns)
    along, across = (start.new_zeros(batch, rows, steps, dtype=torch.float64) for _ in range(2))
    vector = start / torch.linalg.vector_norm(start, dim=-1, keepdim=True).clamp(min=1e-30)
    for step in range(steps):
        basis[step] = vector
        moved = product(vector)
        along[..., step] = (moved * vector).sum(-1)
        kept = basis[: step + 1]
        moved = moved - torch.einsum("kbrd,kbr->brd", kept, torch.einsum("kbrd,brd->kbr", kept, moved))
        length = torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
        across[..., step] = length.squeeze(-1)
        vector = moved / length.clamp(min=1e-30)
    along, across = along.nan_to_num(0.0, 0.0, 0.0), across.nan_to_num(0.0, 0.0, 0.0)  # an overflow is no eigenvalue
    inner = across[..., :-1]
    values, vectors = torch.linalg.eigh(torch.diag_embed(along) + torch.diag_embed(inner, 1) + torch.diag_embed(inner, -1))
    ritz = torch.einsum("kbrd,brkj->jbrd", basis, vectors.to(basis.dtype))
    return values, ritz, across[..., -1] * vectors[..., -1, -1].abs()
