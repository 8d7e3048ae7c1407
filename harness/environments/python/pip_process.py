"""pip, many times in one process: to start and import it takes longer than most wheels take to fetch.

As a program of its own it reads the arguments of a run as a line of JSON, and answers with a line: exit status and what
pip wrote to its standard error.
"""

import io
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import IO

# Takes pip's arguments; returns its exit status and what it wrote to its standard error.
Pip = Callable[[Sequence[str]], tuple[int, str]]


@contextmanager
def pip_process(variables: Mapping[str, str]) -> Iterator[Pip]:
    """Yield what runs pip, with these environment variables. The process is started for the first run.

    A process that ends before it answers is a run that failed; the next run has another one.
    """
    process: subprocess.Popen[str] | None = None

    def run(arguments: Sequence[str]) -> tuple[int, str]:
        nonlocal process
        running = process or _start(variables)
        process = running
        assert running.stdin is not None
        assert running.stdout is not None
        with suppress(BrokenPipeError):
            running.stdin.write(json.dumps(list(arguments)) + "\n")
            running.stdin.flush()
        if answer := running.stdout.readline():
            status, said = json.loads(answer)
            return status, said
        process = None
        _close(running)
        return running.returncode or 1, f"pip ended before it answered, with status {running.returncode}"

    try:
        yield run
    finally:
        if process is not None:
            process.kill()
            _close(process)


def _start(variables: Mapping[str, str]) -> "subprocess.Popen[str]":
    # Nothing of the folder that the user is in.
    command = [sys.executable, "-P", "-m", __name__]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=dict(variables))


def _close(process: "subprocess.Popen[str]") -> None:
    """Wait for a process, and close its pipes; what it was not given any more is lost."""
    with suppress(BrokenPipeError), process:
        pass


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Run pip with the arguments of each line, until there are no more."""
    for line in requests:
        said = io.StringIO()
        # An index that wants a password would else have pip ask for it, and wait for the answer where requests come.
        sys.argv = ["pip", "--no-input", *json.loads(line)]
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            try:
                # As `python -m pip` does; the modules are imported once.
                runpy.run_module("pip", run_name="__main__", alter_sys=True)
                status: object = 0
            except SystemExit as ended:
                status = ended.code
        answers.write(json.dumps([status if isinstance(status, int) else int(status is not None), said.getvalue()]))
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
