"""The console script `matrix`. What takes its time is imported inside, so that Ctrl-C meanwhile ends in order."""

from harness.base.interrupts import exit_on_interrupt


def main() -> None:
    """Load the command line and run it."""
    with exit_on_interrupt():
        from harness.cli.main import main as run  # noqa: PLC0415
    run()


if __name__ == "__main__":
    main()
