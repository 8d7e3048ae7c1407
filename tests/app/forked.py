"""`vpoc` in real processes that are forked from one which has imported torch already."""

import faulthandler
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

Prepare = Callable[[], object]


def start(
    words: list[object], log: Path, variables: Mapping[str, str] | None = None, prepare: Prepare | None = None
) -> ForkServerProcess:
    """Run the command line `words`; what it prints goes to `log`. `prepare` is called in the process before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vpoc.training.run"])
    process = context.Process(target=_main, args=(words, log, variables or {}, prepare))
    process.start()
    return process


def _main(words: list[object], log: Path, variables: Mapping[str, str], prepare: Prepare | None) -> None:
    os.environ.update(variables)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    faulthandler.enable(sys.__stderr__)
    from vpoc.cli import run  # noqa: PLC0415

    # As in a process that was started alone, on Linux up to Python 3.13.
    multiprocessing.set_start_method("fork", force=True)
    if prepare is not None:
        prepare()
    sys.exit(run([*map(str, words)]))
