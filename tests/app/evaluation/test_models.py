import numpy as np
import pytest

from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.evaluation.models import LOGISTIC_FEATURES, all_models, fit_conditional, fit_constant, fit_linear, scaled
from vpoc.evaluation.network import NetworkFit
from vpoc.evaluation.rows import rows_of
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.models.by_name import window_of
from vpoc.progress import Progress
from vpoc.training.model_file.artefact import load_model
from vpoc.training.model_file.predict import predict
from vpoc.training.run import train


def test_the_constant_is_the_weighted_rate_drawn_to_a_half():
    predict = fit_constant(np.empty((3, 0)), np.array([1.0, 1, 0]), np.array([1.0, 2, 4]), 0)
    assert predict(np.empty((2, 0))).tolist() == [3.5 / 8] * 2


def test_the_conditional_rate_is_that_of_the_place_and_the_overall_one_where_there_is_none():
    places = np.array([[0], [0], [1], [1]])
    predict = fit_conditional(places, np.array([1.0, 1, 0, 1]), np.array([10.0, 10, 30, 10]), 0)
    overall = 30.5 / 61
    assert predict(np.array([[0], [1], [3]])) == pytest.approx(
        [(20 + overall) / 21, (10 + overall) / 41, overall], abs=1e-15
    )


def test_what_each_model_sees(make_rows, network):
    rows = make_rows(10)
    constant, conditional, logistic, linear, other = all_models(rows, network(rows))
    assert constant.inputs.shape == (10, 0)
    assert (conditional.inputs[:, 0] == rows.places).all()
    assert LOGISTIC_FEATURES == ("vpoc_dist", "close_vs_va", "vix_z20")
    assert (logistic.inputs == rows.inputs[:, [NAMES.index(name) for name in LOGISTIC_FEATURES]]).all()
    assert linear.inputs is rows.inputs
    assert other.inputs[:, 0].tolist() == list(range(10))


def test_columns_are_scaled_by_the_rows_that_are_fitted_and_no_others():
    seen = []

    def keep(inputs, labels, weights, seed):
        seen.append(inputs)
        return lambda given: seen.append(given) or np.zeros(len(given))

    train = np.array([[1.0, 7], [2, 7], [3, 7], [4, 7]], dtype=np.float32)
    predict = scaled(keep)(train, np.ones(4), np.ones(4), 0)
    predict(np.array([[3.0, 8]]))
    predict(np.array([[3.0, 8], [1e6, -1e6]]))
    assert train.tolist() == [[1, 7], [2, 7], [3, 7], [4, 7]]
    assert seen[0][:, 0] == pytest.approx(np.array([-2, -1, 0, 1]) * 1.349 / 2)
    assert (seen[0][:, 1] == 0).all()
    assert seen[1].tolist() == [[0, 0]]
    assert seen[2].tolist() == [[0, 0], [5, 0]]


def test_many_coefficients_are_small_unless_there_is_much_to_tell(make_rows):
    """One of 54 columns carries information: with few rows, the other 53 must not be fitted to noise."""
    for sessions, least in ((100, 0.0), (5000, 0.02)):
        rows, later = (make_rows(sessions, edge=0.5, seed=seed) for seed in (1, 2))
        predict = fit_linear(rows.inputs, rows.labels, rows.weights, 0)
        p = np.clip(predict(later.inputs), 1e-6, 1 - 1e-6)
        loss = -np.where(later.labels > 0, np.log(p), np.log(1 - p)).mean()
        assert np.log(2) - loss > least - 0.02


def test_the_network_depends_on_the_seed_alone(make_rows, network):
    rows = make_rows(60)
    numbers = np.arange(60)[:, None]
    first, again, other = (network(rows)(numbers, rows.labels, rows.weights, seed)(numbers) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).all()
    assert first.dtype == np.float64


def test_rows_without_weight_do_not_train_the_network(make_rows, network):
    rows = make_rows(64)
    numbers, weights = np.arange(64)[:, None], np.where(np.arange(64) < 32, 1.0, 0.0)
    one, two = (
        network(rows, keep="last", patience=0)(numbers, np.where(weights > 0, rows.labels, other), weights, 1)(numbers)
        for other in (0.0, 1.0)
    )
    assert (one == two).all()


def test_a_network_that_diverges_is_reported(make_rows, network):
    rows = make_rows(60)
    with pytest.raises(UserError, match="lower --learning-rate") as caught:
        network(rows, learning_rate=1e37)(np.arange(60)[:, None], rows.labels, rows.weights, 1)
    assert caught.value.exit_code == 4


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "attention-small"])
def test_the_network_is_that_of_a_training_with_the_same_samples(options, merged, tmp_path, model):
    """Weights, scaling and answers equal those of `vpoc train` on the same sessions."""
    chosen = options(model=(model,), keep="best", patience=1, batch_size=32, loop="resident", epochs=2)
    train(chosen, tmp_path, "m", Progress(None), lambda _line: None)
    loaded = load_model(tmp_path / "m.pt")
    features = build_features(load_bars(merged), FeatureOptions(rows="bar", lookback=20))
    rows, samples = rows_of(features, chosen.target, window_of(model))
    before = rows.span(0, len(rows.dates) - 1)
    numbers = np.arange(before.stop)[:, None]
    single = rows_of(features, chosen.target)[1]
    fit = NetworkFit(samples, single, chosen, features, purge=False)
    made = fit(numbers, rows.labels[before], rows.weights[before], chosen.seed)
    later = np.arange(before.stop, len(rows))[:, None]
    wanted = predict(loaded, features)[0]["probability"].to_numpy()[samples.ends[before.stop :] - samples.window + 1]
    assert made(later) == pytest.approx(wanted, abs=1e-6)
