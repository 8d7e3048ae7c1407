"""The process of a helper: takes its job from standard input, and tells through standard output."""

import os
import pickle
import signal
import sys
import threading
from typing import Any

from harness.base import interrupts
from harness.base.errors import UserError
from harness.campaign.helper import LENGTH, HelperJob


def carry_out_job() -> None:
    """Carry out a job. What goes wrong, or ends it, is reported."""
    pipe = os.dup(1)
    # What prints would be taken for a message.
    os.dup2(2, 1)

    def tell(name: str, values: tuple[Any, ...]) -> None:
        content = pickle.dumps((name, values))
        _write(pipe, LENGTH.pack(len(content)) + content)

    with interrupts.interruptible():
        try:
            # Its modules take a moment to import.
            job: HelperJob = pickle.loads(_exactly(LENGTH.unpack(_exactly(LENGTH.size))[0]))  # noqa: S301 - of our own
            threading.Thread(target=_end_with_who_began_it, daemon=True).start()
            job.carry_out(tell)
            tell("done", ())
        except UserError as error:
            tell("error", (str(error),))
            sys.exit(2)
        except KeyboardInterrupt as caught:
            # What was being started at that moment is not known to whom it was started for.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
            tell("interrupted", (str(caught),))
            sys.exit(interrupts.INTERRUPTED)


def _exactly(length: int) -> bytes:
    """Return so many bytes of standard input; raises EOFError."""
    parts, left = [], length
    while left:
        part = os.read(0, left)
        if not part:
            raise EOFError("who began it is gone")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _end_with_who_began_it() -> None:
    """Die as the process that began this one did: what is running is then the next harness's to close."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    carry_out_job()
