from pathlib import Path

import pytest

from harness.base.files.yaml_lines import read_yaml
from harness.base.paths import CHECKOUT
from harness.diagnosis.rules import load_signatures
from harness.host.gpus.kernel_resets import names_another_gpu, reset_lines, reset_patterns
from tests.harness.diagnosis.in_memory import explain_log

MINE, OTHER = "0000:03:00.0", "0000:0a:00.0"
RESETS = [
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=4021, emitted seq=4023",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=11, emitted seq=13",
    f"amdgpu {MINE}: amdgpu: MES failed to response msg=14",
    f"amdgpu {MINE}: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
    f"amdgpu {MINE}: amdgpu: MES might be in unrecoverable state, issue a GPU reset",
    f"amdgpu {MINE}: amdgpu: MES ring buffer is full.",
    f"amdgpu {MINE}: amdgpu: failed to remove hardware queue from MES, doorbell=0x1002",
    f"amdgpu {MINE}: amdgpu: GPU reset begin!",
    f"amdgpu {MINE}: amdgpu: GPU reset succeeded, trying to resume",
    f"amdgpu {MINE}: amdgpu: GPU reset(2) succeeded!",
    "[drm] VRAM is lost due to GPU reset!",
    "HW Exception by GPU node-1 (Agent handle: 0x55) reason :GPU Hang",
]
OTHERS = [
    # A faulty GPU kernel of the training alone can cause a page fault.
    f"amdgpu {MINE}: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770)",
    f"amdgpu {MINE}: amdgpu: PCIE atomic ops is not supported",
    # The driver ended one piece of work, mostly of a desktop, and the engine continued without a reset.
    "[drm:amdgpu_dm_atomic_commit_tail [amdgpu]] *ERROR* Waiting for fences timed out!",
    f"amdgpu {MINE}: amdgpu: ring gfx_0.0.0 timeout, but soft recovered",
    "Out of memory: Killed process 4711 (python)",
    "usb 1-2: reset high-speed USB device number 3 using xhci_hcd",
    "nvme nvme0: I/O 12 QID 4 timeout, aborting",
    "perf: interrupt took too long (2504 > 2500), lowering kernel.perf_event_max_sample_rate",
]


def test_a_gpu_that_stopped_answering_is_seen_and_nothing_else_is_taken_for_it() -> None:
    for line in RESETS:
        assert reset_lines([*OTHERS, line, *OTHERS], {MINE}) == [line]


def test_what_happens_to_another_gpu_does_not_count() -> None:
    line = f"amdgpu {OTHER}: amdgpu: GPU reset begin!"
    assert reset_lines([line], {MINE}) == []
    assert reset_lines([line], {MINE, OTHER}) == [line]
    # If no address is known, any line may be about a GPU of the run.
    assert reset_lines([line], set()) == [line]


def test_addresses_are_compared_whatever_their_case() -> None:
    line = f"amdgpu {OTHER.upper()}: amdgpu: GPU reset begin!"
    assert reset_lines([line], {OTHER}) == [line]


def test_a_line_of_the_driver_names_another_gpu() -> None:
    line = f"amdgpu {OTHER.upper()}: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770)"
    assert names_another_gpu(line, {MINE})
    assert not names_another_gpu(line, {MINE, OTHER})
    assert not names_another_gpu(line, set())
    # That of another driver, of no GPU in particular, or of a process, which may have chosen the words.
    for other in (
        f"nvme {OTHER}: controller is down",
        RESETS[0],
        f"a[7]: segfault at 0 ip 0 sp 0 in amdgpu {OTHER}[1+2]",
    ):
        assert not names_another_gpu(other, {MINE})


