import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click
import pytest
import torch

from vpoc import __version__, kernel
from vpoc.cli import COMMANDS, cli, run
from vpoc.data.load import load_bars
from vpoc.data.synth import BARS
from vpoc.features import compute
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.store import read_features
from vpoc.features.table import NAMES
from vpoc.models.by_name import fresh_network
from vpoc.training.model_file.artefact import serialise

SMALL = ["--lookback", "20", "--target", "prior_vpoc_touched", "--loader-workers", "0"]


def vpoc(capsys, *arguments):
    """Run the command line in this process and return the exit status, stdout and stderr."""
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help(capsys, command):
    code, out, _ = vpoc(capsys, *command, "--help")
    assert code == 0
    assert "Usage: vpoc" in out


def test_help_imports_neither_torch_nor_polars():
    code = (
        "import sys; from vpoc.cli import run; assert run(['--help']) == 0; assert run(['train', '--help']) == 0; "
        "assert not {'torch', 'polars', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "vpoc", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"vpoc {__version__} (")


@pytest.mark.parametrize(
    ("library", "off", "said"),
    [
        (object(), "", "compiled profile kernel"),
        (None, "", "numpy profiles: no compiled kernel for this platform"),
        (None, "off", "numpy profiles: VPOC_KERNEL=off"),
    ],
)
def test_the_version_says_what_computes_profiles(capsys, monkeypatch, library, off, said):
    monkeypatch.setattr(kernel, "library", lambda: library)
    monkeypatch.setenv("VPOC_KERNEL", off)
    assert vpoc(capsys, "--version") == (0, f"vpoc {__version__} ({said})\n", "")


@pytest.mark.parametrize(
    ("arguments", "old", "new"),
    [
        (["check", "none.csv"], "--warm-up", "--lookback"),
        (["check", "none.csv"], "--warm_up", "--lookback"),
        (["train", "--data", "none.csv", "--output", "x"], "--drill", "--inject-fault"),
        (["probe"], "--rung", "--check"),
    ],
)
def test_options_that_were_renamed_keep_their_old_names_unshown(capsys, arguments, old, new):
    """The old name is an alias, and an error about its value names the new option."""
    code, _, err = vpoc(capsys, *arguments, old, "1")
    assert (code, new in err, f"No such option: {old}" in err) == (2, True, False)
    assert old not in vpoc(capsys, arguments[0], "--help")[1]


def test_usage_errors(capsys, merged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--hidden-layers", "32,x")
    assert code == 2
    assert "such as 32,16" in err
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--name", "a/b")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--rows", "session", "--target", "up_30")
    assert code == 2
    assert err == "vpoc: --target up_30 is not known for --rows session; choose one of next_up, next_vpoc_touched\n"
    for command in ("train", "features", "verify"):
        code, _, err = vpoc(capsys, command, "--data", merged, "--output", f"x-{command}", "--as-of", "open")
        assert code == 2
        assert err == "vpoc: --as-of open is for --rows session: a bar row is always as of the bar's end\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message", "remedy"),
    [
        (["mrege"], "usage", "No such command 'mrege' (did you mean `vpoc merge`?)", "see `vpoc --help`"),
        (["lunch"], "usage", "No such command 'lunch'", "see `vpoc --help`"),
        (
            ["merge", "--bars", "a", "--bars", "b"],
            "usage",
            "--bars takes one file, 2 are given (joining: docs/data.md)",
            "see",
        ),
        (["train", "--epoch", "1"], "usage", "No such option '--epoch' (did you mean --epochs?)", "vpoc train --help"),
        (["check"], "usage", "Missing argument 'FILE'", "see `vpoc check --help`"),
        (
            ["check", "--data", "x"],
            "usage",
            "No such option '--data' (did you mean --dates?); FILE goes without one",
            "see `vpoc check --help`",
        ),
        (
            ["check", "x", "--lookback", "y"],
            "usage",
            "Invalid value for '--lookback': 'y' is not a whole number",
            "see",
        ),
        (["check", ""], "user-error", "an argument is empty, perhaps from an unset variable", "leave it out"),
        (["check", "x" * 300], "user-error", f"{'x' * 300}: the name is too long", "give a shorter one"),
        (["check", "/dev/zero"], "user-error", "/dev/zero: this is a pipe or a device", "give a file"),
        (["check", "none.csv"], "user-error", "none.csv: no such file or folder", "check the path"),
    ],
)
def test_an_error_is_one_line_and_with_json_also_an_object(capsys, arguments, code, message, remedy):
    line = vpoc(capsys, *arguments)
    assert line[:2] == (2, "")
    assert line[2].startswith(f"vpoc: {message}; ")
    assert line[2].count("\n") == 1
    _, out, err = vpoc(capsys, *arguments, "--json")
    told = json.loads(out)
    assert (told["schema"], told["error"]["code"], told["error"]["message"]) == (2, code, message)
    assert remedy in told["error"]["remedy"]
    assert err == line[2]


