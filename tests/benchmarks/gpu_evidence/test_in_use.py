import os

import pytest

from benchmarks.gpu_evidence import in_use
from benchmarks.gpu_evidence.in_use import why_not
from vpoc.gpu_memory.amdgpu import Card, Owner


@pytest.fixture
def card(tmp_path, monkeypatch):
    """A card of amdgpu with a connector, and who holds memory of it."""
    folder = tmp_path / "device"
    status = folder / "drm/card0/card0-DP-1/status"
    status.parent.mkdir(parents=True)
    (folder / "drm/card0-DP-1").symlink_to(status.parent)
    status.write_text("disconnected\n")
    monkeypatch.setattr(in_use, "find_cards", lambda: (Card("0000:03:00.0", folder, None, 1),))
    monkeypatch.setattr(in_use, "owners", lambda: (Owner(os.getpid(), "me", 7, "kfd", None),))
    return status


def test_a_gpu_of_amd_that_nobody_uses_may_be_broken(card):
    assert why_not("cuda", "6.3") is None


def test_a_display_or_another_process_keeps_it(card, monkeypatch):
    card.write_text("connected\n")
    assert why_not("cuda", "6.3") == "a display is connected (0000:03:00.0)"
    card.write_text("disconnected\n")
    monkeypatch.setattr(in_use, "owners", lambda: (Owner(7, None, 7, "kfd", None),))
    assert why_not("cuda", "6.3") == "other processes hold the GPU (7)"


def test_where_nobody_can_be_asked_nothing_is_broken(monkeypatch):
    monkeypatch.setattr(in_use, "find_cards", lambda: ())
    monkeypatch.setattr(in_use.shutil, "which", lambda _name: None)
    assert why_not("cpu", None) == "needs a GPU"
    for hip in ("6.3", None):
        assert why_not("cuda", hip).startswith("nobody can be asked")


@pytest.mark.parametrize(
    ("display", "processes", "expected"),
    [
        (["Disabled"], [], None),
        (["Enabled"], [], "a display is connected (Enabled)"),
        (["Disabled"], ["4711"], "other processes hold the GPU (4711)"),
    ],
)
def test_a_gpu_of_nvidia_is_asked_about_by_its_tool(monkeypatch, display, processes, expected):
    monkeypatch.setattr(in_use.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(in_use, "_asked", lambda query: display if "display" in query else processes)
    assert why_not("cuda", None) == expected
