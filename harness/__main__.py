"""The console script `matrix`. What takes its time is imported inside, so that Ctrl-C meanwhile ends in order."""

import atexit
import gc

from harness.base.interrupts import exit_on_interrupt


def main() -> None:
    """Load the command line and run it."""
    # Hardly anything of what a command makes is garbage: to look for it meanwhile, and once more at the end, takes a
    # quarter of the time of `matrix status`.
    gc.set_threshold(200_000)
    atexit.register(gc.freeze)
    with exit_on_interrupt():
        from harness.cli.main import main as run  # noqa: PLC0415
    run()


if __name__ == "__main__":
    main()