def test_completion_after_a_mistyped_command_prints_nothing():
    assert cli.resolve_command(click.Context(cli, resilient_parsing=True), ["mrege", "--data"])[0] is None


def test_what_a_message_quotes_is_no_command_to_a_terminal_and_of_bounded_length(capsys, merged, tmp_path):
    file = tmp_path / "bars.csv"
    head, row, rest = merged.read_text().split("\n", 2)
    cells = row.partition(",")[2]
    for stamp in ("\x1b]0;title\x07\x9b31m\u202e", "9" * 100_000):
        file.write_text(f"{head}\n{stamp},{cells}\n{rest}")
        for command in (
            ["check", file, "--lookback", 20],
            ["features", "--data", file, "--output", tmp_path / "features"],
        ):
            code, out, err = vpoc(capsys, *command)
            assert code
            last = err.splitlines()[-1]
            assert "line 2: ts is" in last
            assert "correct or remove the row" in last
            assert last.isprintable()
            assert len(out) + len(err) < 10_000


def test_synth(capsys, tmp_path):
    path = tmp_path / "s.csv"
    code, out, _ = vpoc(capsys, "synth", "--output", path, "--sessions", 2)
    assert code == 0
    assert f"{2 * BARS} rows, 2 sessions, sha256 " in out
    assert path.read_text().count("\n") == 2 * BARS + 1


def test_check(capsys, merged, tmp_path):
    code, out, err = vpoc(capsys, "check", merged, "--lookback", 20)
    assert (code, err) == (0, "")
    assert "complete rth sessions    26" in out
    assert "\noutside trading hours " in out
    head, *lines = merged.read_text().splitlines()
    (rolled := tmp_path / "rolled.csv").write_text(
        "\n".join([f"{head},symbol", *(f"{line},ES{'HM'[place >= 20 * 138]}8" for place, line in enumerate(lines))])
    )
    told = vpoc(capsys, "check", rolled, "--lookback", 20)[1]
    assert ", new symbol yes, roll by CME's calendar no, from ESH8, to ESM8, jump in points " in told
    code, out, _ = vpoc(capsys, "check", merged, "--lookback", 20, "--json")
    facts = json.loads(out)
    assert (code, facts["rows"], facts["bar_seconds"], facts["errors"]) == (0, 26 * 138, 600, [])
    short = tmp_path / "short.csv"
    short.write_text("".join(merged.read_text().splitlines(keepends=True)[:500]))
    code, _, err = vpoc(capsys, "check", short)
    assert code == 1
    assert (
        "63 complete sessions are needed (60 for lookback, 3 to use), the file has 3; give more data, such as " in err
    )
    assert "newer.csv >> older.csv`), or a --lookback of 20 to 23\n" in vpoc(capsys, "check", merged)[2]
    # The sessions after a roll give no rows.
    rolled.write_text(
        "\n".join([f"{head},symbol", *(f"{line},ES{'HM'[place >= 24 * 138]}8" for place, line in enumerate(lines))])
    )
    for lookback in (22, 60):
        assert vpoc(capsys, "check", rolled, "--lookback", lookback)[2].endswith(", or a --lookback of 20 to 21\n")


