"""The engine for clusters: Ray finds the machines, one actor per device keeps the model, this process keeps the rows."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from popqorn.reading import read_count
from popqorn.runs.engine import TRIES, Done, lost
from popqorn.runs.store import Row
from popqorn.runs.worker import Batch, Worker

log = logging.getLogger("popqorn")

PATIENCE = 60.0  # seconds without an answer, before it is said in the log


class Actor:
    """A worker on some machine of the cluster, with a core or a GPU of its own."""

    def __init__(self, worker: Worker) -> None:
        torch.set_num_threads(1)
        self.worker = worker

    def load(self) -> None:
        """Read the model."""
        self.worker.load()

    def rows(self, batch: Batch) -> list[tuple[str, Row]]:
        """Answer a batch."""
        return self.worker.rows(batch)


@dataclass(frozen=True)
class Cluster:
    """Ray: the cluster at `address` (`auto`: the one this machine belongs to), or one of this machine's cores.

    An actor has a core, or with `device="cuda"` a GPU. One that dies is replaced and its batch is done again; a batch that kills
    `TRIES` actors is marked. A model that is given as a file is read by every actor, so the file must be there on every machine.
    """

    count: int | None = None
    address: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.count is not None:
            read_count("workers", self.count)
        if ":" in self.device:
            raise ValueError(f"device is {self.device!r}, but every actor of Ray sees one GPU of its own; pass 'cuda'")

    @property
    def workers(self) -> int:
        """How many actors; by default one for each core of the cluster, or for each GPU."""
        there = int(self._ray().cluster_resources().get(self._needs, 0))
        if self.count is None and not there:
            raise ValueError(
                f"device is {self.device!r}, but the cluster has no {self._needs}; pass another, or workers to wait for"
            )
        return self.count or there

    @property
    def _needs(self) -> str:
        return "CPU" if self.device == "cpu" else "GPU"

    def work(self, worker: Worker, batches: Sequence[Batch], fresh: Callable[[Batch], Batch]) -> Iterator[Done]:
        """Hand batches out to actors that are idle; those that die are begun anew, and work goes on with those that are up."""
        ray, actors = self._ray(), _Actors(self._ray(), worker, on_gpu=self._needs == "GPU")
        for _ in range(min(self.workers, len(batches))):
            actors.begin()
        waiting, tries = list(batches), Counter[Batch]()
        out: dict[Any, tuple[Any, Batch, Batch]] = {}
        try:
            while waiting or out:
                while waiting and actors.idle:
                    batch = waiting.pop(0)
                    left = fresh(batch)
                    if len(left):
                        actor = actors.idle.pop()
                        out[actor.rows.remote(left)] = actor, batch, left
                    else:
                        yield batch, []
                ready = actors.wait(list(out))
                if ready is None:
                    continue
                actor, batch, left = out.pop(ready)
                try:
                    rows = ray.get(ready)
                except ray.exceptions.RayActorError as error:
                    actors.begin()
                    tries[batch] += 1
                    if tries[batch] < TRIES:
                        waiting.append(batch)
                    else:
                        yield batch, [(key, lost(str(error))) for key in left.keys]
                else:
                    actors.idle.append(actor)
                    yield batch, rows
        finally:
            actors.end()

    def _ray(self) -> Any:
        try:
            import ray
        except ImportError:
            raise ImportError("engine 'ray' needs ray; pip install 'popqorn[ray]'") from None
        if not ray.is_initialized():
            try:
                ray.init(
                    address=self.address,
                    num_cpus=self.count if self.address is None else None,
                    include_dashboard=False if self.address is None else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise OSError(f"address is {self.address!r}, and no cluster answers there ({error}); is Ray running?") from error
        return ray


class _Actors:
    """The actors of a run: those that are idle, and those that are not up yet (a machine may have left for good)."""

    def __init__(self, ray: Any, worker: Worker, *, on_gpu: bool) -> None:
        self._ray, self._worker = ray, worker
        self._remote = ray.remote(num_cpus=0 if on_gpu else 1, num_gpus=1 if on_gpu else 0)(Actor).remote
        self._all: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self.idle: list[Any] = []

    def begin(self) -> None:
        actor = self._remote(self._worker)
        self._all.append(actor)
        self._starting[actor.load.remote()] = actor

    def wait(self, out: Sequence[Any]) -> Any:
        """The first answer of those that are `out`; None if an actor has come up instead, or nothing for a while."""
        there, _ = self._ray.wait([*out, *self._starting], num_returns=1, timeout=PATIENCE)
        if not there:
            log.warning("no answer of %d batches for %.0f s; %d actors are waited for", len(out), PATIENCE, len(self._starting))
            return None
        if there[0] not in self._starting:
            return there[0]
        actor = self._starting.pop(there[0])
        try:
            self._ray.get(there[0])
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayActorError as error:
            raise OSError(f"an actor of Ray ended before it had read the model ({error}); is there enough memory?") from error
        self.idle.append(actor)
        return None

    def end(self) -> None:
        for actor in self._all:
            self._ray.kill(actor)