STAMPS = ["[   {:.6f}] ", "2026-03-01T09:05:{:09.6f}+0000 host kernel: "]


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_line_without_address_is_that_of_the_gpu_reset_beside_it(stamp: str) -> None:
    bare = stamp.format(20) + "[drm] VRAM is lost due to GPU reset!"
    near = stamp.format(12) + f"amdgpu {OTHER}: amdgpu: GPU reset begin!"
    far = stamp.format(9) + f"amdgpu {OTHER}: amdgpu: GPU reset begin!"
    own = stamp.format(21) + f"amdgpu {MINE}: amdgpu: GPU reset begin!"
    assert reset_lines([near, bare], {MINE}) == []
    assert reset_lines([bare, near], {OTHER}) == [bare, near]
    assert reset_lines([far, bare], {MINE}) == [bare]
    assert reset_lines([near, bare, own], {MINE}) == [own]
    # A line without a time cannot be assigned to the other GPU, whose reset is logged beside it.
    assert reset_lines([near, RESETS[0]], {MINE}) == [RESETS[0]]


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_long_reset_of_another_gpu_is_none_of_this_one(stamp: str) -> None:
    """Linux 6.8 waits for the scheduler of a GPU at each of its queues, and says so without an address."""
    begins = stamp.format(5) + f"amdgpu {OTHER}: amdgpu: GPU reset begin!"
    waits = [
        f"{stamp.format(at)}[drm:mes_v11_0_submit_pkt_and_poll_completion.constprop.0 [amdgpu]] *ERROR* MES failed to "
        "response msg=3"
        for at in range(8, 30, 3)
    ]
    later = stamp.format(50) + "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=11"
    assert reset_lines([begins, *waits], {MINE}) == []
    assert reset_lines([begins, *waits, later], {MINE}) == [later]
    assert reset_lines([begins, *waits], {OTHER}) == [begins, *waits]


SUSPEND = [
    "PM: suspend entry (deep)",
    f"amdgpu {MINE}: amdgpu: MODE1 reset",
    f"amdgpu {MINE}: amdgpu: GPU mode1 reset",
    f"amdgpu {MINE}: amdgpu: GPU smu mode1 reset",
    "ACPI: PM: Preparing to enter system sleep state S3",
    f"amdgpu {MINE}: amdgpu: SMU is resumed successfully!",
    "PM: suspend exit",
]


@pytest.mark.parametrize("stamp", ["", "[    7.000000] ", "2026-03-01T09:05:07.000000+0000 host kernel: "])
def test_a_gpu_that_the_kernel_restarts_because_it_suspends_the_host_was_not_reset(stamp: str) -> None:
    suspend = [stamp + line for line in SUSPEND]
    hibernation = [line.replace("PM: suspend", "PM: hibernation: hibernation") for line in suspend]
    failed = stamp + f"amdgpu {MINE}: amdgpu: GPU mode1 reset failed"
    named = stamp + "process '/work/PM: suspend entry' started with executable stack"
    for lines in (suspend, hibernation):
        assert reset_lines(lines, {MINE}) == reset_lines(lines, ()) == []
        assert explain_log([], "train.log", lines).rule is None
        # The same at any other time, and what fails meanwhile, is a reset.
        for told, seen in (
            (lines[1:], lines[1:4]),
            ([*lines, *lines[1:4]], lines[1:4]),
            ([named, *lines[1:4]], lines[1:4]),
            ([*lines[:4], failed], [failed]),
        ):
            assert reset_lines(told, {MINE}) == seen
            assert explain_log([], "train.log", told).class_ == "gpu-reset"


def kernel_excerpts(*states: str | None) -> list[str]:
    """Return the excerpts of the kernel log whose class says one of these states of a GPU."""
    signatures = load_signatures()
    rows = [row for row in read_yaml(CHECKOUT / "tests/harness/diagnosis/excerpts.yaml").data if row["rule"]]
    of_kernel = [row for row in rows if signatures.by_id(row["rule"]).where == "kernel"]
    return [one["text"] for one in of_kernel if signatures.classes[one["class"]].gpu in states]


def test_what_is_explained_as_a_reset_is_seen_as_one() -> None:
    assert [text for text in kernel_excerpts("reset") if not reset_lines(text.split("\n"), set())] == []


def test_no_other_line_of_the_kernel_is() -> None:
    others = kernel_excerpts("lost", "unharmed")
    assert len(others) > 10
    assert [line for text in others for line in reset_lines(text.split("\n"), set())] == []


def test_a_new_rule_of_the_class_is_heeded(tmp_path: Path) -> None:
    rules = """\
classes: {gpu-reset: {gpu: reset}, gpu-stuck: {gpu: reset}, hardware: {gpu: lost}, other: {}}
signatures:
  - {id: one, where: kernel, class: gpu-reset, text: [new (words)]}
  - {id: four, where: kernel, class: gpu-stuck, regex: ['other \\d words']}
  - {id: two, where: kernel, class: hardware, text: [some hardware]}
  - {id: three, class: gpu-reset, text: [what a program says]}
"""
    (tmp_path / "signatures.yaml").write_text(rules, encoding="utf-8")
    assert [one.pattern for one in reset_patterns(tmp_path / "signatures.yaml")] == [
        r"new\ \(words\)",
        r"other \d words",
    ]
