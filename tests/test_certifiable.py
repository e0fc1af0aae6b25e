"""The experiment of certified training: losses are what they say, what is asked first comes first, tables tell what was found."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import popqorn
from popqorn.experiments import certifiable, tasks, ways
from popqorn.experiments.certifiable import ADVERSARIALLY, PLAINLY, Case, Job, Way, at_strengths, jobs
from popqorn.experiments.data import Embeddings
from popqorn.experiments.networks import Split
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.tasks import Synonyms, Task, some_of
from popqorn.experiments.tracking import silent
from popqorn.experiments.training import accuracy
from popqorn.experiments.ways import CertifiableRecipe, interval_loss, small_box_loss
from popqorn.experiments.words import Vocabulary
from popqorn.regions.region import Region
from popqorn.report import certifiable as reporting
from popqorn.runs.store import Row
from test_soundness import CLASSES, random_inputs, random_model

EPS = 0.1


def worst_sampled(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, eps: float) -> torch.Tensor:
    """The greatest cross entropy per sample over random points of the ball."""
    points = inputs + eps * (2 * torch.rand(200, *inputs.shape, dtype=inputs.dtype) - 1)
    losses = nn.functional.cross_entropy(model(points.flatten(0, 1)), labels.repeat(200), reduction="none")
    return losses.unflatten(0, (200, len(inputs))).amax(0)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_losses_over_boxes_are_no_less_than_any_loss_inside(kind: str) -> None:
    model, inputs = random_model(kind), random_inputs()
    labels = torch.randint(CLASSES, (len(inputs),))
    region = popqorn.Ball()
    plain = nn.functional.cross_entropy(model(inputs), labels)
    whole, small = (loss(model, inputs, labels, EPS, region) for loss in (interval_loss, small_box_loss))
    assert whole >= worst_sampled(model, inputs, labels, EPS).mean()
    assert plain < small < whole
    for loss in (interval_loss, small_box_loss):
        torch.testing.assert_close(loss(model, inputs, labels, 0.0, region), plain)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_the_loss_of_intervals_is_that_of_interval_bounds(kind: str) -> None:
    model, inputs = random_model(kind), random_inputs()
    labels = torch.randint(CLASSES, (len(inputs),))
    bounds = popqorn.bounds(model, inputs, EPS, method="interval")
    worst = torch.where(nn.functional.one_hot(labels, CLASSES).bool(), bounds.lower, bounds.upper)
    expected = nn.functional.cross_entropy(worst, labels)
    torch.testing.assert_close(interval_loss(model, inputs, labels, EPS, popqorn.Ball()), expected)


def test_small_boxes_lie_inside_the_ball(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = random_model("lstm"), random_inputs()
    boxes = []
    worst = ways._worst_logits
    monkeypatch.setattr(ways, "_worst_logits", lambda *given: (boxes.append(given[-1]), worst(*given))[1])
    small_box_loss(model, inputs, torch.zeros(len(inputs), dtype=torch.long), EPS, popqorn.Ball())
    (box,) = boxes
    assert (box.lower >= inputs - EPS - 1e-12).all()
    assert (box.upper <= inputs + EPS + 1e-12).all()
    torch.testing.assert_close(box.upper - box.lower, torch.full_like(inputs, 2 * ways.SMALL * EPS))
    assert ((box.upper + box.lower) / 2 - inputs).abs().amax() > (1 - 2 * ways.SMALL) * EPS, "around points that moved"


def test_a_recipe_has_the_loss_of_its_way_at_the_eps_of_its_ramp() -> None:
    model, inputs = random_model("gru"), random_inputs()
    labels = torch.randint(CLASSES, (len(inputs),))
    asked: list[int] = []

    def around(given: torch.Tensor) -> Region:
        asked.append(len(given))
        return popqorn.Ball()

    recipe = CertifiableRecipe(1, eps=EPS, strength=0.5, first=0.2, last=0.6, around=around)

    def loss(way: str, share: float) -> float:
        torch.manual_seed(0)
        return float(replace(recipe, way=way).loss(model, inputs, labels, share).detach())

    plain = float(nn.functional.cross_entropy(model(inputs), labels).detach())
    for way in ways.WAYS:
        assert loss(way, 0.1) == pytest.approx(plain), "where eps is 0, nothing but plain training"
        assert (loss(way, 0.7) > loss(way, 0.4) > plain) == (way != ways.PLAIN)
    assert asked
    assert set(asked) == {len(inputs)}
    torch.manual_seed(0)
    own = popqorn.training.certified_loss(model, inputs, labels, EPS / 2, strength=0.5)
    assert loss(ways.CERTIFIED, 0.4) == pytest.approx(float(own.detach()))
    worst = float(interval_loss(model, inputs, labels, EPS / 2, popqorn.Ball()).detach())
    assert loss(ways.INTERVALS, 0.4) == pytest.approx((plain + worst) / 2)


def test_a_network_is_known_by_its_way_eps_and_strength() -> None:
    """The recipe's text names the file of the network; the region around samples must not change it from run to run."""
    recipe = CertifiableRecipe(3, way=ways.CERTIFIED, eps=0.1, strength=0.2)
    assert repr(recipe) == repr(replace(recipe, around=lambda inputs: popqorn.Ball(2)))
    others = [replace(recipe, way=ways.PLAIN), replace(recipe, eps=0.2), replace(recipe, strength=0.1)]
    assert len({repr(each) for each in (recipe, *others)}) == 4


