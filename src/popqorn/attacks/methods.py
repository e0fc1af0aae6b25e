"""The table of attacks. Each improves on what is found, for all samples at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.attacks.cw import cw
from popqorn.attacks.exchange import beam, greedy
from popqorn.attacks.fgsm import fgsm
from popqorn.attacks.found import Found
from popqorn.attacks.pgd import over_sizes, pgd, polish
from popqorn.attacks.scan import scan
from popqorn.reading import read_choice
from popqorn.regions.region import AllowedSet
from popqorn.task import Task

Attack = Callable[[Task, Found, Float[Tensor, "batch rows"], int, torch.Generator], None]


def best(task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator) -> None:
    """All of them, each on its own; then the search over sizes once more, from the best of what they found."""
    _offer_all((scan, fgsm, cw, over_sizes), task, found, linear, restarts, generator)
    over_sizes(task, found, linear, restarts, generator)
    polish(task, found)


def best_exchange(
    task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator
) -> None:
    """Greedy and beam search, each on its own."""
    _offer_all((greedy, beam), task, found, linear, restarts, generator)


def _offer_all(
    attacks: tuple[Attack, ...], task: Task, found: Found, linear: Tensor, restarts: int, generator: torch.Generator
) -> None:
    everyone = torch.arange(len(task), device=linear.device)
    state = generator.get_state()
    for method in attacks:
        alone = Found.nothing(task)
        generator.set_state(state)
        try:
            method(task, alone, linear, restarts, generator)
        finally:  # also what it found before the user stopped it
            found.offer(task, everyone, alone.points, alone.radius.isfinite())


# The first of each is the default.
MOVING: dict[str, Attack] = {"pgd": pgd, "cw": cw, "fgsm": fgsm, "scan": scan, "best": best}
EXCHANGING: dict[str, Attack] = {"best": best_exchange, "greedy": greedy, "beam": beam}


def read_attack(method: object, allowed: AllowedSet) -> tuple[str, Attack]:
    """An attack by its name, out of those that fit the region; None for the first."""
    table = MOVING if allowed.choices is None else EXCHANGING
    name = next(iter(table)) if method is None else read_choice("method", method, table)
    return name, table[name]
