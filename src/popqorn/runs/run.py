"""`run`: every sample of a data set, one row each, on whatever engine, from wherever it was left."""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path
from typing import Any

import torch

from popqorn._version import __version__
from popqorn.reading import read_count
from popqorn.runs.data import Samples, read_data
from popqorn.runs.engine import Engine
from popqorn.runs.engines import read_engine
from popqorn.runs.plan import Plan
from popqorn.runs.store import Row, Store, key_of
from popqorn.runs.worker import Batch, Worker, batches, without

FOLDER, FILE = Path("popqorn-runs"), "runs.sqlite"
PROVEN = ("certified", "exact", "unbounded", "out_of_evaluations")

Tell = Callable[[int, int, list[Row]], None]


@dataclass(frozen=True)
class Run:
    """A run and where its rows are: `rows` by sample, `missing` those that have none yet."""

    store: Store
    name: str
    about: Row

    @property
    def rows(self) -> Iterator[Row]:
        """One dictionary per sample that is done, in the order of the samples: `sample`, `label`, `status` and what was asked."""
        return self.store.rows(self.name)

    @property
    def missing(self) -> list[int]:
        """The samples that have no row yet."""
        return [tag["sample"] for tag in self.store.missing(self.name)]

    def meets(self, eps: float) -> bool:
        """Whether every sample is proven to the size `eps`, all frames moving."""
        return not self.missing and all(proven_to(row, eps) for row in self.rows)


def proven_to(row: Row, eps: float) -> bool:
    """Whether a row proves the size `eps`; NaN and failures prove nothing, nor do frames that moved one at a time."""
    return row["status"] in PROVEN and "frames" not in row and row["radius"] is not None and row["radius"] >= eps


def run(
    model: Any,
    data: Any,
    plan: Plan | None = None,
    *,
    engine: str | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    store: str | Path | None = None,
    samples: int | Sequence[int] | None = None,
    tell: Tell | None = None,
) -> Run:
    """Ask `plan` of every sample in `data`, and keep a row for each as soon as it is known.

    - `model`: a module, what `popqorn.load` returns, the name of a file, or `package.module:factory`.
    - `data`: a file (`.npz`, `.npy`, `.csv`, `.parquet`, `.txt`), `x`, or `(x, y)`.
    - `samples`: only the first so many, or those listed.
    - `engine`: `"local"`; `"processes"` with so many `workers`; `"ray"`, on the cluster at `address`; or one of your own.
    - `store`: the SQLite file; `popqorn-runs/runs.sqlite` by default.
    - `tell(done, total, rows)` is called with every batch of new rows.

    Stopped or killed at any moment, the same call goes on and repeats nothing.

    >>> found = run(model, (inputs, labels), Plan(norm=2))  # or: run("pose.onnx", "pose.npz", engine="processes", workers=4)
    >>> [row["radius"] for row in found.rows]
    """
    begun = prepare(model, data, Plan() if plan is None else plan, store=store, samples=samples)
    begun.work(read_engine(engine, workers, address, begun.worker.plan.device), tell)
    return begun.run


@dataclass(frozen=True)
class Prepared:
    """A run with all that it takes to do it; `keys` says which samples, and where each has its row."""

    run: Run
    worker: Worker
    samples: Samples
    keys: dict[int, str]

    @property
    def left(self) -> list[int]:
        """The samples that have no row, or failed."""
        done = self.run.store.done(list(self.keys.values()))
        return [sample for sample, key in self.keys.items() if key not in done]

    def work(self, engine: Engine, tell: Tell | None = None) -> None:
        left, store = self.left, self.run.store
        done = len(self.keys) - len(left)

        def fresh(batch: Batch) -> Batch:
            """Another process may have done some of it."""
            return without(batch, store.done(batch.keys))

        for batch, rows in engine.work(self.worker, batches(self.keys, self.samples, left, self.worker.plan.batch), fresh):
            store.add(rows)
            done += len(batch)
            if tell is not None:
                samples = dict(zip(batch.keys, batch.samples, strict=True))
                tell(done, len(self.keys), [{"sample": samples[key], **row} for key, row in rows])


def prepare(
    model: Any, data: Any, plan: Plan, *, store: str | Path | None = None, samples: int | Sequence[int] | None = None
) -> Prepared:
    """Read model and data, and say in the store what will be done: with all samples, the first so many, or those listed."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is {plan!r}; pass a popqorn.Plan(command, norm=..., ...)")
    read = read_data(data)
    if not plan.decides_classes:
        read = read.unlabelled()
    chosen, texts = _chosen(samples, len(read)), read.hashes()
    worker = Worker(model, plan.settled(read)).begun(read.inputs)
    about = {
        "popqorn": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "model": str(model) if isinstance(model, str | Path) else type(model).__name__,
        "model_summary": worker.summary(),
        "model_hash": worker.expected,
        "data": str(data) if isinstance(data, str | Path) else "given",
        "data_hash": key_of(texts),
        "files": isinstance(model, str | Path) and isinstance(data, str | Path),
        "samples": len(chosen),
        "plan": asdict(worker.plan),
        "decides": worker.plan.decides(),
    }
    decides = {name: about[name] for name in ("popqorn", "model_hash", "decides")}
    keys = {sample: key_of([decides, texts[sample]]) for sample in chosen}
    opened = Store.open(FOLDER / FILE if store is None else Path(store))
    name = key_of([decides, list(keys.items())])[:16]
    opened.begin(name, about)
    opened.plan(name, (({"sample": sample}, key) for sample, key in keys.items()))
    return Prepared(Run(opened, name, about), worker, read, keys)


def _chosen(samples: int | Sequence[int] | None, count: int) -> list[int]:
    """The first so many, or those listed, each once."""
    if samples is None:
        return list(range(count))
    try:
        chosen = (
            list(range(count))[: read_count("samples", samples)] if isinstance(samples, int) else [index(one) for one in samples]
        )
    except TypeError:
        raise ValueError(f"samples is {samples!r}; pass how many, or a list of their numbers") from None
    outside = [sample for sample in chosen if not 0 <= sample < count]
    if outside or not chosen:
        raise ValueError(f"samples holds {outside[0] if outside else 'none'}; the data have 0 to {count - 1}")
    return list(dict.fromkeys(chosen))
