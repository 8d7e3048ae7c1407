"""Run `vpoc` in real processes, forked from one process that has already imported what a training needs."""

import faulthandler
import functools
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest

Prepare = Callable[[], object]
IMPORTED = [
    "vpoc.commands.train",
    "vpoc.training.run",
    # Imported late in a training: torch's optimizer at the first step, strategies with the first model, the curves.
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "matplotlib.axes",
    "matplotlib.backends.backend_agg",
]


@functools.cache
def _server() -> ForkServerContext:
    """Return the fork server's context; the server has imported matplotlib as the app does, without a user's files."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        for name, value in {"MPLCONFIGDIR": cache, "MPLBACKEND": "agg", "MPL_IGNORE_SYSTEM_FONTS": "1"}.items():
            patch.setenv(name, value)
        first = context.Process(target=_nothing)
        first.start()
        first.join()
    return context


def _nothing() -> None:
    pass


def start(
    words: list[object], log: Path, variables: Mapping[str, str] | None = None, prepare: Prepare | None = None
) -> ForkServerProcess:
    """Run the command line `words` with its output in `log`; `prepare` is called first, in the new process."""
    process = _server().Process(target=_main, args=(words, log, variables or {}, prepare))
    process.start()
    return process


def _main(words: list[object], log: Path, variables: Mapping[str, str], prepare: Prepare | None) -> None:
    os.environ.update(variables)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    faulthandler.enable(sys.__stderr__)
    from vpoc.cli import run  # noqa: PLC0415

    # The default start method of Linux up to Python 3.13, which a process started without the fork server would have.
    multiprocessing.set_start_method("fork", force=True)
    if prepare is not None:
        prepare()
    sys.exit(run([*map(str, words)]))
