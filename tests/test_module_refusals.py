"""Modules that cannot be read: every message names the argument, what is in the way and where it stands, and the remedy."""

import inspect
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import popqorn
from popqorn import Status

BATCH, FRAMES, FEATURES = 3, 4, 3
WORDS = 6
pytestmark = pytest.mark.filterwarnings("ignore")


class Small(nn.Module):
    """A head, and what the cases below do before or behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, 3).double()


def sequences() -> Tensor:
    return torch.randn(BATCH, FRAMES, FEATURES, dtype=torch.float64)


def tokens() -> Tensor:
    return torch.randint(WORDS, (BATCH, FRAMES))


# ---- operators -------------------------------------------------------------------------------------------------------------


class Sorts(Small):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(self.fc(x.mean(1)), dim=-1).values


class Chooses(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(1)).argmax(dim=-1)


class TakesSigns(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.sign(x.mean(1)))


class Transforms(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.fft.rfft(x, dim=1).abs().mean(1))


class Compares(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.where(x > 0, x, -0.1 * x).mean(1))


class Truncates(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(1).int().double())


class LooksUp(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x[torch.arange(len(x)), x.sum(-1).argmax(1)])


class LooksUpTheGreatest(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.gather(1, x.max(dim=1, keepdim=True).indices)[:, 0])


class SaysWhere(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).max(dim=1).indices


class TakesNumbers(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(1)) * x[0, 0, 0].item()


class DropsAlways(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.dropout(x.mean(1), 0.5))


class AddsNoise(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(1) + torch.randn(FEATURES))


class BatchStatistics(Small):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES, track_running_stats=False).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(x.transpose(1, 2)).mean(2))


class Shrinks(Small):
    """`hardshrink` has no rule, and is made of comparisons: it is `hardshrink` that is named."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.hardshrink(x.mean(1)))


class AddsAtPlaces(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.scatter(x[:, 0], 1, torch.zeros(1, FEATURES, dtype=torch.long), x[:, 1], reduce="add"))


class ReadsBits(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(1).view(torch.int64).double())


@dataclass(frozen=True)
class Operator:
    """A module, and what its refusal says beside the line it stands in."""

    make: Callable[[], nn.Module]
    says: str


