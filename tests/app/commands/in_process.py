"""The command line of the app, run in this process."""

from vpoc.cli import run

SMALL = ["--lookback", "20", "--target", "prior_vpoc_touched", "--loader-workers", "0"]


def vpoc(capsys, *arguments):
    """Run the command line in this process and return the exit status, stdout and stderr."""
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
