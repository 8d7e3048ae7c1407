import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.sysfs import is_simulated
from harness.host.gpus import gpu_reset
from harness.host.gpus.gpu_reset import may_reset, reset_gpu
from tests.harness.gpu_tree import ADDRESSES, KFD_IDS, TwoGpuHost, a_gpu, hanging_reads

Program = Callable[[str, str], Path]
DONE = "echo '    GPU_RESET: Successfully reset GPU'"
BUS = json.dumps({"card3": {"PCI Bus": ADDRESSES[1].upper()}, "card1": {"PCI Bus": ADDRESSES[0]}, "system": {}})


@pytest.fixture(autouse=True)
def of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the tree for the real machine: AMD's tools would reset its GPUs, not those of a simulated host."""
    monkeypatch.setattr(gpu_reset, "is_simulated", lambda _: False)


def test_amds_tool_resets_it_by_its_address(tree: TwoGpuHost, program: Program) -> None:
    calls = program("amd-smi", DONE)
    assert reset_gpu(a_gpu(1), tree.root).done
    assert calls.read_text() == f"reset --gpureset --gpu {ADDRESSES[1]}\n"


def test_the_older_tool_resets_it_by_the_number_that_has_its_address(tree: TwoGpuHost, program: Program) -> None:
    calls = program("rocm-smi", f"case $1 in --showbus) echo 'WARNING: x'; echo '{BUS}';; *) {DONE};; esac")
    assert reset_gpu(a_gpu(1), tree.root).done
    assert calls.read_text() == "--showbus --json\n--gpureset -d 3\n"


@pytest.mark.parametrize("answer", [json.dumps({"card0": {"PCI Bus": ADDRESSES[0]}}), "", "{]", "[]", '{"card0": 3}'])
def test_a_number_that_is_not_known_to_be_its_own_is_not_used(answer: str, tree: TwoGpuHost, program: Program) -> None:
    calls = program("rocm-smi", f"echo '{answer}'")
    reset = reset_gpu(a_gpu(1), tree.root)
    assert not reset.done
    assert f"rocm-smi does not list {ADDRESSES[1]}" in reset.detail
    assert calls.read_text() == "--showbus --json\n"


def test_a_gpu_with_a_screen_is_left_alone(tree: TwoGpuHost, program: Program) -> None:
    calls = program("amd-smi", DONE)
    reset = reset_gpu(a_gpu(0), tree.root)
    assert (reset.done, reset.detail) == (False, "not reset: a screen is attached to it (DP-1)")
    assert not calls.exists()


@pytest.mark.parametrize("status", ["unknown", "", None])
def test_a_gpu_is_left_alone_unless_every_connector_says_that_it_has_no_screen(
    status: str | None, tree: TwoGpuHost, program: Program
) -> None:
    program("amd-smi", DONE)
    tree.connect(0, "DP-1", "disconnected")
    assert reset_gpu(a_gpu(0), tree.root).done
    if status is None:
        for file in tree.root.glob("sys/**/drm/card0/card0-DP-1/status"):
            file.unlink()
    else:
        tree.connect(0, "DP-1", status)
    reset = reset_gpu(a_gpu(0), tree.root)
    assert not reset.done
    assert reset.detail.startswith("not reset: a screen may be attached to it (DP-1")


def test_a_gpu_on_which_a_process_holds_memory_is_left_alone(tree: TwoGpuHost, program: Program) -> None:
    calls = program("amd-smi", DONE)
    tree.hold(0, pid=4711, used=1 << 30)
    assert reset_gpu(a_gpu(1), tree.root).done
    calls.unlink()
    tree.hold(1, pid=4712, used=1 << 30)
    reset = reset_gpu(a_gpu(1), tree.root)
    assert not reset.done
    assert "(pid 4712) holds memory on it" in reset.detail
    assert not calls.exists()


def test_what_a_process_that_is_gone_held_is_freed_by_the_reset(tree: TwoGpuHost, program: Program) -> None:
    program("amd-smi", DONE)
    gone = int(Path("/proc/sys/kernel/pid_max").read_text()) + 7
    tree.hold(1, pid=gone, used=1 << 30)
    # Here the pids may be those of another namespace.
    assert not reset_gpu(a_gpu(1), tree.root).done
    namespace = tree.root / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("pid:[4026531837]")
    assert not reset_gpu(a_gpu(1), tree.root).done
    namespace.unlink()
    namespace.symlink_to("pid:[4026531836]")
    assert reset_gpu(a_gpu(1), tree.root).done
    tree.hold(1, pid=os.getpid(), used=1 << 30)
    assert f"(pid {os.getpid()}) holds memory on it" in reset_gpu(a_gpu(1), tree.root).detail


