"""CLEVER-RNN: an estimate of the radius from sampled gradients and extreme value theory. No proof (paper, section 4)."""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from popqorn._typing import Float, Int
from popqorn.arithmetic import in_full_precision
from popqorn.progress import Watch
from popqorn.readers.models import Model
from popqorn.reading import read_count, read_seed
from popqorn.result import Result
from popqorn.status import Status
from popqorn.task import Question, Task, read_eps, read_region, read_spec

SAMPLES_AT_ONCE = 2000
STARTS = ((1.5, 0.3, 1.5), (5.0, 2.0, 4.0))  # shape, end beyond the greatest maximum, width; the last two in standard deviations
SHAPE_PENALTY = 0.01
PILOT_STEPS = 8
CONTENDERS = 3.0  # targets whose estimate from the plain maxima is further off than this factor cannot decide the score
FLAT = 1e-6  # relative spread of maxima below which there is no tail to fit


@dataclass(frozen=True, eq=False)
class CleverResult(Result):
    """`score` estimates the radius; nothing is proven.

    - `score`: `min(margin / sum over frames of the gradient's estimated maximum, radius sampled)`, the least over the margins;
      NaN for samples that were not done when the user stopped the call.
    - `gradients`: `[batch, frames]`, the estimated maximum of the gradient's dual norm for the margin that decides the score (one
      number for a region with one budget for all frames).
    - `fit`: `[batch, frames]`, the p-value of a Kolmogorov-Smirnov test of the fit; below 0.05 the estimate rests on a bad fit.
    - `sampled`: the radius of the region that was sampled, and the score of a network whose gradients vanish throughout it.
    - `margin`: which margin decides, its place in the flattened table of margins (the target class, for a decision).
    """

    score: Float[Tensor, " batch"]
    status: tuple[Status, ...]
    gradients: Float[Tensor, "batch budgets"]
    fit: Float[Tensor, "batch budgets"]
    sampled: Float[Tensor, " batch"]
    margin: Int[Tensor, " batch"]
    labels: Tensor | None
    targets: Tensor | None


@in_full_precision
def clever(
    model: Model,
    inputs: Any,
    *,
    region: Any = None,
    spec: Any = None,
    labels: Any = None,
    targets: Any = None,
    norm: float | None = None,
    frames: Any = None,
    scale: Any = None,
    lengths: Any = None,
    radius: Any = None,
    batches: int = 50,
    samples: int = 100,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    progress: Any = None,
) -> CleverResult:
    """Estimate the radius within which decisions stay: the paper's CLEVER-RNN. An estimate may lie on either side of the truth.

    `region`, `spec`, their short forms, `lengths` and `progress` mean what they mean to `certify`; a region of words has no
    gradients.

    - `radius`: the region to sample gradients from (a number, or one per sample), which also caps the score. By default each
      sample's own: the radius at which the gradients within just use up the margin, found by a short bisection.
    - `batches`, `samples`: how many maxima the Weibull distribution is fitted to, and over how many gradients each is taken.

    >>> clever(model, digits, norm=2).score
    """
    started = time.perf_counter()
    question = Question.read(
        model,
        inputs,
        lengths=lengths,
        region=read_region(region, norm, frames, scale),
        spec=read_spec(spec, labels, targets),
        dtype=dtype,
    )
    if question.tasks[0].allowed.choices is not None:
        raise ValueError("region allows finitely many inputs, which have no gradients to sample; clever needs a Ball or a Box")
    batches, samples = read_count("batches", batches), read_count("samples", samples)
    generator = torch.Generator(question.groups[0].values.device).manual_seed(read_seed(seed))
    given = None if radius is None else read_eps(radius, question.batch, question.groups[0].values, name="radius")
    watch = Watch(progress, "clever", question.batch)
    found = [
        _estimated(task, None if given is None else group.of_batch(given), batches, samples, generator, watch)
        for task, group in zip(question.tasks, question.groups, strict=True)
    ]
    names = ("score", "gradients", "fit", "sampled", "margin")
    columns: dict[str, Any] = {name: question.together([getattr(part, name) for part in found]) for name in names}
    columns |= question.decisions()
    return CleverResult(
        **columns,
        status=question.in_order([part.status for part in found]),
        seconds=time.perf_counter() - started,
        settings={**question.settings, "batches": batches, "samples": samples, "seed": seed},
    )


