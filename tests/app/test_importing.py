"""Importing without looking for garbage."""

import gc

from vpoc.importing import importing


def test_what_was_imported_is_not_looked_at_again():
    frozen = gc.get_freeze_count()
    try:
        with importing("no_such_package"):
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_what_is_there_already_changes_nothing():
    frozen = gc.get_freeze_count()
    with importing("pytest"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
