"""The model itself is asked: nothing is certified for a class that the module as it stands does not choose."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn import Status
from popqorn.task import _where_known

FRAMES, FEATURES, HIDDEN, CLASSES = 3, 4, 6, 3


def network(cell: type[nn.RNNBase] = nn.LSTM) -> popqorn.SequenceClassifier:
    head = nn.Sequential(nn.Dropout(0.9), nn.Linear(HIDDEN, CLASSES))
    model = popqorn.SequenceClassifier(cell(FEATURES, HIDDEN, batch_first=True), head).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def noisy_head(model: popqorn.SequenceClassifier) -> None:
    shift = torch.tensor([0.0, 1.5, -1.5])
    model.head.register_forward_hook(lambda module, inputs, output: output + shift.to(output))


def noisy_rnn(model: popqorn.SequenceClassifier) -> None:
    model.rnn.register_forward_hook(lambda module, inputs, output: (output[0].flip(-1), output[1]))


def shifted_inputs(model: popqorn.SequenceClassifier) -> None:
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1.0,))


def changed_forward(model: popqorn.SequenceClassifier) -> None:
    plain = model.forward
    model.forward = lambda inputs: plain(inputs).roll(1, -1)  # type: ignore[method-assign]


def changed_head(model: popqorn.SequenceClassifier) -> None:
    model.head[1] = nn.Linear(HIDDEN, CLASSES)
    with torch.no_grad():
        model.rnn.weight_hh_l0.mul_(-1)


CHANGES: dict[str, Callable[[popqorn.SequenceClassifier], Any]] = {
    "hook on the head": noisy_head,
    "hook on the rnn": noisy_rnn,
    "hook before": shifted_inputs,
    "half": lambda model: model.half(),
    "bfloat16": lambda model: model.bfloat16(),
    "changed forward": changed_forward,
    "changed after wrapping": changed_head,
    "training": lambda model: model.train(),
}
FAITHFUL = ("half", "bfloat16", "changed after wrapping", "training")


@torch.no_grad()
def decisions(model: popqorn.SequenceClassifier, inputs: Tensor) -> Tensor:
    training = model.training
    chosen = model.eval()(inputs.to(next(model.parameters()))).argmax(-1)
    model.train(training)
    return chosen


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_certified_that_the_module_does_not_choose(change: str) -> None:
    """3,000 inputs each; a small eps is enough, as the decision at the input itself is what differs."""
    model = network()
    CHANGES[change](model)
    inputs = torch.randn(3000, FRAMES, FEATURES)
    found = popqorn.verify(model, inputs, 1e-4)
    assert found.labels is not None
    chosen = decisions(model, inputs)
    assert (found.labels[found.certified] == chosen[found.certified]).all()
    assert all((status is Status.DIFFERS) or not ok for status, ok in zip(found.status, found.labels != chosen, strict=True))
    if change in FAITHFUL:
        assert found.certified.double().mean() > 0.9
    else:
        assert not found.certified.any()
        assert found.difference.min() > 1e-3


def test_a_difference_is_told_by_every_function() -> None:
    model, inputs = network(), torch.randn(4, FRAMES, FEATURES)
    labels = decisions(model, inputs)
    # the decisions stay; everything around them is another function
    model.head.register_forward_hook(lambda module, given, output: 5 * output)
    certificate = popqorn.certify(model, inputs, labels=labels)
    assert set(certificate.status) == {Status.DIFFERS}
    assert (certificate.radius == 0).all()
    outputs = model(inputs).double()
    assert (certificate.difference >= 0.799 * outputs.abs().amax(-1)).all()
    assert {status for row in popqorn.sensitivity(model, inputs).status for status in row} == {Status.DIFFERS}
    bounds = popqorn.bounds(model, inputs, 0.1)
    assert set(bounds.status) == {Status.DIFFERS}
    assert bounds.lower.isinf().all()
    assert bounds.upper.isinf().all()
    assert not popqorn.curve(model, inputs, [0.0, 0.1]).proven.any()
    assert set(popqorn.attack(model, inputs, method="fgsm").status) == {Status.DIFFERS}
    assert not popqorn.attack(model, inputs, method="fgsm").success.any()
    assert set(popqorn.clever(model, inputs, batches=2, samples=2).status) == {Status.DIFFERS}
    assert str(Status.DIFFERS) in str(popqorn.bracket(model, inputs, attack_method="fgsm"))
    assert "hooks" in Status.DIFFERS.remedy


def test_a_hook_that_does_nothing_to_the_inputs_is_noticed_around_them() -> None:
    """Inputs of length 1 are left alone by a hook that normalises; what the region allows beside them is not."""
    model = network(nn.RNN)
    inputs = nn.functional.normalize(torch.randn(50, FRAMES, FEATURES).double(), dim=-1)
    model.register_forward_pre_hook(lambda module, given: (nn.functional.normalize(given[0], dim=-1),))
    assert not popqorn.verify(model, inputs, 0.01, norm=2).certified.any()
    stepping = network(nn.RNN)
    stepping.register_forward_pre_hook(lambda module, given: (torch.where(given[0] > 1, 5 * given[0], given[0]),))
    assert set(popqorn.certify(stepping, torch.rand(5, FRAMES, FEATURES)).status) == {Status.DIFFERS}
    inside = popqorn.verify(stepping, torch.rand(5, FRAMES, FEATURES), 1e-3, region=popqorn.Ball(clip=(0, 1)))
    assert inside.certified.any(), "inside the range the hook does nothing"


def test_small_outputs_are_compared_as_well() -> None:
    model, inputs = network(nn.GRU), torch.randn(3, FRAMES, FEATURES)
    with torch.no_grad():
        model.head[1].weight.mul_(1e-6)
        model.head[1].bias.zero_()
    assert set(popqorn.bounds(model, inputs, 0.0).status) == {Status.CERTIFIED}
    model.head.register_forward_hook(lambda module, given, output: -7 * output)
    assert set(popqorn.bounds(model, inputs, 0.0).status) == {Status.DIFFERS}


def test_labels_are_the_modules_own_also_against_targets() -> None:
    model = network().bfloat16()
    inputs = torch.randn(3000, FRAMES, FEATURES)
    outputs = model(inputs.bfloat16()).float()
    found = popqorn.verify(model, inputs, 1e-6, targets=outputs.argmin(-1), method="interval")
    assert found.labels is not None
    assert (found.labels == outputs.argmax(-1))[found.certified].all()


def test_weights_that_a_hook_makes_are_read_after_it() -> None:
    model, inputs = network(), torch.randn(4, FRAMES, FEATURES)
    nn.utils.weight_norm(model.head[1])
    model(inputs)
    model.head[1].weight_g.data.mul_(2)
    assert set(popqorn.verify(model, inputs, 1e-6).status) == {Status.CERTIFIED}


def test_an_initial_state_of_another_dtype_is_cast() -> None:
    state = torch.rand(1, HIDDEN, dtype=torch.float64)
    model = popqorn.SequenceClassifier(nn.GRU(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES), initial_state=state)
    assert set(popqorn.verify(model, torch.randn(2, FRAMES, FEATURES), 0.0).status) == {Status.CERTIFIED}


def test_autocast_does_not_reach_proofs() -> None:
    model, inputs = network(), torch.randn(4, FRAMES, FEATURES)
    plain = popqorn.certify(model, inputs, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(popqorn.certify(model, inputs, dtype=torch.float32).radius, plain.radius)


@pytest.mark.parametrize(
    "returned", [lambda output: {"logits": output}, lambda output: output.argmax(-1), lambda output: (output,)]
)
def test_what_is_no_output_is_told(returned: Callable[[Tensor], Any]) -> None:
    model = network()
    model.register_forward_hook(lambda module, given, output: returned(output))
    with pytest.raises(ValueError, match=r"it returns .* remove forward hooks"):
        popqorn.verify(model, torch.randn(2, FRAMES, FEATURES), 0.1)
    mixed = network()
    mixed.head.double()
    with pytest.raises(ValueError, match=r"cannot be run on the inputs .* one dtype"):
        popqorn.verify(mixed, torch.randn(2, FRAMES, FEATURES), 0.1)


def test_a_model_that_cannot_be_run_is_an_error() -> None:
    model, inputs = network(), torch.randn(2, FRAMES, FEATURES)
    model.head.register_forward_hook(lambda module, given, output: output[:, :2])
    with pytest.raises(ValueError, match="hooks"):
        popqorn.verify(model, inputs, 0.1)


def test_a_tolerance_is_about_what_the_model_computes() -> None:
    model, inputs = network(), torch.randn(2, FRAMES, FEATURES)
    model.head.register_forward_hook(lambda module, given, output: output + 1.0)
    assert set(popqorn.verify(model, inputs, 0.0, spec=popqorn.Tolerance(10.0)).status) == {Status.DIFFERS}


@pytest.mark.parametrize("function", [torch.log, torch.sqrt, lambda x: x**1.5, lambda x: x**-1.3])
def test_where_neither_finds_a_number_they_do_not_differ(function: Callable[[Tensor], Tensor]) -> None:
    """Around these inputs, some are negative."""

    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(function(x))

    found = popqorn.certify(Model(4, 3), torch.ones(2, 4))
    assert set(found.status) == {Status.CERTIFIED}
    assert (found.radius > 0).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_where_one_finds_no_number_they_differ(wrong: float) -> None:
    model, inputs = network(), torch.rand(2, FRAMES, FEATURES)

    def spoil(module: nn.Module, given: tuple[Tensor], output: Tensor) -> Tensor:
        negative = given[0].flatten(1).amin(-1, keepdim=True) < 0
        return output + torch.where(negative, wrong, 0.0)

    model.register_forward_hook(spoil)
    assert set(popqorn.verify(model, inputs, 1.0).status) == {Status.DIFFERS}
    own, outputs = _where_known(torch.zeros(2, 1), torch.tensor([[wrong], [0.0]]))
    assert (own - outputs).flatten().tolist() == [math.inf, 0.0]


class Growing(nn.Module):
    """A network that overflows in single precision far from its inputs, not near them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(40 * x.flatten(1))


def test_the_model_is_not_asked_beyond_the_size_that_is_asked_about() -> None:
    inputs = torch.full((1, 2, 1), 1.5)
    found = popqorn.bounds(Growing(), inputs, eps=0.01)
    assert found.status == (Status.CERTIFIED,)
    assert found.upper.isfinite().all()
    assert popqorn.verify(Growing(), inputs, eps=0.01, spec=popqorn.Tolerance(1e30)).certified.all()
