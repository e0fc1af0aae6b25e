"""The search on margins that are known functions of the size: it finds the edge, and nothing but proofs count."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn import search
from popqorn.progress import Watch
from popqorn.readers.classifier import tape_of
from popqorn.relax.methods import METHODS
from popqorn.specs.spec import plain_margins
from popqorn.task import Task
from sets import around

EDGES = torch.tensor([1e-9, 0.3, 7.0, 1e5], dtype=torch.float64)


@dataclass(frozen=True)
class Synthetic(Task):
    """A task whose one margin is `curve(eps / edge)`, 1 at the input; `linear` is what a gradient there would promise."""

    curve: Callable[[Tensor], Tensor] = lambda share: 1 - share
    edge: Any = EDGES
    linear: Any = EDGES

    def select(self, index: Tensor) -> "Synthetic":
        chosen = {"edge": self.edge[index], "linear": self.linear[index]}
        return replace(self, allowed=self.allowed.select(index), margins=self.margins.select(index), **chosen)

    def prove(self, eps: Tensor) -> Tensor:
        return self.curve(eps / self.edge).unsqueeze(-1)

    def first_order(self) -> tuple[Tensor, Tensor]:
        return torch.ones_like(self.edge).unsqueeze(-1), self.linear.unsqueeze(-1)


def synthetic(curve: Callable[[Tensor], Tensor], promised: float = 1.0) -> Synthetic:
    model = popqorn.SequenceClassifier(nn.RNN(2, 2), nn.Linear(2, 2))
    tape = tape_of(model, 3, dtype=torch.float64, device=torch.device("cpu"))
    allowed = around(torch.zeros(4, 3, 2, dtype=torch.float64), 0.0)
    outputs = torch.ones(4, 2, dtype=torch.float64)
    margins = plain_margins(torch.ones(1, 1, 2, dtype=torch.float64), torch.zeros(1), outputs, torch.zeros(1).long(), (1,))
    return Synthetic(tape, allowed, margins, METHODS["planes"], curve=curve, linear=promised * EDGES)


def jump(share: Tensor) -> Tensor:
    return torch.where(share <= 1, 0.9, -5.0)


def saturating(share: Tensor) -> Tensor:
    return torch.where(share <= 1, 1 - share.pow(3), -3 - 0.01 * share.clamp(max=10))


CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda share: 1 - share,
    "exponential": lambda share: 1 - share * torch.exp(5 * (share - 1)),
    "jump": jump,
    "saturating": saturating,
    "NaN beyond": lambda share: torch.where(share <= 1, 1 - share, math.nan),
    "inf before": lambda share: torch.where(share <= 1, math.inf, -1.0),
}


@pytest.mark.parametrize("promised", [1.0, 0.01, 30.0])
@pytest.mark.parametrize("tolerance", [0.1, 1e-3])
@pytest.mark.parametrize("curve", CURVES)
def test_the_edge_is_found(curve: str, tolerance: float, promised: float) -> None:
    found = search.largest_size(synthetic(CURVES[curve], promised), tolerance, Watch(None, "", 4))
    assert not found.open.any()
    assert (found.eps <= EDGES).all()
    assert (found.eps >= EDGES * (1 - 1.01 * tolerance)).all()
    assert (found.failed > EDGES * (1 - 1e-12)).all()
    assert (found.margins > 0).all()
    assert (found.evaluations <= search.MAX_EVALUATIONS).all()


def test_nan_is_never_a_success() -> None:
    found = search.largest_size(synthetic(lambda share: torch.full_like(share, math.nan)), 0.1, Watch(None, "", 4))
    assert (found.eps == 0).all()


def test_a_hole_of_nan_is_not_leapt_over_as_if_proven() -> None:
    """Whatever lies beyond, the size returned was proven itself."""

    def holed(share: Tensor) -> Tensor:
        return torch.where((share > 0.2) & (share < 0.4), math.nan, 1 - share)

    found = search.largest_size(synthetic(holed), 1e-3, Watch(None, "", 4))
    share = found.eps / EDGES
    assert (holed(share) > 0).all()


def test_what_never_fails_is_unbounded_and_what_always_fails_is_nothing() -> None:
    found = search.largest_size(synthetic(lambda share: torch.ones_like(share)), 1e-3, Watch(None, "", 4))
    assert found.failed.isinf().all()
    assert (found.eps >= search.UNBOUNDED * EDGES).all()
    nothing = search.largest_size(synthetic(lambda share: -torch.ones_like(share)), 1e-3, Watch(None, "", 4))
    assert (nothing.eps == 0).all()


def test_a_budget_used_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_EVALUATIONS", 3)
    found = search.largest_size(synthetic(jump, promised=1e3), 1e-6, Watch(None, "", 4))
    assert found.open.all()
    assert (found.evaluations == 3).all()
    assert (found.eps <= EDGES).all()
