"""Explains a failure from any log, also one that this tool did not write."""

from typing import BinaryIO

from harness.diagnosis.judge import ASK_THE_KERNEL, END_LINES, STOPPED, Facts, cut, diagnose, explain_ending
from harness.diagnosis.lines import WithEnd, read_lines
from harness.diagnosis.scan import ScanResult, scan, sieve_of
from harness.evidence.files.run_files import EvidenceLine, Explanation

# Where the kernel's log was read, too, and says nothing.
WATCH = (
    "that log of the kernel names no fault of a GPU and no killed process either. Probe the GPU (`matrix exec best "
    "vpoc probe`), then repeat the training under supervision, which keeps the stacks of a hang: `matrix train --app "
    "DIR -- COMMAND`"
)


def explain_files(
    log: tuple[BinaryIO, str] | None,
    kernel: tuple[BinaryIO, str] | None = None,
    rocm: str | None = None,
    torch: str | None = None,
) -> Explanation:
    """Explain the failure in open files of any size, given with their names; show the last line of an unknown one.

    A log that names no failure and ends in the middle of the work has the class `stopped`.
    """
    read = WithEnd(log[0]) if log else None
    found = scan(read_lines(read, log[1], sieve_of()), rocm=rocm, torch=torch) if log and read else ScanResult()
    seen = scan(read_lines(*kernel, sieve_of(("kernel",))), ("kernel",)) if kernel else ScanResult()
    explanation = diagnose(found, seen, Facts())
    if explanation.rule or log is None or read is None:
        return explanation
    if read.is_empty:
        return explanation.model_copy(update={"cause": "the log is empty"})
    if of_end := explain_ending(read.last_lines(log[1], END_LINES)):
        return of_end.model_copy(update={"remedy": WATCH}) if kernel and of_end.class_ == STOPPED else of_end
    last = read.last_line(log[1])
    shown = (EvidenceLine(file=last.file, line=last.number, text=cut(last.text)),) if last else ()
    remedy = explanation.remedy if kernel else ASK_THE_KERNEL
    return explanation.model_copy(update={"lines": shown, "remedy": remedy})
