"""Tests of imports without garbage collection, which Ctrl-C does not interrupt with an exception."""

import gc
import signal

import pytest

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


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        (signal.default_int_handler, signal.SIG_DFL),
        # Handlers that the caller set, to ignore the signal, as under nohup, or to note it.
        (signal.SIG_IGN, signal.SIG_IGN),
        (print, print),
    ],
    ids=["raises", "ignored", "noted"],
)
def test_ctrl_c_raises_nothing_in_an_import(before, inside):
    of_tests = signal.signal(signal.SIGINT, before)
    try:
        with importing("no_such_package"):
            assert signal.getsignal(signal.SIGINT) is inside
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, of_tests)
        gc.unfreeze()