OPERATORS = {
    "sort": Operator(Sorts, r"the operator aten\.sort\.default"),
    "argmax": Operator(Chooses, r"aten\.argmax\.default of something that depends on the inputs: its result jumps"),
    "sign": Operator(TakesSigns, r"aten\.sign\.default .* jumps"),
    "fft": Operator(Transforms, r"the operator aten\.fft_rfft\.default"),
    "comparison": Operator(Compares, r"aten\.gt\.Scalar .* jumps"),
    "cast": Operator(Truncates, r"a cast to torch\.int32 .* jumps"),
    "index": Operator(LooksUp, r"aten\.argmax\.default .* jumps"),
    "index of a maximum": Operator(LooksUpTheGreatest, r"aten\.gather\.default of the place of a maximum: it jumps"),
    "a place is no output": Operator(SaysWhere, r"the place of a maximum, as it jumps"),
    "item": Operator(TakesNumbers, r"a plain number \(item, tolist, float\) .*; keep it a tensor"),
    "active dropout": Operator(DropsAlways, r"dropout in training mode, which is random; .*training=self\.training"),
    "noise": Operator(AddsNoise, r"aten\.randn\.default, which is random; draw it once and keep it as a buffer"),
    "statistics of the batch": Operator(
        BatchStatistics,
        r"batch_norm by the statistics of the batch; let it track running statistics \(track_running_stats=True\)",
    ),
    "scatter that adds": Operator(AddsAtPlaces, r"aten\.scatter\.reduce with reduce='add'; .*"),
    "bits": Operator(ReadsBits, r"aten\.view\.dtype of the bits .* jumps"),
    "decomposed": Operator(Shrinks, r"the operator aten\.hardshrink\.default"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_that_cannot_be_read_is_named_with_its_line(name: str) -> None:
    torch.manual_seed(1)
    module = OPERATORS[name].make()
    with pytest.raises(TypeError) as told:
        popqorn.certify(module, sequences()[:1])
    lines, first = inspect.getsourcelines(type(module).forward)
    place = re.escape(f", at {__file__}:{first + len(lines) - 1}: {lines[-1].strip()}")
    remedy = r"; popqorn\.supported_operations\(\) lists what can be read"
    assert re.fullmatch(f"model: cannot read {OPERATORS[name].says}{place}{remedy}", str(told.value)), told.value


def test_what_is_supported_is_listed() -> None:
    assert {"lstm", "relu", "matmul", "softmax"} <= set(popqorn.supported_operations()["torch"])
    assert "sort" not in popqorn.supported_operations()["torch"]


# ---- branches and loops ----------------------------------------------------------------------------------------------------


class Branches(Small):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.fc(x.mean(1))
        return -self.fc(x.mean(1))


class Loops(Small):
    def forward(self, x: Tensor) -> Tensor:
        y = x.mean(1)
        for _ in range(int(x.abs().sum())):
            y = torch.tanh(y)
        return self.fc(y)


@pytest.mark.parametrize(("make", "line"), [(Branches, "if x.sum() > 0:"), (Loops, "for _ in range(int(x.abs().sum())):")])
def test_control_flow_that_depends_on_values_is_refused_with_its_line(make: type[nn.Module], line: str) -> None:
    with pytest.raises(TypeError, match=r"model: torch\.export cannot trace it") as told:
        popqorn.certify(make(), sequences())
    assert f"{__file__}:" in str(told.value)
    assert line in str(told.value)
    assert "must not depend on values: write it with operations on tensors" in str(told.value)


def test_a_scripted_branch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model: torch\.export cannot trace it .* must not depend on values"):
        popqorn.certify(torch.jit.script(Branches()), sequences())


# ---- samples and batches -----------------------------------------------------------------------------------------------------


class CentresTheBatch(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc((x - x.mean(0)).mean(1))


class NormalisesTheBatch(Small):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x.mean(1)), dim=0)


class TimeFirst(Small):
    """Written for `[frames, batch, features]`."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(FEATURES, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][-1])


class TimeFirstTagger(TimeFirst):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0])


class Ignores(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.zeros_like(x).mean(1))


class Nothing(Small):
    def forward(self, x: Tensor) -> None:
        self.fc(x)


class Records(Small):
    def forward(self, x: Tensor) -> "Operator":
        return Operator(lambda: self.fc(x), "")


class Guesses(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(1)) * random.random()


class NeedsMore(Small):
    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.fc(x[:, -1] + hidden)


class Reads(Small):
    """Token ids, looked up at once."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, FEATURES).double()

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.embed(ids).mean(1))


class ReadsOneByOne(Reads):
    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(sum(self.embed(ids[:, step]) for step in range(ids.shape[1])))


class ReadsByHand(Reads):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(self.embed.weight.detach())
        del self.embed

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(F.embedding(ids, self.table).mean(1))


class Plain(Small):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(FEATURES, 3, batch_first=True).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1, :])


