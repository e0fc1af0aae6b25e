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


class Actor:
    """A worker on some machine of the cluster, with a core or a GPU of its own."""

    def __init__(self, worker: Worker) -> None:
        torch.set_num_threads(1)
        self.worker = worker

    def rows(self, batch: Batch) -> list[tuple[str, Row]]:
        return self.worker.rows(batch)


@dataclass(frozen=True)
class Cluster:
    """Ray: the cluster at `address` (`auto`: the one this machine belongs to), or one of this machine's cores.

    An actor that dies is replaced and its batch is done again; a batch that kills `TRIES` actors is marked. A model that is given
    as a file is read by every actor, so the file must be there on every machine.
    """

    count: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            read_count("workers", self.count)

    @property
    def workers(self) -> int:
        """How many actors; by default one per core of the cluster (of its GPUs, where the plan asks for them)."""
        ray = self._ray()
        return self.count or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def work(self, worker: Worker, batches: Sequence[Batch], fresh: Callable[[Batch], Batch]) -> Iterator[Done]:
        ray = self._ray()
        on_gpu = worker.plan.device.startswith("cuda")
        count = self.count or max(1, int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 1)))
        begin = ray.remote(num_cpus=0 if on_gpu else 1, num_gpus=1 if on_gpu else 0)(Actor).remote
        idle = [begin(worker) for _ in range(min(count, len(batches)))]
        waiting, tries = list(batches), Counter[Batch]()
        out: dict[Any, tuple[Any, Batch, Batch]] = {}
        while waiting or out:
            while waiting and idle:
                batch = waiting.pop(0)
                left = fresh(batch)
                if len(left):
                    actor = idle.pop()
                    out[actor.rows.remote(left)] = actor, batch, left
                else:
                    yield batch, []
            if not out:
                continue
            (ready,), _ = ray.wait(list(out), num_returns=1)
            actor, batch, left = out.pop(ready)
            try:
                rows = ray.get(ready)
            except ray.exceptions.RayActorError as error:
                idle.append(begin(worker))
                tries[batch] += 1
                if tries[batch] < TRIES:
                    waiting.append(batch)
                else:
                    yield batch, [(key, lost(str(error))) for key in left.keys]
            else:
                idle.append(actor)
                yield batch, rows
        for actor in idle:
            ray.kill(actor)

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
