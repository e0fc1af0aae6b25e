"""Beyond the paper: networks trained with the bound in mind, beside plain, adversarial and interval training."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

import popqorn
from popqorn.experiments import tasks
from popqorn.experiments.networks import Trained, trained
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.tasks import Task, some_of
from popqorn.experiments.training import Sequences, accuracy, decisions
from popqorn.experiments.ways import ADVERSARIAL, CERTIFIED, INTERVALS, PLAIN, SMALL_BOXES, CertifiableRecipe
from popqorn.experiments.work import fill, unstopped
from popqorn.runs.store import Row
from popqorn.training.loss import STRENGTH

SAMPLES, QUICK_SAMPLES = 200, 4
RADII = 50  # samples whose radius is searched, certified and attacked
TIGHT = 10  # samples certified by joint bounds as well
SEEDS, QUICK_SEEDS = 3, 1
HIDDEN = 32
BLOCK = 50
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Way:
    """A way of training, and the strength of a certified one."""

    name: str
    strength: float = 0.0


@dataclass(frozen=True)
class Case:
    """A network, its task, and how it is trained.

    Networks are certified and attacked at `eps`, and trained for `farther` times that. The `first` ways are trained before those
    of other cases that are not; the `rest` with `seeds` seeds. Networks of the ways that are `tight`, with the first seed, are
    certified by joint bounds as well.
    """

    name: str
    task: Callable[[Path], Task]
    kind: str
    eps: float
    recipe: CertifiableRecipe
    first: tuple[Way, ...]
    rest: tuple[Way, ...] = ()
    seeds: int = 1
    tight: tuple[Way, ...] = ()
    farther: float = 1.0

    def training(self, way: Way, task: Task) -> CertifiableRecipe:
        """How to train a network that way."""
        return replace(self.recipe, way=way.name, eps=self.farther * self.eps, strength=way.strength, around=task.around)


def at_strengths(*strengths: float) -> tuple[Way, ...]:
    return tuple(Way(CERTIFIED, strength) for strength in strengths)


PLAINLY, ADVERSARIALLY, BY_DEFAULT = Way(PLAIN), Way(ADVERSARIAL), at_strengths(STRENGTH)
OTHERS = (ADVERSARIALLY, Way(INTERVALS), Way(SMALL_BOXES))
RECIPE = CertifiableRecipe(epochs=14, batch=256, learning_rate=3e-3)
LONGER = replace(RECIPE, epochs=20)
SOONER = replace(RECIPE, epochs=15, batch=32)
CASES = (
    Case(
        "lstm_4x32",
        tasks.digits(4),
        "lstm",
        0.02,
        RECIPE,
        first=(PLAINLY, *at_strengths(0.08)),
        rest=(*at_strengths(0.2), Way(INTERVALS), Way(SMALL_BOXES), *at_strengths(STRENGTH, 0.05, 0.02, 0.07), ADVERSARIALLY),
        seeds=SEEDS,
        tight=(*at_strengths(0.2, 0.08), PLAINLY),
    ),
    Case("speech_lstm", tasks.spoken_digits, "lstm", 0.05, SOONER, (), (PLAINLY, ADVERSARIALLY, *at_strengths(0.05, STRENGTH))),
    Case("questions_lstm", tasks.questions, "lstm", 2, SOONER, (), (PLAINLY, ADVERSARIALLY, *at_strengths(0.05, STRENGTH))),
    Case(
        "ecg_lstm_14x32",
        tasks.heart_beats,
        "lstm",
        0.05,
        RECIPE,
        (PLAINLY, *at_strengths(0.05)),
        (*OTHERS, *at_strengths(0.02, STRENGTH)),
        tight=at_strengths(0.05),
    ),
    Case("gru_4x32", tasks.digits(4), "gru", 0.02, RECIPE, (PLAINLY, *BY_DEFAULT), (ADVERSARIALLY, *at_strengths(0.05))),
    Case("rnn_4x32", tasks.digits(4), "rnn", 0.02, RECIPE, (PLAINLY, *BY_DEFAULT), (ADVERSARIALLY, *at_strengths(0.05))),
    Case(
        "lstm_14x32",
        tasks.digits(14),
        "lstm",
        0.02,
        LONGER,
        (PLAINLY, *at_strengths(0.06)),
        (*at_strengths(0.05), ADVERSARIALLY, *BY_DEFAULT),
        farther=1.5,
    ),
)
QUICK = (replace(CASES[0], recipe=replace(RECIPE, epochs=2), rest=OTHERS, tight=at_strengths(0.08)),)


@dataclass(frozen=True)
class Job:
    """One network to train and to measure, or (`tight`) to certify by joint bounds."""

    case: Case
    way: Way
    seed: int
    tight: bool = False


def run(results: Results, setup: Setup) -> None:
    """Fill the tables `networks` (accuracies), `samples` (what is proven and attacked) and `tight` (what joint bounds prove)."""
    cases, seeds = (QUICK, QUICK_SEEDS) if setup.quick else (CASES, SEEDS)
    read = cache(lambda task: task(setup.data))
    for job in jobs(cases, seeds):
        _measure(results, setup, job, read(job.case.task))


def jobs(cases: Sequence[Case], seeds: int) -> Iterator[Job]:
    """What is asked first comes first: a run that is stopped has whole lines of the table."""
    for case in cases:
        yield from (Job(case, way, seed) for seed in range(seeds) for way in case.first)
    for seed in range(seeds):
        for case in cases:
            yield from (Job(case, way, seed) for way in case.rest if seed < case.seeds)
            yield from (Job(case, way, seed, tight=True) for way in case.tight if seed == 0)


def _measure(results: Results, setup: Setup, job: Job, task: Task) -> None:
    case, way = job.case, job.way
    group: Row = {"network": case.name, "way": way.name, "strength": way.strength, "seed": job.seed}
    title = f"{case.name}, {way.name}{f' {way.strength:g}' if way.strength else ''}, seed {job.seed}"
    found = _network(setup, job, task)
    chosen = _chosen(task, setup.samples)
    if job.tight:
        searched = chosen[:TIGHT]
        fill(results, "tight", searched, partial(_tight, found.model, task), setup.track, f"tight, {title}", groups=[group])
        return
    if not any(all(row[key] == value for key, value in group.items()) for row in results.rows("networks")):
        held = accuracy(found.model, task.held.inputs, task.held.labels)
        results.note("networks", {**group, "eps": case.eps, "clean": found.accuracy, "held": held})
    measure = partial(_rows, found.model, task, case.eps, set(chosen[:RADII]))
    fill(results, "samples", chosen, measure, setup.track, title, groups=[group], block=BLOCK)


def _network(setup: Setup, job: Job, task: Task) -> Trained:
    name = f"training_{job.case.name}_{job.way.name.replace(' ', '_')}"
    architecture = task.architecture(job.case.kind, HIDDEN)
    return trained(setup, name, architecture, job.case.training(job.way, task), lambda: (task.training, task.test), job.seed)


def _chosen(task: Task, count: int) -> list[int]:
    """Samples of the test set, drawn from all over it."""
    order = torch.randperm(10**5, generator=torch.Generator().manual_seed(0))
    return order[order < len(task.test.labels)][:count].tolist()


def _rows(model: popqorn.SequenceClassifier, task: Task, eps: float, searched: set[int], _: Row, block: list[int]) -> list[Row]:
    """One row per sample: whether it is right, proven and broken at `eps`; of some the radii."""
    inputs, labels = some_of(task.test, torch.tensor(block))
    region = task.around(inputs)
    proven = unstopped(popqorn.verify(model, inputs, eps, labels=labels, region=region)).certified.tolist()
    attacked = unstopped(popqorn.attack(model, inputs, labels=labels, region=region, restarts=1)).radius.tolist()
    right = (decisions(model, inputs) == labels).tolist()
    rows: list[Row] = [
        {"right": is_right, "proven": is_proven, "broken": not is_right or radius <= eps}
        for is_right, is_proven, radius in zip(right, proven, attacked, strict=True)
    ]
    places = [place for place, number in enumerate(block) if number in searched]
    if places:
        some = some_of(task.test, torch.tensor(block)[places])
        found = _certified(model, some.inputs, some.labels, task, "planes")
        for place, radius in zip(places, found, strict=True):
            rows[place] |= {"certified": radius, "attacked": _finite(attacked[place])}
    return rows


def _tight(model: popqorn.SequenceClassifier, task: Task, _: Row, block: list[int]) -> list[Row]:
    inputs, labels = some_of(task.test, torch.tensor(block))
    return [{"tight": radius} for radius in _certified(model, inputs, labels, task, "tight")]


def _certified(
    model: popqorn.SequenceClassifier, inputs: Sequences, labels: Tensor, task: Task, method: str
) -> list[float | None]:
    region = task.around(inputs)
    found = popqorn.certify(model, inputs, labels=labels, region=region, method=method, tolerance=TOLERANCE)
    return [_finite(radius) for radius in unstopped(found).radius.tolist()]


def _finite(radius: float) -> float | None:
    """A radius as a table holds it: None where there is no end to it."""
    return radius if math.isfinite(radius) else None
