"""The console script `matrix`. What takes its time is imported here, so that Ctrl-C meanwhile ends in order."""

import os
import signal

INTERRUPTED = 130


def main() -> None:
    """Load the command line and run it."""
    # A KeyboardInterrupt in the middle of an import can be taken for a broken library.
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from harness.cli.main import main as run  # noqa: PLC0415

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
