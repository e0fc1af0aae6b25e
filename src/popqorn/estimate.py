"""CLEVER-RNN: an estimate of the radius from sampled gradients and extreme value theory. No proof (paper, section 4)."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from popqorn import checks
from popqorn._typing import Float, Int
from popqorn.attacks.objective import Objective
from popqorn.bounds.concretise import length
from popqorn.bounds.first_order import distances, first_order
from popqorn.problem import Problem

SAMPLES_AT_ONCE = 2000
STARTS = ((1.5, 0.3, 1.5), (5.0, 2.0, 4.0))  # shape, end beyond the greatest maximum, width; the last two in standard deviations
SHAPE_PENALTY = 0.01
PILOT_STEPS = 8
CONTENDERS = 3.0  # targets whose estimate from the plain maxima is further off than this factor cannot decide the score
FLAT = 1e-6  # relative spread of maxima below which there is no tail to fit


@dataclass(frozen=True)
class CleverResult:
    """`score` estimates the radius; nothing is proven.

    - `score`: `min(margin / sum over frames of the gradient's estimated maximum, radius sampled)`, the least over the targets.
    - `gradients`: `[batch, frames]`, the estimated maximum of the gradient's dual norm for the target that decides the score.
    - `fit`: `[batch, frames]`, the p-value of a Kolmogorov-Smirnov test of the fit; below 0.05 the estimate rests on a bad fit.
    - `sampled`: the radius of the region that was sampled, and the score of a network whose gradients vanish throughout it.
    """

    score: Float[Tensor, " batch"]
    gradients: Float[Tensor, "batch frames"]
    fit: Float[Tensor, "batch frames"]
    sampled: Float[Tensor, " batch"]
    labels: Int[Tensor, " batch"]
    targets: Int[Tensor, " batch"]
    seconds: float
    settings: dict[str, Any]


@torch.inference_mode(False)
def clever(
    model: nn.Module,
    inputs: Any,
    *,
    labels: Any = None,
    targets: Any = None,
    norm: float = math.inf,
    frames: Any = None,
    scale: Any = None,
    radius: Any = None,
    batches: int = 50,
    samples: int = 100,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    progress: Callable[[int, int], None] | None = None,
) -> CleverResult:
    """Estimate the radius within which decisions stay: the paper's CLEVER-RNN. An estimate may lie on either side of the truth.

    `labels`, `targets`, `norm`, `frames` and `scale` mean what they mean to `certify`.

    - `radius`: the region to sample gradients from (a number, or one per sample), which also caps the score. By default each
      sample's own: the radius at which the gradients within just use up the margin, found by a short bisection.
    - `batches`, `samples`: how many maxima the Weibull distribution is fitted to, and over how many gradients each is taken.

    >>> clever(model, digits, norm=2).score
    """
    started = time.perf_counter()
    problem = Problem.read(model, inputs, norm, frames, scale, dtype=dtype)
    batches, samples = checks.check_count("batches", batches), checks.check_count("samples", samples)
    generator = torch.Generator(problem.inputs.device).manual_seed(checks.check_seed(seed))
    margins, correct = problem.margins(labels, targets)
    rows = margins.rows(problem.inputs.dtype)
    values, rates = first_order(problem.tape, problem.region(problem.inputs.new_ones(len(rows))), rows)
    if radius is None:
        reach = torch.where(correct, distances(values, rates).amin(-1), 0.0)
    else:
        reach = checks.check_eps(radius, len(rows), problem.inputs, name="radius").clone()

    objective = Objective(problem, rows)
    gradients, fit = (problem.inputs.new_zeros(len(rows), problem.tape.frames) for _ in range(2))
    score, which = problem.inputs.new_zeros(len(rows)), torch.zeros_like(margins.labels)
    for index in correct.nonzero().squeeze(1).tolist():
        alone, value = objective.select(torch.tensor([index], device=rows.device)), values[index]
        if radius is None:
            reach[index] = _consistent_radius(alone, value, reach[index], samples, generator)
        maxima = _maxima(alone, reach[index], batches, samples, generator)
        which[index], estimate, gradients[index], fit[index] = _deciding(value, maxima)
        score[index] = torch.minimum(estimate, reach[index])
        if progress is not None:
            progress(index + 1, len(rows))
    return CleverResult(
        score=score,
        gradients=gradients,
        fit=fit,
        sampled=reach,
        labels=margins.labels,
        targets=margins.targets.gather(1, which.unsqueeze(1)).squeeze(1),
        seconds=time.perf_counter() - started,
        settings=problem.settings(batches=batches, samples=samples, seed=seed),
    )


def _deciding(
    margins: Float[Tensor, " rows"], maxima: Float[Tensor, "batches rows frames"]
) -> tuple[Int[Tensor, ""], Float[Tensor, ""], Float[Tensor, " frames"], Float[Tensor, " frames"]]:
    """The row of the least estimate, that estimate, and the ends and p-values of its fits."""
    crude = _quotient(margins, maxima.amax(0).sum(-1))
    near = (crude <= CONTENDERS * crude.amin()).nonzero().squeeze(1)
    locations, quality = _fit_all(maxima[:, near])
    estimates = _quotient(margins[near], locations.sum(-1))
    row = estimates.argmin()
    return near[row], estimates[row], locations[row], quality[row]


def _quotient(margins: Float[Tensor, " rows"], slopes: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """`margins / slopes`; 0 for a margin that is none, inf for one that does not change."""
    return torch.where(margins > 0, margins / slopes, 0.0)


def _consistent_radius(objective: Objective, margins: Tensor, reach: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """The radius at which gradients sampled within it just use up the margin: any other region gives a lower score.

    `min(margin / gradients(r), r)` rises with `r` until the two meet, and falls from there on.
    """
    low, high = torch.zeros_like(reach), reach
    for _ in range(PILOT_STEPS):
        middle = high / 2 if low == 0 else (low * high).sqrt()
        greatest = _maxima(objective, middle, 1, samples, generator)[0].sum(-1)
        if bool(_quotient(margins, greatest).amin() > middle):
            low = middle
        else:
            high = middle
    return high


def _maxima(
    objective: Objective, reach: Tensor, batches: int, samples: int, generator: torch.Generator
) -> Float[Tensor, "batches rows frames"]:
    """The greatest dual norm of every margin's gradient by every frame, over each batch of inputs around the one sample."""
    rows = objective.rows.shape[1]
    dual = objective.problem.region(reach.reshape(1)).dual_norm
    together = max(1, SAMPLES_AT_ONCE // samples)
    found = []
    for some in torch.arange(batches).split(together):
        drawn = objective.repeat(len(some) * samples)
        u = (reach * drawn.draw(generator)).requires_grad_()
        with torch.enable_grad():
            margins = drawn.margins(u).sum(0)
            slopes = [torch.autograd.grad(margins[row], u, retain_graph=row + 1 < rows)[0] for row in range(rows)]
        lengths = torch.stack([length(slope, dual) for slope in slopes], dim=1)
        found.append(lengths.unflatten(0, (len(some), samples)).amax(1))
    return torch.cat(found)


def _fit_all(maxima: Float[Tensor, "batches rows frames"]) -> tuple[Float[Tensor, "rows frames"], Float[Tensor, "rows frames"]]:
    """The location of a reverse Weibull distribution and the p-value of its fit, per margin and frame."""
    _, rows, frames = maxima.shape
    fitted = [_fit(column) for column in maxima.flatten(1).T.cpu().numpy()]
    table = torch.tensor(fitted, dtype=maxima.dtype, device=maxima.device).reshape(rows, frames, 2)
    return table[..., 0], table[..., 1]


def _fit(maxima: NDArray[np.float64]) -> tuple[float, float]:
    """The right end of the distribution of `maxima`, and the p-value of the fit.

    Maximum likelihood, less a little per unit of shape: without that a bell-shaped sample would send shape and end to infinity.
    Maxima without spread (a linear network's, or frames that may not move) are their own limit.
    """
    try:
        from scipy.optimize import minimize
        from scipy.stats import kstest, weibull_max
    except ImportError:
        raise ImportError("clever fits its distribution with scipy; install it with: pip install 'popqorn[estimate]'") from None
    top, spread = float(maxima.max()), float(maxima.std())
    if spread <= FLAT * top or len(maxima) < 3:
        return top, 1.0
    below = (top - maxima) / spread

    def loss(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        shape, beyond = np.exp(logs[:2])
        log_distance = np.log(below + beyond) - logs[2]
        power = np.exp(shape * log_distance)
        nearness = beyond / (below + beyond)
        likelihood = logs[0] - logs[2] + ((shape - 1) * log_distance - power).mean()
        by_shape = 1 + shape * (log_distance * (1 - power)).mean() - SHAPE_PENALTY * shape
        by_beyond = ((shape - 1) * nearness - shape * power * nearness).mean()
        return float(SHAPE_PENALTY * shape - likelihood), -np.array([by_shape, by_beyond, shape * (power.mean() - 1)])

    limits = [(math.log(0.5), math.log(100)), (math.log(1e-3), math.log(100)), (math.log(1e-2), math.log(200))]
    # Not L-BFGS-B: its matrices are three by three, but it wakes all threads of BLAS for them, which takes longer than the rest.
    fits = [minimize(loss, np.log(start), jac=True, bounds=limits, method="TNC") for start in STARTS]
    found = min(fits, key=lambda fit: float(fit.fun))
    shape, beyond, width = np.exp(found.x)
    quality = kstest(-below, weibull_max(shape, loc=beyond, scale=width).cdf).pvalue
    return top + spread * float(beyond), float(quality)
