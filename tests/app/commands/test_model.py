"""Tests of models that are applied: from data to prediction, and what is refused."""

import csv
import json
import math
from dataclasses import asdict

import pytest
import torch

from tests.app.commands.in_process import SMALL, vpoc
from vpoc.data.synth import synthetic_csv
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.models.by_name import fresh_network
from vpoc.training.model_file.artefact import serialise


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


def test_from_single_trades_to_prediction(capsys, merged, tmp_path):
    """Their bars have no length."""
    rows = list(csv.DictReader(synthetic_csv(24, 7).decode().splitlines()))
    trades = ({**row, **dict.fromkeys(("open", "high", "low"), row["close"])}.values() for row in rows)
    data, model, predicted = tmp_path / "trades.csv", tmp_path / "m.pt", tmp_path / "p.csv"
    data.write_text("\n".join([",".join(rows[0]), *map(",".join, trades), ""]))
    chosen = ["--rows", "session", "--target", "next_up", "--epochs", 1]
    train = ["--data", data, *SMALL, *chosen, "--output", tmp_path, "--name", "m"]
    assert vpoc(capsys, "train", *train)[0] == 0
    assert vpoc(capsys, "check-model", model)[0] == 0
    assert vpoc(capsys, "predict", "--model", model, "--data", data, "--output", predicted)[0] == 0
    code, _, err = vpoc(capsys, "predict", "--model", model, "--data", merged, "--output", predicted)
    assert (code, "trained on single trades, the data has bars of 600 s" in err) == (2, True)


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
