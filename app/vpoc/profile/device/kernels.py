"""Histogram, VPOC and value area as torch operations on int64; the definitions are those of `vpoc.profile`."""

from dataclasses import dataclass

import torch

from vpoc.profile.levels import area_target

FARTHEST = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Matrices:
    """The matrices for a chunk, each [profiles, ticks + 1]; `volume` is zero, the others are scratch space."""

    volume: torch.Tensor
    below: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor


def add_bars(differences: torch.Tensor, columns: torch.Tensor, placement: str) -> None:
    """Add bars to the first differences [profiles, ticks + 1] of their profiles' volume along the ticks.

    `columns` [5, bars]: profile, low, high, close (ticks), volume.
    """
    profile, low, high, close, volume = columns.unbind()
    flat = differences.view(-1)
    origin = profile * differences.shape[1]
    if placement == "uniform":
        ticks = high - low + 1
        share = volume // ticks
        left = volume - share * ticks
        run = torch.minimum(torch.maximum(close - left // 2, low), high - left + 1)
        flat.index_add_(0, origin + low, share)
        flat.index_add_(0, origin + high + 1, -share)
        one = torch.ones_like(left)
        # If nothing is left over, both fall on the same tick and cancel.
        flat.index_add_(0, origin + run, one)
        flat.index_add_(0, origin + run + left, -one)
        return
    at = origin + ((2 * (high + low + close) + 3) // 6 if placement == "typical" else close)
    flat.index_add_(0, at, volume)
    flat.index_add_(0, at + 1, -volume)


def chunk_levels(room: Matrices, columns: torch.Tensor, last: torch.Tensor, placement: str, step: int) -> torch.Tensor:
    """Return [6, profiles]: VPOC, VAH, VAL, volume at VPOC, in VAL..VAH, and in total.

    Levels are in ticks from the profile's lowest. `last` [profiles] is the highest tick of each profile; columns beyond
    it are padding and count as absent.
    """
    add_bars(room.volume, columns, placement)
    volume = room.volume.cumsum_(1)[:, :-1]
    room.below[:, 0] = 0
    torch.cumsum(volume, 1, out=room.below[:, 1:])
    vpoc = _vpoc(room, volume, last)
    bottom, top = _value_area(room.below, volume, vpoc, last, step)
    area = _at(room.below, top + 1) - _at(room.below, bottom)
    return torch.stack([vpoc, top, bottom, _at(volume, vpoc), area, room.below[:, -1]])


def _vpoc(room: Matrices, volume: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Return tick [profiles] of the largest volume; on a tie the one nearest the middle of 0..last, then the lower."""
    keys, mask = room.keys[:, :-1], room.mask[:, :-1]
    tick = torch.arange(volume.shape[1], device=volume.device)
    # |4 d + 1| with d = 2 tick - last grows with the distance from the middle and is lower below it than above.
    # Padding, being 0, ties only when the whole profile is 0, and is then farther from the middle than what exists.
    torch.sub(2 * tick, last[:, None], out=keys)
    keys.mul_(4).add_(1).abs_()
    keys.masked_fill_(torch.ne(volume, volume.amax(1, keepdim=True), out=mask), FARTHEST)
    return keys.argmin(1)


def _value_area(
    below: torch.Tensor, volume: torch.Tensor, vpoc: torch.Tensor, last: torch.Tensor, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lowest and highest tick [profiles] of the value area, grown by `step` rows at a time."""
    bottom, top, held = vpoc, vpoc, _at(volume, vpoc)
    target = area_target(below[:, -1])
    growing = held < target
    while growing.any():
        at_top, at_bottom = _at(below, top + 1), _at(below, bottom)
        above = torch.minimum(top + step, last)
        under = (bottom - step).clamp(min=0)
        # A side with no rows left is -1, so that an empty row, which is 0, wins against it.
        gain_above = torch.where(above > top, _at(below, above + 1) - at_top, -1)
        gain_under = torch.where(under < bottom, at_bottom - _at(below, under), -1)
        up = gain_above >= gain_under
        top = torch.where(growing & up, above, top)
        bottom = torch.where(growing & ~up, under, bottom)
        held = _at(below, top + 1) - _at(below, bottom)
        growing = held < target
    return bottom, top


def _at(matrix: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Return matrix[i, column[i]] for every i."""
    return matrix.gather(1, column[:, None])[:, 0]
