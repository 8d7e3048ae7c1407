"""The share of a GPU's memory that is left free: a full card with a screen can crash the desktop and the driver."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from vpoc.gpu_memory.amdgpu import find_cards, has_display
from vpoc.gpu_memory.monitor import matched_cards
from vpoc.gpu_memory.torch_memory import Allocator

SPARE, SPARE_UNDER_DISPLAY = 0.10, 0.25
"""Shares of a card's total memory: workspaces and buffers of collectives are allocated later, outside torch's cache.

A compositor takes more whenever a window is opened.
"""


def spare_share(
    device: torch.device,
    asked: float | None = None,
    *,
    root: Path = Path("/"),
    allocator: Allocator | None = None,
    variables: Mapping[str, str] = os.environ,
) -> float:
    """Return the share of the memory of `device` to leave free: `asked`, else 0.25 with a screen attached, else 0.1.

    `root` stands for `/`. A card that cannot be identified for certain is taken to have no screen.
    """
    if asked is not None:
        return asked
    card = matched_cards([device], find_cards(root), allocator or Allocator(), variables)[device]
    return SPARE_UNDER_DISPLAY if card is not None and has_display(card.folder) else SPARE