def test_what_holds_nothing_any_more_keeps_no_gpu(tree: TwoGpuHost, program: Program) -> None:
    program("amd-smi", DONE)
    tree.hold(1, pid=4712, used=0)
    assert reset_gpu(a_gpu(1), tree.root).done


def test_where_the_tools_refuse_the_kernels_own_file_is_tried(tree: TwoGpuHost, program: Program) -> None:
    program("amd-smi", "echo 'sudo is required' >&2; exit 1")
    tree.write(1, "reset", "")
    reset = reset_gpu(a_gpu(1), tree.root)
    assert (reset.done, reset.detail) == (True, f"reset by {tree.device(1) / 'reset'}")
    assert (tree.device(1) / "reset").read_text() == "1\n"


@pytest.mark.parametrize(
    "said", ["GPU_RESET: Failed to reset GPU", "GPU_RESET: [AMDSMI_STATUS_NOT_SUPPORTED] Unable to reset GPU"]
)
def test_a_tool_that_ends_well_without_a_reset_is_not_believed(said: str, tree: TwoGpuHost, program: Program) -> None:
    program("amd-smi", f"echo 'GPU: 1'; echo '    {said}'")
    assert reset_gpu(a_gpu(1), tree.root).detail == f"not reset: amd-smi: {said}; the kernel offers no reset of it"
    tree.write(1, "reset", "")
    reset = reset_gpu(a_gpu(1), tree.root)
    assert (reset.done, reset.detail) == (True, f"reset by {tree.device(1) / 'reset'}")


def test_a_tool_that_fails_after_it_said_so_is_not_believed(tree: TwoGpuHost, program: Program) -> None:
    program("amd-smi", f"{DONE}; exit 1")
    assert not reset_gpu(a_gpu(1), tree.root).done


def test_every_refusal_is_reported(tree: TwoGpuHost, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program("amd-smi", "echo 'sudo is required' >&2; exit 1")
    reset = reset_gpu(a_gpu(1), tree.root)
    assert reset.detail == "not reset: amd-smi: sudo is required; the kernel offers no reset of it"
    tree.write(1, "reset", "")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "Permission denied; resetting needs root" in reset_gpu(a_gpu(1), tree.root).detail


def test_a_tool_that_hangs_does_not_hold_up_the_host(
    tree: TwoGpuHost, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_reset, "TOOL_SECONDS", 0.2)
    program("amd-smi", "exec sleep 5")
    assert "amd-smi: no answer in 0.2 s" in reset_gpu(a_gpu(1), tree.root).detail


def test_without_an_address_nothing_is_reset(tree: TwoGpuHost, program: Program) -> None:
    calls = program("amd-smi", DONE)
    tree.write(1, "uevent", "")
    assert not reset_gpu(a_gpu(1), tree.root).done
    assert not calls.exists()


def test_where_the_driver_does_not_tell_who_uses_it_nothing_is_reset(
    tree: TwoGpuHost, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_reset, "ANSWER_SECONDS", 0.2)
    calls = program("amd-smi", DONE)
    with hanging_reads(tree.root / f"sys/class/kfd/kfd/proc/4712/vram_{KFD_IDS[1]}"):
        reset = reset_gpu(a_gpu(1), tree.root)
    assert (reset.done, reset.detail) == (False, "not reset: the driver does not say within 0 s who uses it")
    assert not calls.exists()


def test_amds_tools_are_not_used_on_a_simulated_host(
    tree: TwoGpuHost, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_reset, "is_simulated", is_simulated)
    calls = program("amd-smi", DONE), program("rocm-smi", "exit 0")
    reset = reset_gpu(a_gpu(1), tree.root)
    assert (reset.done, "no reset of it" in reset.detail) == (False, True)
    assert not any(file.exists() for file in calls)


@pytest.mark.parametrize("tool", ["amd-smi", "rocm-smi"])
def test_root_may_reset_a_gpu_by_a_tool_and_others_by_the_kernels_file(
    tool: str, tree: TwoGpuHost, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not may_reset(a_gpu(1), tree.root)
    program(tool, DONE)
    for user, may in ((0, True), (1000, False)):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        assert may_reset(a_gpu(1), tree.root) is may
    tree.write(1, "reset", "")
    assert may_reset(a_gpu(1), tree.root)
    # Of a simulated host only the file counts.
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(gpu_reset, "is_simulated", lambda _: True)
    assert [may_reset(a_gpu(n), tree.root) for n in (0, 1)] == [False, True]
