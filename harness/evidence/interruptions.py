"""The cause of an interruption, as the record keeps it: who ended the run, or what."""

import subprocess

from harness.evidence.files.run_files import Interruption, Record

BY_SIGNAL: dict[str, Interruption] = {"SIGINT": "ctrl-c", "SIGHUP": "hup", "SIGTERM": "term"}
ANSWER_SECONDS = 2.0
# As records of an earlier harness have it.
FORMER_GONE = "its harness was gone"


def interruption_by(text: str, *, shutting_down: bool) -> Interruption:
    """Return what a KeyboardInterrupt says of its cause; its text begins with the signal's name, if it was one."""
    name = BY_SIGNAL.get(text.partition(";")[0], "ctrl-c")
    return "shutdown" if name == "term" and shutting_down else name


def interruption_of(record: Record) -> Interruption | None:
    """Return what interrupted a run; of one whose record was written before records said it, what its detail says."""
    if record.interrupted_by is not None or record.outcome != "interrupted":
        return record.interrupted_by
    if record.detail.startswith(FORMER_GONE):
        return "harness-killed"
    stopped = record.detail.removeprefix("stopped by ")
    return interruption_by(stopped, shutting_down=False) if stopped != record.detail else None


def host_is_shutting_down() -> bool:
    """Return whether the host is being shut down in order: systemd says so while it ends everything with TERM."""
    try:
        asked = ["systemctl", "is-system-running"]
        told = subprocess.run(asked, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.stdout.strip() == b"stopping"
