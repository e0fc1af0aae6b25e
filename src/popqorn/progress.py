"""Long calls: what is done of them so far, and whether the user has had enough."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Tell = Callable[[int, int], None]

_log = logging.getLogger("popqorn")


class Watch:
    """Counts what is done of `total`, tells whoever asked, and remembers whether the user stopped the call (Ctrl-C, or a
    `KeyboardInterrupt` out of the function that is told).

    Work goes on inside `stoppable`: an interrupt there ends that piece of work, not the call, which then returns what is done.
    """

    def __init__(self, progress: Any, what: str, total: int) -> None:
        self.total = total
        self.done = 0
        self.stopped = False
        self._what = what
        self._tell = _read_progress(progress, what)

    def advance(self, count: int) -> None:
        """`count` more are done."""
        if count:
            self.done += count
            if self._tell is not None:
                with self.stoppable():
                    self._tell(self.done, self.total)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.stopped = True
            _log.warning("%s stopped by the user: %d of %d done, the others say so", self._what, self.done, self.total)


def _read_progress(progress: Any, what: str) -> Tell | None:
    if progress is None or progress is False:
        return None
    if progress is True:
        return _Line(what)
    if not callable(progress):
        raise ValueError(f"progress is {progress!r}; pass True, or a function of what is done and the total")
    return lambda done, total: progress(done, total)


class _Line:
    """One line on standard error, written over and over: how much is done, the time it took, the time left."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        spent = time.perf_counter() - self._started
        left = spent / done * (total - done)
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{self._what}: {done} of {total}, {spent:.0f} s, {left:.0f} s left   {end}")
        sys.stderr.flush()
