"""`attack`: the smallest perturbation found that changes a decision."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from popqorn import checks
from popqorn._typing import Bool, Float, Int
from popqorn.attacks.methods import METHODS, Attack
from popqorn.attacks.objective import Found, Objective
from popqorn.bounds.first_order import distances, first_order
from popqorn.models.classifier import SequenceClassifier
from popqorn.problem import Problem

BLOCK = 256  # samples at once; fixed, so that the same seed gives the same numbers whatever memory is free

ROUNDING = 32  # times the model's own unit of rounding: a margin this negative is negative in any order of summation

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AttackResult:
    """What an attack found: `certify(...).radius <= true minimum <= radius`.

    - `radius`: the least eps at which a changed decision was found; inf if none was, 0 if the decision is wrong already.
    - `adversarial`: the inputs that show it (the given inputs where none was found).
    - `success`: whether one was found (or the decision is wrong already); every one found was put through the model itself.
    - `labels`, `targets`: the decision attacked, and the class that had to overtake it (None: any other).
    - `decisions`: what the model says to `adversarial`.
    """

    radius: Float[Tensor, " batch"]
    adversarial: Float[Tensor, "batch frames features"]
    success: Bool[Tensor, " batch"]
    labels: Int[Tensor, " batch"]
    targets: Int[Tensor, " batch"] | None
    decisions: Int[Tensor, " batch"]
    seconds: float
    settings: dict[str, Any]


@torch.inference_mode(False)
def attack(
    model: nn.Module,
    inputs: Any,
    *,
    labels: Any = None,
    targets: Any = None,
    norm: float = math.inf,
    frames: Any = None,
    scale: Any = None,
    method: str = "pgd",
    restarts: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    progress: Progress | None = None,
) -> AttackResult:
    """Search for the smallest perturbation of `inputs` that changes the decisions of `model`: an upper bound of the true radius.

    `labels`, `targets`, `norm`, `frames` and `scale` mean what they mean to `certify`: without targets any other class counts,
    with them the target has to overtake the label.

    - `method`: `"pgd"` (projected gradient descent inside a search over eps), `"cw"` (the paper's C&W-Ada), `"fgsm"` (one step),
      or `"best"`: all of them, the strongest.
    - `restarts`: how many starts per search; `seed`: the same seed gives the same numbers.
    - `progress`: called with the number of samples done and their total.

    >>> attack(model, digits, norm=2, method="best").radius
    """
    started = time.perf_counter()
    problem = Problem.read(model, inputs, norm, frames, scale, dtype=dtype)
    method = checks.check_choice("method", method, METHODS)
    restarts = checks.check_count("restarts", restarts)
    generator = torch.Generator(problem.inputs.device).manual_seed(checks.check_seed(seed))
    margins, correct = problem.margins(labels, targets)
    rows = margins.rows(problem.inputs.dtype)
    radius, adversarial = problem.inputs.new_zeros(len(rows)), problem.inputs.clone()
    todo = correct.nonzero().squeeze(1)
    done = len(rows) - len(todo)
    for index in todo.split(BLOCK):
        if len(index):
            objective = Objective(problem.select(index), rows[index])
            radius[index], adversarial[index] = checked(objective, _run(objective, METHODS[method], restarts, generator))
        done += len(index)
        if progress is not None:
            progress(done, len(rows))
    return AttackResult(
        radius=radius,
        adversarial=adversarial,
        success=radius.isfinite(),
        labels=margins.labels,
        targets=None if targets is None else margins.targets[:, 0],
        decisions=decide(problem.model, adversarial).argmax(-1),
        seconds=time.perf_counter() - started,
        settings=problem.settings(method=method, restarts=restarts, seed=seed),
    )


def _run(objective: Objective, method: Attack, restarts: int, generator: torch.Generator) -> Found:
    """What one method finds for the samples of one block."""
    problem = objective.problem
    values, rates = first_order(problem.tape, problem.region(torch.ones_like(problem.inputs[:, 0, 0])), objective.rows)
    found = Found.nothing(objective)
    method(objective, found, distances(values, rates), restarts, generator)
    return found


@torch.no_grad()
def decide(model: SequenceClassifier, inputs: Float[Tensor, "batch frames features"]) -> Float[Tensor, "batch classes"]:
    """The model's own logits in eval mode, in its own dtype and on its own device."""
    parameter = next(model.parameters())
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        logits: Tensor = model(inputs.to(parameter))
    finally:
        for module, mode in modes:
            module.training = mode
    return logits.to(inputs.device)


def checked(objective: Objective, found: Found) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch frames features"]]:
    """Radii and inputs that stand: the model itself, in its own precision, must agree that a margin is negative.

    It must be so by more than rounding, which differs with the size of a batch. Perturbations that end nearer to the decision
    boundary are pushed over it, ever less gently.
    """
    model, radius, u = objective.problem.model, found.radius, found.u
    stands = torch.zeros_like(radius, dtype=torch.bool)
    noise = ROUNDING * torch.finfo(next(model.parameters()).dtype).eps
    for push in (0.0, *(1e-9 * 4.0**power for power in range(14))):
        pushed = (1 + push) * u
        logits = decide(model, objective.inputs(pushed)).to(objective.rows)
        own = (objective.rows @ logits.unsqueeze(-1)).squeeze(-1).amin(-1)
        clear = own < -noise * logits.abs().amax(-1).clamp(min=1)
        now = ~stands & radius.isfinite() & clear & (objective.least(pushed) < 0)
        u = torch.where(now[:, None, None], pushed, u)
        stands = stands | now
    adversarial = objective.inputs(torch.where(stands[:, None, None], u, 0.0))
    moved = (adversarial - objective.center) / torch.where(objective.share > 0, objective.share, 1.0)
    return torch.where(stands, objective.size(moved), math.inf), adversarial
