"""Tests of what the numbers in torch's out-of-memory message show."""

import pytest

from harness.diagnosis.allocations import memory_of

NEW = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate {}. GPU 0 has a total capacity of 19.98 GiB of "
    "which {} is free. Of the allocated memory 12.00 GiB is allocated by PyTorch, and {} is reserved by PyTorch but "
    "unallocated."
)
OLD = (
    "HIP out of memory. Tried to allocate {} (GPU 0; 19.98 GiB total capacity; 12.00 GiB already allocated; {} free; "
    "{} reserved in total by PyTorch)"
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (NEW.format("2.00 MiB", "6.00 GiB", "0 bytes"), {"enough-was-free"}),
        (NEW.format("2.00 GiB", "2.00 GiB", "4.00 GiB"), {"enough-was-free"}),
        (NEW.format("2.00 GiB", "630.00 MiB", "1.02 GiB"), set()),
        (NEW.format("1.00 GiB", "630.00 MiB", "1.02 GiB"), {"enough-was-reserved"}),
        (NEW.format("32.00 GiB", "19.00 GiB", "0 bytes"), {"more-than-there-is"}),
        (OLD.format("20.00 MiB", "0 bytes", "18.60 GiB"), {"enough-was-reserved"}),
        (OLD.format("20.00 MiB", "0 bytes", "12.01 GiB"), set()),
        (OLD.format("20.00 MiB", "1.00 GiB", "12.01 GiB"), {"enough-was-free"}),
        ("HIP out of memory. Tried to allocate 2.00 GiB.", set()),
        ("HIP out of memory. Tried to allocate 1.2.3 GiB.", set()),
        # Time has to grow with the length of the message: if it grew with the square, this would take days.
        (f"HIP out of memory. Tried to allocate 2.00 GiB. {'0' * 3_000_000}", set()),
        ("RuntimeError: HIP error: out of memory", set()),
    ],
)
def test_what_the_numbers_show(message: str, expected: set[str]) -> None:
    assert memory_of(message) == expected
