"""The cause of an interruption: what or who ended the run, as its record says."""

import subprocess

from harness.evidence.files.run_files import Interruption, Record

BY_TEXT: dict[str, Interruption] = {
    **dict.fromkeys(("SIGINT", "Ctrl-C", ""), "ctrl-c"),
    "SIGHUP": "hup",
    "SIGTERM": "term",
}
ANSWER_SECONDS = 2.0
# Begins the detail of such runs in records of an earlier harness.
FORMER_GONE = "its harness was gone"


def interruption_by(text: str, *, shutting_down: bool) -> Interruption:
    """Return the cause of a KeyboardInterrupt; its text begins with the name of the signal, if there was one.

    Any other text is the harness's own, which ended the run on purpose, such as to continue it in a fresh process.
    """
    name = BY_TEXT.get(text.partition(";")[0], "harness")
    return "shutdown" if name == "term" and shutting_down else name


def interruption_of(record: Record) -> Interruption | None:
    """Return what interrupted a run. Older records do not say; their detail does."""
    if record.interrupted_by is not None or record.outcome != "interrupted":
        return record.interrupted_by
    if record.detail.startswith(FORMER_GONE):
        return "harness-killed"
    stopped = record.detail.removeprefix("stopped by ")
    return interruption_by(stopped, shutting_down=False) if stopped != record.detail else None


def host_is_shutting_down() -> bool:
    """Return whether the host is shutting down in order: systemd says so while it ends all processes with TERM."""
    try:
        asked = ["systemctl", "is-system-running"]
        told = subprocess.run(asked, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.stdout.strip() == b"stopping"
