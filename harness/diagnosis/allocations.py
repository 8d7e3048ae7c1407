"""Reads the amounts of GPU memory that torch prints when an allocation fails."""

import re
from typing import Literal

Allocation = Literal["more-than-there-is", "enough-was-free", "enough-was-reserved"]

# No size has more digits. Without a bound, the search in a line of only digits takes time quadratic in its length.
_SIZE = r"(?<![\d.])(\d{1,20}(?:\.\d{1,20})?) ?(bytes|[KMGT]iB)"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free\b")
_RESERVED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
# torch before 2.1 printed the sum of both.
_ALLOCATED, _RESERVED_IN_TOTAL = (re.compile(rf"{_SIZE} {what}") for what in ("already allocated", "reserved in total"))


def memory_of(message: str) -> frozenset[Allocation]:
    """Return what the amounts in a message of torch show; nothing if they are missing, or there was too little memory.

    A device that shares the host's memory can have more free than its capacity; then the capacity says nothing.
    """
    tried, total, free = (_bytes(pattern, message) for pattern in (_TRIED, _TOTAL, _FREE))
    if tried is None:
        return frozenset()
    if free is not None and free >= tried:
        return frozenset({"enough-was-free"})
    if total is not None and tried > total:
        return frozenset({"more-than-there-is"})
    reserved = _bytes(_RESERVED, message)
    allocated, in_total = _bytes(_ALLOCATED, message), _bytes(_RESERVED_IN_TOTAL, message)
    if reserved is None and allocated is not None and in_total is not None:
        reserved = in_total - allocated
    return frozenset({"enough-was-reserved"}) if reserved is not None and reserved >= tried else frozenset()


def _bytes(pattern: re.Pattern[str], message: str) -> float | None:
    """Return the first size that a pattern finds, in bytes."""
    found = pattern.search(message)
    if found is None:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return float(number) * _UNITS[unit]
