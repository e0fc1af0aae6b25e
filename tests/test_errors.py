"""Bad input: every error names the argument, what it got and what to do. One row per mistake."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import popqorn

GOOD = torch.zeros(2, 3, 4)


def model(**changes: Any) -> popqorn.SequenceClassifier:
    return popqorn.SequenceClassifier(nn.LSTM(4, 5), changes.get("head", nn.Linear(5, 3)))


def spoilt(value: float, name: str) -> popqorn.SequenceClassifier:
    network = model()
    with torch.no_grad():
        network.get_parameter(name).view(-1)[0] = value
    return network


def with_value(value: float) -> torch.Tensor:
    inputs = GOOD.clone()
    inputs[1, 2, 3] = value
    return inputs


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - 3 * super().forward(x)


class Negated(popqorn.SequenceClassifier):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return -super().forward(inputs)


CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "attack method": (lambda: popqorn.attack(model(), GOOD, method="deepfool"), ValueError, "method is 'deepfool'.*'pgd', 'cw'"),
    "no restarts": (lambda: popqorn.attack(model(), GOOD, restarts=0), ValueError, "restarts is 0; pass a positive"),
    "seed": (lambda: popqorn.attack(model(), GOOD, seed=-1), ValueError, "seed is -1.*not negative"),
    "attack norm": (lambda: popqorn.attack(model(), GOOD, norm=0.5), ValueError, "norm is 0.5"),
    "no batches": (lambda: popqorn.clever(model(), GOOD, batches=0), ValueError, "batches is 0; pass a positive"),
    "clever radius": (lambda: popqorn.clever(model(), GOOD, radius=-1), ValueError, "radius holds -1; it must be finite"),
    "table shape": (lambda: popqorn.substitute(model(), torch.zeros(4), [[0]]), ValueError, r"table has shape \(4,\)"),
    "NaN table": (lambda: popqorn.substitute(model(), torch.full((9, 4), math.nan), [[0]]), ValueError, "table holds NaN"),
    "token range": (lambda: popqorn.substitute(model(), torch.zeros(9, 4), [[9]]), ValueError, "tokens hold 9.*words 0 to 8"),
    "token kind": (
        lambda: popqorn.substitute(model(), torch.zeros(9, 4), [[0.5]]),
        ValueError,
        "tokens are of dtype.*row numbers",
    ),
    "word distance": (
        lambda: popqorn.substitute(model(), torch.zeros(9, 4), [[0]], most_distance=-1),
        ValueError,
        "most_distance",
    ),
    "NaN weight": (
        lambda: popqorn.certify(spoilt(math.nan, "rnn.weight_hh_l0"), GOOD),
        ValueError,
        r"model: rnn\.weight_hh_l0 holds 1 value.*NaN.*load",
    ),
    "inf weight": (lambda: popqorn.certify(spoilt(math.inf, "head.bias"), GOOD), ValueError, r"model: head\.bias .*infinite"),
    "NaN input": (lambda: popqorn.certify(model(), with_value(math.nan)), ValueError, "inputs hold NaN.*drop"),
    "inf input": (lambda: popqorn.bounds(model(), with_value(math.inf), 0.1), ValueError, "inputs hold NaN or infinite"),
    "rank 2": (lambda: popqorn.certify(model(), GOOD[0]), ValueError, r"inputs have shape \(3, 4\).*inputs\[None\]"),
    "rank 4": (lambda: popqorn.certify(model(), GOOD[None]), ValueError, r"inputs have shape \(1, 2, 3, 4\).*reshape"),
    "feature size": (lambda: popqorn.certify(model(), GOOD[..., :3]), ValueError, "inputs have 3 features.*takes 4"),
    "zero frames": (lambda: popqorn.certify(model(), GOOD[:, :0]), ValueError, r"inputs have shape \(2, 0, 4\).*at least one"),
    "zero samples": (lambda: popqorn.certify(model(), GOOD[:0]), ValueError, "at least one sample"),
    "ragged input": (lambda: popqorn.certify(model(), [[1.0], [1.0, 2.0]]), ValueError, "inputs cannot be made a tensor"),
    "label range": (lambda: popqorn.certify(model(), GOOD, labels=[0, 3]), ValueError, "labels hold 3.*classes 0 to 2"),
    "negative label": (lambda: popqorn.certify(model(), GOOD, labels=[-1, 0]), ValueError, "labels hold -1"),
    "label shape": (lambda: popqorn.certify(model(), GOOD, labels=[0]), ValueError, r"labels have shape \(1,\).*\(2,\)"),
    "label dtype": (lambda: popqorn.certify(model(), GOOD, labels=[0.0, 1.0]), ValueError, "labels are of dtype.*integer"),
    "target range": (lambda: popqorn.certify(model(), GOOD, labels=0, targets=[1, 7]), ValueError, "targets hold 7"),
    "target is label": (
        lambda: popqorn.certify(model(), GOOD, labels=[0, 1], targets=[1, 1]),
        ValueError,
        "targets: sample 1 has target 1, which is its label.*another class",
    ),
    "norm below 1": (lambda: popqorn.certify(model(), GOOD, norm=0.5), ValueError, "norm is 0.5.*>= 1"),
    "norm NaN": (lambda: popqorn.certify(model(), GOOD, norm=math.nan), ValueError, "norm is nan"),
    "negative eps": (lambda: popqorn.verify(model(), GOOD, -0.1), ValueError, "eps holds -0.1.*not negative"),
    "infinite eps": (lambda: popqorn.bounds(model(), GOOD, math.inf), ValueError, "eps holds inf.*finite"),
    "eps shape": (lambda: popqorn.bounds(model(), GOOD, [0.1, 0.1, 0.1]), ValueError, r"eps has shape \(3,\).*\(2,\)"),
    "negative scale": (
        lambda: popqorn.certify(model(), GOOD, scale=[1.0, -1.0, 1.0]),
        ValueError,
        "scale holds -1.*not negative",
    ),
    "scale shape": (
        lambda: popqorn.certify(model(), GOOD, scale=[1.0, 1.0]),
        ValueError,
        r"scale has shape \(2,\).*\[frames\] = \(3,\)",
    ),
    "zero scale": (lambda: popqorn.certify(model(), GOOD, scale=[0.0, 0.0, 0.0]), ValueError, "frames and scale leave nothing"),
    "empty frames": (lambda: popqorn.certify(model(), GOOD, frames=[]), ValueError, "frames is empty; name at least one"),
    "frame range": (lambda: popqorn.certify(model(), GOOD, frames=[3]), ValueError, "frames holds 3.*frames 0 to 2"),
    "frame floats": (
        lambda: popqorn.certify(model(), GOOD, frames=[0.5]),
        ValueError,
        "frames is of dtype.*list of frame numbers",
    ),
    "mask shape": (lambda: popqorn.certify(model(), GOOD, frames=[True, False]), ValueError, r"frames is a mask of shape \(2,\)"),
    "empty mask": (lambda: popqorn.certify(model(), GOOD, frames=[False] * 3), ValueError, "frames and scale leave nothing"),
    "method": (lambda: popqorn.certify(model(), GOOD, method="magic"), ValueError, "method is 'magic'.*'planes'"),
    "tolerance": (lambda: popqorn.certify(model(), GOOD, tolerance=0.0), ValueError, r"tolerance is 0\.0"),
    "chunk_rows": (lambda: popqorn.certify(model(), GOOD, chunk_rows=0), ValueError, "chunk_rows is 0.*positive"),
    "dtype": (lambda: popqorn.certify(model(), GOOD, dtype=torch.float16), ValueError, "dtype is torch.float16.*float64"),
    "unreadable model": (
        lambda: popqorn.certify(nn.Linear(4, 3), GOOD),
        TypeError,
        r"model is a Linear.*SequenceClassifier\(rnn, head\)",
    ),
    "bare rnn": (lambda: popqorn.certify(nn.LSTM(4, 3), GOOD), TypeError, "model is a LSTM.*add its head"),
    "unreadable head": (
        lambda: popqorn.certify(model(head=nn.Softmax(-1)), GOOD),
        TypeError,
        "head: cannot read a Softmax.*register_activation",
    ),
    "head with its own forward": (
        lambda: popqorn.certify(model(head=Residual(nn.Linear(5, 5))), GOOD),
        TypeError,
        "head: cannot read a Residual",
    ),
    "model with its own forward": (
        lambda: popqorn.certify(Negated(nn.LSTM(4, 5), nn.Linear(5, 3)), GOOD),
        TypeError,
        "model is a Negated.*forward of its own",
    ),
    "head size": (
        lambda: popqorn.certify(model(head=nn.Linear(6, 3)), GOOD),
        ValueError,
        "head: .*takes 6 features, but 5 arrive",
    ),
    "one class": (lambda: popqorn.certify(model(head=nn.Linear(5, 1)), GOOD), ValueError, "model: its head has 1 output"),
    "foreign rnn": (lambda: popqorn.SequenceClassifier(nn.LSTMCell(4, 5), nn.Linear(5, 3)), TypeError, "rnn is a LSTMCell"),
    "pooling": (lambda: popqorn.SequenceClassifier(nn.GRU(4, 5), nn.Linear(5, 3), "max"), ValueError, "pooling is 'max'.*'mean'"),
    "initial state": (
        lambda: popqorn.SequenceClassifier(nn.GRU(4, 5), nn.Linear(5, 3), initial_state=torch.zeros(1, 1, 5)),
        ValueError,
        r"initial_state has shape \(1, 1, 5\).*takes \(1, 5\)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case: str) -> None:
    call, error, message = CASES[case]
    with pytest.raises(error, match=message):
        call()


def test_norm_must_be_a_number() -> None:
    from popqorn.checks import check_norm

    with pytest.raises(ValueError, match="norm is 'two'"):
        check_norm("two")
