"""What rounding does to single operations is paid for, in exact arithmetic."""

import itertools
from fractions import Fraction

import pytest
import torch
from torch import nn

import popqorn
from popqorn.arithmetic import gamma, tiny
from popqorn.bounds.errors import Errors
from popqorn.readers.classifier import tape_of
from popqorn.relax.maximum import maximum_planes
from popqorn.relax.methods import METHODS
from popqorn.relax.relaxation import Interval
from popqorn.tape.ops.linear import Affine
from popqorn.tape.ops.nonlinear import Gate
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


def test_what_a_product_sums_up_is_charged_to_both_of_its_parts() -> None:
    """`multiplied` numbers more in the sums of affine nodes and of offsets, and in what may be lost by underflow."""
    model = popqorn.SequenceClassifier(nn.LSTM(2, 3), nn.Linear(3, 2))
    tape, many, dtype = tape_of(model, 2, dtype=torch.float32, device=torch.device("cpu")), 10**5, torch.float32
    charging = Errors(tape, dtype, 1, many)
    affine, gate = (next(node for node in tape.nodes if isinstance(node, kind)) for kind in (Affine, Gate))
    box = [Interval(-torch.ones(1, weight.shape[1]), torch.ones(1, weight.shape[1])) for weight in affine.weights]
    found = charging.of(affine, box, [torch.zeros(1, weight.shape[1]) for weight in affine.weights])
    assert (found >= gamma(many, dtype) * sum(weight.abs().sum(1) for weight in affine.weights)).all()
    operands = [Interval(torch.full((1, gate.width), 0.5), torch.ones(1, gate.width))] * 2
    planes = METHODS["planes"].relax(gate, *operands)
    none, some = [torch.zeros(1, gate.width)] * 2, [torch.ones(1, gate.width)] * 2
    lost, _ = charging.of_relaxation(gate, planes, operands, none, [False, False])
    assert (lost >= gamma(many, dtype) * planes.lower.offset.abs()).all()
    carried, _ = charging.of_relaxation(gate, planes, operands, some, [False, False])
    assert (carried - lost >= 0.99 * planes.lower.slopes[0].abs()).all()
    assert (charging.underflow(operands[0]) >= tiny(dtype) * many * operands[0].magnitude.sum(-1)).all()