BATCHES = r"model: what it returns for a sample depends on the other samples of the batch.*; normalise by stored statistics"
RUN = r"model: it cannot be run on inputs of shape"
REFUSED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], str]] = {
    "centres the batch": (CentresTheBatch, sequences, BATCHES),
    "centres a batch of one": (CentresTheBatch, lambda: sequences()[:1], BATCHES),
    "softmax over the batch": (NormalisesTheBatch, sequences, BATCHES),
    "time first, steps": (TimeFirstTagger, sequences, r"wrap a model that takes \[frames, batch, features\]"),
    "time first": (
        TimeFirst,
        sequences,
        r"model: for 2 samples it returns shape \(4, 3\), for 3 samples \(4, 3\); one axis must be the batch\. "
        r"A model that takes \[frames, batch, features\] must be wrapped",
    ),
    "ignores the inputs": (Ignores, sequences, r"model: its \(first\) output does not depend on the inputs.*; pass a model"),
    "returns nothing": (Nothing, sequences, RUN + r".*it returns no tensor, but None\); it must return a tensor, or"),
    "returns a record": (
        Records,
        sequences,
        RUN + r".* but a Operator\); it must return a tensor, .*: wrap the model in one that",
    ),
    "draws at random": (Guesses, sequences, r"model: two runs on the same input give different outputs, as it draws random"),
    "statistics of one": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        lambda: torch.rand(2, 4),
        RUN + r".*; it normalises by the statistics of the batch: .*track_running_stats=True",
    ),
    "without values": (
        lambda: nn.Linear(4, 3, device="meta"),
        sequences,
        r"model: weight is on the device 'meta' and has no values; load",
    ),
    "needs more": (NeedsMore, sequences, RUN + r".*missing 1 required positional argument: 'hidden'\); .* wrap the model"),
    "token outside": (Reads, lambda: tokens() + 99, r"inputs hold token \d+; the model's embedding has 0 to 5"),
    "one token outside": (Reads, lambda: torch.tensor([[1, 2], [1, 6]]), r"inputs hold token 6; .* 0 to 5"),
    "tokens of three axes": (Reads, lambda: tokens()[None], r"inputs have shape .*; token ids must be \[batch, frames\]"),
    "floats to an embedding": (Reads, lambda: torch.rand(3, 4), RUN + r".*takes token ids: pass inputs that are whole numbers"),
    "tokens one by one": (ReadsOneByOne, tokens, r"inputs are whole numbers, but no nn\.Embedding .* all at once; pass"),
    "no nn.Embedding": (ReadsByHand, tokens, RUN + r".*it looks inputs up otherwise than by an nn\.Embedding: use one"),
    "not initialised": (lambda: nn.LazyLinear(3), sequences, r"model: weight has no values yet; run the model once"),
    "features": (Plain, lambda: torch.rand(3, 4, 5), RUN + r" \(1, 4, 5\) .*Expected 3, got 5\); .* check the shape of inputs"),
    "no batch": (Plain, lambda: torch.rand(4, 3), RUN + r" \(1, 3\) .* check the shape of inputs"),
    "a vector": (Plain, lambda: torch.rand(3), r"inputs have shape \(3,\); they must be \[batch, \.\.\.\]: add the batch axis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_cannot_be_answered_says_why_and_what_to_do(name: str) -> None:
    make, inputs, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        popqorn.certify(make(), inputs())


def test_what_is_no_module_is_told() -> None:
    with pytest.raises(TypeError, match=r"model is a function; pass an nn\.Module"):
        popqorn.certify(lambda x: x, sequences())


def test_weights_that_are_no_numbers_are_told() -> None:
    module = Plain()
    with torch.no_grad():
        module.rnn.bias_hh_l0[0] = float("nan")
    with pytest.raises(ValueError, match=r"model: rnn\.bias_hh_l0 holds 1 value\(s\) that are NaN.*load sound weights"):
        popqorn.certify(module, sequences())


def test_whole_numbers_are_numbers_to_a_module_without_an_embedding() -> None:
    module, inputs = Plain(), torch.randint(3, (2, FRAMES, FEATURES))
    assert torch.equal(popqorn.certify(module, inputs).radius, popqorn.certify(module, inputs.double()).radius)


# ---- what only the comparison with the module itself shows -----------------------------------------------------------------


class RoundsALittle(Small):
    """Half precision in the middle, which jumps."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(1).half().double())


class SoftmaxOverSteps(Plain):
    """The softmax compares steps, not classes: without it, other classes would win."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(self.rnn(x)[0]), dim=1)


def test_less_precision_than_the_model_has_is_never_certified() -> None:
    assert set(popqorn.certify(RoundsALittle(), sequences()).status) == {Status.DIFFERS}


def test_a_softmax_over_something_else_than_classes_is_kept() -> None:
    module, inputs = SoftmaxOverSteps(), sequences()
    found = popqorn.certify(module, inputs)
    assert found.settings["left_off"] is None
    assert found.labels is not None
    assert torch.equal(found.labels, module(inputs).argmax(-1))
