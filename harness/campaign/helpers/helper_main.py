"""The main program of a helper: reads its job from standard input, and sends messages to standard output."""

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
    """Carry out a job, and report an error or an interruption to the process that began it."""
    pipe = Connection(os.dup(1), readable=False)
    # Redirect standard output, because printed text would be read as a message.
    os.dup2(2, 1)

    def tell(name: str, values: tuple[Any, ...]) -> None:
        pipe.send((name, values))

    with interrupts.interruptible():
        try:
            # Unpickling imports the job's modules, which takes a moment.
            with Connection(os.dup(0), writable=False) as given:
                job: HelperJob = given.recv()
            threading.Thread(target=_end_with_who_began_it, daemon=True).start()
            job.carry_out(tell)
            tell("done", ())
        except UserError as error:
            tell("error", (str(error),))
            sys.exit(2)
        except KeyboardInterrupt as caught:
            # Signal the whole group: processes that were just being started are not recorded yet.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
            tell("interrupted", (str(caught),))
            sys.exit(interrupts.INTERRUPTED)


def _end_with_who_began_it() -> None:
    """Kill this process group when the process that began it is gone; the next harness then closes the runs."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    carry_out_job()
