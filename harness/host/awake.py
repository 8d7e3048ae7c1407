"""Keeps a host from suspending while something runs, if systemd can do that."""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator

END_SECONDS = 5.0


@contextlib.contextmanager
def stay_awake(why: str, say: Callable[[str], object]) -> Iterator[None]:
    """Keep the host from suspending during the block.

    `say`: called with the reason as soon as it is known that this cannot be done.

    It may take a while until the right to do it is refused. The inhibitor ends when its standard input is closed, so
    that it does not outlive a killed harness.
    """
    words = ["systemd-inhibit", "--what=sleep:idle", "--who=matrix", f"--why={why}", "--mode=block", "cat"]
    try:
        inhibitor = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A session of its own, because Ctrl-C is meant for the harness, which needs the inhibitor to the end.
            start_new_session=True,
        )
    except OSError:
        say("there is no systemd-inhibit")
        yield
        return
    over = threading.Event()

    def tell_of_its_end() -> None:
        inhibitor.wait()
        if not over.is_set():
            say("systemd-inhibit is refused")

    telling = threading.Thread(target=tell_of_its_end, daemon=True)
    telling.start()
    try:
        yield
    finally:
        over.set()
        assert inhibitor.stdin is not None
        inhibitor.stdin.close()
        telling.join(END_SECONDS)
        # While systemd has not answered yet, the inhibitor does not read its standard input.
        inhibitor.kill()
        telling.join()
