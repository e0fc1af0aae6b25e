"""Random combinations of everything that can be chosen, attacked inside what was proven."""

import math
import os
import random
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import popqorn
from popqorn.regions.region import AllowedSet
from popqorn.relax.methods import METHODS
from popqorn.task import Question, Task

pytestmark = pytest.mark.shapes

COMBINATIONS = int(os.environ.get("POPQORN_COMBINATIONS", "40"))  # 500 in CI
EACH = 10
BATCH, FEATURES = 2, 2
SIZES = (1e-9, 3e-3, 0.03, 0.1, 0.3, 1.0)
ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Hardtanh, nn.Softsign)


@dataclass
class Combination:
    """One draw of everything, by its seed alone."""

    seed: int

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        torch.manual_seed(self.seed)
        pick = self.chance.choice
        self.frames, self.hidden, self.classes = pick((1, 2, 3)), pick((1, 2, 3)), pick((2, 3))
        self.table = torch.rand(12, FEATURES, dtype=torch.float64)
        self.tokens = torch.randint(12, (BATCH, self.frames))
        self.inputs = self.table[self.tokens]
        self.model = self._model()
        self.region, sizes = self._region()
        self.sizes = self.chance.sample(sizes, 2)
        self.spec = self._spec()
        method = pick((*METHODS, "planes", "planes"))
        self.options: dict[str, Any] = {
            "method": "planes" if method == "split" and isinstance(self.region, popqorn.Words) else method,
            "seconds": 0.2 if method == "split" and not isinstance(self.region, popqorn.Words) else None,
            "chunk_rows": pick((None, None, 1, 3)),
            "dtype": pick((torch.float64, torch.float64, torch.float32)),
        }

    def _model(self) -> popqorn.SequenceClassifier:
        pick = self.chance.choice
        cell = pick((nn.RNN, nn.LSTM, nn.GRU))
        options: dict[str, Any] = {
            "num_layers": pick((1, 1, 2)),
            "bidirectional": pick((False, False, True)),
            "bias": pick((True, False)),
        }
        if cell is nn.RNN:
            options["nonlinearity"] = pick(("tanh", "relu"))
        if cell is nn.LSTM and self.hidden > 1 and pick((True, False, False)):
            options["proj_size"] = self.hidden - 1
        rnn = cell(FEATURES, self.hidden, **options)
        width = (options.get("proj_size") or self.hidden) * (2 if options["bidirectional"] else 1)
        head = nn.Linear(width, self.classes)
        if pick((True, False)):
            head = nn.Sequential(nn.Linear(width, 2), pick(ACTIVATIONS)(), nn.Linear(2, self.classes))
        state = None
        if pick((True, False, False)):
            layers = options["num_layers"] * (2 if options["bidirectional"] else 1)
            state = torch.randn(layers, options.get("proj_size") or self.hidden)
            state = (state, torch.randn(layers, self.hidden)) if cell is nn.LSTM else state
        model = popqorn.SequenceClassifier(rnn, head, pick(("last", "mean", "max", "final", None)), state)
        spread = pick((0.3, 1.0, 3.0, 20.0))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=spread)
        return model.to(pick((torch.float64, torch.float32))).eval()

    def _region(self) -> tuple[Any, tuple[float, ...]]:
        pick = self.chance.choice
        kind = pick(("ball", "ball", "clipped", "box", "words"))
        if kind == "box":
            return popqorn.Box(self.inputs - torch.rand(FEATURES), self.inputs + torch.rand(self.frames, 1)), SIZES
        if kind == "words":
            neighbours = {word: torch.randint(12, (3,)).tolist() for word in range(12)}
            return popqorn.Words(self.table, self.tokens, neighbours, most=pick((None, 1, 2))), (0.0, 1.0, 2.0)
        frames = None if pick((True, False)) else [pick(range(self.frames))]
        scale = pick((None, torch.rand(self.frames), torch.rand(BATCH, self.frames, FEATURES) + 0.1))
        clip = (0, 1) if kind == "clipped" else None
        norm = pick((1, 1.5, 2, 3, math.inf))
        return popqorn.Ball(norm, frames=frames, scale=scale, clip=clip, total=pick((True, False))), SIZES

    def _spec(self) -> Any:
        pick = self.chance.choice
        shape = (self.frames, self.classes) if self.model.pooling is None else (self.classes,)
        kind = pick(("decision", "decision", "tolerance", "property"))
        if kind == "tolerance":
            return popqorn.Tolerance(pick((1e-3, 0.1, 1.0)))
        if kind == "property":
            return popqorn.Property(torch.randn(2, *shape), torch.rand(2))
        return popqorn.Decision()


def attacked(task: Task, allowed: AllowedSet) -> list[Tensor]:
    """Allowed points: at random, and where linear forms (random ones, and the margins' gradients) are least."""
    generator = torch.Generator().manual_seed(1)
    if allowed.choices is not None:
        return [exchanged(allowed, generator) for _ in range(30)]
    points = [allowed.center, *(allowed.random(generator) for _ in range(10))]
    for start in points[:3]:
        with torch.enable_grad():
            moved = start.clone().requires_grad_()
            margins = task.values(moved)
            for row in range(margins.shape[1]):
                (gradient,) = torch.autograd.grad(margins[:, row].sum(), moved, retain_graph=True)
                points.append(allowed.lowest(gradient))
    points += [allowed.lowest(torch.randn(allowed.center.shape, generator=generator, dtype=torch.float64)) for _ in range(10)]
    return points


def exchanged(allowed: AllowedSet, generator: torch.Generator) -> Tensor:
    choices = allowed.choices
    assert choices is not None
    points = allowed.center.clone()
    for sample in range(len(points)):
        order = torch.randperm(points.shape[1], generator=generator)[: int(allowed.eps[sample])]
        for frame in order.tolist():
            options = choices.options[sample, frame][choices.allowed[sample, frame]]
            points[sample, frame] = choices.table[options[int(torch.randint(len(options), (1,), generator=generator))]]
    return points


@pytest.mark.parametrize("block", range(COMBINATIONS // EACH))
def test_nothing_lies_below_what_was_proven(block: int) -> None:
    for seed in range(block * EACH, (block + 1) * EACH):
        drawn = Combination(seed)
        asked = {"region": drawn.region, "spec": drawn.spec}
        question = Question.read(deepcopy(drawn.model).double(), drawn.inputs, lengths=None, **asked)
        (task,) = question.tasks
        for size in drawn.sizes:
            proven = popqorn.verify(drawn.model, drawn.inputs, min(size, task.allowed.limit), **asked, **drawn.options)
            allowed = task.allowed.at(torch.full_like(task.allowed.eps, min(size, task.allowed.limit)))
            for points in attacked(task, allowed):
                margins = task.margins.table(task.values(points))
                low = proven.margins.double()
                # the tape's own values are float64: what they round is allowed for, nothing else
                slack = 1e-9 * (1 + margins.abs().nan_to_num(posinf=0.0))
                assert not (margins < low - slack).any(), f"seed {seed}, size {size}: {drawn.options}, {asked}"
                broken = (margins <= -slack).flatten(1).any(1)
                assert not (broken & proven.certified).any(), f"seed {seed}, size {size}"
