import json

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
import torch

from vpoc.cli import run
from vpoc.data.synth import synthetic_csv
from vpoc.evaluation import evaluate_file as command
from vpoc.evaluation.all_folds import evaluate
from vpoc.evaluation.bootstrap import Interval
from vpoc.evaluation.document import document
from vpoc.evaluation.figure import draw_evaluation
from vpoc.evaluation.placebo import Placebo
from vpoc.evaluation.report import markdown, summary
from vpoc.evaluation.walk_forward import Lengths
from vpoc.terminal import folded

FILES = {"evaluation.json", "evaluation.md", "evaluation.png"}
NOTES = {f".{name}.vpoc.json" for name in FILES}
MODELS = {"constant", "conditional", "logistic", "linear", "network"}


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Return a file with a random walk without any edge: 240 sessions of half-hour bars."""
    frame = pl.read_csv(synthetic_csv(240, 7), infer_schema_length=None)
    ts = pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%SZ")
    parts = {"first": ("open", "vix"), "last": ("close",), "max": ("high",), "min": ("low",), "sum": ("volume",)}
    frame = (
        frame.with_columns(ts)
        .group_by_dynamic("ts", every="30m")
        .agg(getattr(pl.col(name), part)() for part, names in parts.items() for name in names)
    )
    path = tmp_path_factory.mktemp("walk") / "walk.csv"
    frame.select("ts", "open", "high", "low", "close", "volume", "vix").write_csv(
        path, datetime_format="%Y-%m-%dT%H:%M:%SZ", float_precision=2
    )
    return path


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def vpoc(capsys, *arguments):
    code = run(["evaluate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


SESSIONS = ("--rows", "session", "--as-of", "open", "--lookback", "20", "--target", "next_up", "--bootstrap", "200")


@pytest.mark.slow
def test_a_random_walk_has_no_edge(walk, tmp_path, capsys):
    code, out, err = vpoc(capsys, "--data", walk, *SESSIONS, "--output", tmp_path / "a")
    assert (code, err) == (0, "")
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES | NOTES
    found = json.loads((tmp_path / "a" / "evaluation.json").read_text())
    assert (found["schema"], found["verdict"]["outcome"]) == (3, "not-enough-sessions")
    assert "\n".join(found["verdict"]["answers"]) in out
    assert found["plan"]["lowered"].startswith(f"{found['sample']['sessions']} sessions have a label, and 500")
    for part in ("pooled", "held_out"):
        assert set(found[part]["models"]) == MODELS
        assert set(found[part]["network_less_baseline"]) == MODELS - {"network"}
        for interval in found[part]["network_less_baseline"].values():
            assert interval["log_loss"]["low"] <= interval["log_loss"]["value"] <= interval["log_loss"]["high"]
    assert found["placebo"]["better_than_chance"] == []
    assert (tmp_path / "a" / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "a" / "evaluation.md").read_text()
    assert all(f"**{answer}**" in report for answer in found["verdict"]["answers"])
    assert "lowered in proportion" in report

    # Evaluate once more with features that were made before: the numbers are the same, and JSON goes to the terminal.
    features = tmp_path / "features.parquet"
    made = [
        "features",
        "--data",
        walk,
        "--output",
        features,
        "--rows",
        "session",
        "--as-of",
        "open",
        "--lookback",
        "20",
    ]
    assert run(list(map(str, made))) == 0
    capsys.readouterr()
    again = tmp_path / "b"
    code, out, err = vpoc(capsys, "--data", walk, "--features", features, *SESSIONS, "--json", "--output", again)
    assert (code, err) == (0, "")
    assert out == (again / "evaluation.json").read_text()
    second = json.loads(out)
    assert second["options"].pop("features") == str(features)
    assert found["options"].pop("features") is None
    assert second == found
    assert (again / "evaluation.png").read_bytes() == (tmp_path / "a" / "evaluation.png").read_bytes()
    other = ("--data", walk, "--features", features, *SESSIONS, "--placement", "close", "--output", again)
    assert "made with placement uniform, but this run has placement close" in vpoc(capsys, *other)[2]
    assert (again / "evaluation.md").read_bytes() == (tmp_path / "a" / "evaluation.md").read_bytes()


@pytest.mark.slow
def test_bar_rows(walk, tmp_path, capsys):
    options = ("--target", "prior_vpoc_touched", "--lookback", "20", "--bootstrap", "100", "--data-fraction", "0.4")
    code, out, _ = vpoc(capsys, "--data", walk, *options, "--json", "--output", tmp_path)
    assert code == 0
    found = json.loads(out)
    assert (found["rows"], found["options"]["epochs"], found["pooled"]["sessions_drawn_together"]) == ("bar", 3, 1)
    assert found["sample"]["rows"] > found["sample"]["sessions"]
    assert found["sample"]["weight"] == pytest.approx(found["sample"]["sessions"], rel=1e-4)
    assert sum(found["sample"]["open_places"].values()) == found["sample"]["rows"]


@pytest.mark.slow
def test_answers_that_leak_are_exit_status_5(walk, tmp_path, capsys, monkeypatch):
    leak = Placebo({"network": (Interval(-0.2, -0.3, -0.1),) * 3}, ("network",))
    monkeypatch.setattr("vpoc.evaluation.all_folds.run_placebos", lambda *_, **__: leak)
    code, out, err = vpoc(capsys, "--data", walk, *SESSIONS, "--output", tmp_path)
    assert code == 5
    assert err.startswith("vpoc: not valid: the network scored better than chance on shuffled labels, 3 times of 3")
    assert "not valid" in out
    assert "BETTER THAN CHANCE: network" in (tmp_path / "evaluation.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (
            ("--target", "up_30", "--rows", "session"),
            2,
            "--target up_30 is not known for --rows session; choose one of",
        ),
        (("--rows", "bar", "--as-of", "open"), 2, "--as-of open is for --rows session"),
        (("--first-sessions", "10", *SESSIONS), 2, "4 train, where 8 must; give more data"),
        (("--rows", "bar", "--lookback", "20"), 2, "--target up_30 looks 30 bars ahead"),
    ],
)
def test_what_a_person_can_put_right_is_one_line(walk, tmp_path, capsys, options, code, message):
    found, out, err = vpoc(capsys, "--data", walk, "--output", tmp_path / "new", *options)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_not_there(walk, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = vpoc(capsys, "--data", walk, "--device", "cuda", "--output", tmp_path / "new", *SESSIONS)
    assert (code, err.count("\n"), list(tmp_path.iterdir())) == (3, 1, [])


def test_the_data_is_not_written_over(walk, tmp_path, capsys):
    data = tmp_path / "evaluation.json"
    data.write_bytes(walk.read_bytes())
    code, _, err = vpoc(capsys, "--data", data, "--output", tmp_path, *SESSIONS)
    assert code == 2
    assert "same file as the input" in err


@pytest.fixture
def evaluated(make_rows, in_place_of_network):
    def make(**chosen):
        rows = make_rows(**chosen)
        lengths = Lengths(first=120, block=50, held_out=60)
        found = evaluate(rows, in_place_of_network(rows), lengths, replicates=200, seed=1)
        return document(
            found,
            lengths,
            200,
            {"target": "next_up", "rows": "session", "out_of_range": ["vix (3.0 %)"], "notes": ["a note"]},
        )

    return make


def test_the_picture_shows_the_numbers(evaluated):
    found = evaluated(edge=2.0)
    with mpl.rc_context():
        left, right = draw_evaluation(found).axes
    for name in ("conditional", "logistic", "linear", "network"):
        (line,) = [line for line in left.lines if line.get_gid() == f"calibration-{name}"]
        bins = found["pooled"]["models"][name]["calibration"]["bins"]
        assert np.asarray(line.get_xdata()).tolist() == [b["predicted"] for b in bins]
        assert np.asarray(line.get_ydata()).tolist() == [b["observed"]["value"] for b in bins]
    for name in MODELS:
        lines = {line.get_gid(): line for line in right.lines}
        losses = [fold["models"][name]["log_loss"] for fold in found["folds"]]
        assert np.asarray(lines[f"folds-{name}"].get_ydata()).tolist() == losses
        held_out = found["held_out"]["models"][name]["log_loss"]["value"]
        assert np.asarray(lines[f"held-out-{name}"].get_ydata()).tolist() == [held_out]


def test_the_table_and_the_report_show_the_numbers(evaluated):
    found = evaluated(edge=2.0)
    table, report = summary(found), markdown(found)
    assert all("Of the data: a note." in text for text in (table, report))
    for name in MODELS:
        line, *less = [line for line in table.splitlines() if line.startswith(f"{name} ")]
        assert f"{found['pooled']['models'][name]['log_loss']['value']:.4f} (" in line
        assert f"{found['held_out']['models'][name]['log_loss']['value']:.4f}" in line
        assert len(less) == (name != "network")
        for part in ("pooled", "held_out") if less else ():
            assert f"{found[part]['network_less_baseline'][name]['log_loss']['value']:+.4f} (" in less[0]
    for fold in found["folds"]:
        assert f"| {fold['tested']['first_date']} to {fold['tested']['last_date']} |" in report
    for gain in found["placebo"]["gains"]["network"]:
        assert f"{gain['value']:+.4f} (" in report
    assert "No model was better than chance, as it should be." in report
    assert table.splitlines()[-2:] == list(found["verdict"]["answers"])


def test_nothing_is_torn_on_a_terminal_of_80_columns(evaluated, monkeypatch):
    table = summary(evaluated(edge=2.0))
    assert folded(table) == table
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = folded(table).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(table.splitlines())
    assert " ".join(lines).split() == table.split()


@pytest.mark.slow
def test_the_options_of_the_network_reach_it(walk, tmp_path, capsys, monkeypatch):
    seen = []
    kind = command.NetworkFit

    def keep(samples, single, options, *more, **chosen):
        seen.append(options)
        return kind(samples, single, options, *more, **chosen)

    monkeypatch.setattr(command, "NetworkFit", keep)
    chosen = ("--epochs", "1", "--batch-size", "9", "--learning-rate", "0.5", "--hidden-layers", "3,2", "--seed", "8")
    code, _, _ = vpoc(capsys, "--data", walk, *SESSIONS, *chosen, "--output", tmp_path)
    assert code == 0
    (found,) = seen
    assert (found.model, found.epochs, found.batch_size) == (("mlp",), 1, 9)
    assert (found.learning_rate, found.hidden_layers, found.seed) == (0.5, (3, 2), 8)
    assert (found.keep, found.patience, found.weight_decay, found.clip_norm) == ("best", 2, 0.01, 1.0)
