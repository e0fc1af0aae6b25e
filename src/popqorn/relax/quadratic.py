"""Quadratic functions below and above a nonlinearity, around a point of its box (docs/theory.md, Joint bounds).

With `delta` the operands' distance from the point and `f0 + slopes . delta` the tangent there, every entry has

    -1/2 delta' below delta - slack  <=  f - f0 - slopes . delta  <=  1/2 delta' above delta + slack

for all operands of the box. Matrices are found on a grid; between its nodes a smooth function sinks below the interpolation of
its values there by at most `(h_v^2 max|f_vv| + h_z^2 max|f_zz|) / 8`, which is the slack: so they hold wherever the fit ends.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from popqorn.arithmetic import rounding, tiny
from popqorn.relax.activations import SIGMOID, SQUARE, TANH, Activation, Smooth
from popqorn.relax.gates import GateKind
from popqorn.relax.minimum import gradient
from popqorn.relax.relaxation import Interval, Relaxation

CELLS = 32  # of the grid, per operand: coarser ones cost more of the bound than they save of the time
TYPICAL = 0.3  # a displacement's square where it matters, as a share of the greatest
CELLS_ALONE = 64  # of functions of one operand
SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of the Hessian at the point that a one-sided matrix starts from
SPLITS = ((1.0, 1.0), (1.6, 0.4), (0.4, 1.6))  # how what is added is split between the operands
ALONE = ((2.0, 0.0), (0.0, 2.0))  # where the other operand hardly moves, or not at all
MORE_SPLITS = (*SPLITS, (1.85, 0.15), (0.15, 1.85), *ALONE)

# Where derivatives of the sigmoid have their extremes: of s'' at +-_SECOND; tanh(z) = 2 s(2z) - 1.
_SECOND = math.log((3 + math.sqrt(3)) / (3 - math.sqrt(3)))


@dataclass(frozen=True)
class Bend:
    """`1/2 (sum_i squares_i delta_i^2 + 2 cross delta_1 delta_2) + slack`, entry by entry; `cross` may be None for none."""

    squares: tuple[Tensor, ...]
    cross: Tensor | None
    slack: Tensor

    def __call__(self, *delta: Tensor) -> Tensor:
        total = self.slack
        for square, distance in zip(self.squares, delta, strict=True):
            total = total + square * distance.square() / 2
        return total if self.cross is None else total + self.cross * delta[0] * delta[1]


@dataclass(frozen=True)
class Tangent:
    """A linear function `value + slopes . delta` around a point, and how far the nonlinearity lies from it over the box.

    `below` and `above` are one-sided, and None where the nonlinearity has nothing to offer but its planes; `both` is two-sided,
    without a cross term: `|f - value - slopes . delta| <= both(delta)`.
    """

    value: Tensor
    slopes: tuple[Tensor, ...]
    both: Bend
    below: Bend | None = None
    above: Bend | None = None

    def turned(self) -> "Tangent":
        """The same as a function of the negated first operand."""

        def turn(bend: Bend | None) -> Bend | None:
            return bend if bend is None or bend.cross is None else replace(bend, cross=-bend.cross)

        return replace(self, slopes=(-self.slopes[0], *self.slopes[1:]), below=turn(self.below), above=turn(self.above))


def gate_tangent(kind: GateKind, v: Interval, z: Interval, at: tuple[Tensor, Tensor]) -> Tangent:
    """The tangent of a gate `s(v) z` or `s(v) tanh(z)` at the point `at`."""
    s = torch.sigmoid(at[0])
    t = kind.factor(at[1])
    slope_s, slope_t = s * (1 - s), 1 - t.square() if kind is GateKind.TANH else torch.ones_like(t)
    bend_t = -2 * t * slope_t if kind is GateKind.TANH else torch.zeros_like(t)
    hessian = (slope_s * (1 - 2 * s) * t, slope_s * slope_t, s * bend_t)
    values = torch.maximum(kind.factor(z.lower).abs(), kind.factor(z.upper).abs())
    curved = sigmoid_curvature(v.lower, v.upper) * values
    bent = tanh_curvature(z.lower, z.upper) if kind is GateKind.TANH else torch.zeros_like(t)
    grid = _Grid.of((v, z), at, CELLS)
    surface = torch.sigmoid(at[0] + grid.steps[0]).unsqueeze(1) * kind.factor(at[1] + grid.steps[1]).unsqueeze(0)
    return _fitted(grid, surface, s * t, gradient(kind, *at), hessian, (curved, bent), at)


def unary_tangent(activation: Activation, x: Interval, at: Tensor) -> Tangent | None:
    """The tangent of an activation; None for those whose second derivative nothing is known of."""
    curvature = _CURVATURES.get(activation.name) if activation in (SIGMOID, TANH, SQUARE) else None
    if isinstance(activation.shape, Smooth) and activation.defined is None:
        curvature = activation.shape.curvature
    if curvature is None:
        return None
    with torch.inference_mode(False), torch.enable_grad():
        point = at.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(activation.function(point).sum(), point)  # any number would do
    grid = _Grid.of((x,), (at,), CELLS_ALONE)
    value = activation.function(at)
    bent = _over_cells(curvature, at + grid.steps[0], grid.cell[0])
    found = _fitted(grid, activation.function(at + grid.steps[0]), value, (slope,), (None,), (bent,), (at,))
    return _slackened(found, activation.slack) if activation.slack else found


def product_tangent(x: Interval, y: Interval, at: tuple[Tensor, Tensor]) -> Tangent:
    """`x y = x0 y0 + y0 dx + x0 dy + dx dy`: the quadratic part is a cross term."""
    value, one, zero = at[0] * at[1], torch.ones_like(at[0]), torch.zeros_like(at[0])
    far = [_furthest(box, point) for box, point in zip((x, y), at, strict=True)]
    noise = rounding(value, at[0] * far[1], at[1] * far[0], far[0] * far[1])
    ratio = (far[1] / far[0]).clamp(1e-30, 1e30)
    both = Bend((ratio, 1 / ratio), None, noise + rounding(far[0] * far[1]))
    return Tangent(value, (at[1], at[0]), both, Bend((zero, zero), -one, noise), Bend((zero, zero), one, noise))


def plane_tangent(value: Tensor, relaxation: Relaxation, operands: tuple[Interval, ...], at: tuple[Tensor, ...]) -> Tangent:
    """For what has no second derivative: halfway between its planes, and no further from that than they are."""
    slopes = tuple((low + high) / 2 for low, high in zip(relaxation.lower.slopes, relaxation.upper.slopes, strict=True))
    furthest = torch.zeros_like(value)
    for plane, side in ((relaxation.lower, -1.0), (relaxation.upper, 1.0)):
        gap, size = side * (plane(*at) - value), plane.offset.abs() + value.abs()
        for slope, own, box, point in zip(slopes, plane.slopes, operands, at, strict=True):
            far = _furthest(box, point)
            gap = gap + (own - slope).abs() * far
            size = size + (own.abs() + slope.abs()) * (box.magnitude + far)
        furthest = torch.maximum(furthest, gap + rounding(size))
    return Tangent(value, slopes, Bend(tuple(torch.zeros_like(slope) for slope in slopes), None, furthest))


# ---- fitting -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    """Nodes of a grid over a box, through the point: per operand their distance from it, `[nodes, ...]`, the greatest distance of
    all and the widest cell. Distances are squared in units of the greatest.
    """

    steps: tuple[Tensor, ...]
    far: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]

    @staticmethod
    def of(boxes: tuple[Interval, ...], at: tuple[Tensor, ...], cells: int) -> "_Grid":
        share = torch.linspace(-1, 1, cells + 1, dtype=at[0].dtype, device=at[0].device)
        share = share.reshape(-1, *[1] * at[0].dim())
        steps, far = [], []
        for box, point in zip(boxes, at, strict=True):
            steps.append(torch.where(share < 0, share * (point - box.lower), share * (box.upper - point)))
            far.append(_furthest(box, point))
        # nodes are rounded, and so is what is added to the point: cells are a little wider than they should be
        cell = tuple(distance * (2 / cells) * (1 + 1e-6) for distance in far)
        return _Grid(tuple(steps), tuple(far), cell)

    def squared(self) -> list[Tensor]:
        """Squared distances in units of the greatest, of every node: `[nodes, 1, ...]` and `[1, nodes, ...]`."""
        units = [(step / far).square() for step, far in zip(self.steps, self.far, strict=True)]
        return units if len(units) == 1 else [units[0].unsqueeze(1), units[1].unsqueeze(0)]

    def crossed(self) -> Tensor:
        """The products of both distances in units of the greatest."""
        first, second = (step / far for step, far in zip(self.steps, self.far, strict=True))
        return first.unsqueeze(1) * second.unsqueeze(0)


def _fitted(
    grid: _Grid,
    surface: Tensor,
    value: Tensor,
    slopes: tuple[Tensor, ...],
    hessian: tuple[Tensor | None, ...],
    curvature: tuple[Tensor, ...],
    at: tuple[Tensor, ...],
) -> Tangent:
    """Matrices of least trace (in units of the box) for a function given at the nodes of a grid."""
    tangent, size = value, value.abs() + surface.abs().flatten(0, len(slopes) - 1).amax(0)
    for axis, (slope, step, far) in enumerate(zip(slopes, grid.steps, grid.far, strict=True)):
        tangent = tangent + slope * (step if len(slopes) == 1 else step.unsqueeze(1 - axis))
        size = size + slope.abs() * far
        size = size + (slope.abs() + curvature[axis] * far) * (at[axis].abs() + far)  # the nodes are rounded, too
    rest, noise = surface - tangent, rounding(size)
    fit = _Fit(grid, grid.squared(), curvature, noise)
    both = fit.matrix(rest.abs(), None, MORE_SPLITS if len(slopes) == 2 else ((1.0,),))
    below, above = (fit.one_sided(side * rest, side, hessian) for side in (-1.0, 1.0))
    return Tangent(value, slopes, both, below, above)


@dataclass(frozen=True)
class _Fit:
    """What all matrices of one nonlinearity are fitted with."""

    grid: _Grid
    squared: list[Tensor]
    curvature: tuple[Tensor, ...]
    noise: Tensor
    inverses: dict[tuple[float, ...], Tensor] = field(default_factory=dict)

    def one_sided(self, excess: Tensor, side: float, hessian: tuple[Tensor | None, ...]) -> Bend:
        """A matrix with `excess <= 1/2 delta' K delta + slack`, from shares of the Hessian (if given) at the point."""
        if hessian[0] is None:
            return self.matrix(excess, None, ((1.0,),))
        found = []
        for share in SHARES:
            splits = (*SPLITS, *ALONE) if share in (SHARES[0], SHARES[-1]) else SPLITS
            found.append(self.matrix(excess, tuple(side * share * entry for entry in hessian if entry is not None), splits))
        best = found[0]
        for other in found[1:]:
            best = self._lesser(best, other)
        return best

    def matrix(self, excess: Tensor, start: tuple[Tensor, ...] | None, splits: tuple[tuple[float, ...], ...]) -> Bend:
        """`start` and as much of the splits of a diagonal matrix as it takes."""
        axes = tuple(range(len(self.squared)))
        needed = 2 * (excess - self.noise)
        scales = [far.square() for far in self.grid.far]
        first = [torch.zeros_like(scale) for scale in scales]
        cross = None
        if start is not None:
            across = start[1] * self.grid.far[0] * self.grid.far[1]
            first = [start[0] * scales[0], start[2] * scales[1]]
            needed = needed - first[0] * self.squared[0] - first[1] * self.squared[1] - 2 * across * self.grid.crossed()
            cross = start[1]
        best: Bend | None = None
        for split in splits:
            inverse = self._inverse(split)
            more = (needed * inverse).amax(axes)
            squares = tuple((own + share * more) / scale for own, share, scale in zip(first, split, scales, strict=True))
            slack = self._slack(squares)
            if split in ALONE:
                slack = slack + torch.where(inverse > 0, 0.0, needed).amax(axes).clamp(min=0) / 2
            found = Bend(squares, cross, slack)
            best = found if best is None else self._lesser(best, found)
        assert best is not None
        return best

    def _inverse(self, split: tuple[float, ...]) -> Tensor:
        """One over `split . delta^2` at the nodes; 0 at the point itself, where nothing is needed."""
        if split not in self.inverses:
            unit = split[0] * self.squared[0]
            for share, squared in zip(split[1:], self.squared[1:], strict=True):
                unit = unit + share * squared
            self.inverses[split] = torch.where(unit > tiny(unit.dtype) ** 0.5, 1 / unit, 0.0)
        return self.inverses[split]

    def _slack(self, squares: tuple[Tensor, ...]) -> Tensor:
        total = 4 * self.noise
        for square, cell, curved in zip(squares, self.grid.cell, self.curvature, strict=True):
            total = total + cell.square() * (curved + square.abs()) / 8
        return total

    def _cost(self, bend: Bend) -> Tensor:
        """Twice the bend where operands typically are."""
        total = 2 * bend.slack
        for square, far in zip(bend.squares, self.grid.far, strict=True):
            total = total + TYPICAL * square * far.square()
        return total

    def _lesser(self, one: Bend, other: Bend) -> Bend:
        better = self._cost(other) < self._cost(one)
        squares = tuple(torch.where(better, new, old) for new, old in zip(other.squares, one.squares, strict=True))
        cross = None if one.cross is None or other.cross is None else torch.where(better, other.cross, one.cross)
        return Bend(squares, cross, torch.where(better, other.slack, one.slack))


def _furthest(box: Interval, point: Tensor) -> Tensor:
    """The greatest distance from a point to the ends of its box; never so small that its square is no number."""
    far = torch.maximum(box.upper - point, point - box.lower)
    return far.clamp(min=tiny(point.dtype) ** 0.25) * (1 + 1e-6)


def _slackened(tangent: Tangent, by: float) -> Tangent:
    sides = {name: getattr(tangent, name) for name in ("both", "below", "above")}
    raised = {name: replace(bend, slack=bend.slack + 2 * by) for name, bend in sides.items() if bend is not None}
    return replace(tangent, **raised)


def _over_cells(curvature: Callable[[Tensor, Tensor], Tensor], nodes: Tensor, widest: Tensor) -> Tensor:
    """The second derivative that, over the widest cell, makes a function sink as far as in any cell.

    Cell by cell, as a kink counts the more, the narrower the interval that it is asked about.
    """
    starts, ends = nodes[:-1], nodes[1:]
    width = (ends - starts) * (1 + 1e-6)
    sunk = torch.where(width > 0, curvature(starts, ends) * width.square(), 0.0).amax(0)
    return sunk / widest.square()


# ---- second derivatives ------------------------------------------------------------------------------------------------------


def sigmoid_curvature(lower: Tensor, upper: Tensor) -> Tensor:
    """The greatest `|s''|` between two ends, a little more."""
    points = [lower, upper, *(torch.minimum(torch.maximum(lower, torch.full_like(lower, x)), upper) for x in (-_SECOND, _SECOND))]
    bends = []
    for x in points:
        s = torch.sigmoid(x)
        bends.append((s * (1 - s) * (1 - 2 * s)).abs())
    return torch.stack(bends).amax(0) * (1 + 1e-6) + 1e-12


def tanh_curvature(lower: Tensor, upper: Tensor) -> Tensor:
    """The greatest `|tanh''|`: `tanh(z) = 2 s(2z) - 1`."""
    return 8 * sigmoid_curvature(2 * lower, 2 * upper)


_CURVATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    SIGMOID.name: sigmoid_curvature,
    TANH.name: tanh_curvature,
    SQUARE.name: lambda lower, upper: torch.full_like(lower, 2.0),
}
