"""CLEVER-RNN and the bracket: exact where the truth is known, and ordered as in the paper."""

import builtins
import math
from typing import Any

import numpy as np
import pytest
import torch

import popqorn
from popqorn import bundled
from popqorn.clever import _fit
from test_attacks import closed_form, linear_network


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_clever_is_exact_on_a_linear_network(norm: float) -> None:
    model, inputs = linear_network()
    found = popqorn.clever(model, inputs, norm=norm, batches=10, samples=20)
    torch.testing.assert_close(found.score, closed_form(model, inputs, norm), rtol=0.01, atol=0)
    assert (found.fit == 1).all()


@pytest.mark.parametrize(("kind", "norm"), [("rnn", 2.0), ("lstm", math.inf), ("gru", 2.0)])
def test_certified_is_below_the_estimate_and_below_the_attack(kind: str, norm: float) -> None:
    inputs, labels = bundled.load_digits(4)
    model = bundled.load_model(kind)
    options: dict[str, Any] = {"labels": labels, "targets": (labels + 3) % 10, "norm": norm}
    certified = popqorn.certify(model, inputs, tolerance=0.05, **options)
    estimated = popqorn.clever(model, inputs, batches=20, samples=50, **options)
    attacked = popqorn.attack(model, inputs, method="cw", restarts=1, **options)
    right = certified.radius > 0
    assert right.any()
    assert (certified.radius < estimated.score)[right].all()
    assert (certified.radius < attacked.radius)[right].all()
    assert (estimated.score <= estimated.sampled).all()
    assert (estimated.score[~right] == 0).all()


@pytest.mark.parametrize("shape", [1.5, 3.0, 5.0])
def test_the_end_of_a_known_distribution_is_found(shape: float) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    ends, fits = [], []
    for _ in range(20):
        drawn = scipy_stats.weibull_max.rvs(shape, loc=2.0, scale=0.5, size=100, random_state=generator)
        end, quality = _fit(drawn)
        assert end >= drawn.max()
        ends.append(end)
        fits.append(quality)
    assert np.median(ends) == pytest.approx(2.0, abs=0.1)
    assert np.median(fits) > 0.3


def test_a_bad_fit_shows() -> None:
    """Two far lumps are no extreme value distribution."""
    generator = np.random.default_rng(0)
    _, quality = _fit(np.concatenate([generator.normal(1.0, 0.001, 100), generator.normal(2.0, 0.001, 100)]))
    assert quality < 0.05
    assert _fit(np.full(50, 3.0)) == (3.0, 1.0)


def test_untargeted_scores_are_the_least_of_the_targets() -> None:
    model, inputs = linear_network()
    labels = model(inputs).argmax(-1)
    every = [popqorn.clever(model, inputs, targets=(labels + k) % 4, batches=5, samples=10).score for k in (1, 2, 3)]
    alone = popqorn.clever(model, inputs, batches=5, samples=10)
    torch.testing.assert_close(alone.score, torch.stack(every).amin(0), rtol=1e-6, atol=0)
    assert (alone.margin != labels).all()
    assert alone.targets is None


def test_the_same_seed_gives_the_same_bits() -> None:
    inputs, _ = bundled.load_digits(2)
    model = bundled.load_model("rnn")
    first, second = (popqorn.clever(model, inputs, norm=2, batches=5, samples=10, seed=3) for _ in range(2))
    assert torch.equal(first.score, second.score)
    assert not torch.equal(first.score, popqorn.clever(model, inputs, norm=2, batches=5, samples=10, seed=4).score)


def test_without_scipy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"popqorn\[estimate\]"):
        _fit(np.arange(5.0))


def test_bracket_puts_all_three_side_by_side() -> None:
    inputs, labels = bundled.load_digits(3)
    labels = labels.clone()
    labels[2] = (labels[2] + 1) % 10
    calls: list[tuple[int, int]] = []
    found = popqorn.bracket(
        bundled.load_model("rnn"), inputs, labels=labels, norm=2, attack_method="pgd", progress=lambda *step: calls.append(step)
    )
    assert (found.lower[:2] < found.upper[:2]).all()
    assert (found.lower[:2] < found.estimate[:2]).all()
    torch.testing.assert_close(found.ratio[:2], found.upper[:2] / found.lower[:2])
    lines = str(found).splitlines()
    assert len(lines) == 5
    assert "misclassified" in lines[3]
    assert lines[-1].split()[0] == "mean"
    assert float(lines[1].split()[1]) == pytest.approx(float(found.lower[0]), rel=1e-4)
    assert found.seconds > 0
    assert calls
