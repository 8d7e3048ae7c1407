from datetime import UTC, datetime

from harness.report.of_runs.kernel_events import MOST, kernel_events

STARTED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()
RESET = "amdgpu 0000:03:00.0: amdgpu: GPU reset begin!"


def test_lines_of_journal_and_dmesg_are_reported_in_seconds_since_the_start() -> None:
    lines = [f"2026-03-01T13:00:05.250000+0100 host kernel: {RESET}", f"[ 1007.500000] {RESET}"]
    found = kernel_events(lines, STARTED, STARTED + 60, clock=STARTED - 1000)
    assert [(one.seconds, one.text) for one in found] == [(5.25, RESET), (7.5, RESET)]


def test_without_the_kernels_clock_only_lines_with_a_date_are_placed() -> None:
    lines = [f"[ 1007.500000] {RESET}", f"2026-03-01T12:00:05+0000 host kernel: {RESET}"]
    assert [one.seconds for one in kernel_events(lines, STARTED, STARTED + 60, clock=None)] == [5.0]


def test_other_lines_and_other_times_are_left_out() -> None:
    lines = ["[ 1007.5] usb 1-4: new device", f"[  999.0] {RESET}", f"[ 1061.0] {RESET}", "no stamp", RESET]
    lines += [f"2026-99-99T12:00:05+0000 host kernel: {RESET}"]
    assert kernel_events(lines, STARTED, STARTED + 60, clock=STARTED - 1000) == ()


def test_a_log_full_of_one_line_gives_as_many_marks_as_can_be_seen() -> None:
    lines = [f"[ {1000 + n / 100:.2f}] {RESET}" for n in range(5000)]
    assert len(kernel_events(lines, STARTED, STARTED + 60, clock=STARTED - 1000)) == MOST