def test_check_counts_for_the_rows_asked_for(capsys, merged, tmp_path):
    short = tmp_path / "short.csv"
    short.write_text("".join(merged.read_text().splitlines(keepends=True)[: 1 + 23 * 138]))
    assert vpoc(capsys, "check", short, "--lookback", 20)[0] == 0
    code, _, err = vpoc(capsys, "check", short, "--lookback", 20, "--rows", "session")
    assert code == 1
    assert "24 complete sessions are needed" in err


def test_check_tells_what_gaps_cost(capsys, merged, tmp_path):
    holed = tmp_path / "holed.csv"
    lines = merged.read_text().splitlines(keepends=True)
    del lines[1 + 17 * 138 + 100 : 1 + 18 * 138]
    holed.write_text("".join(lines))
    _, out, _ = vpoc(capsys, "check", holed, "--lookback", 20, "--json")
    facts = json.loads(out)
    assert (facts["complete_rth_sessions"], facts["sessions_after_a_gap"]) == (25, 2)


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


@pytest.mark.slow
def test_a_command_ends_at_once_after_what_it_wrote_is_out(merged, tmp_path):
    """All output arrives through a pipe, and the exit status reports a failed write, such as one to a full disk."""
    command = [sys.executable, "-c", "from vpoc.cli import main; main()"]
    done = subprocess.run([*command, "probe", "--list"], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.startswith("import ")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*command, "--version"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode not in {0, 2}
    assert subprocess.run([*command, "check", tmp_path / "none.csv"], capture_output=True, check=False).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [True, False])
def test_what_a_gpu_was_used_by_is_taken_apart(gpu):
    """After a GPU was used, its libraries shut down normally, so that a hang in them is seen."""
    program = f"""
import os, sys, torch
from vpoc.cli import main
class Held:
    def __del__(self, write=os.write):
        write(1, b"taken apart")
held = Held()
torch.cuda.is_initialized = lambda: {gpu}
sys.argv[1:] = ["--help"]
main()
"""
    environment = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ("taken apart" in done.stdout) is gpu


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


def test_a_model_predicts_by_the_options_it_was_trained_with(capsys, merged, other_merged, tmp_path):
    chosen = ["--rows", "session", "--as-of", "open", "--target", "next_up", "--rolls", "none"]
    train = ["--data", merged, *SMALL, *chosen, "--epochs", 1, "--output", tmp_path, "--name", "m"]
    assert vpoc(capsys, "train", *train)[0] == 0
    arguments = ["--model", tmp_path / "m.pt", "--data", other_merged, "--output", tmp_path / "p.csv"]
    code, told, _ = vpoc(capsys, "predict", *arguments)
    assert code == 0
    # Validation sessions count as seen as well.
    assert told.endswith("of sessions that it was trained or validated on\n")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    beside = ["known_at", "in_training", "close", "vpoc", "vah", "val", "probability"]
    assert (list(rows[0]), len(rows)) == (["trade_date", *beside], 5)
    # The rows are as of the open of the next regular hours.
    assert all(row["known_at"].endswith("T14:30:00Z") and row["known_at"] > row["trade_date"] for row in rows)
    _, out, _ = vpoc(capsys, "check-model", tmp_path / "m.pt", "--json")
    facts = json.loads(out)
    assert (facts["rows"], facts["target"], len(facts["features"])) == ("session", "next_up", len(NAMES))


