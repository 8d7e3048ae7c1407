from math import log

import polars as pl

from vpoc.evaluation.unseen import forecast_in_words, unseen_in_words

NAN, FEW = float("nan"), ", but fewer than 10 sessions show nothing"


def sentence_about_unseen(in_training, moved, window=1):
    """Return the sentence about five session rows, all with probability 0.8; `in_training` says which the model saw."""
    frame = pl.DataFrame({"trade_date": range(20000, 20005), "next_up": moved})
    found = frame.select("trade_date", pl.Series("in_training", in_training), probability=pl.lit(0.8))
    return unseen_in_words(found[window - 1 :], frame, "next_up")


def test_a_model_is_scored_on_what_came_in_sessions_that_it_has_not_seen():
    # The model has seen the second session, and the last session has no outcome yet.
    moved = [1.0, 0.0, 1.0, 0.0, NAN]
    sentence = sentence_about_unseen([False, True, False, False, False], moved)
    loss, rate = -(2 * log(0.8) + log(0.2)) / 3, -(2 * log(2 / 3) + log(1 / 3)) / 3
    scored = f"log-loss {loss:.4f}; always answering their own rate, 0.667, has {rate:.4f}: no better{FEW}"
    assert sentence == f"on sessions that it has not seen (3, with 3 known outcomes): {scored}"
    # With a window of two, the first row is left out because no row precedes it.
    assert "(2, with 2 known outcomes)" in sentence_about_unseen([False, True, False, False, False], moved, window=2)


def test_a_model_may_answer_better_than_any_constant():
    for sessions, what in ((8, FEW), (10, ", whether by luck `vpoc evaluate` says")):
        found = pl.DataFrame({"in_training": [False] * sessions, "probability": [0.9, 0.1] * (sessions // 2)})
        came = pl.DataFrame({"trade_date": range(sessions), "next_up": [1.0, 0.0] * (sessions // 2)})
        assert unseen_in_words(found, came, "next_up").endswith(f"has 0.6931: better{what}")


def test_nothing_is_said_where_every_session_was_seen_or_may_have_been_or_nothing_came_yet():
    assert (
        sentence_about_unseen([True] * 5, [1.0] * 5)
        == sentence_about_unseen([None] * 5, [1.0] * 5)
        == sentence_about_unseen([False] * 5, [NAN] * 5)
        == ""
    )


def test_the_session_to_come_is_forecast_where_its_outcome_is_not_known_yet():
    found = pl.DataFrame({"trade_date": ["2026-04-27", "2026-04-28"], "probability": [0.4, 0.527]})
    said = [forecast_in_words(found, pl.DataFrame({"next_up": [1.0, last]}), "next_up") for last in (None, 0.0)]
    assert said == ["forecast of the session after 2026-04-28: next_up with probability 0.527", ""]
