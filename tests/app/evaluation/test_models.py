import numpy as np
import pytest

from vpoc.errors import UserError
from vpoc.evaluation.models import LOGISTIC_FEATURES, all_models, fit_conditional, fit_constant, standardised
from vpoc.features.table import NAMES


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


def test_what_each_model_sees(made):
    rows = made(10)
    constant, conditional, logistic, network = all_models(rows, fit_constant)
    assert constant.inputs.shape == (10, 0)
    assert (conditional.inputs[:, 0] == rows.places).all()
    assert LOGISTIC_FEATURES == ("vpoc_dist", "close_vs_va", "vix_z20")
    assert (logistic.inputs == rows.inputs[:, [NAMES.index(name) for name in LOGISTIC_FEATURES]]).all()
    assert network.inputs is rows.inputs


def test_columns_are_standardised_by_the_rows_that_are_fitted_and_no_others():
    seen = []

    def keep(inputs, labels, weights, seed):
        seen.append(inputs)
        return lambda given: seen.append(given) or np.zeros(len(given))

    train = np.array([[1.0, 7], [3, 7]], dtype=np.float32)
    predict = standardised(keep)(train, np.ones(2), np.ones(2), 0)
    predict(np.array([[2.0, 8]]))
    predict(np.array([[2.0, 8], [1e6, -1e6]]))
    assert seen[0].tolist() == [[-1, 0], [1, 0]]
    assert seen[1].tolist() == [[0, 0]]
    assert seen[2][0].tolist() == [0, 0]


def test_a_column_that_varies_by_rounding_alone_counts_as_still():
    predict = standardised(lambda inputs, *_: lambda given: given[:, 0])(
        np.array([[0.1], [0.1 + 1e-8]]), np.ones(2), np.ones(2), 0
    )
    assert predict(np.array([[5.0]])).tolist() == [0]


def test_the_network_depends_on_the_seed_alone(made, network):
    rows = made(60)
    arguments = rows.inputs, rows.labels, rows.weights
    first, again, other = (network()(*arguments, seed)(rows.inputs) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).all()
    assert first.dtype == np.float64


def test_rows_without_weight_do_not_train_the_network(made, network):
    rows = made(64)
    weights = np.where(np.arange(64) < 32, 1.0, 0.0)
    one, two = (
        network(batch_size=64)(rows.inputs, np.where(weights > 0, rows.labels, other), weights, 1)(rows.inputs)
        for other in (0.0, 1.0)
    )
    assert (one == two).all()


def test_a_network_that_diverges_is_told(made, network):
    rows = made(60)
    with pytest.raises(UserError, match="weights of the network are not finite; lower --learning-rate") as caught:
        network(learning_rate=1e37)(rows.inputs, rows.labels, rows.weights, 1)
    assert caught.value.exit_code == 4