# ---- what is done, in which order --------------------------------------------------------------------------------------------


def task_of(_: Path) -> Task:
    inputs, labels = torch.randn(40, 2, 3), torch.arange(40) % 4
    return Task(Split(inputs[:20], labels[:20]), Split(inputs[20:30], labels[20:30]), Split(inputs[30:], labels[30:]))


ONE = Case("one", task_of, "rnn", 0.1, CertifiableRecipe(1), (PLAINLY,), (ADVERSARIALLY,), seeds=2, tight=(PLAINLY,))
TWO = Case("two", task_of, "gru", 0.2, CertifiableRecipe(1), (PLAINLY,), at_strengths(0.3), tight=())


def test_what_is_asked_first_comes_first() -> None:
    told = [(job.case.name, job.way.name, job.seed, job.tight) for job in jobs((ONE, TWO), 3)]
    first = [(name, "plain", seed, False) for name in ("one", "two") for seed in range(3)]
    rest = [("one", "adversarial", 0, False), ("one", "plain", 0, True), ("two", "certified", 0, False)]
    assert told == [*first, *rest, ("one", "adversarial", 1, False)]


def test_every_network_that_is_tight_was_measured() -> None:
    for case in (*certifiable.CASES, *certifiable.QUICK):
        assert set(case.tight) <= {*case.first, *case.rest}
        assert PLAINLY in {*case.first, *case.rest}, "what all others are compared with"


def test_a_case_trains_around_the_samples_of_its_task() -> None:
    task = replace(task_of(Path()), around=lambda inputs: popqorn.Ball(2))
    recipe = TWO.training(Way(ways.CERTIFIED, 0.3), task)
    assert (recipe.way, recipe.eps, recipe.strength) == ("certified", 0.2, 0.3)
    assert recipe.around is task.around
    assert replace(TWO, farther=1.5).training(PLAINLY, task).eps == pytest.approx(0.3)
    assert task.architecture("gru", 5).build().head.weight.shape == (4, 5)


def test_rows_say_what_is_right_proven_and_broken() -> None:
    torch.manual_seed(0)
    task = task_of(Path())
    model = TWO.training(PLAINLY, task) and task.architecture("gru", 4).build()
    rows = certifiable._rows(model, task, 0.05, {0, 2}, {}, [2, 5, 0])
    inputs, labels = some_of(task.test, torch.tensor([2, 5, 0]))
    right = (model(inputs).argmax(-1) == labels).tolist()
    assert [row["right"] for row in rows] == right
    assert ["certified" in row for row in rows] == [True, False, True]
    for row, good in zip(rows, right, strict=True):
        assert row["broken"] >= (not good)
        assert not (row["proven"] and row["broken"])
    radius = popqorn.certify(model, inputs, labels=labels, tolerance=certifiable.TOLERANCE).radius
    assert rows[0]["certified"] == pytest.approx(float(radius[0]))
    assert rows[2]["certified"] == pytest.approx(float(radius[2]))


