"""Filling a table of results, a few samples at a time, from wherever it was left."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from popqorn.experiments.results import Results
from popqorn.experiments.tracking import Track
from popqorn.result import Result
from popqorn.runs.store import Row

R = TypeVar("R", bound=Result)


def fill(
    results: Results,
    table: str,
    samples: Sequence[int],
    measure: Callable[[Row, list[int]], list[Row]],
    track: Track,
    title: str,
    *,
    groups: Sequence[Row] = ({},),
    block: int = 1,
    cost: Callable[[int], float] = lambda sample: 1,
) -> None:
    """Measure, for every group, the samples that are not in `table` yet, and write their rows block by block.

    A group is what all its rows have in common (a norm, a method). `measure(group, some)` returns one row for each of `some`
    samples; sample and group are added here. `cost` weighs the samples for the time left.
    """
    results.plan(table, samples, groups)
    todo = [(group, results.todo(table, samples, **group)) for group in groups]
    total = len(groups) * sum(map(cost, samples))
    done = total - sum(cost(sample) for _, missing in todo for sample in missing)
    with track(title, total) as at:
        at(done)
        for group, missing in todo:
            for start in range(0, len(missing), block):
                some = missing[start : start + block]
                found = measure(group, some)
                results.add(table, group, zip(some, found, strict=True))
                done += sum(map(cost, some))
                at(done)


def unstopped(result: R) -> R:
    """The result, if the user let it finish; a row of half a result is not written, and the experiment stops."""
    if result.stopped:
        raise KeyboardInterrupt
    return result
