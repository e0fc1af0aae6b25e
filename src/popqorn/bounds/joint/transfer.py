"""The price of the errors in a quadratic form (docs/theory.md, Transfer).

With `delta = J d + e`, `e = Phi eps`,

    1/2 delta' Q delta = 1/2 (J d)' Q (J d) + sum_g eps_g Phi_g' Q (J d + e / 2)
                      <= 1/2 (J d)' Q (J d) + sum_g |eps_g| C_g

for any `C_g` above `|Phi_g' Q (J d + e / 2)|` over the allowed inputs. An error is second order itself, `|eps_g| <= 1/2 delta'
K_g delta + slack_g`: so the price `C_g K_g` joins `Q` at the operands of `g`, and `C_g slack_g` the constant. Errors act on
later operands alone, so going from the last node to the first settles all of them. `Phi_g' Q J` is an adjoint: what arrives at
the node of `g` when every operand further on sends `(Q J)` back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from popqorn.bounds.joint.forms import Form, Matrix
from popqorn.bounds.joint.linear import Linearised
from popqorn.bounds.walk import assembled
from popqorn.regions.region import AllowedSet
from popqorn.relax.quadratic import Tangent
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.linear import Affine, Concat, Scale, Slice, Sum
from popqorn.tape.ops.node import Node, pull_back


@dataclass(frozen=True)
class Known:
    """What is known of all nodes: their columns, the set of inputs, tangents, and ranges of `e`."""

    linear: Linearised
    allowed: AllowedSet
    tangents: Mapping[int, Tangent]
    off: Mapping[int, Interval]


@dataclass(frozen=True)
class Priced:
    """A form with the price of all errors in it, the prices `C` (`[batch, rows, width]`), and what errors cost besides."""

    form: Form
    prices: Mapping[int, Tensor]
    cost: Tensor


@dataclass
class _Backward:
    """Adjoints on their way, `[batch, rows * columns, width]` in pieces; `wide` (`[batch, rows, errors]`) is the part of every
    `C` that the ranges of `e` make: `1/2 |Phi_g| |Q| half`; `lost` (`[batch, rows]`) what rounding may add to each.
    """

    wide: Tensor
    lost: Tensor
    waiting: dict[int, list[tuple[int, Tensor]]] = field(default_factory=dict)

    def send(self, position: int, rows: Tensor, start: int = 0) -> None:
        self.waiting.setdefault(position, []).append((start, rows))


def transferred(known: Known, columns: Mapping[int, Tensor], form: Form, dtype: torch.dtype) -> Priced:
    """Price the errors in a form; `columns` are its `operand_columns`, in the `dtype` that adjoints are computed in."""
    layout, nodes = known.linear.layout, known.linear.layout.tape.nodes
    some = next(iter(form.values())).squares[0]
    batch, rows = some.shape[:2]
    count = 1 + layout.columns(max(layout.stages[node] for node in form))
    back = _Backward(some.new_zeros(batch, rows, layout.errors), some.new_zeros(batch, rows))
    cost = some.new_zeros(batch, rows)
    settled: dict[int, Matrix] = {}
    prices: dict[int, Tensor] = {}
    last: tuple[Tensor, Tensor] | None = None  # nodes whose errors enter together have one adjoint
    for position in range(max(form), -1, -1):
        node, pieces = nodes[position], back.waiting.pop(position, None)
        if not layout.stages[position] or (pieces is None and position not in form):
            continue
        adjoint = None if pieces is None else assembled(pieces, node.width)
        if node.linear:
            if adjoint is not None:
                _pull(back, known.linear, node, adjoint)
            continue
        matrix = form[position] if position in form else nothing(node, some)
        if adjoint is not None:
            if last is None or last[0] is not adjoint:
                last = adjoint, _greatest(adjoint.unflatten(1, (rows, count)), known.allowed, layout.tape.features, some.dtype)
            price = last[1] + back.wide[:, :, layout.places[layout.injected[position]]] + back.lost.unsqueeze(-1)
            both = known.tangents[position].both
            prices[position], matrix = price, matrix.plus(price, both)
            cost = cost + (price @ both.slack.unsqueeze(-1)).squeeze(-1)
        settled[position] = matrix
        _widen(back, known, matrix, node)
        _seed(back, known.linear, columns, position, matrix.to(dtype), adjoint, count)
    return Priced(settled, prices, cost)


def _greatest(adjoint: Tensor, allowed: AllowedSet, features: int, dtype: torch.dtype) -> Tensor:
    """`|Phi_g' Q (J d + middle of e / 2)|` at most; the first column is that of the middle."""
    by_middle, by_input = adjoint[:, :, 0], adjoint[:, :, 1:]
    reach = allowed.reach(by_input.unflatten(2, (-1, features)))
    return (reach + by_middle.abs() / 2).to(dtype)


def _widen(back: _Backward, known: Known, matrix: Matrix, node: Node) -> None:
    """Add what the operands of a node make of the ranges of `e`, and of rounding, to the prices of all errors before."""
    linear = known.linear
    half = [_half(known.off[source]).unsqueeze(1) for source in node.sources]
    far = [known.off[source].magnitude.unsqueeze(1) for source in node.sources]
    sizes = [linear.sizes[source] for source in node.sources]
    magnitude = matrix.magnitude
    for source, vector in zip(node.sources, magnitude.times(*half), strict=True):
        if source in linear.errors:
            back.wide += vector @ linear.errors[source].abs().mT / 2
    rounded = magnitude.times(*(size[:, :1] + own for size, own in zip(sizes, far, strict=True)))
    for size, vector in zip(sizes, rounded, strict=True):
        back.lost = back.lost + linear.relative * (vector @ size[:, 1].unsqueeze(-1)).squeeze(-1)


def operand_columns(known: Known, form: Form, dtype: torch.dtype) -> dict[int, Tensor]:
    """The middle of `e` and the columns of `J` of everything that can be an operand before a form's last node.

    `[batch, 1 + columns, width]`, without the columns of frames that are read later.
    """
    linear, layout, off = known.linear, known.linear.layout, known.off
    found: dict[int, Tensor] = {}
    for position in range(max(form) + 1):
        if layout.tape.nodes[position].linear or not layout.stages[position]:
            continue
        for source in layout.tape.nodes[position].sources:
            if source not in found and layout.stages[source]:
                middle = ((off[source].lower + off[source].upper) / 2).unsqueeze(1)
                own = linear.jacobian[source][:, : layout.columns(layout.stages[source])]
                found[source] = torch.cat([middle, own], dim=1).to(dtype)
    return found


def _seed(
    back: _Backward,
    linear: Linearised,
    columns: Mapping[int, Tensor],
    position: int,
    matrix: Matrix,
    adjoint: Tensor | None,
    count: int,
) -> None:
    """Send `(Q J)`, `Q` times the middle of `e`, and what arrived, on to the operands."""
    sources = linear.layout.tape.nodes[position].sources
    batch, rows, width = matrix.squares[0].shape
    for place, (source, slope) in enumerate(zip(sources, linear.slopes[position], strict=True)):
        if not linear.layout.bends[source]:
            continue
        if adjoint is None:
            sent = matrix.squares[0].new_zeros(batch, rows, count, width)
        else:
            sent = (adjoint * slope.to(adjoint.dtype).unsqueeze(1)).unflatten(1, (rows, count))
        terms = [(matrix.squares[place], source)]
        if matrix.cross is not None:
            terms.append((matrix.cross, sources[1 - place]))
        for factor, other in terms:
            if other in columns:
                own = columns[other]
                sent[:, :, : own.shape[1]].addcmul_(factor.unsqueeze(2), own.unsqueeze(1))
        back.send(source, sent.flatten(1, 2))


def nothing(node: Node, like: Tensor) -> Matrix:
    """A form of no size, for as many rows as `like` has."""
    zero = like.new_zeros(*like.shape[:2], node.width)
    return Matrix(tuple(zero for _ in node.sources), None)


def _half(interval: Interval) -> Tensor:
    return (interval.upper - interval.lower) / 2


def _pull(back: _Backward, linear: Linearised, node: Node, rows: Tensor) -> None:
    """Hand rows of a linear node on to operands behind which there are nonlinear nodes."""
    bends, nodes = linear.layout.bends, linear.layout.tape.nodes
    if isinstance(node, Affine):
        for source, weight in zip(node.sources, node.weights, strict=True):
            if bends[source]:
                back.send(source, rows @ weight.to(rows.dtype))
    elif isinstance(node, Sum):
        for source in node.sources:
            back.send(source, rows)
    elif isinstance(node, Slice):
        back.send(node.sources[0], rows, node.start)
    elif isinstance(node, Concat):
        for source, part in zip(node.sources, rows.split(list(node.widths), dim=-1), strict=True):
            back.send(source, part)
    elif isinstance(node, Scale):
        back.send(node.sources[0], rows * node.factor.to(rows.dtype))
    elif node.sources:
        _, parts = pull_back(node, rows.to(linear.radius), [nodes[source].width for source in node.sources])
        for source, part in zip(node.sources, parts, strict=True):
            back.send(source, part.to(rows.dtype))
