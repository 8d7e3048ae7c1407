import gc
import json
import mmap
import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

from vpoc.data.load import load_bars
from vpoc.data.synth import synthetic_csv
from vpoc.errors import Interrupted, UserError
from vpoc.features import row_source as blocks
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.row_source import block_rows, stored_rows
from vpoc.features.store import write_features
from vpoc.features.table import NAMES
from vpoc.progress import Progress
from vpoc.training.inputs import feeds, sample_file, samples
from vpoc.training.inputs.batches import Cut, Order
from vpoc.training.inputs.sample_file import SampleFile
from vpoc.training.inputs.samples import split
from vpoc.training.ledger import Ledger
from vpoc.training.run import train

OPTIONS = FeatureOptions(rows="bar", lookback=20, chunk_size=4)
QUIET = Progress(None)
TARGET = "prior_vpoc_touched"
ARRAYS = ("inputs", "ends", "labels", "weights", "dates")


@pytest.fixture(scope="module")
def fine(tmp_path_factory):
    """Return a file of 26 synthetic sessions of minute bars, in which up_30 has labels."""
    path = tmp_path_factory.mktemp("fine") / "fine.csv"
    path.write_bytes(synthetic_csv(26, 7))
    return path


@pytest.fixture(scope="module")
def whole(fine):
    return build_features(load_bars(fine), OPTIONS)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(blocks, "ROW_BLOCK_BYTES", 200_011)
    monkeypatch.setattr(blocks, "SLICE_ROWS", 500)


@pytest.fixture(params=["blocks", "feature file"])
def rows(request, fine, whole, tmp_path, small_parts):
    if request.param == "blocks":
        return block_rows(fine, OPTIONS, QUIET)
    write_features(tmp_path / "f.parquet", whole)
    return stored_rows(tmp_path / "f.parquet")


def parts(made):
    return [part for part in (made.train, made.inner, made.validation) if part is not None]


@pytest.mark.parametrize(("target", "inner"), [("up_30", False), (TARGET, True)])
def test_samples_are_those_of_the_whole(rows, whole, target, inner, tmp_path, monkeypatch):
    monkeypatch.setattr(sample_file, "PART", 501)
    file = SampleFile(rows, target, [32], inner=inner)
    file.write(tmp_path, QUIET)
    for window in (1, 32):
        made, expected = file.split(window), split(whole, target, window, inner=inner)
        assert made.scaling.as_json() == expected.scaling.as_json()
        assert (made.inner is not None) == inner
        for found, wanted in zip(parts(made), parts(expected), strict=True):
            assert len(found) == len(wanted) > 0
            for name in ARRAYS:
                mine, other = getattr(found, name), getattr(wanted, name)
                assert isinstance(mine._mmap, mmap.mmap), name
                assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
                assert (mine == other).all(), name
            assert (found.window, found.sessions) == (window, wanted.sessions)
            some = np.array([0, len(found) - 1, len(found) // 2])
            assert (found.windows(some) == wanted.windows(some)).all()
            # torch warns, which is an error here, about an array that is not writable.
            torch.from_numpy(found.inputs)
    assert file.split(1).train.inputs.base is file.split(32).validation.inputs.base


def test_rows_are_written_once(rows, tmp_path):
    file = SampleFile(rows, TARGET, [1])
    file.write(tmp_path, QUIET)
    before = file.split(1).train.inputs
    (tmp_path / "file").touch()
    file.write(tmp_path / "file", QUIET)
    assert file.split(1).train.inputs.base is before.base


@pytest.mark.slow
def test_nothing_is_left_in_the_folder(rows, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    file = SampleFile(rows, TARGET, [1, 32])
    file.write(folder, QUIET)
    assert list(folder.iterdir()) == []
    behind = f"{folder}/"
    assert behind in Path("/proc/self/maps").read_text()
    del file
    gc.collect()
    assert behind not in Path("/proc/self/maps").read_text()


@pytest.mark.slow
def test_nothing_is_left_after_an_interrupt(rows, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    progress = Progress(None)
    frames = rows.frames

    def interrupted(given):
        for frame in frames(given):
            yield frame
            progress.interrupt(15)

    object.__setattr__(rows, "frames", interrupted)
    with pytest.raises(Interrupted):
        SampleFile(rows, TARGET, [1]).write(folder, progress)
    gc.collect()
    opened = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not any(str(folder) in name for name in [*opened, *map(str, folder.iterdir())])


def test_a_full_disk_is_found_before_anything_is_written(rows, tmp_path, monkeypatch):
    each = len(NAMES) * 4 + 2 * 20
    needed = rows.count * each
    file = SampleFile(rows, TARGET, [1, 32])
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=needed - 1))
    with pytest.raises(UserError, match=r"--chunk-rows puts 2340 rows on the disk, 0.0 GB, and 0.0 GB are free"):
        file.write(tmp_path, QUIET)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=needed))
    file.write(tmp_path, QUIET)


