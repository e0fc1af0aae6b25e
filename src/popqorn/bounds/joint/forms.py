"""Quadratic forms of the operands' displacements: what a walk through tangents leaves beside its linear form.

A form holds, for every nonlinear node, a matrix of its operands, entry by entry and row by row: `1/2 delta' Q delta` is the sum
of all. Rows are those of the walk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popqorn.relax.quadratic import Bend


@dataclass(frozen=True)
class Matrix:
    """Per row and entry of one node: `squares` (`[batch, rows, width]`, one per operand) and the cross term, if there is one."""

    squares: tuple[Tensor, ...]
    cross: Tensor | None

    @staticmethod
    def joined(parts: "Sequence[Matrix]") -> "Matrix":
        """The rows of several."""
        squares = tuple(torch.cat(each, dim=1) for each in zip(*(part.squares for part in parts), strict=True))
        crosses = [part.cross for part in parts if part.cross is not None]
        return Matrix(squares, torch.cat(crosses, dim=1) if crosses else None)

    def select(self, rows: slice | Tensor) -> "Matrix":
        return Matrix(tuple(square[:, rows] for square in self.squares), None if self.cross is None else self.cross[:, rows])

    def of(self, samples: slice) -> "Matrix":
        """That of some samples."""
        return Matrix(tuple(square[samples] for square in self.squares), None if self.cross is None else self.cross[samples])

    def to(self, dtype: torch.dtype) -> "Matrix":
        return Matrix(tuple(square.to(dtype) for square in self.squares), None if self.cross is None else self.cross.to(dtype))

    def times(self, *vectors: Tensor) -> tuple[Tensor, ...]:
        """`Q x` of vectors that broadcast with `[batch, rows, width]`, one per operand."""
        if self.cross is None:
            return tuple(square * vector for square, vector in zip(self.squares, vectors, strict=True))
        v, z = vectors
        return torch.addcmul(self.squares[0] * v, self.cross, z), torch.addcmul(self.squares[1] * z, self.cross, v)

    def over(self, unit: Tensor) -> "Matrix":
        """In units `[batch, rows, 1]`."""
        return Matrix(tuple(square / unit for square in self.squares), None if self.cross is None else self.cross / unit)

    @property
    def magnitude(self) -> "Matrix":
        return Matrix(tuple(square.abs() for square in self.squares), None if self.cross is None else self.cross.abs())

    def plus(self, price: Tensor, bend: Bend) -> "Matrix":
        """With `price` times a two-sided quadratic added."""
        raised = tuple(own + price * more.unsqueeze(1) for own, more in zip(self.squares, bend.squares, strict=True))
        return Matrix(raised, self.cross)


Form = Mapping[int, Matrix]


def bent(rows: Tensor, below: Bend, above: Bend) -> Matrix:
    """What rows at a node pay for its tangent: `below` where they are positive, `above` where they are negative."""
    positive, negative = rows.clamp(min=0), -rows.clamp(max=0)

    def paid(low: Tensor, high: Tensor) -> Tensor:
        low, high = (side if side.dim() == 3 else side.unsqueeze(1) for side in (low, high))
        return positive * low + negative * high

    squares = tuple(paid(low, high) for low, high in zip(below.squares, above.squares, strict=True))
    return Matrix(squares, None if below.cross is None or above.cross is None else paid(below.cross, above.cross))


def paired(form: Form, left: Mapping[int, Sequence[Tensor]], right: Mapping[int, Sequence[Tensor]]) -> Tensor:
    """`left' |Q| right` for magnitudes `[batch, width]` of the operands of every node: `[batch, rows]`."""
    total: Tensor | None = None
    for node, matrix in form.items():
        weighed = matrix.magnitude.times(*(each.unsqueeze(1) for each in right[node]))
        for vector, own in zip(weighed, left[node], strict=True):
            part = (vector @ own.unsqueeze(-1)).squeeze(-1)
            total = part if total is None else total + part
    assert total is not None
    return total
