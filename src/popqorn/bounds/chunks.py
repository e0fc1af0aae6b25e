"""How work is cut up. Everything that decides how much is held at once is here."""

import os
from collections.abc import Iterator

import torch
from torch import Tensor

from popqorn.bounds.ground import KEPT
from popqorn.bounds.stations import plan_of
from popqorn.tape.tape import Tape

CACHE_BYTES = 2**22
SHARE = 0.25  # of the free memory
MOST_ENTRIES = 1024  # more at once gains nothing, and would hold a search open for its slowest sample
FEWEST_ROWS = 64
FRAME_ENTRIES = 8
WAVES = ((0, 8), (4, 8), (2, 4), (1, 2))  # of frames that are searched one after the other: the first of each, and how far apart
JOINT_BYTES = 2**30  # more samples at once gain nothing


def free_bytes(device: torch.device) -> int:
    """Memory that is free on `device` now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 2**31


def entry_blocks(tape: Tape, entries: int, rows: int, like: Tensor, *, joint: bool = False) -> Iterator[Tensor]:
    """The numbers of `entries` in blocks whose boxes and relaxations fit the memory.

    Per value of the tape: two bounds, up to twelve coefficients, and a number per row twice; per value of a station two rows over
    all inputs, and what walks multiply with (`ground.py`); for joint bounds a number per input
    and per nonlinear value, and for each operand of the widest node a few such rows.
    """
    values = sum(node.width for node in tape.nodes)
    at_stations = sum(tape.nodes[index].width for index in plan_of(tape).stations)
    products = KEPT * tape.most_multiplied * tape.widest if at_stations else 0
    per_entry = like.element_size() * (values * (14 + 2 * rows) + 2 * at_stations * tape.frames * tape.features + products)
    free = int(SHARE * free_bytes(like.device))
    if joint:
        inputs, curved = tape.frames * tape.features, sum(node.width for node in tape.nodes if not node.linear)
        per_entry += like.element_size() * (inputs + curved) * (2 * values + 12 * tape.widest)
        free = min(free, JOINT_BYTES)
    most = free // per_entry
    yield from torch.arange(entries, device=like.device).split(min(MOST_ENTRIES, max(1, most)))


def frame_groups(frames: int, entries: int, device: torch.device) -> Iterator[Tensor]:
    """Frames to be searched together, each for `entries` samples.

    What lies before the first frame of a group is a constant: small groups are cheap, but too few entries at once are slow. Where
    there are groups enough, every eighth frame comes first and then those halfway between, so that nearly all have neighbours on
    either side whose radii are known; and the last come first, as they cost least while nothing is known.
    """
    size = -(-FRAME_ENTRIES // entries)
    waves = WAVES if frames >= size * len(WAVES) else ((0, 1),)
    for start, step in waves:
        if start < frames:
            yield from (part.flip(0) for part in torch.arange(start, frames, step, device=device).flip(0).split(size))


def walk_pieces(tape: Tape, entries: int, rows: int, chunk_rows: int | None, like: Tensor) -> Iterator[tuple[slice, list[slice]]]:
    """Which entries, and which of their rows, one backward walk takes at a time; `chunk_rows` (over the entries) if given.

    On a processor a tensor of a walk should be small enough to be in the cache still when the next operation reads it; on an
    accelerator as large as memory allows, with room for the dozen such tensors that live at once.
    """
    if chunk_rows is None:
        whole = CACHE_BYTES if like.device.type == "cpu" else int(SHARE * free_bytes(like.device) / 12)
        chunk_rows = max(FEWEST_ROWS, whole // (tape.widest * like.element_size()))
    together = max(1, chunk_rows // rows)
    for start in range(0, entries, together):
        count = min(together, entries - start)
        each = max(1, chunk_rows // count)
        yield slice(start, start + count), [slice(first, first + each) for first in range(0, rows, each)]


def read_chunk_rows(chunk_rows: object) -> int | None:
    if chunk_rows is None:
        return None
    if not isinstance(chunk_rows, int) or isinstance(chunk_rows, bool) or chunk_rows < 1:
        raise ValueError(f"chunk_rows is {chunk_rows!r}; pass a positive whole number, or None to have it chosen")
    return chunk_rows
