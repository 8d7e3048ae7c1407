"""Keeps a host from going to sleep while something runs, where systemd can."""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator

END_SECONDS = 5.0


@contextlib.contextmanager
def stay_awake(why: str, say: Callable[[str], object]) -> Iterator[None]:
    """Keep the host from suspending inside. `say` takes why that cannot be done, as soon as that is known.

    Who is asked for the right to it may take a while to refuse it. The inhibitor ends when its standard input does, so
    that a harness that is killed leaves none.
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
        # One that nobody has answered yet does not read its standard input.
        inhibitor.kill()
        telling.join()
