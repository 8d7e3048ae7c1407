"""Runs one check in a separate process, with its time limit."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vpoc.errors import UserError, from_os_error
from vpoc.probes.check import CRASHED, FAILED, HUNG, PASSED, Check, CheckResult
from vpoc.probes.processes import POLL_S, end_session
from vpoc.probes.site import STDERR, Answer, Call, Site

TERM_S = 2.0
KILL_S = 10.0
STACKS_BEFORE_S = 2.0
"""Seconds before the limit at which the stacks are written, or a quarter of the limit if that is less."""
LINES = 40
LINES_HUNG = 400
LARGEST_TAIL = 1 << 16
OWN_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Caches in the check's own folder, so that the check really compiles."""


def run_check(
    check: Check, device: str, limit_scale: float, interrupted: Callable[[], bool], spare: float | None = None
) -> CheckResult | None:
    """Run `check` on `device`, give it `limit_scale` times its limit, and end all its processes.

    `spare`: as in Site. None if it was ended because `interrupted` became true. UserError when no process or temporary
    folder can be created.
    """
    limit = check.limit_s * limit_scale
    with _folder() as folder:
        start = time.monotonic()
        stacks_at = start + limit - min(STACKS_BEFORE_S, limit / 4)
        site = Site(device, folder, stacks_at, spare)
        process = _start(Call(check.function, check.arguments, site, os.getpid()), folder)
        while process.poll() is None and time.monotonic() < start + limit and not interrupted():
            time.sleep(POLL_S)
        ended = process.poll() is not None
        seconds = time.monotonic() - start
        left = _end(process)
        if not ended and interrupted():
            return None
        code = process.returncode if ended else None
        outcome, detail = _judge(Answer.read(folder), code, limit, site.stage())
        if left:
            states = ", ".join(f"{pid} in state {state}" for pid, state in sorted(left.items()))
            detail += f"; cannot be killed: process {states}"
        status = process.returncode
        return CheckResult(
            check=check.name,
            outcome=outcome,
            seconds=round(seconds, 3),
            limit_s=limit,
            detail=detail,
            stderr=_last_lines(folder / STDERR, LINES_HUNG if outcome == HUNG else LINES),
            exit_code=None if status is None or status < 0 else status,
            signal=None if status is None or status >= 0 else signal.Signals(-status).name,
            killable=not left,
        )


def _judge(answer: Answer | None, code: int | None, limit: float, stage: str) -> tuple[str, str]:
    """Return the outcome and detail of a process that ended with `code` (None: it did not end by itself)."""
    after = (
        f" after its checks ended ({answer.outcome}: {answer.detail})" if answer else f" at {stage}" if stage else ""
    )
    if code is None:
        return HUNG, f"did not end within {limit:g} s{after or ', before its check began'}"
    if code < 0:
        return CRASHED, f"died of {signal.Signals(-code).name}{after}"
    if answer is None:
        return FAILED, f"ended with exit status {code} and no answer{after}"
    if answer.outcome == PASSED and code != 0:
        return FAILED, f"ended with exit status {code}{after}"
    return answer.outcome, answer.detail


@contextmanager
def _folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="vpoc-probe-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(
            f"{tempfile.tempdir or 'no temporary folder'}: {error.strerror}; set TMPDIR to a folder that can be written"
        ) from error
    with folder as name:
        yield Path(name)


def _start(call: Call, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **{name: str(folder / part) for name, part in OWN_CACHES.items()}}
    command = [sys.executable, "-m", "vpoc.probes.check_process", call.to_json()]
    try:
        with (folder / STDERR).open("wb") as stream:
            # Start it in an empty folder, because Python looks for modules in the current one first.
            return subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
    except OSError as error:
        raise from_os_error(error, Path(sys.executable)) from error


def _end(process: subprocess.Popen[bytes]) -> dict[int, str]:
    left = end_session(process.pid, TERM_S, KILL_S)
    if process.pid not in left:
        process.wait()
    return left


def _last_lines(path: Path, count: int) -> tuple[str, ...]:
    with path.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(stream.tell() - LARGEST_TAIL, 0))
        text = stream.read().decode("utf-8", errors="replace")
    return tuple(text.splitlines()[-count:])