def test_from_data_to_prediction(capsys, merged, other_merged, tmp_path):
    """Options are spelled with underscores, another process makes the features, and the model is checked and used."""
    features, out_dir, run_dir = tmp_path / "f.parquet", tmp_path / "out", tmp_path / "run"
    data = tmp_path / "merged.csv"
    # The data without its last session.
    data.write_text("".join(merged.read_text().splitlines(keepends=True)[: 1 + 25 * 138]))
    assert vpoc(capsys, "features", "--data", data, "--output", features, "--lookback", 20)[0] == 0
    options = ["--data", data, "--features", features, *SMALL, "--batch_size", 8, "--hidden_layers", "8,4"]
    code, out, err = vpoc(capsys, "train", *options, "--output", out_dir, "--run_dir", run_dir, "--epochs", 1)
    assert (code, err) == (0, "")
    assert out.startswith("device ")
    result = json.loads((run_dir / "result.json").read_text())
    assert result["options"]["batch_size"] == 8
    assert result["options"]["target"] == "prior_vpoc_touched"
    first = json.loads((run_dir / "progress-0.jsonl").read_text().splitlines()[0])
    assert first["phase"] == "import"

    code, out, _ = vpoc(capsys, "verify", *options, "--output", tmp_path / "r.json", "--steps", 4)
    assert code == 0
    assert json.loads((tmp_path / "r.json").read_text())["steps"] == result["first_steps"][:4]

    model = out_dir / "merged.pt"
    code, out, _ = vpoc(capsys, "check-model", model, "--json")
    facts = json.loads(out)
    assert (code, facts["sha256"], facts["parameters"]) == (0, result["model"]["sha256"], 481)
    assert vpoc(capsys, "check_model", model)[0] == 0

    code, out, err = vpoc(capsys, "predict", "--model", model, "--data", other_merged, "--output", tmp_path / "p.csv")
    assert "trained or validated on\non sessions that it has not seen (1, with " in out
    assert "the data names no symbol, and the model was trained on data that names none: whether they belong" in err
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    beside = ["known_at", "in_training", "close", "vpoc", "vah", "val", "probability"]
    assert (code, list(rows[0]), len(rows)) == (0, ["trade_date", "ts", *beside], 6 * 39)
    assert rows[0]["known_at"] == rows[0]["ts"].replace("T14:30", "T14:40")
    assert all(0 < float(row["probability"]) < 1 for row in rows)
    assert rows[0]["ts"].endswith("T14:30:00Z")


@pytest.mark.slow
def test_predict_takes_a_file_of_bars_with_vix_as_it_is_and_says_whose_it_is_not(capsys, merged, tmp_path):
    """Such a file often lacks the symbol; a model of ES must not score NQ without a warning."""
    named, plain = tmp_path / "named.csv", tmp_path / "plain.csv"
    header, *lines = merged.read_text().splitlines()
    named.write_text("\n".join([f"{header},symbol", *(f"{line},ESH8" for line in lines)]) + "\n")
    plain.write_text(merged.read_text().replace("ts,open", "timestamp,open"))
    train = ["--data", named, *SMALL, "--epochs", 1, "--output", tmp_path, "--name", "m"]
    assert vpoc(capsys, "train", *train)[0] == 0
    predicted = []
    for data in (named, merged, plain):
        output = tmp_path / "p.csv"
        code, _, err = vpoc(capsys, "predict", "--model", tmp_path / "m.pt", "--data", data, "--output", output)
        said = "the data names no symbol, and the model was trained on ES: whether they belong together was not checked"
        assert (code, said in err.splitlines()) == (0, data != named)
        predicted.append(output.read_bytes())
    assert len(set(predicted)) == 1


def test_a_model_for_other_bars_is_refused(capsys, merged, tmp_path):
    vpoc(capsys, "train", "--data", merged, *SMALL, "--epochs", 1, "--output", tmp_path, "--name", "m")
    coarse = tmp_path / "coarse.csv"
    header, *lines = merged.read_text().splitlines(keepends=True)
    coarse.write_text(header + "".join(lines[::3]))
    out = tmp_path / "p.csv"
    code, _, err = vpoc(capsys, "predict", "--model", tmp_path / "m.pt", "--data", coarse, "--output", out)
    assert code == 2
    assert "trained on bars of 600 s, the data has bars of 1800 s" in err


