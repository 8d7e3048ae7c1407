"""Run `matrix` with the stand-in for the app, and have it verify its runs, as no stack of the matrix file can."""

import sys
from collections.abc import Callable

from harness.campaign.bench.bench import Bench
from harness.cli.main import main
from harness.environments.environment import host_environment
from harness.environments.verifier import Verifier

OF_A_STACK = Bench.verifier


def verifier(bench: Bench, notify: Callable[[str], None] = lambda _: None) -> Verifier:
    """Return what verifies the runs of a bench: the interpreter in which they are made, if one is named."""
    if bench.interpreter:
        bench.use_verifier(Verifier(host_environment(bench.interpreter, notify)))
    return OF_A_STACK(bench, notify)


if __name__ == "__main__":
    Bench.verifier = verifier  # type: ignore[method-assign, assignment]
    sys.argv = ["matrix", *sys.argv[1:]]
    main()
