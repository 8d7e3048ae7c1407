"""Tests of `vpoc features`."""

import pytest
import torch

from tests.app.commands.in_process import vpoc
from vpoc.data.load import load_bars
from vpoc.features import compute
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.store import read_features

CHOICES = {
    "rows": "session",
    "as_of": "open",
    "lookback": 20,
    "data_fraction": 0.8,
    "placement": "typical",
    "value_area": "one_row",
    "rth_close": "16:00",
    "rolls": "none",
    "chunk_size": 3,
}


def test_every_option_of_the_features_is_passed_on(capsys, summer, tmp_path):
    output = tmp_path / "f.parquet"
    chosen = [str(part) for name, value in CHOICES.items() for part in (f"--{name.replace('_', '-')}", value)]
    code, out, err = vpoc(capsys, "features", "--data", summer, "--output", output, *chosen)
    assert (code, err) == (0, "")
    options = FeatureOptions(**CHOICES)
    wanted = build_features(load_bars(summer), options)
    found = read_features(output)
    assert found.options == options
    assert found.frame.equals(wanted.frame)
    # Of 26 sessions the last has no next open; of the 5 after the lookback, the most recent 4 are used.
    assert out == f"{output}: 4 rows per session of 4 of 26 sessions (20 lookback, 1 without next open)\n"


def test_parsed_bars_are_kept_beside_the_features(capsys, merged, other_merged, tmp_path):
    data, output, kept = tmp_path / "m.csv", tmp_path / "f.parquet", tmp_path / "f.bars.parquet"
    data.write_bytes(merged.read_bytes())
    arguments = ["features", "--data", data, "--output", output, "--lookback", 20]
    assert vpoc(capsys, *arguments)[0] == 0
    names = ["f.bars.parquet", "f.parquet", "m.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    features, bars = output.read_bytes(), kept.stat()
    assert vpoc(capsys, *arguments)[0] == 0
    assert (output.read_bytes(), kept.stat().st_mtime_ns) == (features, bars.st_mtime_ns)
    data.write_bytes(other_merged.read_bytes())
    assert vpoc(capsys, *arguments)[0] == 0
    assert kept.stat().st_mtime_ns != bars.st_mtime_ns
    assert output.read_bytes() != features


def test_features_that_are_there_already_stay_as_they_are(capsys, merged, other_merged, tmp_path, monkeypatch):
    data, output = tmp_path / "m.csv", tmp_path / "f.parquet"
    data.write_bytes(merged.read_bytes())
    arguments = ["features", "--data", data, "--output", output, "--rows", "session", "--lookback", 20]
    first = vpoc(capsys, *arguments)
    before = output.stat()

    class ComputedError(Exception):
        pass

    def computed(*_, **__):
        raise ComputedError

    with monkeypatch.context() as patch:
        patch.setattr(compute, "compute_features", computed)
        assert vpoc(capsys, *arguments) == first
        after = output.stat()
        assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
        content = output.read_bytes()
        for more in (["--as-of", "open"], ["--vpoc-path", "naive"], ["--run-dir", tmp_path / "run"]):
            with pytest.raises(ComputedError):
                vpoc(capsys, *arguments, *more)
        output.write_bytes(content[:-1])
        with pytest.raises(ComputedError):
            vpoc(capsys, *arguments)
        output.write_bytes(content)
        data.write_bytes(other_merged.read_bytes())
        with pytest.raises(ComputedError):
            vpoc(capsys, *arguments)


def test_a_run_keeps_no_bars(capsys, merged, tmp_path):
    arguments = ["--data", merged, "--output", tmp_path / "f.parquet", "--lookback", 20, "--run-dir", tmp_path / "run"]
    assert vpoc(capsys, "features", *arguments)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.parquet", "run"]


def test_rolls_of_a_file(capsys, merged, tmp_path):
    rolls, output = tmp_path / "rolls.csv", tmp_path / "f.parquet"
    arguments = ["features", "--data", merged, "--output", output, "--lookback", 20, "--rows", "session"]
    rolls.write_text("date\n2018-01-30\n")
    code, _, err = vpoc(capsys, *arguments, "--rolls", rolls)
    assert (code, err.count("\n")) == (2, 1)
    assert "of the sessions after the lookback, 2 give rows and 4 must; left out are 4 after roll" in err
    rolls.write_text("date\n30.1.2018\n")
    code, _, err = vpoc(capsys, *arguments, "--rolls", rolls)
    assert (code, err) == (2, f"vpoc: {rolls}, line 2: no date like 2026-03-16; correct or remove the row\n")
    code, _, err = vpoc(capsys, *arguments, "--rolls", tmp_path / "none.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "no such file" in err
    assert not output.exists()


def test_a_path_on_a_device(capsys, merged, tmp_path, monkeypatch):
    """The result equals the CPU's; a missing device is an error only if the user asks for it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    output = tmp_path / "f.parquet"
    arguments = ["features", "--data", merged, "--output", output, "--lookback", 20]
    assert vpoc(capsys, *arguments)[0] == 0
    features = output.read_bytes()
    for path in ("naive", "chunked", "preallocated", "pooled"):
        assert vpoc(capsys, *arguments, "--vpoc-path", path)[0] == 0
        assert output.read_bytes() == features
    code, _, err = vpoc(capsys, *arguments, "--vpoc-path", "pooled", "--device", "cuda")
    assert (code, err.count("\n")) == (3, 1)
    assert "sees no GPU" in err
