import csv
import io
import json
import math
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from vpoc.gpu_memory.monitor import DeviceMemory, MemorySample
from vpoc.gpu_memory.torch_memory import TorchMemory
from vpoc.training import curves as module
from vpoc.training.curves import LOSS_POINTS, MEMORY_POINTS, Curves


class Clock:
    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


def on_cpu(rss):
    return MemorySample(rss, ())


def on_gpu(rss, allocated, reserved, used):
    return MemorySample(rss, (DeviceMemory("cuda:0", None, TorchMemory(allocated, reserved, 0, 0), used, 100),))


def rows(curves, kind):
    found = list(csv.DictReader(io.StringIO(curves.csv().decode())))
    return [(int(row["step"]), row["seconds"], float(row["value"])) for row in found if row["kind"] == kind]


def losses_of(count, seed=1):
    return np.random.default_rng(seed).random(count).tolist()


def fed(losses, curves=None, first=1):
    curves = curves or Curves()
    for step, loss in enumerate(losses, start=first):
        curves.add_losses(step, [loss])
    return curves


def test_the_csv_has_a_value_a_row():
    clock = Clock()
    curves = Curves(clock)
    curves.add_losses(1, [0.7, 0.1 + 0.2])
    curves.add_validation(2, 0.65)
    clock.now += 1.5
    curves.add_memory(1, on_cpu(1000))
    clock.now += 60
    curves.add_memory(2, on_gpu(2000, 10, 20, 30))
    assert curves.csv().decode() == (
        "kind,step,seconds,value\n"
        "train_loss,1,,0.7\n"
        "train_loss,2,,0.30000000000000004\n"
        "validation_loss,2,,0.65\n"
        "rss_bytes,1,1.500,1000\n"
        "rss_bytes,2,61.500,2000\n"
        "allocated_bytes,2,61.500,10\n"
        "reserved_bytes,2,61.500,20\n"
        "driver_used_bytes,2,61.500,30\n"
    )


def test_nothing_yet_is_a_header_and_a_picture():
    assert Curves().csv() == b"kind,step,seconds,value\n"
    assert Curves().png().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [1, LOSS_POINTS - 1, LOSS_POINTS, LOSS_POINTS + 1, 3 * LOSS_POINTS + 5, 50_001])
def test_points_are_means_of_the_steps_since_the_one_before(count):
    losses = losses_of(count)
    points = rows(fed(losses), "train_loss")
    assert len(points) <= LOSS_POINTS
    assert points[-1][0] == count, "the last step is in"
    assert count < LOSS_POINTS or len(points) >= LOSS_POINTS / 2
    start = 0
    for step, _, value in points:
        assert value == pytest.approx(math.fsum(losses[start:step]) / (step - start), rel=1e-12)
        start = step


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 9000), st.integers(0, 9000))
def test_a_resumed_training_has_the_same_curve(before, after):
    losses = losses_of(before + after, seed=before)
    whole = fed(losses)
    whole.add_validation(7, 0.5)
    # The state goes through torch.save, as in a checkpoint, so it must have plain values only.
    first = fed(losses[:before])
    first.add_validation(7, 0.5)
    buffer = io.BytesIO()
    torch.save(first.state(), buffer)
    fed(losses_of(500), first, before + 1)
    buffer.seek(0)
    resumed = fed(losses[before:], Curves.from_state(torch.load(buffer, weights_only=True)), before + 1)
    assert resumed.csv() == whole.csv()
    assert resumed.state()["losses"] == whole.state()["losses"]


def test_the_state_survives_json_and_later_steps():
    curves = fed(losses_of(LOSS_POINTS + 7))
    curves.add_validation(3, 0.25)
    curves.add_memory(3, on_gpu(5, 1, 2, 3))
    state = curves.state()
    text = json.dumps(state)
    fed([0.5] * 3, curves, LOSS_POINTS + 8)
    curves.add_validation(9, 0.2)
    curves.add_memory(9, on_cpu(9))
    assert json.dumps(state) == text
    again = Curves.from_state(json.loads(text)).state()
    assert again["losses"] == state["losses"]
    assert (again["validation"], again["memory"]) == (state["validation"], state["memory"])


