"""The console script `matrix`. What takes its time is imported inside, so that Ctrl-C meanwhile ends in order."""

import gc

from harness.base.interrupts import exit_on_interrupt


def main() -> None:
    """Load the command line and run it."""
    # Hardly anything of what commands make is garbage: to look for it at each 700 objects takes a tenth of their time.
    gc.set_threshold(200_000)
    with exit_on_interrupt():
        from harness.cli.main import main as run  # noqa: PLC0415
    run()


if __name__ == "__main__":
    main()