@pytest.mark.parametrize(
    "option",
    [
        ["--learning-rate", "nan"],
        ["--learning-rate", "1.5"],
        ["--learning-rate", "0"],
        ["--data-fraction", "NaN"],
        ["--seed", 2**63],
        ["--batch-size", 2**31],
        ["--epochs", 2**31],
        ["--hidden-layers", "9" * 5000],
        ["--checkpoint-every", "inf"],
        ["--checkpoint-every", "nan"],
    ],
)
def test_numbers_out_of_bounds_are_usage_errors(capsys, merged, tmp_path, option):
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", tmp_path / "out", *option)
    assert code == 2
    assert f"Invalid value for '{option[0]}'" in err
    assert not (tmp_path / "out").exists()


def test_the_largest_numbers_are_taken(capsys, merged, tmp_path):
    options = ["--learning-rate", 1, "--seed", 2**63 - 1, "--batch-size", 2**31 - 1]
    assert vpoc(capsys, "train", "--data", merged, *SMALL, *options, "--epochs", 1, "--output", tmp_path)[0] == 0


def test_an_output_that_cannot_be_written_is_found_before_training(capsys, merged, tmp_path):
    (tmp_path / "file").touch()
    arguments = ["train", "--data", merged, *SMALL, "--run-dir", tmp_path / "run"]
    code, out, err = vpoc(capsys, *arguments, "--output", tmp_path / "file")
    assert (code, out, err.count("\n")) == (2, "", 1)
    (tmp_path / "out" / "m.pt").mkdir(parents=True)
    code, out, err = vpoc(capsys, *arguments, "--output", tmp_path / "out", "--name", "m")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "run").exists()


def test_no_command_writes_over_its_input(capsys, merged, tmp_path):
    data = tmp_path / "data.pt"
    data.write_bytes(merged.read_bytes())
    kept = tmp_path / "f.bars.parquet"
    kept.hardlink_to(data)
    for command in (
        ["features", "--data", data, "--lookback", 20, "--output", data],
        ["train", "--data", data, *SMALL, "--output", tmp_path],
        ["features", "--data", kept, "--lookback", 20, "--output", tmp_path / "f.parquet"],
        ["verify", "--data", data, *SMALL, "--output", data],
        ["merge", "--bars", data, "--vix", data, "--output", data],
        ["predict", "--model", data, "--data", merged, "--output", data],
    ):
        code, out, err = vpoc(capsys, *command)
        assert (code, out) == (2, "")
        assert "the same file as the input" in err
        assert err.count("\n") == 1
    assert data.read_bytes() == merged.read_bytes()


def test_a_run_folder_used_again(capsys, merged, tmp_path):
    """The command deletes the old result at once; features and training append to one progress file."""
    run, features = tmp_path / "run", tmp_path / "f.parquet"
    run.mkdir()
    (run / "result.json").write_text("old")
    assert vpoc(capsys, "features", "--data", merged, "--lookback", 20, "--output", features, "--run-dir", run)[0] == 0
    assert not (run / "result.json").exists()
    before = (run / "progress-0.jsonl").read_text()
    (run / "result.json").write_text("old")
    arguments = ["--data", merged, *SMALL, "--output", tmp_path, "--run-dir", run]
    code, _, _ = vpoc(capsys, "train", *arguments, "--features", tmp_path / "none.parquet")
    assert code == 2
    assert not (run / "result.json").exists()
    assert vpoc(capsys, "train", *arguments, "--features", features)[0] == 0
    assert json.loads((run / "result.json").read_text())["schema"] == 2
    assert (run / "progress-0.jsonl").read_text().startswith(before)