def test_a_disk_that_gets_full_is_reported_in_one_line(rows, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(UserError, match=f"{tmp_path}: File too large"):
            SampleFile(rows, TARGET, [1]).write(tmp_path, QUIET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_too_few_labels(whole, tmp_path):
    first = whole.frame["trade_date"] == whole.frame["trade_date"][0]
    nobody = whole.frame.with_columns(up_30=pl.lit(None, pl.Float64))
    for frames, found in ((), 0), ((nobody,), 0), ((whole.frame.filter(first),), 1):
        rows = SimpleNamespace(features=whole, count=1, frames=lambda _progress, frames=frames: iter(frames))
        file = SampleFile(rows, "up_30", [1, 32])
        file.write(tmp_path, QUIET)
        with pytest.raises(UserError, match=f"^{found} sessions have a value of up_30 and 31 rows before it, 3 are"):
            file.split(32)
        with pytest.raises(UserError, match=f"^{found} sessions have a value of up_30, 3 are"):
            file.split(1)


def test_a_target_that_no_row_can_have(whole, tmp_path):
    rows = SimpleNamespace(features=replace(whole, bar_seconds=900))
    with pytest.raises(UserError, match="up_30 looks 30 bars ahead"):
        SampleFile(rows, "up_30", [1]).write(tmp_path, QUIET)


def resident(folder):
    """Return how many kB of files that were in `folder` this process has in memory."""
    mapped = Path("/proc/self/smaps").read_text().split(f" {folder}/")[1:]
    return sum(int(part.partition("Rss:")[2].split()[0]) for part in mapped)


def test_what_was_seen_does_not_stay_in_memory(rows, whole, tmp_path, monkeypatch):
    file = SampleFile(rows, "up_30", [1])
    file.write(tmp_path, QUIET)
    found, wanted = file.split(1).train, split(whole, "up_30").train
    monkeypatch.setattr(samples, "PART", 300)
    assert found.sessions == wanted.sessions == len(np.unique(wanted.dates))
    assert found.weight_sum == pytest.approx(wanted.weights.sum(dtype=float), rel=1e-12)
    ones = (wanted.labels * wanted.weights).sum(dtype=float) / wanted.weights.sum(dtype=float)
    assert found.share_of_ones == pytest.approx(ones, rel=1e-6)
    assert resident(tmp_path) == 0
    assert found.inputs.sum() == wanted.inputs.sum()
    assert resident(tmp_path) > found.inputs.nbytes / 1024 / 2
    found.forget_pages()
    assert resident(tmp_path) == 0


@pytest.mark.parametrize("kind", ["plain", "resident"])
def test_a_pass_over_the_samples_leaves_little_in_memory(whole, tmp_path, kind, monkeypatch):
    days = [whole.frame.with_columns(pl.col("trade_date").dt.offset_by(f"{week}w")) for week in range(20)]
    rows = SimpleNamespace(features=whole, count=20 * whole.frame.height, frames=lambda _progress: iter(days))
    file = SampleFile(rows, "up_30", [1])
    file.write(tmp_path, QUIET)
    found = file.split(1).train
    monkeypatch.setattr(feeds, "PART", 1000)
    order, cut, ledger = Order(len(found), 50, 7, 1000), Cut(50), Ledger()
    device = torch.device("cpu")
    if kind == "plain":
        feed = feeds.LoaderFeed(found, order, cut, device, 0, ledger)
    else:
        feed = feeds.ResidentFeed(found, order, cut, device, ledger)
    seen = []
    for number, batch in enumerate(feed.epoch(1)):
        list(batch.micros)
        # Reading smaps is slow, so only some batches do it.
        if number % 150 == 99:
            seen.append(resident(tmp_path))
    assert len(seen) > 3
    assert max(seen) < found.inputs.nbytes / 1024 / 4


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["plain", "resident"])
def test_a_training_from_the_disk_is_the_training_from_memory(options, tmp_path, loop, small_parts):
    """One process trains both models; a chunk holds all samples here, so their order is the order without chunks."""
    results = []
    for chunk_rows in (None, 10_000):
        chosen = options(
            model=("attention-small", "mlp"),
            epochs=1,
            batch_size=64,
            loop=loop,
            chunk_rows=chunk_rows,
            run_dir=tmp_path / f"run-{chunk_rows}",
        )
        train(chosen, tmp_path / f"out-{chunk_rows}", "m", Progress(chosen.run_dir), lambda _line: None)
        results.append(json.loads((chosen.run_dir / "result.json").read_text()))
    memory, disk = results
    for name in ("model", "first_steps", "epoch_losses", "samples", "sessions", "data"):
        assert disk[name] == memory[name], name
    assert disk["earlier"][0]["model"] == memory["earlier"][0]["model"]
    assert not [path for path in (tmp_path / "out-10000").iterdir() if path.name.startswith((".", "tmp"))]


def test_a_feature_file_of_other_data_is_refused(options, whole, merged, tmp_path):
    write_features(tmp_path / "f.parquet", whole)
    with pytest.raises(UserError, match="made with"):
        train(
            options(data=merged, features=tmp_path / "f.parquet", chunk_rows=50),
            tmp_path,
            "m",
            QUIET,
            lambda _line: None,
        )


def test_a_device_path_needs_all_bars(options, tmp_path):
    with pytest.raises(UserError, match="--vpoc-path chunked needs all bars in memory, which --chunk-rows avoids"):
        train(options(chunk_rows=50, vpoc_path="chunked"), tmp_path, "m", QUIET, lambda _line: None)