def test_memory_is_bounded_and_loses_no_peak():
    clock = Clock()
    curves = Curves(clock)
    generator = np.random.default_rng(3)
    count = 5 * MEMORY_POINTS + 3
    values = generator.integers(1, 10**9, count)
    for step, rss in enumerate(values.tolist(), start=1):
        clock.now += 1
        curves.add_memory(step, on_gpu(rss, rss // 2, rss, rss + 1) if step % 5 else on_cpu(rss))
    points = rows(curves, "rss_bytes")
    assert MEMORY_POINTS / 2 <= len(points) <= MEMORY_POINTS
    start = 0
    for step, seconds, value in points:
        assert value == values[start:step].max()
        assert float(seconds) == step
        start = step
    assert points[-1][0] == count
    on_gpu_only = [rss for step, rss in enumerate(values.tolist(), start=1) if step % 5]
    assert max(value for _, _, value in rows(curves, "driver_used_bytes")) == max(on_gpu_only) + 1


def test_memory_continues_from_a_checkpoint_as_if_nothing_had_been():
    samples = [on_cpu(rss) for rss in np.random.default_rng(5).integers(1, 10**9, 2 * MEMORY_POINTS + 7).tolist()]
    clock, half = Clock(), len(samples) - 6
    whole, first = Curves(clock), Curves(clock)
    for step, sample in enumerate(samples[:half], start=1):
        clock.now += 1
        whole.add_memory(step, sample)
        first.add_memory(step, sample)
    resumed = Curves.from_state(json.loads(json.dumps(first.state())), clock)
    for step, sample in enumerate(samples[half:], start=half + 1):
        clock.now += 1
        whole.add_memory(step, sample)
        resumed.add_memory(step, sample)
    assert resumed.csv() == whole.csv()


def test_seconds_continue_where_they_were():
    clock = Clock()
    before = Curves(clock)
    clock.now += 10
    before.add_memory(1, on_cpu(1))
    clock.now += 2
    state = before.state()
    clock.now += 1000
    after = Curves.from_state(state, clock)
    clock.now += 3
    after.add_memory(2, on_cpu(1))
    assert [seconds for _, seconds, _ in rows(after, "rss_bytes")] == ["10.000", "15.000"]


def test_a_loss_that_is_not_finite_is_in_the_data_and_does_not_spoil_the_picture():
    curves = fed([0.7, math.nan, math.inf, 0.6])
    assert b"train_loss,2,,nan\ntrain_loss,3,,inf\n" in curves.csv()
    assert curves.png().startswith(b"\x89PNG")


def colours(picture):
    """Return how many columns have a dot of each line's colour, in the left and in the right half."""
    pixels = (imread(io.BytesIO(picture))[:, :, :3] * 255).round().astype(int)
    middle = pixels.shape[1] // 2
    found = {}
    for name, colour in [("train", module.TRAINING), ("validation", module.VALIDATION), ("rss_bytes", "#a9afb8"),
                         ("driver_used_bytes", "#b5403a"), ("allocated_bytes", "#1b7f79")]:  # fmt: skip
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        hits = (np.abs(pixels - rgb).max(axis=2) <= 2).any(axis=0)
        found[name] = (int(hits[:middle].sum()), int(hits[middle:].sum()))
    return found


def full(clock=None):
    clock = clock or Clock()
    curves = fed([0.7 - 0.1 * math.tanh(n / 300) + 0.02 * math.sin(n) for n in range(1000)], Curves(clock))
    for epoch in range(1, 6):
        curves.add_validation(200 * epoch, 0.7 - 0.015 * epoch)
    for step in range(0, 1000, 10):
        clock.now += 6
        curves.add_memory(step, on_gpu(2 << 30, 3 << 30, 4 << 30, 6 << 30))
    return curves


@pytest.mark.slow
def test_the_picture_shows_losses_at_the_left_and_memory_at_the_right():
    found = colours(full().png())
    for name in ("train", "validation"):
        assert found[name][0] > 50, name
    for name in ("rss_bytes", "driver_used_bytes", "allocated_bytes"):
        assert found[name][1] > 300, name
        assert found[name][0] == 0, name
    # The line of reserved memory has the colour of the training loss.
    without = colours(fed([0.7, 0.6]).png())
    assert without["train"][1] == 0
    assert without["validation"] == (0, 0)


@pytest.mark.slow
def test_a_point_alone_can_be_seen():
    """The side of the legend is unknown, so dots are counted with and without the point and compared."""

    def dots(value):
        curves = Curves(Clock())
        curves.add_losses(1, [value])
        pixels = (imread(io.BytesIO(curves.png()))[:, :, :3] * 255).round().astype(int)
        rgb = [int(module.TRAINING[i : i + 2], 16) for i in (1, 3, 5)]
        return int((np.abs(pixels - rgb).max(axis=2) <= 2).sum())

    assert dots(0.7) > dots(math.nan) + 20


@pytest.mark.slow
def test_the_same_curves_are_the_same_bytes_whatever_the_user_has_set(tmp_path, monkeypatch):
    first = full().png()
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\n")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "no such backend")
    monkeypatch.chdir(tmp_path)
    assert full().png() == first


@pytest.mark.slow
def test_the_picture_needs_no_folder_but_the_temporary_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full().png()
    assert list(tmp_path.iterdir()) == []
