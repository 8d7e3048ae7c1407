import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vpoc.models.mlp import fresh_mlp, parameter_count
from vpoc.progress import Progress
from vpoc.training.loop import Trainer, batch_order
from vpoc.training.samples import Samples


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**70), st.integers(1, 5))
def test_the_order_is_a_permutation(samples, seed, epoch):
    assert sorted(batch_order(samples, seed, epoch)) == list(range(samples))


def test_the_order_is_the_same_everywhere_and_changes_with_epoch_and_seed():
    assert batch_order(8, 7, 1) == [4, 7, 5, 1, 2, 6, 0, 3]
    assert len({tuple(batch_order(50, seed, epoch)) for seed in (1, 2) for epoch in (1, 2)}) == 4


def learnable(count):
    inputs = np.random.default_rng(1).standard_normal((count, 12)).astype(np.float32)
    return Samples(inputs, (inputs[:, 0] > 0).astype(np.float32), 1)


def test_the_loop_learns_what_is_there_to_learn(options):
    trainer = Trainer(fresh_mlp(12, (16,), 7), torch.device("cpu"), options(learning_rate=0.01, batch_size=16))
    samples = learnable(403)
    before = trainer.evaluate(samples, Progress(None))
    steps = [step for epoch in (1, 2, 3) for step in trainer.epoch(samples, epoch)]
    after = trainer.evaluate(samples, Progress(None))
    assert after.loss < before.loss / 2
    assert after.accuracy > 0.9
    assert [step.number for step in steps] == list(range(1, 3 * 26 + 1))
    assert steps[25].samples == 403 % 16, "the short last batch is kept"
    assert sum(step.samples for step in steps) == 3 * 403


def test_a_step_is_plain_adam(options):
    """The first step, done by hand."""
    chosen = options(batch_size=32)
    samples = learnable(32)
    step = next(Trainer(fresh_mlp(12, (4,), 7), torch.device("cpu"), chosen).epoch(samples, 1))
    model = fresh_mlp(12, (4,), 7)
    order = batch_order(32, 7, 1)
    logits = model(torch.from_numpy(samples.inputs[order])).squeeze(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(samples.labels[order]))
    loss.backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert step.loss == loss.item()
    assert abs(step.gradient_norm - norm.item()) < 1e-6


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(99)
    first = fresh_mlp(12, (32, 16), 7).state_dict()
    torch.rand(5)
    again = fresh_mlp(12, (32, 16), 7).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert parameter_count(fresh_mlp(12, (32, 16), 7)) == 12 * 32 + 32 + 32 * 16 + 16 + 16 + 1
