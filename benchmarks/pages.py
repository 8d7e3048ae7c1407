"""The common parts of pages with measured or simulated figures, and of the commands that write them."""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def today() -> str:
    """Return the day, in UTC."""
    return f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}"


def python_and_cores() -> str:
    """Return the version of Python and the number of cores."""
    return f"Python {platform.python_version()}, {os.cpu_count()} cores"


def machine() -> str:
    """Return the system, the version of Python and the number of cores."""
    return f"{platform.system()} {platform.release()}, {python_and_cores()}"


def machine_and_load() -> str:
    """Return the machine, and its load after everything was measured."""
    return f"{machine()}, load {os.getloadavg()[0]:.1f} at the end"


def hardware() -> str:
    """Return processor, cores and memory."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{next(names, 'unknown processor')}, {os.cpu_count()} cores, {memory:.0f} GB"


def write_page(page: Path, lines: Sequence[str]) -> None:
    """Write a page, and print it."""
    text = "\n".join(lines) + "\n"
    page.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def simulation(
    description: str | None, page: Path, option: str, about: str, text: Callable[[int, Executor], str], count: int
) -> None:
    """Parse the command line of a simulation, and write its page, the `text` of a number of simulations.

    `option`: the option with that number; `about` is its help, and `count` its default.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(option, dest="count", type=int, default=count, help=about)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, default=page)
    given = parser.parse_args()
    began = time.monotonic()
    with ProcessPoolExecutor(given.jobs) as pool:
        given.output.write_text(text(given.count, pool), encoding="utf-8")
    sys.stdout.write(f"{given.output}: {time.monotonic() - began:.0f} s\n")


@contextmanager
def worker(*command: str | Path) -> Iterator[tuple[dict[str, Any], Callable[[str], Any]]]:
    """Start a process that does jobs by name.

    Yield the object in the first line of its output, and a function that sends a job's name and returns the answer.

    Raises:
        SystemExit: if the process ends before it answers.
    """
    with subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, answers = process.stdin, process.stdout

        def answer() -> Any:
            line = answers.readline()
            if not line:
                raise SystemExit(f"{' '.join(map(str, command[1:]))} ended")
            return json.loads(line)

        def done(job: str) -> Any:
            told.write(f"{job}\n")
            told.flush()
            return answer()

        yield answer(), done
        told.close()
