"""Explains logs that a test holds as lines in memory."""

from collections.abc import Collection, Iterable

from harness.diagnosis.judge import Facts, diagnose
from harness.diagnosis.lines import as_lines
from harness.diagnosis.scan import scan
from harness.evidence.files.run_files import Explanation


def explain_log(
    lines: Iterable[str],
    name: str,
    kernel: Iterable[str] = (),
    rocm: str | None = None,
    torch: str | None = None,
    presets: Collection[str] | None = None,
) -> Explanation:
    """Explain the failure in a log. `kernel` are lines of the kernel log of that time."""
    found = scan(as_lines(lines, name), rocm=rocm, torch=torch)
    return diagnose(found, scan(as_lines(kernel, "kernel log"), ("kernel",)), Facts(), presets)
