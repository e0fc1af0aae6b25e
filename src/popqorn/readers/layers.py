"""Layers of networks in terms of what a tape knows: convolution and pooling, normalisation, softmax, recurrence."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.readers.recurrent import Cell, Weights, unroll
from popqorn.readers.symbols import Symbol, SymbolWriter, Value
from popqorn.relax.activations import EXP, LOG, NEGATED_RECIPROCAL, SIGMOID, SQUARE, Activation, exp_up_to, negated_share, power

MOST_SOFTMAX = 128  # entries: their differences are taken pair by pair
ABSENT = -1  # in windows: beyond the edge


# ---- division, normalisation, softmax ------------------------------------------------------------------------------------


def divide(sheet: SymbolWriter, x: Value, y: Value) -> Value:
    """`x / y`; over boxes of `y` that hold zero nothing is known."""
    if isinstance(y, Tensor):
        return x / y if isinstance(x, Tensor) else sheet.scale(x, 1 / y.double())
    inverse = sheet.negate(sheet.unary(y, NEGATED_RECIPROCAL))
    return sheet.multiply(x, inverse)


def softmax(sheet: SymbolWriter, x: Symbol, axis: int) -> Symbol:
    """`1 / (1 + sum over j != i of exp(x_j - x_i))`: no number grows beyond what it must. Entries at -inf take no part.

    Beyond `exp(most)`, where less than `exp(-most)` is left of an entry, numbers do not grow any further: an overflow would leave
    nothing to say of a value between 0 and 1.
    """
    return _by_rows(sheet, x, axis, _softmax_row)


def log_softmax(sheet: SymbolWriter, x: Symbol, axis: int) -> Symbol:
    """`-log(1 + sum over j != i of exp(x_j - x_i))`."""

    def row(sheet: SymbolWriter, entries: Tensor) -> Tensor:
        found = sheet.negate(sheet.unary(_rivals(sheet, entries), LOG))
        assert isinstance(found, Symbol)
        return found.entries

    return _by_rows(sheet, x, axis, row)


def log_sum_exp(sheet: SymbolWriter, x: Symbol, axes: Sequence[int], keep: bool) -> Symbol:
    """`x_0 + log(1 + sum over j > 0 of exp(x_j - x_0))`."""
    axes = [axis % x.entries.dim() for axis in axes]
    kept = [axis for axis in range(x.entries.dim()) if axis not in axes]
    rows = x.entries.permute(*kept, *axes).reshape(-1, math.prod(x.shape[axis] for axis in axes))
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)] if keep else [x.shape[axis] for axis in kept]
    if rows.shape[1] == 1:
        return Symbol(rows.reshape(shape))
    found = []
    for row in rows:
        rest = sheet.total(_symbol(sheet.unary(_differences(sheet, row, [0]), EXP)), [-1])
        total = sheet.add(Symbol(row[:1]), sheet.unary(sheet.scale(rest, 1.0, 1.0), LOG))
        found.append(_symbol(total).entries)
    return Symbol(torch.cat(found).reshape(shape))


def _by_rows(sheet: SymbolWriter, x: Symbol, axis: int, of_row: Callable[[SymbolWriter, Tensor], Tensor]) -> Symbol:
    last = x.entries.movedim(axis, -1) if x.entries.dim() else x.entries.reshape(1)
    rows = last.reshape(-1, last.shape[-1])
    if rows.shape[1] > MOST_SOFTMAX:
        raise ValueError(f"a softmax over {rows.shape[1]} entries; at most {MOST_SOFTMAX} can be bounded")
    found = torch.stack([of_row(sheet, row) for row in rows]).reshape(last.shape)
    return Symbol(found.movedim(-1, axis) if x.entries.dim() else found.reshape(()))


def _softmax_row(sheet: SymbolWriter, entries: Tensor) -> Tensor:
    masked = torch.tensor(
        [bool((value := sheet.known(entry[None])) is not None and (value == -math.inf).all()) for entry in entries]
    )
    if bool(masked.any()):
        found = torch.empty_like(entries)
        found[masked] = sheet.symbol(torch.zeros(int(masked.sum()))).entries
        found[~masked] = _softmax_row(sheet, entries[~masked])
        return found
    if len(entries) == 1:
        return sheet.symbol(torch.ones(1)).entries
    if len(entries) == 2:
        return _symbol(sheet.unary(_symbol(sheet.negate(_differences(sheet, entries, [0, 1]))), SIGMOID)).entries.flatten()
    most = math.log(torch.finfo(sheet.writer.dtype).max) / 4
    rivals = _rivals(sheet, entries, exp_up_to(most))
    return _symbol(sheet.negate(sheet.unary(rivals, negated_share(math.exp(-most))))).entries


def _rivals(sheet: SymbolWriter, entries: Tensor, exp: Activation = EXP) -> Symbol:
    """`1 + sum over j != i of exp(x_j - x_i)` for every `i`."""
    apart = _differences(sheet, entries, range(len(entries)))
    return sheet.scale(sheet.total(_symbol(sheet.unary(apart, exp)), [-1]), 1.0, 1.0)


def _differences(sheet: SymbolWriter, entries: Tensor, of: Sequence[int]) -> Symbol:
    """`x_j - x_i` for all `j != i`, `[i, j]`, for some `i`."""
    count = len(entries)
    eye = torch.eye(count, dtype=sheet.writer.dtype)
    rows = torch.stack([eye[j] - eye[i] for i in of for j in range(count) if j != i])
    return sheet.linear(Symbol(entries), rows).moved(lambda found: found.reshape(len(of), count - 1))


@dataclass(frozen=True)
class Moments:
    """How a normalisation treats its entries: `(x - mean) / sqrt(variance + eps)`, or without a mean (RMS)."""

    eps: float
    centered: bool = True


def normalise(sheet: SymbolWriter, x: Symbol, moments: Moments) -> Symbol:
    """Over the last axis."""
    size = x.shape[-1]
    if moments.centered:
        rest = torch.eye(size, dtype=sheet.writer.dtype) - 1 / size
        x = sheet.linear(x, rest)
    squares = sheet.mean(_symbol(sheet.unary(x, SQUARE)), [-1], keep=True)
    inverse = sheet.unary(sheet.scale(squares, 1.0, moments.eps), power(-0.5))
    return _symbol(sheet.multiply(x, inverse))


def layer_norm(sheet: SymbolWriter, x: Symbol, axes: int, weight: Tensor | None, bias: Tensor | None, moments: Moments) -> Symbol:
    """Over the last `axes` axes together."""
    found = normalise(sheet, x.moved(lambda entries: entries.flatten(-axes)), moments)
    return _weighted(sheet, found.moved(lambda entries: entries.reshape(x.shape)), weight, bias)


def group_norm(sheet: SymbolWriter, x: Symbol, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Symbol:
    """Over the channels of a group and everything behind them; `[batch, channels, ...]`."""
    found = normalise(sheet, x.moved(lambda entries: entries.reshape(x.shape[0], groups, -1)), Moments(eps))
    return per_channel(sheet, found.moved(lambda entries: entries.reshape(x.shape)), weight, bias)


def batch_norm(
    sheet: SymbolWriter, x: Symbol, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> Symbol:
    """In eval mode: a shift, a multiple and a shift per channel.

    The two shifts in one would be less work, but what they leave where they cancel would be known less well than it looks.
    """
    factor = (variance.double() + eps).rsqrt()
    factor = factor if weight is None else factor * weight.double()
    return per_channel(sheet, per_channel(sheet, x, None, -mean), factor, bias)


def per_channel(sheet: SymbolWriter, x: Symbol, factor: Tensor | None, shift: Tensor | None) -> Symbol:
    """`factor * x + shift` with one number per channel, the second axis."""
    shape = [1, -1, *[1] * (x.entries.dim() - 2)]
    return _weighted(sheet, x, *(None if each is None else each.reshape(shape) for each in (factor, shift)))


def _weighted(sheet: SymbolWriter, x: Symbol, factor: Tensor | None, shift: Tensor | None) -> Symbol:
    if factor is None and shift is None:
        return x
    return sheet.scale(x, 1.0 if factor is None else factor, 0.0 if shift is None else shift)


# ---- convolution and pooling -------------------------------------------------------------------------------------------------


def convolution(
    sheet: SymbolWriter,
    x: Symbol,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
) -> Symbol:
    """`[1, channels, ...]` to `[1, channels, ...]`. Over time, where every step is a node of its own, steps stay apart."""
    batched = x.entries.dim() == weight.dim()
    entries = x.entries if batched else x.entries.unsqueeze(0)
    axes = weight.dim() - 2
    where = {
        "stride": _each(stride, axes),
        "padding": _each(padding, axes),
        "dilation": _each(dilation, axes),
        "output_padding": _each(output_padding, axes),
    }
    found = []
    for sample in entries:
        steps = sample.reshape(len(sample), -1).T
        apart = axes == 1 and groups == 1 and not transposed and _steps_apart(sheet, steps)
        if apart:
            found.append(_over_time(sheet, steps, weight, bias, where["stride"][0], where["padding"][0], where["dilation"][0]))
            continue
        position = sheet.writer.convolution(
            sheet.position(sample), tuple(sample.shape), weight, bias, groups=groups, transposed=transposed, **where
        )
        empty = torch.empty(1, *sample.shape, device="meta")
        options = (where["stride"], where["padding"], where["dilation"], transposed, where["output_padding"], groups)
        shape = torch.convolution(empty, weight.to(device="meta", dtype=empty.dtype), None, *options).shape[1:]
        found.append(sheet.entries(position).reshape(shape))
    stacked = torch.stack(found)
    return Symbol(stacked if batched else stacked.squeeze(0))


def _steps_apart(sheet: SymbolWriter, steps: Tensor) -> bool:
    """Whether every step is one piece of a node that holds no other step."""
    places = [sheet.pieces(step, runs=True) for step in steps]
    return all(len(pieces) == 1 for pieces in places) and len(sheet.pieces(steps.reshape(-1))) == len(steps)


def _over_time(
    sheet: SymbolWriter, steps: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, dilation: int
) -> Tensor:
    """One affine node for every step, of the steps its window covers."""
    frames, reach = len(steps), dilation * (weight.shape[2] - 1)
    outputs = []
    for start in range(-padding, frames + padding - reach, stride):
        seen = [(start + dilation * tap, weight[:, :, tap]) for tap in range(weight.shape[2])]
        terms = [(steps[frame], matrix) for frame, matrix in seen if 0 <= frame < frames]
        if terms:
            outputs.append(sheet.affine(terms, bias))
        else:
            constant = torch.zeros(len(weight)) if bias is None else bias
            outputs.append(sheet.symbol(constant).entries)
    return torch.stack(outputs, dim=-1)


def windows(
    x: Symbol, size: Sequence[int], stride: Sequence[int], padding: Sequence[tuple[int, int]], dilation: Sequence[int]
) -> Tensor:
    """The entries every window of a pooling sees, `[..., outputs..., entries]`; `ABSENT` beyond the edge."""
    axes = len(size)
    found = x.entries
    for axis, (before, after) in enumerate(padding):
        place = found.dim() - axes + axis
        edges = [torch.full([*found.shape[:place], count, *found.shape[place + 1 :]], ABSENT) for count in (before, after)]
        found = torch.cat([edges[0], found, edges[1]], dim=place)
    first = x.entries.dim() - axes
    for axis in range(axes):
        reach = dilation[axis] * (size[axis] - 1) + 1
        found = found.unfold(first + axis, reach, stride[axis])[..., :: dilation[axis]]
    return found.flatten(x.entries.dim())


def max_pool(sheet: SymbolWriter, seen: Tensor) -> Symbol:
    """The greatest entry of every window."""
    there = seen.amax(-1, keepdim=True)
    _check_windows(there)
    whole = torch.where(seen == ABSENT, there, seen)  # twice the same changes no maximum
    return _symbol(sheet.maximum(*(Symbol(entries) for entries in whole.unbind(-1))))


def average_pool(sheet: SymbolWriter, seen: Tensor, *, count_edges: bool) -> Symbol:
    """The mean of every window; what lies beyond the edge counts as zero, or not at all."""
    absent = seen == ABSENT
    if not count_edges:
        _check_windows(seen.amax(-1))
    counted = torch.full(seen.shape[:-1], seen.shape[-1]) if count_edges else (~absent).sum(-1)
    if bool(absent.any()):
        seen = torch.where(absent, sheet.symbol(torch.zeros(1)).entries, seen)
    return sheet.scale(sheet.total(Symbol(seen), [-1]), 1 / counted.to(sheet.writer.dtype))


def _check_windows(highest: Tensor) -> None:
    """Refuse windows of nothing, by the highest number of an entry in each."""
    if bool((highest == ABSENT).any()):
        raise LookupError("pooling with windows that lie wholly in the padding; pad by less than the size of a window")


def adaptive_average(sheet: SymbolWriter, x: Symbol, size: Sequence[int]) -> Symbol:
    """torch's adaptive pooling, by means."""
    for place, parts in _adaptive(x, size):
        means = [sheet.mean(Symbol(x.entries.narrow(place, *part)), [place], keep=True) for part in parts]
        x = Symbol(torch.cat([mean.entries for mean in means], dim=place))
    return x


