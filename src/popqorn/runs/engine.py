"""What an engine is: it takes batches and gives back rows as they are done."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from popqorn.runs.store import FAILED, Row
from popqorn.runs.worker import Batch, Worker

TRIES = 3  # of a batch whose worker died

Done = tuple[Batch, list[tuple[str, Row]]]


@runtime_checkable
class Engine(Protocol):
    """`work` answers every batch, in any order; `workers` is how many at once."""

    @property
    def workers(self) -> int:
        """How many batches are worked on at once."""
        ...

    def work(self, worker: Worker, batches: Sequence[Batch], fresh: Callable[[Batch], Batch]) -> Iterator[Done]:
        """`fresh(batch)` is what is still to do of a batch when its turn comes."""


def lost(reason: str = "") -> Row:
    """The row of a sample that takes every worker down."""
    return {
        "label": None,
        "decision": None,
        "radius": None,
        "status": FAILED,
        "error": f"its worker died {TRIES} times; is there enough memory? Pass a smaller --batch. {reason}".strip(),
        "seconds": None,
    }
