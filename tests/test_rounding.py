"""What rounding does to single operations is paid for, in exact arithmetic."""

import itertools
from fractions import Fraction

import pytest
import torch

from popqorn.bounds.errors import Errors
from popqorn.relax.maximum import maximum_planes
from popqorn.relax.relaxation import Interval
from popqorn.tape.tape import TapeWriter

each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@each_dtype
def test_a_product_that_is_too_small_to_be_a_number_is_an_error(dtype: torch.dtype) -> None:
    small = torch.finfo(dtype).smallest_normal ** 0.5 * torch.finfo(dtype).eps
    weight, operand = torch.tensor([[3 * small]], dtype=dtype), torch.tensor([[small]], dtype=dtype)
    writer = TapeWriter(1, 1, dtype=dtype, device=torch.device("cpu"))
    tape = writer.finish(writer.affine([(writer.input(0), weight)]))
    node = tape.nodes[-1]
    (error,) = Errors(tape, dtype).of(node, [Interval(operand, operand)], [torch.zeros(1, 1, dtype=dtype)])  # type: ignore[arg-type]
    off = Fraction(float(node.evaluate(operand))) - Fraction(float(weight)) * Fraction(float(operand))
    assert off != 0
    assert Fraction(float(error)) >= abs(off)


@each_dtype
def test_planes_above_a_maximum_are_above_it_at_every_corner(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randn(3, 2, 400, generator=generator, dtype=torch.float64) * 10 ** (
        3 * torch.randn(3, 1, 400, generator=generator, dtype=torch.float64)
    )
    operands = [Interval(*each.to(dtype).sort(0).values) for each in ends]
    plane = maximum_planes(*operands).upper
    for place in range(ends.shape[-1]):
        corners = itertools.product(*((Fraction(float(end[place])) for end in (box.lower, box.upper)) for box in operands))
        slopes = [Fraction(float(slope[place])) for slope in plane.slopes]
        for corner in corners:
            value = sum((slope * x for slope, x in zip(slopes, corner, strict=True)), Fraction(float(plane.offset[place])))
            assert value >= max(corner)
