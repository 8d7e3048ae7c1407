"""The process of a helper: takes its job from standard input, and tells through standard output."""

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from harness.base import interrupts
from harness.base.errors import UserError

if TYPE_CHECKING:
    from harness.campaign.helpers.helper import HelperJob


def carry_out_job() -> None:
    """Carry out a job. What goes wrong, or ends it, is reported."""
    pipe = Connection(os.dup(1), readable=False)
    # What prints would be taken for a message.
    os.dup2(2, 1)

    def tell(name: str, values: tuple[Any, ...]) -> None:
        pipe.send((name, values))

    with interrupts.interruptible():
        try:
            # Its modules take a moment to import.
            with Connection(os.dup(0), writable=False) as given:
                job: HelperJob = given.recv()
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


def _end_with_who_began_it() -> None:
    """Die as the process that began this one did: what is running is then the next harness's to close."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    carry_out_job()
