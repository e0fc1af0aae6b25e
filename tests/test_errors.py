"""Bad input: every error names the argument, what it got and what to do. One row per mistake."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

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


WORDS = popqorn.Words(torch.zeros(9, 4), torch.zeros(2, 3, dtype=torch.long), {0: [1]})


def words(**changes: Any) -> Any:
    given = {"table": WORDS.table, "tokens": WORDS.tokens, "neighbours": WORDS.neighbours, **changes}
    return popqorn.certify(model(), GOOD, region=popqorn.Words(**given))


def ball(**options: Any) -> Any:
    return popqorn.certify(model(), GOOD, region=popqorn.Ball(**options))


def box(lower: Any, upper: Any) -> Any:
    return popqorn.verify(model(), GOOD, region=popqorn.Box(lower, upper))


def spec(claim: Any) -> Any:
    return popqorn.verify(model(), GOOD, 0.1, spec=claim)


def tagger() -> popqorn.SequenceClassifier:
    return popqorn.SequenceClassifier(nn.LSTM(4, 5), nn.Linear(5, 3), pooling=None)


CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "attack method": (lambda: popqorn.attack(model(), GOOD, method="deepfool"), ValueError, "method is 'deepfool'.*'pgd', 'cw'"),
    "no restarts": (lambda: popqorn.attack(model(), GOOD, restarts=0), ValueError, "restarts is 0; pass a positive"),
    "seed": (lambda: popqorn.attack(model(), GOOD, seed=-1), ValueError, "seed is -1.*not negative"),
    "attack norm": (lambda: popqorn.attack(model(), GOOD, norm=0.5), ValueError, "norm is 0.5"),
    "no batches": (lambda: popqorn.clever(model(), GOOD, batches=0), ValueError, "batches is 0; pass a positive"),
    "clever radius": (lambda: popqorn.clever(model(), GOOD, radius=-1), ValueError, "radius holds -1; it must be finite"),
    "table shape": (lambda: words(table=torch.zeros(4)), ValueError, r"table has shape \(4,\).*\[words, features\]"),
    "NaN table": (lambda: words(table=torch.full((9, 4), math.nan)), ValueError, "table holds NaN"),
    "token range": (lambda: words(tokens=[[9, 0, 0], [0, 0, 0]]), ValueError, "tokens hold 9.*words 0 to 8"),
    "token kind": (lambda: words(tokens=[[0.5]]), ValueError, "tokens are of dtype.*row numbers"),
    "token count": (lambda: words(tokens=[[0, 0, 0]]), ValueError, "tokens are 1 sentences, but the inputs are 2"),
    "short sentence": (lambda: words(tokens=[[0, 0, 0], [0, 0]]), ValueError, "sentence 1 has 2 words.*3 frames"),
    "other words": (lambda: words(table=torch.ones(9, 4)), ValueError, r"inputs are not the words.*inputs=table\[tokens\]"),
    "neighbours kind": (lambda: words(neighbours=[1, 2]), ValueError, "neighbours is a list; pass a mapping"),
    "neighbour keys": (
        lambda: words(neighbours={"0": [1]}),
        ValueError,
        "neighbours hold '0', a str; words are named by their row",
    ),
    "neighbour fractions": (lambda: words(neighbours={0: [1.9]}), ValueError, r"neighbours hold 1\.9, a float"),
    "neighbour words": (lambda: words(neighbours={0: ["a"]}), ValueError, "neighbours hold 'a', a str"),
    "neighbour scores": (lambda: words(neighbours={0: {1: 0.5}}), ValueError, "neighbours of word 0 are {1: 0.5}; pass a list"),
    "far word": (lambda: words(neighbours={99: [1]}), ValueError, "neighbours of word 99 hold 99; the table has words 0 to 8"),
    "long sentence": (lambda: words(tokens=[[0, 0, 0, 0], [0, 0, 0]]), ValueError, "sentence 0 has 4 words.*3 frames"),
    "more than most": (
        lambda: popqorn.verify(model(), GOOD, 2, region=popqorn.Words(WORDS.table, WORDS.tokens, {0: [1]}, most=1)),
        ValueError,
        "eps holds 2, but this region ends at 1",
    ),
    "more than the box": (
        lambda: popqorn.verify(model(), GOOD, 4, region=popqorn.Box(-1, 1)),
        ValueError,
        "eps holds 4, but this.*1",
    ),
    "box upside down": (lambda: box(1, -1), ValueError, "lower lies above upper"),
    "labels of a step": (
        lambda: popqorn.certify(tagger(), [GOOD[0], GOOD[1, :2]], labels=[[0, 0, 0], [0]]),
        ValueError,
        "labels: sample 1 has 1, but its sequence has 2 steps",
    ),
    "lengths of a list": (
        lambda: popqorn.certify(model(), [GOOD[0], GOOD[1, :2]], lengths=[3, 2]),
        ValueError,
        "lengths are given beside a list",
    ),
    "norm True": (lambda: popqorn.certify(model(), GOOD, norm=True), ValueError, "norm is True; pass a number"),
    "neighbour range": (lambda: words(neighbours={0: [9]}), ValueError, "neighbours of word 0 hold 9.*words 0 to 8"),
    "neighbours no list": (lambda: words(neighbours={0: 3}), ValueError, "neighbours of word 0 are 3; pass a list"),
    "most": (lambda: words(most=0), ValueError, "most is 0; pass a positive"),
    "word distance": (
        lambda: popqorn.Words.within(torch.zeros(9, 4), [[0]], -1),
        ValueError,
        "distance is -1.*not negative",
    ),
    "half a word": (lambda: popqorn.verify(model(), GOOD, 0.5, region=WORDS), ValueError, "eps holds 0.5; this region counts"),
    "clever of words": (lambda: popqorn.clever(model(), GOOD, region=WORDS), ValueError, "region allows finitely many inputs"),
    "attack on words": (
        lambda: popqorn.attack(model(), GOOD, region=WORDS, method="pgd"),
        ValueError,
        "'best', 'greedy', 'beam'",
    ),
    "region and norm": (
        lambda: popqorn.certify(model(), GOOD, region=popqorn.Ball(2), norm=2),
        ValueError,
        "norm given beside region.*put them into the region",
    ),
    "region kind": (lambda: popqorn.certify(model(), GOOD, region="ball"), ValueError, "region is 'ball'; pass a popqorn.Ball"),
    "region class": (
        lambda: popqorn.certify(model(), GOOD, region=popqorn.Ball),
        ValueError,
        "region is <class.*pass a popqorn.Ball",
    ),
    "spec and labels": (
        lambda: popqorn.certify(model(), GOOD, spec=popqorn.Tolerance(1), labels=0),
        ValueError,
        "labels given beside spec.*put them into the spec",
    ),
    "spec kind": (lambda: popqorn.certify(model(), GOOD, spec=3), ValueError, "spec is 3; pass a popqorn.Decision"),
    "no eps": (lambda: popqorn.verify(model(), GOOD), ValueError, "eps is missing: this region grows without end"),
    "clip kind": (lambda: ball(clip=1), ValueError, r"clip is 1; pass the two ends.*clip=\(0, 1\)"),
    "clip shape": (
        lambda: ball(clip=(0, torch.ones(5))),
        ValueError,
        r"clip's high end has shape \(5,\).*frames x features = \(3, 4\)",
    ),
    "clip NaN": (lambda: ball(clip=(math.nan, 1)), ValueError, "clip's low end holds NaN"),
    "outside clip": (
        lambda: ball(clip=(0.5, 1)),
        ValueError,
        "clip: inputs of sample 0 hold 0, which is outside.*clamp the inputs",
    ),
    "clip upside down": (lambda: ball(clip=(1, -1)), ValueError, "clip's low end lies above its high end"),
    "total": (lambda: ball(total="yes"), ValueError, "total is 'yes'; pass True"),
    "box shape": (
        lambda: box(torch.zeros(7), 1),
        ValueError,
        r"lower has shape \(7,\).*\[batch, frames, features\] = \(2, 3, 4\)",
    ),
    "box NaN": (lambda: box(-1, math.inf), ValueError, "upper holds NaN or infinite"),
    "outside box": (lambda: box(1, 2), ValueError, r"inputs: sample 0, frame 0, feature 0 is 0, outside the box \[1, 2\]"),
    "delta": (lambda: spec(popqorn.Tolerance(0.0)), ValueError, "delta holds 0; pass finite positive"),
    "delta shape": (lambda: spec(popqorn.Tolerance([1.0, 2.0])), ValueError, r"delta has shape \(2,\).*\(2, 3\)"),
    "rows shape": (lambda: spec(popqorn.Property([1.0, 2.0])), ValueError, r"rows have shape \(2,\); pass \[rows, 3\]"),
    "rows NaN": (lambda: spec(popqorn.Property([[math.nan, 1.0, 1.0]])), ValueError, "rows hold NaN"),
    "offset shape": (
        lambda: spec(popqorn.Property([[0.0, 1.0, 1.0]], [1.0, 2.0])),
        ValueError,
        r"offset has shape \(2,\).*\(1,\)",
    ),
    "offset NaN": (lambda: spec(popqorn.Property([[0.0, 1.0, 1.0]], math.inf)), ValueError, "offset holds NaN or infinite"),
    "no steps": (lambda: popqorn.certify(model(), GOOD, per_step=True), ValueError, "per_step is asked for.*pooling=None"),
    "step labels": (
        lambda: popqorn.certify(tagger(), GOOD, labels=[0, 1]),
        ValueError,
        r"labels have shape \(2,\).*shape \(2, 3\)",
    ),
    "steps of no decision": (
        lambda: popqorn.certify(tagger(), GOOD, spec=popqorn.Tolerance(1), per_step=True),
        ValueError,
        "per_step is asked for, but spec is no Decision",
    ),
    "lengths count": (lambda: popqorn.certify(model(), GOOD, lengths=[3]), ValueError, r"lengths have shape \(1,\).*\(2,\)"),
    "lengths range": (
        lambda: popqorn.certify(model(), GOOD, lengths=[3, 4]),
        ValueError,
        "lengths: sample 1 has 4.*1 to 3 frames",
    ),
    "lengths kind": (
        lambda: popqorn.certify(model(), GOOD, lengths=[3.0, 2.0]),
        ValueError,
        "lengths are of dtype.*whole numbers",
    ),
    "lengths twice": (
        lambda: popqorn.certify(model(), pack_sequence([GOOD[0]]), lengths=[3]),
        ValueError,
        "lengths are given beside a PackedSequence",
    ),
    "ragged features": (
        lambda: popqorn.certify(model(), [torch.zeros(2, 4), torch.zeros(3, 5)]),
        ValueError,
        r"inputs\[1\] has 5 features per frame, but inputs\[0\] has 4",
    ),
    "curve sizes": (lambda: popqorn.curve(model(), GOOD, 0.1), ValueError, r"eps has shape \(\); pass a list of sizes"),
    "progress": (
        lambda: popqorn.certify(model(), GOOD, progress="yes"),
        ValueError,
        "progress is 'yes'; pass True, or a function",
    ),
    "call": (lambda: popqorn.estimate_cost(model(), GOOD, call="attack"), ValueError, "call is 'attack'; pass one of 'certify'"),
    "suffix": (
        lambda: popqorn.certify(model(), GOOD, method="interval").save("proof.pt"),
        ValueError,
        r"path: 'proof\.pt' ends in '\.pt'; end it in \.npz or \.json",
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
    "flat input": (
        lambda: popqorn.certify(model(), [[1.0], [1.0, 2.0]]),
        ValueError,
        r"inputs\[0\] has shape \(1,\); every sequence",
    ),
    "text input": (lambda: popqorn.certify(model(), ["a", "b"]), ValueError, r"inputs\[0\] cannot be made a tensor"),
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
    "effort": (lambda: popqorn.certify(model(), GOOD, method="tight", effort=4), ValueError, "effort is 4; pass 1"),
    "effort of planes": (lambda: popqorn.verify(model(), GOOD, 0.1, effort=2), ValueError, "effort is given.*'planes'"),
    "seconds": (
        lambda: popqorn.certify(model(), GOOD, method="tight", effort=3, seconds=0),
        ValueError,
        "seconds is 0; pass how long",
    ),
    "seconds unused": (lambda: popqorn.bounds(model(), GOOD, 0.1, seconds=1), ValueError, "seconds is given, but method is"),
    "tolerance": (lambda: popqorn.certify(model(), GOOD, tolerance=0.0), ValueError, r"tolerance is 0\.0"),
    "chunk_rows": (lambda: popqorn.certify(model(), GOOD, chunk_rows=0), ValueError, "chunk_rows is 0.*positive"),
    "dtype": (lambda: popqorn.certify(model(), GOOD, dtype=torch.float16), ValueError, "dtype is torch.float16.*float64"),
    "no model": (lambda: popqorn.certify(len, GOOD), TypeError, "model is a builtin_function_or_method; pass an nn.Module"),
    "bare rnn": (lambda: popqorn.certify(nn.LSTM(4, 3), GOOD), TypeError, "model is a LSTM without a head; add it"),
    "head size": (
        lambda: popqorn.certify(model(head=nn.Linear(6, 3)), GOOD),
        ValueError,
        "head: .*takes 6 features, but 5 arrive",
    ),
    "one class": (
        lambda: popqorn.certify(model(head=nn.Linear(5, 1)), GOOD),
        ValueError,
        "model has 1 output.*popqorn.Tolerance.*popqorn.bounds",
    ),
    "quantised rnn": (
        lambda: popqorn.SequenceClassifier(torch.ao.nn.quantized.dynamic.LSTM(4, 5), nn.Linear(5, 3)),
        TypeError,
        "rnn is a torch.ao.nn.quantized.*LSTM; its weights are quantised",
    ),
    "token ids": (
        lambda: popqorn.certify(model(), torch.randint(9, (2, 3))),
        ValueError,
        r"look like token ids: pass the vectors of the words, table\[tokens\]",
    ),
    "string labels": (
        lambda: popqorn.certify(model(), GOOD, labels=["cat"] * len(GOOD)),
        ValueError,
        "labels cannot be made a tensor \\(it holds text\\)",
    ),
    "ragged scale": (
        lambda: popqorn.certify(model(), GOOD, scale=[[1.0], [1.0, 2.0]]),
        ValueError,
        "scale: its rows have different lengths",
    ),
    "foreign rnn": (lambda: popqorn.SequenceClassifier(nn.LSTMCell(4, 5), nn.Linear(5, 3)), TypeError, "rnn is a LSTMCell"),
    "pooling": (lambda: popqorn.SequenceClassifier(nn.GRU(4, 5), nn.Linear(5, 3), "sum"), ValueError, "pooling is 'sum'.*'mean'"),
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


def test_wrapped_modules_are_unwrapped() -> None:
    plain = model()
    radius = popqorn.certify(plain, GOOD).radius
    for wrapped in (nn.DataParallel(plain), torch.compile(plain)):
        assert torch.equal(popqorn.certify(wrapped, GOOD).radius, radius)


def test_parametrised_weights_are_read() -> None:
    plain = model()
    nn.utils.parametrizations.weight_norm(plain.head, "weight")
    assert (popqorn.certify(plain, GOOD).radius > 0).any()
    nn.utils.parametrize.register_parametrization(plain.rnn, "weight_hh_l0", nn.Identity())
    assert set(popqorn.verify(plain, GOOD, 0.0).status) <= {popqorn.Status.CERTIFIED, popqorn.Status.DIFFERS}


def _lowered(place: Any, precision: str) -> Callable[[], None]:
    return lambda: setattr(place, "fp32_precision", precision)


@pytest.mark.parametrize(
    "lower",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("high"),
        _lowered(torch.backends, "tf32"),
        _lowered(torch.backends.mkldnn.matmul, "bf16"),
        _lowered(torch.backends.cuda.matmul, "tf32"),
    ],
    ids=["medium", "high", "everywhere", "mkldnn", "cuda"],
)
def test_float32_must_be_float32(lower: Callable[[], None]) -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert len(popqorn.certify(model(), GOOD, dtype=torch.float32).radius)
    lower()
    try:
        with pytest.raises(ValueError, match=r"dtype is float32, .*set_float32_matmul_precision"):
            popqorn.certify(model(), GOOD, dtype=torch.float32)
    finally:
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
    assert len(popqorn.certify(model(), GOOD, dtype=torch.float32).radius)


def test_norms_have_names() -> None:
    from popqorn.reading import read_norm

    assert [read_norm(norm) for norm in ("l1", "L2", "linf", "l_2", "inf")] == [1.0, 2.0, float("inf"), 2.0, float("inf")]
    with pytest.raises(ValueError, match="norm is True"):
        read_norm(True)


def test_norm_must_be_a_number() -> None:
    from popqorn.reading import read_norm

    with pytest.raises(ValueError, match="norm is 'two'"):
        read_norm("two")
