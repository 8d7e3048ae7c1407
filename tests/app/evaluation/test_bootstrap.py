import numpy as np
import pytest

from vpoc.evaluation.bootstrap import Bootstrap, by_session, run_length


def coverage(draw, truth, sessions, run, times=200):
    random = np.random.default_rng(1)
    inside = 0
    for number in range(times):
        top, bottom = draw(random, sessions)
        found = Bootstrap.draw(sessions, run, 300, number).ratio(top, bottom)
        inside += found.low <= truth <= found.high
    return inside / times


def independent(random, sessions):
    bottom = random.integers(1, 6, sessions).astype(float)
    return bottom * (random.exponential(size=sessions) - 0.7), bottom


def following(random, sessions):
    """Return the values of sessions, each correlated with the one before, and weights of 1."""
    noise = random.normal(size=sessions + 50)
    values = np.convolve(noise, 0.5 ** np.arange(30), "valid")[-sessions:]
    return values, np.ones(sessions)


@pytest.mark.slow
def test_an_interval_holds_the_truth_about_as_often_as_it_says():
    assert 0.91 <= coverage(independent, 0.3, sessions=80, run=1) <= 0.985
    assert 0.88 <= coverage(following, 0.0, sessions=240, run=run_length(240, 1)) <= 0.985


@pytest.mark.slow
def test_single_sessions_are_too_sure_where_sessions_follow_each_other():
    assert coverage(following, 0.0, sessions=240, run=1) < 0.85


def test_few_runs_widen_the_interval():
    random = np.random.default_rng(2)
    values = random.normal(size=12)
    found = Bootstrap.draw(12, 4, 2000, 1)
    plain = np.quantile(found.sums(values[:, None])[:, 0] / 12, [0.025, 0.975])
    wide = found.ratio(values, np.ones(12))
    assert wide.low < plain[0] < plain[1] < wide.high
    assert Bootstrap.draw(2000, 1, 100, 1).tail == pytest.approx(0.025, abs=1e-4)


def test_runs_are_of_neighbours_and_every_session_is_as_likely():
    counts = Bootstrap.draw(20, 5, 4000, 3).counts
    assert (counts.sum(axis=1) == 20).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(20), abs=0.06)
    together = (counts > 0).astype(float)
    near = (together[:, 3] * together[:, 4]).mean() - together[:, 3].mean() * together[:, 4].mean()
    far = (together[:, 3] * together[:, 13]).mean() - together[:, 3].mean() * together[:, 13].mean()
    assert near > 0.1
    assert far < 0.02


def test_a_length_that_is_no_multiple_of_the_run_draws_as_many_sessions():
    assert (Bootstrap.draw(7, 3, 50, 1).counts.sum(axis=1) == 7).all()


def test_the_same_seed_gives_the_same_draws():
    draws = [Bootstrap.draw(30, 5, 200, seed).counts for seed in (4, 4, 5)]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()


@pytest.mark.parametrize(
    ("sessions", "reach", "run"), [(300, 0, 1), (50, 1, 5), (343, 1, 7), (5000, 1, 10), (6, 1, 3), (1, 1, 1)]
)
def test_how_many_sessions_are_drawn_together(sessions, reach, run):
    assert run_length(sessions, reach) == run


def test_sums_by_session():
    sums = by_session(np.array([4, 4, 6]), np.array([[1.0, 10], [2, 20], [4, 40]]))
    assert sums.tolist() == [[3, 30], [4, 40]]


def test_replicates_without_weight_are_left_out():
    found = Bootstrap.draw(4, 1, 500, 1).ratio(np.array([1.0, 0, 0, 0]), np.array([1.0, 0, 0, 0]))
    assert (found.value, found.low, found.high) == (1, 1, 1)