def adaptive_maximum(sheet: SymbolWriter, x: Symbol, size: Sequence[int]) -> Symbol:
    """torch's adaptive pooling, by maxima."""
    for place, parts in _adaptive(x, size):
        highest = [greatest(sheet, Symbol(x.entries.narrow(place, *part)), [place], keep=True) for part in parts]
        x = Symbol(torch.cat([each.entries for each in highest], dim=place))
    return x


def _adaptive(x: Symbol, size: Sequence[int]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """For every pooled axis, what its outputs cover: output `i` of `n` sees `floor(i m / n)` up to `ceil((i + 1) m / n)`."""
    for axis, count in enumerate(size):
        place = x.entries.dim() - len(size) + axis
        length = x.shape[place]
        starts = [i * length // count for i in range(count)]
        yield place, [(start, -(-(i + 1) * length // count) - start) for i, start in enumerate(starts)]


def greatest(sheet: SymbolWriter, x: Symbol, axes: Sequence[int], keep: bool) -> Symbol:
    """The maximum over `axes`."""
    axes = sorted({axis % max(1, x.entries.dim()) for axis in axes}) if axes else list(range(x.entries.dim()))
    kept = [axis for axis in range(x.entries.dim()) if axis not in axes]
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)] if keep else [x.shape[axis] for axis in kept]
    terms = x.entries.permute(*axes, *kept).reshape(-1, *(x.shape[axis] for axis in kept))
    return _symbol(sheet.maximum(*(Symbol(term) for term in terms))).moved(lambda entries: entries.reshape(shape))


# ---- recurrence --------------------------------------------------------------------------------------------------------------


def recurrent(
    sheet: SymbolWriter, cell: Cell, layers: Sequence[Sequence[Weights]], frames: Tensor, initial: Sequence[Value]
) -> tuple[Tensor, list[Tensor]]:
    """`frames` are entries `[frames, features]`, `initial` states `[layers * directions, size]`.

    Returns the entries of the outputs, `[frames, directions, size]`, and those of the final states.
    """
    directions = len(layers[0])
    states = [sheet.symbol(state).entries for state in initial]
    before = [[sheet.position(state[place]) for state in states] for place in range(len(layers) * directions)]
    outputs, final = unroll(sheet.writer, cell, layers, [sheet.position(frame) for frame in frames], before)
    steps = torch.stack([torch.stack([sheet.entries(each) for each in step]) for step in outputs])
    return steps, [torch.stack([sheet.entries(each) for each in column]) for column in zip(*final, strict=True)]


def _each(given: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(given) * axes if len(given) == 1 else tuple(given)


def _symbol(value: Value) -> Symbol:
    assert isinstance(value, Symbol)
    return value


def activated(sheet: SymbolWriter, x: Value, activation: Activation, *, factor: float = 1.0, inside: float = 1.0) -> Value:
    """`factor * activation(inside * x)`."""
    if isinstance(x, Tensor):
        return factor * activation.function(inside * x)
    within = x if inside == 1 else sheet.scale(x, inside)
    found = sheet.unary(within, activation)
    return found if factor == 1 else sheet.scale(_symbol(found), factor)