def test_rows_of_joint_bounds_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ball = popqorn.Ball(2)
    task = replace(task_of(Path()), around=lambda inputs: ball)
    model = task.architecture("rnn", 4).build()
    inputs, labels = some_of(task.test, torch.tensor([3, 1]))
    asked = []
    certify = popqorn.certify
    monkeypatch.setattr(popqorn, "certify", lambda *given, **named: (asked.append(named), certify(*given, **named))[1])
    rows = certifiable._tight(model, task, {}, [3, 1])
    assert [(named["method"], named["region"]) for named in asked] == [("tight", ball)]
    found = certify(model, inputs, labels=labels, norm=2, method="tight", tolerance=certifiable.TOLERANCE).radius
    assert [each["tight"] for each in rows] == pytest.approx(found.tolist())


def test_accuracies_are_of_the_test_set_and_of_what_was_held_back(tmp_path: Path) -> None:
    task = task_of(Path())
    results = Results.open(tmp_path, {"experiment": "training"})
    setup = Setup(tmp_path, tmp_path, 3, quick=True, track=silent)
    job = Job(ONE, PLAINLY, 1)
    certifiable._measure(results, setup, job, task)
    model = certifiable._network(setup, job, task).model
    (noted,) = results.rows("networks")
    assert noted["clean"] == accuracy(model, task.test.inputs, task.test.labels)
    assert noted["held"] == accuracy(model, task.held.inputs, task.held.labels)
    assert (noted["network"], noted["way"], noted["seed"], noted["eps"]) == ("one", "plain", 1, 0.1)
    assert len(results.rows("samples")) == 3
    certifiable._measure(results, setup, job, task)
    assert len(results.rows("networks")) == 1
    assert len(results.rows("samples")) == 3


def test_what_is_held_back_is_a_tenth_of_the_training_set() -> None:
    splits = {
        "train": Split(torch.arange(50.0).view(50, 1, 1), torch.arange(50)),
        "test": Split([torch.ones(2, 1)], torch.ones(1)),
    }
    task = tasks._task(splits.__getitem__)
    assert (len(task.held.labels), len(task.training.labels)) == (5, 45)
    assert sorted([*task.held.labels.tolist(), *task.training.labels.tolist()]) == list(range(50))
    for part in (task.held, task.training):
        assert torch.equal(part.inputs.flatten().long(), part.labels)  # type: ignore[union-attr]
    assert task.test is splits["test"]


# ---- synonyms ----------------------------------------------------------------------------------------------------------------


def test_words_go_for_their_synonyms(tmp_path: Path) -> None:
    words = ("cat", "dog", "hound", "a")
    vectors = np.concatenate([np.eye(4, dtype=np.float32), np.zeros((1, 4), np.float32)])
    vocabulary = Vocabulary(Embeddings(words, vectors, {w: n for n, w in enumerate(words)}), torch.from_numpy(vectors))
    (tmp_path / "counterfitted_neighbors.json").write_text('{"dog": ["hound", "unheardof", "cat"], "wolf": ["dog"]}')
    synonyms = Synonyms.read(vocabulary, tmp_path)
    sentences = [vocabulary.vectors[[3, 1]], vocabulary.vectors[[1, 4, 2]]]
    region = synonyms.around(sentences)
    assert isinstance(region, popqorn.Words)
    assert [row.tolist() for row in region.tokens] == [[3, 1], [1, 4, 2]]
    assert region.neighbours == {3: [], 1: [2, 0], 4: [], 2: []}
    assert synonyms.around(torch.stack([sentences[0], sentences[0]])).tokens[1].tolist() == [3, 1]  # type: ignore[attr-defined]


# ---- the page ----------------------------------------------------------------------------------------------------------------


def row(sample: int, certified: float | None = 0.2, attacked: float | None = 0.5, **more: bool) -> Row:
    return {
        "sample": sample,
        "right": True,
        "proven": False,
        "broken": False,
        "certified": certified,
        "attacked": attacked,
        **more,
    }


