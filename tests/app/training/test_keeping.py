import pytest

from vpoc.training.keeping import best_epoch, ends_early


@pytest.mark.parametrize(
    ("losses", "best"), [([0.7], 1), ([0.7, 0.6], 2), ([0.6, 0.7, 0.6], 1), ([0.9, 0.5, 0.6, 0.8], 2)]
)
def test_the_best_epoch_is_the_first_with_the_lowest_loss(losses, best):
    assert best_epoch(losses) == best


@pytest.mark.parametrize(
    ("losses", "patience", "over"),
    [
        ([], 2, False),
        ([0.7, 0.6], 1, False),
        ([0.6, 0.7], 1, True),
        ([0.6, 0.6], 1, True),
        ([0.6, 0.7], 2, False),
        ([0.6, 0.7, 0.65], 2, True),
        ([0.6, 0.7, 0.5], 2, False),
        ([0.6, 0.7, 0.8, 0.9], 0, False),
    ],
)
def test_a_training_ends_when_so_many_epochs_were_no_better(losses, patience, over):
    assert ends_early(losses, patience) is over
