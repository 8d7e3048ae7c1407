"""The console script `matrix`. What takes its time is imported inside, so that Ctrl-C meanwhile ends in order."""

import atexit
import gc

from harness.base.interrupts import exit_on_interrupt


def main() -> None:
    """Load the command line and run it."""
    # What a command has made the system takes back faster than a last look for garbage: a quarter of `matrix status`.
    atexit.register(gc.freeze)
    with exit_on_interrupt():
        from harness.cli.main import main as run  # noqa: PLC0415
    run()


if __name__ == "__main__":
    main()