@dataclass
class _Estimates:
    """What was found so far for the samples of one task, as in `CleverResult`."""

    score: Tensor
    gradients: Tensor
    fit: Tensor
    sampled: Tensor
    margin: Tensor
    status: list[Status]


def _estimated(
    task: Task, radius: Tensor | None, batches: int, samples: int, generator: torch.Generator, watch: Watch
) -> _Estimates:
    values, linear = task.first_order()
    sampled = torch.where(task.margins.holds, _nearest(linear, task), 0.0) if radius is None else radius.clone()
    budgets = task.allowed.rates(torch.zeros_like(task.allowed.center).unsqueeze(1)).shape[-1]
    blank = values.new_zeros(len(task), budgets)
    right = task.margins.holds.tolist()
    status = [Status.STOPPED if one else refusal for one, refusal in zip(right, task.margins.refusals(), strict=True)]
    score = torch.where(task.margins.holds, math.nan, 0.0).to(values)
    found = _Estimates(score, blank, blank.clone(), sampled, task.margins.place[:, 0].clone(), status)
    watch.advance(right.count(False))
    for index in task.margins.holds.nonzero().squeeze(1).tolist():
        if watch.stopped:
            break
        with watch.stoppable():
            alone, value = task.select(torch.tensor([index], device=values.device)), values[index]
            if radius is None:
                sampled[index] = _consistent_radius(alone, value, sampled[index], samples, generator)
            maxima = _maxima(alone, sampled[index], batches, samples, generator)
            row, estimate, found.gradients[index], found.fit[index] = _deciding(value, maxima)
            found.margin[index] = task.margins.place[index, row]
            score[index] = torch.minimum(estimate, sampled[index])
            status[index] = Status.ESTIMATED
            watch.advance(1)
    return found


def _nearest(linear: Float[Tensor, "batch rows"], task: Task) -> Float[Tensor, " batch"]:
    """The size at which the first margin is used up to first order; where none ever is, that of the whole region, or 1."""
    nearest, greatest = linear.amin(-1), task.allowed.greatest
    return torch.where(nearest.isfinite(), nearest, torch.where(greatest.isfinite(), greatest, 1.0))


def _deciding(
    margins: Float[Tensor, " rows"], maxima: Float[Tensor, "batches rows budgets"]
) -> tuple[Int[Tensor, ""], Float[Tensor, ""], Float[Tensor, " budgets"], Float[Tensor, " budgets"]]:
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


def _consistent_radius(task: Task, margins: Tensor, largest: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """The radius at which gradients sampled within it just use up the margin: any other region gives a lower score.

    `min(margin / gradients(r), r)` rises with `r` until the two meet, and falls from there on.
    """
    low, high = torch.zeros_like(largest), largest
    for _ in range(PILOT_STEPS):
        middle = high / 2 if low == 0 else (low * high).sqrt()
        greatest = _maxima(task, middle, 1, samples, generator)[0].sum(-1)
        if bool(_quotient(margins, greatest).amin() > middle):
            low = middle
        else:
            high = middle
    return high


def _maxima(
    task: Task, radius: Tensor, batches: int, samples: int, generator: torch.Generator
) -> Float[Tensor, "batches rows budgets"]:
    """The greatest rate of every margin by every frame, over each batch of inputs around the one sample."""
    together = max(1, SAMPLES_AT_ONCE // samples)
    rows = task.margins.rows.shape[1]
    found = []
    for start in range(0, batches, together):
        count = min(together, batches - start)
        drawn = task.select(torch.zeros(count * samples, dtype=torch.long, device=radius.device))
        points = drawn.allowed.at(radius.expand(len(drawn))).random(generator).requires_grad_()
        with torch.enable_grad():
            margins = drawn.values(points).sum(0)
            slopes = [torch.autograd.grad(margins[row], points, retain_graph=row + 1 < rows)[0] for row in range(rows)]
        rates = drawn.allowed.rates(torch.stack(slopes, dim=1))
        found.append(rates.unflatten(0, (count, samples)).amax(1))
    return torch.cat(found)


def _fit_all(
    maxima: Float[Tensor, "batches rows budgets"],
) -> tuple[Float[Tensor, "rows budgets"], Float[Tensor, "rows budgets"]]:
    """The location of a reverse Weibull distribution and the p-value of its fit, per margin and budget."""
    _, rows, budgets = maxima.shape
    fitted = [_fit(column) for column in maxima.flatten(1).T.cpu().numpy()]
    table = torch.tensor(fitted, dtype=maxima.dtype, device=maxima.device).reshape(rows, budgets, 2)
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