def results_of(folder: Path, networks: dict[tuple[str, float, int], list[Row]], tight: list[Row] | None = None) -> Results:
    results = Results.open(folder, {"experiment": "training"})
    for (way, strength, seed), rows in networks.items():
        group: Row = {"network": "one", "way": way, "strength": strength, "seed": seed}
        results.note("networks", {**group, "eps": 0.1, "clean": 0.9 - strength + 0.01 * seed, "held": 0.8 - 2 * strength})
        results.plan("samples", range(len(rows)), [group])
        results.add("samples", group, enumerate({k: v for k, v in each.items() if k != "sample"} for each in rows))
        for each in tight or ():
            results.plan("tight", [each["sample"]], [group])
            results.add("tight", group, [(each["sample"], {"tight": each["tight"]})])
    return results


def test_gains_are_those_over_plain_training_of_the_same_seed(tmp_path: Path) -> None:
    wrong = row(2, 0.0, 0.0, right=False, broken=True)
    plain = {("plain", 0.0, seed): [row(0, 0.1 + seed / 10, 0.4), row(1, 0.1 + seed / 10, None), wrong] for seed in range(2)}
    strong = {("certified", 0.05, seed): [row(0, 0.2, 0.4, proven=True), row(1, 0.4, 0.8), wrong] for seed in range(2)}
    report = reporting.report(results_of(tmp_path, {**strong, **plain}, [{"sample": 0, "tight": 0.3}]))
    gains, table, joint = report.tables
    assert [line[1] for line in table.rows] == ["plain", "certified 0.05"]
    found = dict(zip(gains.columns, gains.rows[0], strict=True))
    assert found["accuracy lost, points"] == "5.00 ± 0.00"
    assert found["lost on held back"] == "10.00 ± 0.00"
    assert found["certified, %"] == "33.3 ± 0.0"
    assert found["times the plain radius"] == "2.3 ± 1.1", "the mean of 3 and 1.5"
    assert found["certified / attacked"] == "0.50 ± 0.00"
    assert report.facts[0][0] == "0"
    beside = dict(zip(joint.columns, joint.rows[0], strict=True))
    assert (beside["tight / planes"], beside["planes / attacked"], beside["tight / attacked"]) == (1.5, 0.5, 0.75)


def test_radii_without_end_are_left_out(tmp_path: Path) -> None:
    rows = [row(0, None, None, proven=True), row(1, 1.0, 2.0)]
    table = reporting.report(results_of(tmp_path, {("plain", 0.0, 0): rows})).tables[1]
    line = dict(zip(table.columns, table.rows[0], strict=True))
    assert line["certified, %"] == "50.00"
    assert line["certified radius"] is line["attacked radius"] is line["certified / attacked"] is None


@pytest.mark.parametrize(
    ("broken", "tight"),
    [
        (row(0, 0.6, 0.5), None),
        (row(0, 0.5, 0.5), None),
        (row(0, None, 0.5), None),
        (row(0, proven=True, broken=True), None),
        (row(0), 0.6),
    ],
    ids=["inside", "at the edge", "without end", "at eps", "tight"],
)
def test_an_attack_inside_a_radius_is_counted(broken: Row, tight: float | None, tmp_path: Path) -> None:
    beside = [] if tight is None else [{"sample": 0, "tight": tight}]
    assert reporting.report(results_of(tmp_path, {("plain", 0.0, 0): [broken, row(1)]}, beside)).facts[0][0] == "1"
    wrong = row(0, 0.0, 0.0, right=False, broken=True)
    assert reporting.report(results_of(tmp_path / "sound", {("plain", 0.0, 0): [wrong, row(1)]})).facts[0][0] == "0"


def test_a_page_of_the_documentation_is_written_by_one_command(tmp_path: Path) -> None:
    namespace = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "write_results.py"))
    page = namespace["write"](results_of(tmp_path, {("plain", 0.0, 0): [row(0)]}), tmp_path / "docs")
    assert "(training_fronts.png)" in page.read_text()
    assert (page.parent / "training_fronts.png").read_bytes().startswith(b"\x89PNG")
