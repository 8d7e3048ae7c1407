"""Commands as they are typed, in the process of the tests: what starts another Python takes half a second."""

import io
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass

from harness.base.paths import CHECKOUT
from harness.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed; named as in subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def typed(*words: str) -> Done:
    """Run `matrix WORDS` in the checkout. What goes around Python's streams is not caught."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(CHECKOUT), redirect_stdout(out), redirect_stderr(err):
        try:
            main.main(list(words))
        except SystemExit as ended:
            status = ended.code
    return Done(status if isinstance(status, int) else int(status is not None), out.getvalue(), err.getvalue())
