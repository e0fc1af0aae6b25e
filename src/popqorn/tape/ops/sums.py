"""Convolution by sums of products and nothing else.

torch's own may add and subtract entries that lie outside an output's window and cancel again (Winograd, Fourier transforms), or
round its operands (TF32): where such an entry is huge, the error has nothing to do with what is summed, and no bound of the
rounding of sums holds. Which of them is used depends on the device, the build, the size of the batch and switches of the user's.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

MOST_COLUMNS = 2**23  # numbers: what windows, written out, may take at once


def convolved(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """torch's convolution of `[batch, channels, ...]` with `[outputs, channels / groups, ...]`, in any number of dimensions."""
    return _summed(x, weight, stride, [(edge, edge) for edge in padding], dilation, groups)


def convolved_transposed(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int],
) -> Tensor:
    """torch's transposed convolution with `[channels, outputs / groups, ...]`: a convolution of entries `stride` apart."""
    sizes, axes = x.shape[2:], weight.dim() - 2
    apart = x.new_zeros(*x.shape[:2], *((size - 1) * step + 1 for size, step in zip(sizes, stride, strict=True)))
    places: tuple[slice, ...] = tuple(slice(None, None, step) for step in stride)
    apart[:, :, *places] = x
    reach = [space * (size - 1) for space, size in zip(dilation, weight.shape[2:], strict=True)]
    edges = [(far - edge, far - edge + more) for far, edge, more in zip(reach, padding, output_padding, strict=True)]
    turned = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(list(range(2, 2 + axes)))
    return _summed(apart, turned, [1] * axes, edges, dilation, groups)


def _summed(
    x: Tensor, weight: Tensor, stride: Sequence[int], edges: Sequence[tuple[int, int]], dilation: Sequence[int], groups: int
) -> Tensor:
    """One product of matrices for every group: the weights, and the windows side by side."""
    padded = functional.pad(x, [edge for pair in reversed(edges) for edge in pair])
    windows = padded
    for axis, (step, space, size) in enumerate(zip(stride, dilation, weight.shape[2:], strict=True), start=2):
        windows = windows.unfold(axis, space * (size - 1) + 1, step)[..., ::space]
    axes = weight.dim() - 2
    outer, inner = list(range(2, 2 + axes)), list(range(2 + axes, 2 + 2 * axes))
    windows = windows.permute(0, 1, *inner, *outer)
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1)
    places = windows.shape[2 + axes :]
    together = max(1, MOST_COLUMNS // max(1, prod(windows.shape[1:])))
    parts = [kernels @ part.reshape(len(part), groups, kernels.shape[-1], prod(places)) for part in windows.split(together)]
    return torch.cat(parts).reshape(len(x), len(weight), *places)
