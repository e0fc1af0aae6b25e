"""Chunks follow the memory there is."""

import pytest
import torch
from torch import nn

import popqorn
from popqorn.bounds import chunks
from popqorn.readers.classifier import tape_of
from popqorn.task import Task


def test_free_memory_is_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chunks.free_bytes(torch.device("cpu")) > 2**20
    monkeypatch.setattr(chunks.os, "sysconf_names", {})
    assert chunks.free_bytes(torch.device("cpu")) == 2**31
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (12 * 2**30, 24 * 2**30))
    assert chunks.free_bytes(torch.device("cuda")) == 12 * 2**30


def test_pieces_cover_all_rows_of_all_entries_once() -> None:
    tape = tape_of(popqorn.SequenceClassifier(nn.LSTM(3, 4), nn.Linear(4, 3)), 3, dtype=torch.float64, device=torch.device("cpu"))
    like = torch.zeros(1, dtype=torch.float64)
    for entries, rows, chunk in [(1, 1, 1), (5, 7, 1), (5, 7, 20), (5, 7, 1000), (3, 300, None)]:
        seen = torch.zeros(entries, rows)
        for samples, pieces in chunks.walk_pieces(tape, entries, rows, chunk, like):
            for piece in pieces:
                seen[samples, piece] += 1
                assert chunk is None or seen[samples, piece].numel() <= max(chunk, 1)
        assert (seen == 1).all()


def test_little_memory_gives_small_blocks_and_the_same_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = popqorn.SequenceClassifier(nn.LSTM(3, 4), nn.Linear(4, 3)).double()
    inputs = torch.randn(7, 3, 3, dtype=torch.float64)
    whole = popqorn.certify(model, inputs, norm=2)
    blocks: list[int] = []
    original = Task.prove
    monkeypatch.setattr(chunks, "free_bytes", lambda device: 160_000)
    monkeypatch.setattr(chunks, "CACHE_BYTES", 1)
    monkeypatch.setattr(Task, "prove", lambda self, eps: blocks.append(len(eps)) or original(self, eps))
    small = popqorn.certify(model, inputs, norm=2)
    assert 0 < max(blocks) < 7
    torch.testing.assert_close(small.radius, whole.radius, rtol=1e-9, atol=0)
