"""How much memory work may take, so that chunks can be chosen without being told."""

import os

import torch

CACHE_BYTES = 2**22
SHARE = 0.25


def free_bytes(device: torch.device) -> int:
    """Memory that is free on `device` now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 2**31


def walk_bytes(device: torch.device) -> int:
    """How large one tensor of a backward walk should be.

    On a processor, small enough that it is still in the cache when the next operation reads it; on an accelerator, as large as
    memory allows, with room for the dozen such tensors that live at once.
    """
    return CACHE_BYTES if device.type == "cpu" else int(SHARE * free_bytes(device) / 12)


def block_bytes(device: torch.device) -> int:
    """How much the boxes and relaxations of one block of samples may take."""
    return int(SHARE * free_bytes(device))
