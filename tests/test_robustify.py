"""Ramps, and fine-tuning until a network can be certified: the best epoch is kept, runs go on, a strength finds itself."""

import copy
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn.training import Epoch, ramp, robustify

robustified = import_module("popqorn.training.robustify")


def test_a_ramp_begins_at_zero_and_ends_at_eps() -> None:
    assert [ramp(step, 2, 6, 0.4) for step in (0, 2, 3, 6, 99)] == [0, 0, 0.1, 0.4, 0.4]
    assert ramp(0, 0, 0, 0.4) == 0.4
    with pytest.raises(ValueError, match="last is 1, before first, 2"):
        ramp(0, 2, 1, 0.4)


def curves(count: int = 300) -> tuple[Tensor, Tensor]:
    """Sequences that rise or fall, with noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (count,), generator=generator)
    slope = torch.linspace(-1, 1, 6).view(1, 6, 1) * (2 * labels - 1).view(-1, 1, 1)
    return 0.5 * slope + 0.3 * torch.randn(count, 6, 2, generator=generator), labels


def trained() -> tuple[popqorn.SequenceClassifier, Tensor, Tensor]:
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.LSTM(2, 8), nn.Linear(8, 2))
    inputs, labels = curves()
    optimiser = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return model, inputs, labels


def test_robustified_networks_are_certified() -> None:
    model, inputs, labels = trained()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chance = torch.get_rng_state()
    told: list[tuple[int, int]] = []
    found = robustify(
        model, inputs, labels, 0.2, epochs=6, batch=50, strength=1e-2, learning_rate=1e-2, progress=lambda *now: told.append(now)
    )
    assert torch.equal(chance, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    first, best = found.epochs[0], found.epochs[found.best]
    assert best.certified == max(epoch.certified for epoch in found.epochs)
    assert best.certified > first.certified + 0.1
    assert best.clean > first.clean - 0.05
    assert told[-1] == (36, 36)
    assert "<- kept" in str(found)
    radius = [
        popqorn.certify(each, inputs[:20], labels=labels[:20], tolerance=0.05).radius.mean() for each in (model, found.model)
    ]
    assert radius[1] > 1.1 * radius[0]


def test_a_stopped_run_goes_on_to_the_same_network(tmp_path: Path) -> None:
    model, inputs, labels = trained()
    options: dict[str, Any] = {"epochs": 3, "batch": 100, "strength": 1e-3}
    whole = robustify(model, inputs, labels, 0.1, **options)

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    file = tmp_path / "runs" / "kept.pt"
    part = robustify(model, inputs, labels, 0.1, kept=file, progress=stop, **options)
    assert len(part.epochs) == 2
    rest = robustify(model, inputs, labels, 0.1, kept=file, **options)
    assert [epoch.certified for epoch in rest.epochs] == [epoch.certified for epoch in whole.epochs]
    for one, other in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    file.write_bytes(b"something else")
    with pytest.raises(ValueError, match="does not hold an unfinished training"):
        robustify(model, inputs, labels, 0.1, kept=file, **options)


def test_a_strength_finds_itself_for_a_loss_of_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, labels = trained()
    told = [(1.0, 0.0), (0.99, 0.1), (0.9, 0.9), (0.97, 0.5), (0.985, 0.4)]  # clean and certified, epoch by epoch

    def measured(_: Any, model: nn.Module, number: int, loss: float = math.nan, strength: float = math.nan) -> Epoch:
        states[number] = copy.deepcopy(model.state_dict())
        return Epoch(number, loss, *told[number], strength)

    states: dict[int, dict[str, Tensor]] = {}
    strengths: list[float] = []
    loss = robustified.certified_loss
    monkeypatch.setattr(robustified._Samples, "measured", measured)
    monkeypatch.setattr(
        robustified, "certified_loss", lambda *given, **named: (strengths.append(named["strength"]), loss(*given, **named))[1]
    )
    options: dict[str, Any] = {"epochs": 4, "batch": 300, "strength": 0.4}
    found = robustify(model, inputs, labels, 0.1, accuracy_loss=0.02, **options)
    assert strengths == pytest.approx([0.4, 0.6, 0.3, 0.15])
    assert [epoch.strength for epoch in found.epochs[1:]] == strengths
    assert math.isnan(found.epochs[0].strength)
    assert found.best == 4, "the most certified of those that lose no more than two points"
    whole = robustify(model, inputs, labels, 0.1, **options)
    assert whole.best == 2, "the most certified of all"
    assert all(torch.equal(tensor, states[2][name]) for name, tensor in whole.model.state_dict().items())
    assert strengths[4:] == [0.4] * 4
    assert robustify(model, inputs, labels, 0.1, accuracy_loss=0.0, **options).best == 0


def test_what_is_held_back_is_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, labels = trained()
    seen: list[Tensor] = []
    loss = robustified.certified_loss

    def watched(model: nn.Module, inputs: Tensor, *given: Any, **named: Any) -> Tensor:
        seen.append(inputs)
        return loss(model, inputs, *given, **named)

    measured: list[Tensor] = []
    verify = robustified.verify

    def measuring(model: nn.Module, inputs: Tensor, *given: Any, **named: Any) -> Any:
        measured.append(inputs)
        return verify(model, inputs, *given, **named)

    monkeypatch.setattr(robustified, "certified_loss", watched)
    monkeypatch.setattr(robustified, "verify", measuring)
    robustify(model, inputs, labels, 0.1, epochs=1, validation=0.2)
    used = {tuple(sample.flatten().tolist()) for batch in seen for sample in batch}
    held = {tuple(sample.flatten().tolist()) for sample in measured[-1]}
    assert (len(used), len(held)) == (240, 60)
    assert not used & held


def test_steps_grow_smaller_and_eps_greater(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, labels = trained()
    rates: list[float] = []
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def stepped(self: torch.optim.AdamW, *given: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        norms.append(math.hypot(*(float(each.grad.norm()) for each in self.param_groups[0]["params"])))
        return step(self, *given)

    sizes: list[float] = []
    loss = robustified.certified_loss
    monkeypatch.setattr(torch.optim.AdamW, "step", stepped)
    monkeypatch.setattr(robustified, "certified_loss", lambda *given, **named: (sizes.append(given[3]), loss(*given, **named))[1])
    robustify(model, inputs, labels, 0.1, epochs=5, batch=135, learning_rate=1e-3, strength=1e3)
    assert max(norms) == pytest.approx(robustified.CLIP, rel=1e-4)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1e-3
    assert rates[-1] < 1e-4
    assert sizes == pytest.approx([0, 1 / 60, 1 / 30, 0.05, 4 / 60, 5 / 60, 0.1, 0.1, 0.1, 0.1])


def test_bad_data_is_named() -> None:
    model, inputs, labels = trained()
    with pytest.raises(ValueError, match="accuracy_loss is 1; pass a share"):
        robustify(model, inputs, labels, 0.1, accuracy_loss=1)
    with pytest.raises(ValueError, match="robustify is for classifiers"):
        robustify(model, inputs, labels.float(), 0.1)
    with pytest.raises(ValueError, match="nothing to train"):
        robustify(copy.deepcopy(model).requires_grad_(False), inputs, labels, 0.1)
    with pytest.raises(ValueError, match="labels are 3 for 300 inputs"):
        robustify(model, inputs, labels[:3], 0.1)
    with pytest.raises(ValueError, match="validation is 0 of 300 samples"):
        robustify(model, inputs, labels, 0.1, validation=0.0)
    with pytest.raises(ValueError, match="eps"):
        robustify(model, inputs, labels, -0.1)
