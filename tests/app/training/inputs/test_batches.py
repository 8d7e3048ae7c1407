import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vpoc.training.inputs.batches import Cut, Order, epoch_order


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**70), st.integers(1, 5))
def test_the_order_is_a_permutation(samples, seed, epoch):
    assert sorted(epoch_order(samples, seed, epoch)) == list(range(samples))


def test_the_order_is_the_same_everywhere_and_changes_with_epoch_and_seed():
    assert epoch_order(8, 7, 1).tolist() == [4, 7, 5, 1, 2, 6, 0, 3]
    assert len({tuple(epoch_order(50, seed, epoch)) for seed in (1, 2) for epoch in (1, 2)}) == 4


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 200)), st.integers(1, 4))
def test_every_sample_is_in_one_batch_of_an_epoch(samples, batch_size, chunk_rows, epoch):
    order = Order(samples, batch_size, 7, chunk_rows)
    batches = list(order.batches(epoch))
    assert sorted(np.concatenate(batches)) == list(range(samples))
    assert len(batches) == order.steps == math.ceil(samples / batch_size)
    assert sum(len(batch) < batch_size for batch in batches) <= 1
    for first in (0, 1, len(batches)):
        rest = list(order.batches(epoch, first))
        assert all((a == b).all() for a, b in zip(rest, batches[first:], strict=True))


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 200))
def test_a_chunk_is_used_up_before_the_next(samples, batch_size, chunk_rows):
    order = Order(samples, batch_size, 7, chunk_rows)
    for _, chosen in order.chunks(2):
        assert chosen.max() - chosen.min() + 1 == len(chosen) <= order.chunk_size
        assert chosen.min() % order.chunk_size == 0
    assert order.chunk_size - chunk_rows < batch_size


def test_chunks_come_in_another_order_each_epoch():
    order = Order(1000, 10, 7, 100)
    orders = {tuple(int(chosen.min()) for _, chosen in order.chunks(epoch)) for epoch in (1, 2, 3)}
    assert len(orders) == 3
    within = [next(iter(Order(100, 10, 7, 100).batches(epoch))).tolist() for epoch in (1, 2)]
    assert within[0] != within[1]


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 20))
def test_ranks_share_a_batch_between_them(size, world, micro):
    batch = np.arange(100, 100 + size)
    parts = [Cut(micro, rank, world).micro_batches(batch) for rank in range(world)]
    used = np.concatenate([part for rank in parts for part in rank])
    assert used[used >= 0].tolist() == batch.tolist()
    assert set(used[used < 0].tolist()) <= {~100}
    assert all(0 < len(part) <= micro for rank in parts for part in rank)
    assert len({len(rank) for rank in parts}) == 1, "ranks wait for each other in every part"