def test_an_unhealthy_model_predicts_nothing(capsys, merged, tmp_path):
    options = asdict(FeatureOptions(rows="bar", lookback=20))
    ones = [1.0] * len(NAMES)
    scaling = dict.fromkeys(("centre", "size", "low", "high"), ones)
    facts = {"model": "mlp", "hidden_layers": [4], "target": "up_30", "feature_options": options, "bar_seconds": 600}
    facts["scaling"] = scaling
    for weight, said in ((math.nan, "weights that are not finite"), (3e38, "answer is not finite for some rows")):
        network = fresh_network("mlp", len(NAMES), [4], 7)
        with torch.no_grad():
            network[0].weight[:2] = torch.tensor([[weight], [-weight]])
        (tmp_path / "m.pt").write_bytes(serialise(network.state_dict(), facts))
        arguments = ["--model", tmp_path / "m.pt", "--data", merged, "--output", tmp_path / "p.csv"]
        code, _, err = vpoc(capsys, "predict", *arguments)
        assert (code, err.count("\n")) == (1, 1)
        assert said in err
        assert not (tmp_path / "p.csv").exists()


def test_a_truncated_model_is_one_line_and_exit_1(capsys, tmp_path):
    (tmp_path / "m.pt").write_bytes(b"PK\x03\x04")
    code, _, err = vpoc(capsys, "check-model", tmp_path / "m.pt")
    assert (code, err.count("\n")) == (1, 1)


@pytest.mark.slow
def test_no_gpu_exits_3_also_by_environment(merged, tmp_path):
    command = [sys.executable, "-m", "vpoc", "train", "--data", merged, "--output", tmp_path]
    environment = {**os.environ, "VPOC_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "send"),
    [
        pytest.param(signal.SIGTERM, os.kill, marks=pytest.mark.long),
        (signal.SIGINT, os.killpg),
        pytest.param(signal.SIGTERM, os.killpg, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, os.kill, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_the_workers_and_says_one_line(merged, tmp_path, signum, send):
    command = [sys.executable, "-m", "vpoc", "train", "--data", merged, "--output", tmp_path / "out"]
    options = [
        "--lookback",
        "20",
        "--target",
        "prior_vpoc_touched",
        "--epochs",
        "100000",
        "--run-dir",
        tmp_path / "run",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, *options], **pipes, start_new_session=True)
    progress = tmp_path / "run" / "progress-0.jsonl"
    deadline = time.monotonic() + 60
    while not (progress.exists() and '"step"' in progress.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    send(process.pid, signum)
    try:
        # The pipes close only after the loader workers, which inherited them, have ended too.
        _, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 128 + signum
    assert err == f"vpoc: interrupted by {signal.Signals(signum).name}\n"
    # There may be a checkpoint, unless the loader workers ended before the step did.
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"merged_checkpoints"}


@pytest.mark.slow
def test_the_notes_command_works_from_an_empty_folder(capsys, merged, tmp_path, monkeypatch):
    """The command is the notes', without --output; other options that give the same batches give the same model."""
    data = tmp_path / "merged_es_vix_test.csv"
    data.write_text(merged.read_text().replace("ts,open", "timestamp,open"))
    monkeypatch.chdir(tmp_path)
    notes = ["--data", data, *SMALL, "--epochs", 1, "--learning_rate", 0.001, "--hidden_layers", "32,16"]
    assert vpoc(capsys, "train", *notes, "--batch_size", 8, "--accumulation_steps", 4)[0] == 0
    same = ["--batch-size", 32, "--micro-batch-size", 8, "--output", tmp_path / "other"]
    assert vpoc(capsys, "train", *notes, *same)[0] == 0
    models = [
        vpoc(capsys, "check-model", folder / f"{data.stem}.pt", "--json")[1]
        for folder in (tmp_path / "TRAINING", tmp_path / "other")
    ]
    assert len({json.loads(model)["weights_sha256"] for model in models}) == 1
    code, _, err = vpoc(capsys, "train", *notes, "--accumulation-steps", 4, "--micro-batch-size", 8)
    assert (code, "say the same; give one of them" in err) == (2, True)
