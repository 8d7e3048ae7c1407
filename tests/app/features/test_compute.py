"""Tests of a merged CSV -> features: with a cache, in blocks or compared with a device, the rows are the same."""

import subprocess
import sys
from dataclasses import replace

import pytest

from vpoc.data import load, merged_csv
from vpoc.errors import UserError
from vpoc.features import compute as command
from vpoc.features.build import build_features
from vpoc.features.compute import compute_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.profile.device import paths
from vpoc.profile.device.paths import PATHS
from vpoc.progress import Progress

KINDS = (("bar", "close"), ("session", "close"), ("session", "open"))


def options_of(rows, as_of="close", **chosen):
    return FeatureOptions(rows=rows, as_of=as_of, lookback=20, **chosen)


def computed(data, options, **how):
    return compute_features(data, options, Progress(None), **how)


def same(found, wanted):
    facts = vars(found) | {"frame": None} == vars(wanted) | {"frame": None}
    return facts and found.frame.equals(wanted.frame)


def refuse(*_, **__):
    raise AssertionError


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_with_and_without_a_cache(merged, tmp_path, monkeypatch, rows, as_of):
    options, kept = options_of(rows, as_of), tmp_path / "c.parquet"
    wanted = build_features(load.load_bars(merged), options)
    assert same(computed(merged, options), wanted)
    assert same(computed(merged, options, cache=kept), wanted)
    assert kept.exists() == (rows == "bar")
    monkeypatch.setattr(command, "load_bars", refuse)
    assert same(computed(merged, options, cache=kept), wanted)


@pytest.mark.parametrize("as_of", ["close", "open"])
@pytest.mark.parametrize("data", ["merged", "summer"])
def test_session_rows_of_a_large_file_come_in_blocks(request, tmp_path, monkeypatch, data, as_of):
    path, options = request.getfixturevalue(data), options_of("session", as_of)
    wanted = computed(path, options)
    monkeypatch.setattr(command, "LARGE_BYTES", path.stat().st_size - 1)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(command, "load_bars", refuse)
    kept = tmp_path / "c.parquet"
    assert same(computed(path, options, cache=kept), wanted)
    assert not kept.exists()


def test_what_cannot_be_done_in_blocks_is_done_as_a_whole(merged, tmp_path, monkeypatch):
    wanted = computed(merged, options_of("bar"))
    monkeypatch.setattr(command, "LARGE_BYTES", 0)
    monkeypatch.setattr(command, "stream_bars", refuse)
    assert same(computed(merged, options_of("bar"), cache=tmp_path / "c.parquet"), wanted)
    assert computed(merged, options_of("session"), vpoc_path="naive").frame.height == 6


def test_a_file_that_is_just_not_large_is_read_as_a_whole(merged, monkeypatch):
    monkeypatch.setattr(command, "LARGE_BYTES", merged.stat().st_size)
    monkeypatch.setattr(command, "stream_bars", refuse)
    assert computed(merged, options_of("session")).frame.height == 6


def test_a_large_file_is_refused_with_its_line(merged, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LARGE_BYTES", 0)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 20_000)
    lines = merged.read_text().splitlines(keepends=True)
    lines[3000] = lines[3000].replace("T", " ")
    path = tmp_path / "m.csv"
    path.write_text("".join(lines))
    with pytest.raises(UserError, match=r"line 3001: ts is"):
        computed(path, options_of("session"))
    with pytest.raises(UserError, match="no such file"):
        computed(tmp_path / "none.csv", options_of("session"))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rows", ["bar", "session"])
def test_every_device_path_agrees_with_the_cpu(merged, path, rows):
    wanted = computed(merged, options_of(rows))
    assert same(computed(merged, options_of(rows), vpoc_path=path), wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "placement", "value_area"), [("naive", "typical", "one_row"), ("pooled", "close", "two_row")]
)
def test_device_paths_are_asked_for_the_same_kind_of_profile(summer, path, placement, value_area):
    options = options_of("session", placement=placement, value_area=value_area, rth_close="16:00", chunk_size=7)
    assert same(computed(summer, options, vpoc_path=path), computed(summer, options))


@pytest.mark.parametrize("name", ["vpoc", "vah", "val", "vpoc_volume", "area_volume", "volume"])
def test_a_device_that_is_wrong_in_one_session_is_reported(summer, monkeypatch, name):
    honest = paths.device_levels

    def wrong(*arguments, **kind):
        for place, part in enumerate(honest(*arguments, **kind)):
            values = getattr(part, name).copy()
            if place == 2:
                values[1] += 1
            yield replace(part, **{name: values})

    monkeypatch.setattr(paths, "device_levels", wrong)
    with pytest.raises(UserError) as caught:
        computed(summer, options_of("session", chunk_size=10), vpoc_path="pooled")
    message = str(caught.value)
    assert caught.value.exit_code == 1
    assert (
        f"cpu along the path pooled computes another {name} than the CPU in 1 of 26 sessions, first 2018-07-03"
        in message
    )
    assert "do not trust this device" in message
    assert "\n" not in message


def test_a_device_that_is_not_there_is_exit_3(merged, monkeypatch):
    import torch  # noqa: PLC0415

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="sees no GPU") as caught:
        computed(merged, options_of("session"), vpoc_path="naive", device="cuda")
    assert caught.value.exit_code == 3
    # Without a VPOC path, nothing is computed on the device.
    assert computed(merged, options_of("session"), device="cuda").frame.height == 6


def test_progress_passes_through_the_phases(merged, tmp_path):
    progress = Progress(tmp_path)
    compute_features(merged, options_of("bar"), progress, vpoc_path="chunked")
    text = (tmp_path / "progress-0.jsonl").read_text()
    assert text.index('"data"') < text.index('"features"')


def test_torch_is_imported_only_when_used():
    code = "import sys, vpoc.features.compute; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
