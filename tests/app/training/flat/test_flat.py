import math
from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from vpoc.models.mlp import mlp_layers
from vpoc.training.flat.flat import PICKED_ROWS, FlatMlp, blocks

LEARNING_RATE = 1e-2
DECAY = 0.3

WIDTH = 54
"""The number of inputs of the networks here; any number would do."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Use one thread, because threads that wait for each other make tiny products slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Data:
    inputs: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor

    def batches(self, size):
        return zip(*(tensor.split(size) for tensor in (self.inputs, self.labels, self.weights)), strict=True)

    def sums(self, size):
        return [float(weights.double().sum()) for weights in self.weights.split(size)]


def made(rows, features, seed, weights="some"):
    torch.manual_seed(seed)
    inputs, labels = torch.randn(rows, features), (torch.rand(rows) < 0.4).float()
    return Data(inputs, labels, torch.rand(rows) + 0.01 if weights == "some" else torch.ones(rows))


def mlp(features, hidden, seed=7):
    torch.manual_seed(seed)
    return nn.Sequential(*mlp_layers(features, hidden))


def rate(step):
    """Return the learning rate of a step; each step has another one."""
    return LEARNING_RATE / step**0.5


class Plain:
    """The reference: autograd and torch.optim.AdamW, with each batch in its own memory, as a loader gives it."""

    def __init__(self, model, decay=0.0, clip=0.0):
        self.model, self.clip, self.before = model, clip, 0.0
        self.adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=decay)
        self.made = 0

    def steps(self, data, size):
        return [self.step(*batch, s) for batch, s in zip(data.batches(size), data.sums(size), strict=True)]

    def step(self, inputs, labels, weights, divisor):
        self.adam.zero_grad(set_to_none=True)
        logits = self.model(inputs.clone()).squeeze(1)
        each = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        loss = (each * weights).sum() / divisor
        loss.backward()
        self.before = self.norm()
        norm = math.hypot(*(float(p.grad.double().norm()) for p in self.model.parameters()))
        for parameter in self.model.parameters() if 0 < self.clip < norm else ():
            parameter.grad.mul_(self.clip / norm)
        self.made += 1
        self.adam.param_groups[0]["lr"] = rate(self.made)
        self.adam.step()
        self.adam.param_groups[0]["lr"] = LEARNING_RATE
        return loss.item()

    def norm(self):
        return torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()]).norm().item()


def require_same_weights(one, other):
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), f"{name} differs by {(a - b).abs().max()}"


def require_same_state(one, other):
    assert one["state"].keys() == other["state"].keys()
    for number, kept in one["state"].items():
        assert kept.keys() == other["state"][number].keys()
        for name, value in kept.items():
            assert torch.equal(value, other["state"][number][name]), (number, name)
            assert value.dtype == other["state"][number][name].dtype


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(
    features=st.integers(1, 70),
    hidden=st.lists(st.integers(2, 40), max_size=3),
    size=st.sampled_from([1, 2, 3, 7, 8, 32, 100, 256]),
    whole=st.integers(1, 3),
    short=st.integers(0, 255),
    weights=st.sampled_from(["ones", "some"]),
    clip=st.sampled_from([0.0, 1e-3, 0.1, 1.0]),
    seed=st.integers(0, 1000),
)
def test_weights_are_those_of_autograd_and_adam_bit_for_bit(features, hidden, size, whole, short, weights, clip, seed):
    """Losses and norms are summed in another order, so they are equal only up to rounding in float32."""
    data = made(size * whole + short % size, features, seed, weights)
    plain = Plain(mlp(features, hidden), DECAY, clip)
    flat = FlatMlp(mlp(features, hidden), rate, size, weight_decay=DECAY, clip_norm=clip)
    losses = plain.steps(data, size)
    found = flat.steps(data.inputs, data.labels, data.weights, data.sums(size))
    require_same_weights(plain.model, flat_model(flat))
    require_same_state(plain.adam.state_dict(), flat.adam.state_dict())
    assert found.tolist() == pytest.approx(losses, rel=1e-5)
    assert flat.gradient_norm.item() == pytest.approx(plain.before, rel=1e-5, abs=1e-12)


def test_one_sample_through_one_unit_is_rounded_in_another_way():
    data = made(5, 5, 1)
    plain, model = Plain(mlp(5, [1, 12])), mlp(5, [1, 12])
    plain.steps(data, 1)
    FlatMlp(model, rate, 1).steps(data.inputs, data.labels, data.weights, data.sums(1))
    for one, other in zip(plain.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def flat_model(flat):
    """Return the layers as a model again, from the views into the vector."""
    model = mlp(flat._linear[0].in_features, [layer.out_features for layer in flat._linear[:-1]])
    for layer, trained in zip(list(model)[::2], flat._linear, strict=True):
        layer.load_state_dict(trained.state_dict())
    return model


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_a_thousand_steps_end_with_the_weights_of_autograd_and_adam(clip):
    data = made(8 * 1000 + 3, WIDTH, 1)
    plain, model = Plain(mlp(WIDTH, [32, 16]), DECAY, clip), mlp(WIDTH, [32, 16])
    flat = FlatMlp(model, rate, 8, weight_decay=DECAY, clip_norm=clip)
    plain.steps(data, 8)
    flat.steps(data.inputs, data.labels, data.weights, data.sums(8))
    require_same_weights(plain.model, model)
    assert flat.adam.steps == 1001


def test_many_steps_at_once_and_one_by_one_are_the_same():
    data = made(8 * 20 + 5, WIDTH, 2)
    models = [mlp(WIDTH, [32, 16]) for _ in range(2)]
    at_once, one_by_one = (FlatMlp(model, rate, 8) for model in models)
    losses = at_once.steps(data.inputs, data.labels, data.weights, data.sums(8))
    for loss, batch, divisor in zip(losses.tolist(), data.batches(8), data.sums(8), strict=True):
        assert one_by_one.steps(*batch, [divisor]).tolist() == pytest.approx([loss], rel=1e-6)
    require_same_weights(*models)
    assert one_by_one.gradient_norm.item() == at_once.gradient_norm.item()


def test_where_a_batch_lies_in_memory_does_not_matter():
    """An epoch that is resumed in the middle has its batches at other addresses."""
    data = made(3 * 12, WIDTH, 3)
    models = []
    for start in (0, 1, 2, 5):
        models.append(mlp(WIDTH, [32, 16]))
        rows = torch.empty(start + 36, WIDTH)[start:].copy_(data.inputs)
        FlatMlp(models[-1], rate, 3).steps(rows, data.labels, data.weights, data.sums(3))
    spread = torch.empty(36, 60)[:, :WIDTH].copy_(data.inputs)
    models.append(mlp(WIDTH, [32, 16]))
    FlatMlp(models[-1], rate, 3).steps(spread, data.labels, data.weights, data.sums(3))
    for model in models:
        require_same_weights(models[0], model)


def test_the_gradient_is_that_of_the_parameters():
    data = made(8, WIDTH, 4)
    plain, model = Plain(mlp(WIDTH, [32, 16])), mlp(WIDTH, [32, 16])
    flat = FlatMlp(model, rate, 8)
    flat.steps(data.inputs, data.labels, data.weights, data.sums(8))
    plain.steps(data, 8)
    for one, other in zip(plain.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    next(model.parameters()).grad.fill_(3.0)
    assert (flat.adam.gradient == 3.0).sum() == WIDTH * 32


def test_the_model_and_the_state_can_change_loops_in_the_middle():
    data = made(8 * 30, 12, 5)
    first, second = (
        Data(*(t[s] for t in (data.inputs, data.labels, data.weights))) for s in (slice(120), slice(120, 240))
    )
    throughout = Plain(mlp(12, [8]))
    throughout.steps(data, 8)

    plain, model = Plain(mlp(12, [8])), mlp(12, [8], seed=8)
    plain.steps(first, 8)
    flat = FlatMlp(model, rate, 8)
    model.load_state_dict(plain.model.state_dict())
    flat.adam.load_state_dict(plain.adam.state_dict())
    flat.steps(second.inputs, second.labels, second.weights, second.sums(8))
    require_same_weights(throughout.model, model)

    flat = FlatMlp(model := mlp(12, [8]), rate, 8)
    flat.steps(first.inputs, first.labels, first.weights, first.sums(8))
    plain = Plain(mlp(12, [8], seed=8))
    plain.model.load_state_dict(model.state_dict())
    plain.adam.load_state_dict({**plain.adam.state_dict(), **flat.adam.state_dict()})
    plain.made = flat.adam.steps
    plain.steps(second, 8)
    require_same_weights(throughout.model, plain.model)


def test_state_is_a_copy_and_empty_before_the_first_step():
    data, flat = made(8, 12, 6), FlatMlp(mlp(12, [8]), rate, 8)
    fresh = flat.adam.state_dict()
    require_same_state(
        fresh, torch.optim.AdamW(mlp(12, [8]).parameters(), lr=LEARNING_RATE, weight_decay=0.0).state_dict()
    )
    flat.steps(data.inputs, data.labels, data.weights, [8.0])
    kept = flat.adam.state_dict()
    before = deepcopy(kept)
    flat.steps(data.inputs, data.labels, data.weights, [8.0])
    require_same_state(kept, before)
    flat.adam.load_state_dict(fresh)
    require_same_state(flat.adam.state_dict(), fresh)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(3, 2)],
        [nn.Linear(3, 2), nn.Linear(2, 1)],
        [nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)],
        [nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1), nn.ReLU()],
        [nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 1)],
        [nn.Linear(3, 2).double(), nn.ReLU(), nn.Linear(2, 1).double()],
        [nn.Linear(3, 2).double(), nn.ReLU(), nn.Linear(2, 1)],
        [],
    ],
)
def test_other_networks_are_refused(layers):
    with pytest.raises(ValueError, match=r"only linear layers|must be"):
        FlatMlp(nn.Sequential(*layers), rate, 8)


@pytest.mark.parametrize("size", [8, 100, PICKED_ROWS + 1])
def test_blocks_are_the_rows_in_order_in_whole_batches(size):
    torch.manual_seed(1)
    rows, numbers = torch.randn(40_000, 3), torch.arange(40_000)
    order = torch.randperm(40_000)[:39_500]
    seen = [tuple(part.clone() for part in parts) for parts in blocks((rows, numbers), order, size)]
    assert torch.equal(torch.cat([picked for _, picked in seen]), order)
    assert torch.equal(torch.cat([picked for picked, _ in seen]), rows[order])
    lengths = [len(picked) for _, picked in seen]
    assert all(length % size == 0 for length in lengths[:-1])
    assert lengths[0] >= min(PICKED_ROWS - size, 39_500)
    assert max(lengths) <= max(PICKED_ROWS, size)


def test_blocks_find_a_sample_in_other_rows_of_the_first_tensor():
    rows, numbers = torch.arange(50.0)[:, None] * torch.ones(3), torch.arange(20)
    ends, order = torch.arange(20) * 2 + 5, torch.randperm(20)
    [(picked, labels)] = blocks((rows, numbers), order, 4, ends)
    assert torch.equal(labels, order)
    assert torch.equal(picked[:, 0], order * 2.0 + 5)
