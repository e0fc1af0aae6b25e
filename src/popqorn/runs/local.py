"""The engines of one machine: this process, or several."""

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import BaseContext

import torch

from popqorn.reading import read_count
from popqorn.runs.engine import TRIES, Done, lost
from popqorn.runs.store import Row
from popqorn.runs.worker import Batch, Worker


@dataclass(frozen=True)
class Local:
    """This process, one batch after the other."""

    workers: int = 1

    def work(self, worker: Worker, batches: Sequence[Batch], fresh: Callable[[Batch], Batch]) -> Iterator[Done]:
        for batch in batches:
            left = fresh(batch)
            yield batch, worker.rows(left) if len(left) else []


@dataclass(frozen=True)
class Processes:
    """Several processes of this machine, each with the model loaded once and its share of the cores.

    A process that dies (memory, a kill) is replaced and its batches are done again; one that kills every process is marked.
    """

    workers: int = max(1, (os.cpu_count() or 1) // 2)

    def __post_init__(self) -> None:
        read_count("workers", self.workers)

    def work(self, worker: Worker, batches: Sequence[Batch], fresh: Callable[[Batch], Batch]) -> Iterator[Done]:
        todo, suspects, tries = list(batches), list[Batch](), Counter[Batch]()
        while todo:
            some = suspects[:1] or todo  # after a death: those that were out, one at a time, to know whose fault it was
            try:
                with self._pool(worker, 1 if suspects else self.workers) as pool:
                    for batch, rows in _drained(pool, some, fresh, self.workers + 1):
                        todo.remove(batch)
                        suspects = [suspect for suspect in suspects if suspect is not batch]
                        yield batch, rows
            except BrokenProcessPool:
                if not suspects:
                    suspects = todo[: self.workers + 1]
                    continue
                tries[suspects[0]] += 1
                if tries[suspects[0]] >= TRIES:
                    batch, *suspects = suspects
                    todo.remove(batch)
                    yield batch, [(key, lost()) for key in fresh(batch).keys]

    def _pool(self, worker: Worker, workers: int) -> ProcessPoolExecutor:
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        return ProcessPoolExecutor(workers, _context(), initializer=_begin, initargs=(worker, threads))


def _context() -> BaseContext:
    """Never a fork of this process, whose threads may hold locks: of a server that has imported popqorn and done nothing else."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["popqorn"])
    return context


def _drained(pool: ProcessPoolExecutor, todo: Sequence[Batch], fresh: Callable[[Batch], Batch], ahead: int) -> Iterator[Done]:
    """Answers as they come, never more than `ahead` batches out at once."""
    waiting = list(todo)
    out: dict[Future[list[tuple[str, Row]]], Batch] = {}
    try:
        while waiting or out:
            while waiting and len(out) < ahead:
                batch = waiting.pop(0)
                left = fresh(batch)
                if len(left):
                    out[pool.submit(_answer, left)] = batch
                else:
                    yield batch, []
            done, _ = wait(out, return_when=FIRST_COMPLETED)
            for future in done:
                yield out.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_worker: Worker | None = None  # of this process, set once when it begins


def _begin(worker: Worker, threads: int) -> None:
    global _worker
    torch.set_num_threads(threads)
    _worker = worker


def _answer(batch: Batch) -> list[tuple[str, Row]]:
    assert _worker is not None
    return _worker.rows(batch)
