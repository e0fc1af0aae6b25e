"""Chunks follow the memory there is."""

import pytest
import torch
from torch import nn

import popqorn
from popqorn import memory, problem
from popqorn.bounds import relaxed


def test_free_memory_is_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.free_bytes(torch.device("cpu")) > 2**20
    monkeypatch.setattr(memory.os, "sysconf_names", {})
    assert memory.free_bytes(torch.device("cpu")) == 2**31
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (12 * 2**30, 24 * 2**30))
    assert memory.free_bytes(torch.device("cuda")) == 12 * 2**30
    assert memory.walk_bytes(torch.device("cuda")) == 2**28
    assert memory.walk_bytes(torch.device("cpu")) == memory.CACHE_BYTES


def test_little_memory_gives_small_blocks_and_the_same_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = popqorn.SequenceClassifier(nn.LSTM(3, 4), nn.Linear(4, 3)).double()
    inputs = torch.randn(7, 3, 3, dtype=torch.float64)
    whole = popqorn.certify(model, inputs, norm=2)
    blocks: list[int] = []
    original = problem.Problem.relaxed
    monkeypatch.setattr(problem, "block_bytes", lambda device: 40_000)
    monkeypatch.setattr(relaxed, "walk_bytes", lambda device: 1)
    monkeypatch.setattr(problem.Problem, "relaxed", lambda self, eps: blocks.append(len(eps)) or original(self, eps))
    small = popqorn.certify(model, inputs, norm=2)
    assert 0 < max(blocks) < 7
    torch.testing.assert_close(small.radius, whole.radius, rtol=1e-9, atol=0)
