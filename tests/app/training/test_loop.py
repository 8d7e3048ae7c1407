import numpy as np
import pytest
import torch

from vpoc.models.by_name import Network, fresh_network, mlp_layers, window_of
from vpoc.progress import Progress
from vpoc.step_stage import BACKWARD, EXCHANGE, FORWARD, OUTSIDE, UPDATE, WAITING, StepStage
from vpoc.training.flat.flat_loop import FlatTrainer, VectorTrainer, suits_vector
from vpoc.training.inputs import feeds
from vpoc.training.inputs.batches import Cut, Order, epoch_order
from vpoc.training.inputs.feeds import LoaderFeed, ResidentFeed
from vpoc.training.ledger import Ledger
from vpoc.training.loop import FIRST_STEPS, Trainer
from vpoc.training.schedule import rate_of
from vpoc.training.strategies.single import Single

CPU = torch.device("cpu")


def network(inputs, hidden, seed=7):
    torch.manual_seed(seed)
    return Network(*mlp_layers(inputs, hidden))


def learnable(samples_of, count, weights=None):
    inputs = np.random.default_rng(1).standard_normal((count, 12)).astype(np.float32)
    return samples_of(inputs, (inputs[:, 0] > 0).astype(np.float32), weights)


def fed(samples, options, micro=None, kind=LoaderFeed):
    cut = Cut(micro or options.batch_size)
    order = Order(len(samples), options.batch_size, options.seed, options.chunk_rows)
    more = (options.loader_workers,) if kind is LoaderFeed else ()
    return kind(samples, order, cut, CPU, *more, Ledger())


def trainer_of(model, options):
    return Trainer(Single(model, [CPU]), options, Ledger(), StepStage())


def test_the_loop_learns_what_is_there_to_learn(options, samples_of):
    chosen = options(learning_rate=0.01, batch_size=16)
    trainer = trainer_of(network(12, (16,)), chosen)
    samples = learnable(samples_of, 403)
    before = trainer.evaluate(samples, 16, Progress(None))
    steps = [step for epoch in (1, 2, 3) for step in trainer.epoch(fed(samples, chosen), epoch, 0, tuple)]
    after = trainer.evaluate(samples, 64, Progress(None))
    assert after.loss < before.loss / 2
    assert after.accuracy > 0.9
    assert [step.number for step in steps] == list(range(1, 3 * 26 + 1))
    assert steps[25].samples == 403 % 16, "the short last batch is kept"
    assert sum(step.samples for step in steps) == 3 * 403


def test_a_step_is_adamw(options, samples_of):
    """The first step equals one computed by hand, with weights."""
    chosen = options(batch_size=32, learning_rate=0.01, weight_decay=0.1, clip_norm=0.01)
    weights = np.random.default_rng(2).random(32).astype(np.float32)
    samples = learnable(samples_of, 32, weights)
    trained = network(12, (4,))
    step = next(trainer_of(trained, chosen).epoch(fed(samples, chosen), 1, 0, tuple))
    model = network(12, (4,))
    order = epoch_order(32, 7, 1)
    logits = model(torch.from_numpy(samples.inputs[order])).squeeze(1)
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, torch.from_numpy(samples.labels[order]), reduction="none"
    )
    loss = (each * torch.from_numpy(weights[order])).sum() / float(weights.sum())
    loss.backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert step.loss == pytest.approx(loss.item(), rel=1e-6)
    assert step.gradient_norm == pytest.approx(norm.item(), rel=1e-5)
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01) > 0.01
    torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1).step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], tensor)


