"""What the tests of campaigns share."""

import pytest


@pytest.fixture(autouse=True)
def _checkout_left_alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests set the clock ahead: recovery would take what others make in this checkout for abandoned."""
    for folder in ("DATA", "APPS"):
        monkeypatch.setattr(f"harness.campaign.recovery.{folder}", tmp_path_factory.getbasetemp() / "checkout" / folder)
