"""Keeps a host from going to sleep while something runs, where systemd can."""

import contextlib
import subprocess
from collections.abc import Iterator

# An inhibitor that is refused ends at once.
REFUSED_SECONDS = 0.5


@contextlib.contextmanager
def stay_awake(why: str) -> Iterator[str | None]:
    """Keep the host from suspending inside; yields why that cannot be done, or None.

    The inhibitor ends when its standard input does, so that a harness that is killed leaves none.
    """
    words = ["systemd-inhibit", "--what=sleep:idle", "--who=matrix", f"--why={why}", "--mode=block", "cat"]
    try:
        inhibitor = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the harness, which needs it to the end.
            start_new_session=True,
        )
    except OSError:
        yield "there is no systemd-inhibit"
        return
    with inhibitor:
        refused = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            inhibitor.wait(REFUSED_SECONDS)
            refused = "systemd-inhibit is refused"
        yield refused