@pytest.mark.parametrize("micro", [1, 5, 16])
def test_micro_batches_change_rounding_only(options, samples_of, micro):
    chosen = options(batch_size=16)
    samples = learnable(samples_of, 100)
    found = []
    for size in (16, micro):
        trainer = trainer_of(network(12, (16,)), chosen)
        found.append([step.loss for step in trainer.epoch(fed(samples, chosen, size), 1, 0, tuple)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize("chunk_rows", [None, 20])
def test_where_batches_come_from_changes_nothing(options, samples_of, chunk_rows):
    chosen = options(batch_size=16, chunk_rows=chunk_rows)
    samples = learnable(samples_of, 100)
    found = []
    for kind in (LoaderFeed, ResidentFeed):
        trainer = trainer_of(network(12, (16,)), chosen)
        steps = [step for epoch in (1, 2) for step in trainer.epoch(fed(samples, chosen, 5, kind), epoch, 0, tuple)]
        found.append([(step.loss, step.gradient_norm, step.samples) for step in steps])
    assert found[0] == found[1]
    assert sum(samples for _, _, samples in found[0]) == 200


@pytest.mark.parametrize("kind", [LoaderFeed, ResidentFeed])
@pytest.mark.parametrize("chunk_rows", [None, 40])
def test_an_epoch_can_be_begun_anywhere(options, samples_of, kind, chunk_rows):
    chosen = options(batch_size=16, chunk_rows=chunk_rows)
    samples = learnable(samples_of, 100)
    feed = fed(samples, chosen, 5, kind)

    def seen(first):
        return [[micro.inputs for micro in batch.micros] for batch in feed.epoch(3, first)]

    whole = seen(0)
    assert len(whole) == 7
    for first in range(8):
        rest = seen(first)
        assert len(rest) == 7 - first
        for batch, expected in zip(rest, whole[first:], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))


@pytest.mark.parametrize("kind", [LoaderFeed, ResidentFeed])
def test_windows_end_at_their_sample(options, samples_of, kind):
    inputs = np.arange(40, dtype=np.float32)[:, None]
    samples = samples_of(inputs, np.arange(40, dtype=np.float32), window=4)
    assert len(samples) == 37
    for batch in fed(samples, options(batch_size=8, chunk_rows=16), 3, kind).epoch(1):
        for micro in batch.micros:
            assert micro.inputs.shape[1:] == (4, 1)
            expected = micro.labels[:, None] + torch.arange(-3, 1)
            assert torch.equal(micro.inputs[:, :, 0], expected)


@pytest.mark.parametrize("kind", [LoaderFeed, ResidentFeed])
def test_an_empty_share_takes_part_without_weight(samples_of, kind):
    samples = learnable(samples_of, 9)
    order = Order(9, 4, 7)
    more = (0,) if kind is LoaderFeed else ()
    feed = kind(samples, order, Cut(4, rank=3, world=4), CPU, *more, Ledger())
    batches = [(batch.samples, [micro.weights.tolist() for micro in batch.micros]) for batch in feed.epoch(1)]
    assert batches == [(4, [[1.0]]), (4, [[1.0]]), (1, [[0.0]])]


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(99)
    first = fresh_network("mlp", 12, (32, 16), 7).state_dict()
    torch.rand(5)
    again = fresh_network("mlp", 12, (32, 16), 7).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


class Watched(StepStage):
    """A stand-in for StepStage that keeps its arguments."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def at(self, step, stage):
        self.seen.append((step, stage))


@pytest.mark.parametrize("kind", [LoaderFeed, ResidentFeed])
def test_every_stage_of_a_step_is_reported(options, samples_of, kind):
    chosen = options(batch_size=16)
    samples = learnable(samples_of, 20)
    position = Watched()
    trainer = Trainer(Single(network(12, (4,)), [CPU]), chosen, Ledger(), position)
    assert position.seen == [(0, OUTSIDE)], "another model may have been trained before"
    position.seen.clear()
    found = []
    for step in trainer.epoch(fed(samples, chosen, 8, kind), 1, 0, tuple):
        found.append((step.number, position.seen[:]))
        position.seen.clear()
    part = [WAITING, FORWARD, BACKWARD]
    first = [(1, stage) for stage in [WAITING, *part, *part, EXCHANGE, UPDATE, OUTSIDE]]
    second = [(2, stage) for stage in [WAITING, *part, EXCHANGE, UPDATE, OUTSIDE]]
    assert found == [(1, first), (2, second)]
    assert position.seen == [(3, WAITING), (2, OUTSIDE)]


def test_a_block_of_steps_is_one_stage(options, samples_of):
    chosen = options(batch_size=16)
    samples = learnable(samples_of, 16 * (FIRST_STEPS + 4))
    position = Watched()
    trainer = FlatTrainer(Single(network(12, (4,)), [CPU]), chosen, Ledger(), position)
    steps = [step.number for step in trainer.epoch(fed(samples, chosen, kind=ResidentFeed), 1, 0, tuple)]
    assert steps == [*range(1, FIRST_STEPS + 1), FIRST_STEPS + 4]
    begun = [1, *(step + 1 for step in steps[:-1])]
    told = [told for n, m in zip(begun, steps, strict=True) for told in ((n, FORWARD), (m, OUTSIDE))]
    assert position.seen == [(0, OUTSIDE), *told]


@pytest.mark.parametrize("kind", [LoaderFeed, ResidentFeed])
def test_the_objective_is_the_mean_over_all_samples_whatever_batch_they_are_in(options, samples_of, kind):
    """With a learning rate near zero, the losses of the batches average to the loss that validation reports."""
    chosen = options(batch_size=16, learning_rate=1e-30)
    samples = learnable(samples_of, 100, np.random.default_rng(2).random(100).astype(np.float32) ** 4)
    trainer = trainer_of(network(12, (4,)), chosen)
    steps = list(trainer.epoch(fed(samples, chosen, kind=kind), 1, 0, tuple))
    stated = trainer.evaluate(samples, 16, Progress(None)).loss
    mean = sum(step.loss * step.samples for step in steps) / len(samples)
    assert mean == pytest.approx(stated, rel=1e-6)
    assert [step.divisors[0] / step.samples for step in steps] == pytest.approx([samples.mean_weight] * 7)


@pytest.mark.parametrize("window", [1, 4])
def test_to_validate_on_the_device_changes_nothing(options, samples_of, window, monkeypatch):
    monkeypatch.setattr(feeds, "PART", 20)
    inputs = np.random.default_rng(1).standard_normal((100, 12)).astype(np.float32)
    samples = samples_of(inputs, (inputs[:, 0] > 0).astype(np.float32), inputs[:, 1] ** 2, window=window)
    model = Network(torch.nn.Flatten(), *mlp_layers(12 * window, (16,)))
    found = [
        Trainer(Single(model, [CPU]), options(loop=loop), Ledger(), StepStage()).evaluate(samples, 16, Progress(None))
        for loop in ("plain", "resident")
    ]
    assert found[0] == found[1]


def test_a_schedule_decides_the_rate_of_each_step(options, samples_of):
    chosen = options(batch_size=16, learning_rate=0.5)
    samples = learnable(samples_of, 48)
    trainer = trainer_of(network(12, (4,)), chosen)
    trainer.rate = rate_of("linear", 0.5, 3)
    steps = trainer.epoch(fed(samples, chosen), 1, 0, tuple)
    seen = [trainer.optimizer.param_groups[0]["lr"] for _ in steps]
    assert seen == pytest.approx([0.5, 0.5 * 2 / 3, 0.5 / 3])
    assert [rate_of("cosine", 1.0, 4)(step) for step in (1, 3, 4)] == pytest.approx([1, 0.5, 0.5 - 0.5**1.5])
    assert rate_of("constant", 0.1, 4)(4) == 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "micro", "clip"), [("mlp", 5, 1e-2), ("mlp", 16, 0.0), ("attention-small", 5, 1e-2)])
def test_adamw_on_one_vector_is_bitwise_that_on_each_parameter(options, samples_of, kind, micro, clip):
    """This also holds where one trainer resumes what the other began."""
    chosen = options(batch_size=16, micro_batch_size=micro, weight_decay=0.1, clip_norm=clip, schedule="cosine")
    weights = np.random.default_rng(2).random(100).astype(np.float32)
    count = 100 if kind == "mlp" else 20 + window_of(kind)
    inputs = np.random.default_rng(1).standard_normal((count, 12)).astype(np.float32)
    samples = samples_of(inputs, (inputs[:, 0] > 0).astype(np.float32), weights, window=window_of(kind))

    def trained(first, second):
        model, moments, made_steps = fresh_network(kind, 12, (16,), 7), {}, 0
        for epoch, trainer_kind in enumerate((first, second), start=1):
            trainer = trainer_kind(Single(model, [CPU]), chosen, Ledger(), StepStage())
            trainer.rate = rate_of("cosine", 0.01, 14)
            trainer.steps_done = made_steps
            if moments:
                trainer.load_moments(moments)
            steps = list(trainer.epoch(fed(samples, chosen, micro), epoch, 0, tuple))
            made_steps, moments = trainer.steps_done, trainer.moments()
            model = fresh_network(kind, 12, (16,), 7)
            model.load_state_dict(trainer.strategy.weights())
        losses = [step.loss for step in steps]
        return losses, [step.gradient_norm for step in steps], {**model.state_dict(), **flattened(moments)}

    def flattened(moments):
        return {f"{name}.{key}": value for name, kept in moments.items() for key, value in kept.items()}

    losses, norms, wanted = trained(Trainer, Trainer)
    for pair in ((VectorTrainer, VectorTrainer), (VectorTrainer, Trainer), (Trainer, VectorTrainer)):
        again, other_norms, found = trained(*pair)
        assert again == pytest.approx(losses, rel=1e-6)
        assert other_norms == pytest.approx(norms, rel=1e-12)
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor), name


def test_only_plain_float32_on_one_cpu_has_its_weights_in_one_vector(options):
    """On a GPU the parameters are updated one by one, because that loop represents the stack."""
    assert suits_vector(options())
    others = [{"device": "cuda"}, {"strategy": "ddp"}, {"use_mixed_precision": True}, {"injected_fault": "nan-loss@2"}]
    assert not any(suits_vector(options(**other)) for other in others)
