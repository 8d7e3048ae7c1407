"""Fixtures for the tests of campaigns."""

import pytest


@pytest.fixture(autouse=True)
def _checkout_left_alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point recovery at folders of the tests.

    Some tests set the clock ahead, so recovery would take files that others are making in this checkout for abandoned.
    """
    for folder in ("DATA", "APPS"):
        monkeypatch.setattr(f"harness.campaign.recovery.{folder}", tmp_path_factory.getbasetemp() / "checkout" / folder)
