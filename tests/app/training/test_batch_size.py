import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from vpoc.errors import UserError
from vpoc.training.batch_size import OutOfMemory, is_out_of_memory, largest_that_fits


class Device:
    """Has room for `room` samples, and remembers what was tried."""

    def __init__(self, room):
        self.room = room
        self.tried = []

    def __call__(self, size):
        self.tried.append(size)
        return size <= self.room


SIZES = st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 2 * 10**6))


@given(SIZES)
@example((1, 0, 1))
@example((1, 0, 0))
@example((3, 1, 3))
@example((1, 2**20 - 1, 0))
def test_the_largest_that_fits_is_found_in_few_tries(sizes):
    at_least, more, room = sizes
    at_most = at_least + more
    device = Device(room)
    if room < at_least:
        with pytest.raises(OutOfMemory):
            largest_that_fits(device, at_most, at_least)
    else:
        assert largest_that_fits(device, at_most, at_least) == min(room, at_most)
    assert device.tried[0] == at_most
    assert len(set(device.tried)) == len(device.tried)
    assert all(at_least <= size <= at_most for size in device.tried)
    assert len(device.tried) <= max(1, 2 * math.log2(at_most - at_least + 1))


def test_it_is_asked_once_where_memory_is_no_matter():
    device = Device(8192)
    assert largest_that_fits(device, 8192) == 8192
    assert device.tried == [8192]


def test_too_little_memory_is_a_line_with_a_remedy():
    with pytest.raises(OutOfMemory, match=r"micro-batch of 4 does not fit.*--activation-checkpointing") as caught:
        largest_that_fits(Device(3), 64, 4)
    assert isinstance(caught.value, UserError)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("at_most", "at_least"), [(3, 4), (0, 0), (1, 0)])
def test_a_range_that_is_none_is_our_own_bug(at_most, at_least):
    with pytest.raises(ValueError, match="sizes from"):
        largest_that_fits(Device(9), at_most, at_least)


def test_other_errors_of_a_try_are_not_swallowed():
    def broken(size):
        raise RuntimeError("HIP error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        largest_that_fits(broken, 8)


def test_the_host_without_memory_is_known_by_what_torch_really_raises():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."),
        getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)(""),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("HIP error: out of memory\nHIP kernel errors might be asynchronously reported"),
        RuntimeError("Caught RuntimeError in replica 1 on device 1.\nRuntimeError: CUDA error: out of memory"),
        RuntimeError("hipErrorOutOfMemory"),
        MemoryError(),
        MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"),
    ],
)
def test_errors_for_want_of_memory(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("HIP error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
                     "workers are out of shared memory."),
        RuntimeError(""),
        ValueError("out of memory"),
        UserError("out of memory"),
        OutOfMemory("out of memory"),
        KeyboardInterrupt(),
    ],
)  # fmt: skip
def test_other_errors(error):
    assert not is_out_of_memory(error)
