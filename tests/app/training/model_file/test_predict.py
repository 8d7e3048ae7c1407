from dataclasses import replace

import numpy as np
import pytest
import torch

from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.progress import Progress
from vpoc.training.inputs.samples import inputs_of
from vpoc.training.model_file import predict as predicting
from vpoc.training.model_file.artefact import load_model
from vpoc.training.model_file.predict import predict
from vpoc.training.run import train


@pytest.fixture(scope="module")
def features(merged):
    return build_features(load_bars(merged), FeatureOptions(rows="bar", lookback=20))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "window"), [("mlp", 1), ("attention-small", 32)])
def test_each_row_is_judged_by_itself_and_the_rows_before(options, tmp_path, features, monkeypatch, kind, window):
    train(options(model=(kind,), epochs=1, batch_size=32), tmp_path, "m", Progress(None), lambda _: None)
    loaded = load_model(tmp_path / "m.pt")
    monkeypatch.setattr(predicting, "WINDOWS_AT_A_TIME" if window > 1 else "ROWS_AT_A_TIME", 7)
    found, _ = predict(loaded, features)
    rows = loaded.scaling.apply(inputs_of(features.frame))
    assert found.height == len(rows) - window + 1
    assert found["ts"].to_list() == features.frame["ts"].to_list()[window - 1 :]
    for place in (0, 6, 7, found.height - 1):
        sample = rows[place] if window == 1 else rows[place : place + window]
        with torch.no_grad():
            expected = torch.sigmoid(loaded.model(torch.from_numpy(np.array(sample))[None])).item()
        assert found["probability"][place] == pytest.approx(expected, rel=1e-5)
    half = (predict(loaded, features, half=True)[0]["probability"] - found["probability"]).abs()
    assert 0 < half.max() < 0.02


@pytest.mark.slow
def test_too_few_rows_for_a_window_are_one_line(options, tmp_path, features):
    train(options(model=("attention-small",), epochs=1, batch_size=64), tmp_path, "m", Progress(None), lambda _: None)
    with pytest.raises(UserError, match="31 rows, and the model looks at 32 at a time"):
        predict(load_model(tmp_path / "m.pt"), replace(features, frame=features.frame[:31]))
