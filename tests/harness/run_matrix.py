"""Run commands as a user types them, but in the tests' process: another Python would take half a second to start."""

import io
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass

from harness.base.paths import CHECKOUT
from harness.cli import main


@dataclass(frozen=True)
class CompletedCommand:
    """The end of a command: exit code and printed text, with the field names of subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def run_matrix(*words: str) -> CompletedCommand:
    """Run `matrix WORDS` in the checkout; text that bypasses Python's own streams is not captured."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(CHECKOUT), redirect_stdout(out), redirect_stderr(err):
        try:
            main.main(list(words))
        except SystemExit as ended:
            status = ended.code
    return CompletedCommand(
        status if isinstance(status, int) else int(status is not None), out.getvalue(), err.getvalue()
    )
