import os

import pytest

from benchmarks.gpu_evidence import in_use
from benchmarks.gpu_evidence.in_use import why_not
from vpoc.gpu_memory.amdgpu import Card, Owner


@pytest.fixture
def card(tmp_path, monkeypatch):
    """Return the status file of a connector of an amdgpu card, of which this process holds memory."""
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
    monkeypatch.setattr(in_use, "GONE_S", 0.0)
    assert why_not("cuda", "6.3") == "other processes hold the GPU (7)"


def test_where_nobody_can_be_asked_nothing_is_broken(monkeypatch):
    monkeypatch.setattr(in_use, "find_cards", lambda: ())
    monkeypatch.setattr(in_use.shutil, "which", lambda _name: None)
    assert why_not("cpu", None) == "needs a GPU"
    for hip in ("6.3", None):
        assert why_not("cuda", hip).startswith("nobody can be asked")


@pytest.mark.parametrize(
    ("display", "processes", "used", "expected"),
    [
        (["Disabled"], [], ["4"], None),
        (["[N/A]"], [], ["4"], None),
        (["Enabled"], [], ["4"], "a display is connected (Enabled)"),
        (["Disabled"], ["4711"], ["4"], "other processes hold the GPU (4711)"),
        (["Disabled"], [], ["1025"], "other processes hold the GPU (not to be seen from here)"),
        ([], [], [], "nobody can be asked whether a display or another process uses this GPU"),
    ],
)
def test_a_gpu_of_nvidia_is_asked_about_by_its_tool(monkeypatch, display, processes, used, expected):
    answers = {"--query-gpu=display_active": display, "--query-compute-apps=pid": processes}
    monkeypatch.setattr(in_use.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(in_use, "_asked", lambda query: answers.get(query, used))
    assert why_not("cuda", None) == expected


def test_a_tool_that_fails_tells_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert in_use._asked("--query-gpu=memory.used") == []
