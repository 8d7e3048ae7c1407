import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vpoc.errors import UserError
from vpoc.evaluation.walk_forward import FEWEST_TRAINING, Fold, Lengths, plan


def planned(sessions, lengths, reach):
    try:
        return plan(sessions, lengths, reach)
    except UserError:
        assume(False)


@given(
    sessions=st.integers(0, 2000),
    first=st.integers(1, 600),
    block=st.integers(1, 100),
    embargo=st.integers(0, 20),
    reach=st.integers(0, 2),
)
def test_no_training_label_looks_into_the_embargo_and_every_session_is_tested_once(
    sessions, first, block, embargo, reach
):
    found = planned(sessions, Lengths(first, block, embargo=embargo), reach)
    folds = (*found.folds, found.held_out)
    assert len(found.folds) >= 3
    for fold in folds:
        last_seen = fold.train_stop - 1 + reach
        assert last_seen < fold.start - embargo
        assert last_seen + 1 == fold.start - embargo
        assert FEWEST_TRAINING <= fold.train_stop <= fold.start < fold.stop
    assert [fold.start for fold in folds[1:]] == [fold.stop for fold in folds[:-1]]
    assert folds[-1].stop == sessions
    assert folds[0].start == found.lengths.first <= first
    assert found.held_out.stop - found.held_out.start == found.lengths.held_out <= 126
    assert (found.lowered is None) == (sessions >= first + 3 * block + 126)
    if found.lowered is None:
        assert found.lengths == Lengths(first, block, embargo=embargo)
        sizes = [fold.stop - fold.start for fold in found.folds]
        assert set(sizes[:-1]) == {block}
        assert block / 2 <= sizes[-1] < 1.5 * block


def test_the_usual_lengths():
    found = plan(1014, Lengths(), reach=1)
    assert [(fold.start, fold.stop) for fold in found.folds] == [
        (500, 563),
        (563, 626),
        (626, 689),
        (689, 752),
        (752, 815),
        (815, 888),
    ]
    assert found.folds[0].train_stop == 494
    assert found.held_out == Fold(882, 888, 1014)


def test_a_short_file_is_said_to_be_short():
    found = plan(400, Lengths(), reach=0)
    assert found.lengths == Lengths(first=249, block=30, held_out=61)
    assert found.lowered.startswith(
        "400 sessions have a label, and 500 to train first, 3 blocks of 63 and 126 held out"
    )
    assert found.lowered.endswith("need 815; lowered in proportion to 249, 30 and 61")


@pytest.mark.parametrize(("sessions", "first", "trained"), [(900, 13, 7), (14, 500, 3), (0, 500, 0)])
def test_too_few_sessions_to_train(sessions, first, trained):
    with pytest.raises(UserError, match=f"{sessions} sessions have a label: .* and {trained} train, where 8 must"):
        plan(sessions, Lengths(first=first), reach=1)
