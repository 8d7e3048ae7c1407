import gc
import math
import weakref

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from vpoc.errors import UserError
from vpoc.models.by_name import fresh_network
from vpoc.training.batch_size import OutOfMemory, fits, largest_that_fits
from vpoc.training.strategies.single import Single


class Device:
    """A stand-in for a device with room for `room` samples, which remembers the sizes that were tried."""

    def __init__(self, room):
        self.room = room
        self.tried = []

    def __call__(self, size):
        self.tried.append(size)
        return size <= self.room


SIZES = st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 2 * 10**6))


@pytest.mark.slow
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


class ModelThatRecordsLogits:
    """A model that records whether its logits still exist when the memory of a try is released."""

    def __init__(self, error=None):
        self.layer = torch.nn.Linear(3, 1)
        self.error = error
        self.logits = lambda: None
        self.alive = []

    def parameters(self):
        self.alive.append(self.logits() is not None)
        return self.layer.parameters()

    def __call__(self, inputs):
        value = self.layer(inputs)
        self.logits = weakref.ref(value)
        if self.error:
            raise self.error()
        return value


@pytest.mark.parametrize(("error", "expected"), [(None, True), (MemoryError, False)])
def test_the_graph_of_a_try_is_gone_when_its_memory_is_given_back(options, error, expected):
    model = ModelThatRecordsLogits(error)
    strategy = Single(fresh_network("mlp", 3, (2,), 7), [torch.device("cpu")])
    strategy.model = strategy.forward = model
    gc.disable()
    try:
        assert fits(strategy, options(), 5, (3,)) is expected
    finally:
        gc.enable()
    assert model.alive == [False, False]
    assert [parameter.grad for parameter in model.layer.parameters()] == [None, None]
