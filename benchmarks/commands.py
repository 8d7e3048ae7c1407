"""Measure the commands that people wait for: the help, `matrix status`, `matrix explain` of a long log.

Each command is timed from start to exit, several times and in turn with the others, so that other load on the machine
affects all alike. Writes docs/evidence/commands.md.
"""

import argparse
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.pages import machine_and_load, today, write_page
from benchmarks.records import synthetic
from harness.base.paths import CHECKOUT

FIGURES = CHECKOUT / "docs" / "evidence" / "commands.md"
PYTHON = CHECKOUT / ".venv" / "bin" / "python"
MATRIX = CHECKOUT / ".venv" / "bin" / "matrix"
FEW = 20
SHORT, LONG = 5_100_000, 57_000_000


class Spent(NamedTuple):
    """Wall-clock and processor seconds of a command, each from the run that took the least."""

    wall: float
    processor: float


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=int, nargs="?", default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        spent = measured(Path(place), given.records, given.repeats)
    text = [
        "# What commands cost, measured",
        "",
        f"Written by `make bench-commands` on {today()}: {machine_and_load()}. "
        f"Commands are timed whole; the least of {given.repeats} times is shown. If the load is above the number "
        "of cores, the clock also measures other processes; then the processor time counts.",
        "",
        "| what | seconds | of processor | goal |",
        "|---|---|---|---|",
        *rows(spent, given.records),
    ]
    write_page(FIGURES, text)


def measured(place: Path, records: int, repeats: int) -> dict[str, Spent]:
    """Write the files, then time every command `repeats` times and return the least times."""
    results = {count: synthetic(place / str(count), count).folder for count in (FEW, records)}
    logs = {size: training_log(place / f"{size}.log", size) for size in (300, SHORT, LONG)}
    matrix = [str(MATRIX), "--matrix", str(CHECKOUT / "matrix.yaml")]
    commands = {
        "python": [str(PYTHON), "-c", "pass"],
        "help": [*matrix, "--help"],
        **{f"status {count}": [*matrix, "--results", str(folder), "status"] for count, folder in results.items()},
        **{f"explain {size}": [*matrix, "explain", "--log", str(log)] for size, log in logs.items()},
    }
    for command in commands.values():
        # The first run compiles and caches, so it is not counted.
        spent_by(command)
    every = [{name: spent_by(command) for name, command in commands.items()} for _ in range(repeats)]
    return {
        name: Spent(*(min(values) for values in zip(*(one[name] for one in every), strict=True))) for name in commands
    }


def training_log(file: Path, size: int) -> Path:
    """Write a log as a healthy training prints it, of `size` bytes: lines with a loss."""
    chance = random.Random(7)
    written = step = 0
    with file.open("w", encoding="utf-8") as stream:
        while written < size:
            step += 1
            line = f"2026-11-20 10:{step // 60 % 60:02}:{step % 60:02},{chance.randrange(1000):03} INFO trainer: "
            line += f"step {step}/900000 loss {chance.random():.4f} lr {chance.random() / 1000:.2e} "
            line += f"grad_norm {chance.random():.3f} {chance.random() * 1e4:.1f} samples/s\n"
            written += stream.write(line)
    return file


def spent_by(command: list[str]) -> Spent:
    """Run a command to its end without its output, and return its times."""
    began = os.times().elapsed
    pid = os.posix_spawn(
        command[0],
        command,
        {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        file_actions=[(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)],
    )
    _, status, used = os.wait4(pid, 0)
    # `explain` exits with 1 if it found no failure.
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: ended with {os.waitstatus_to_exitcode(status)}")
    return Spent(os.times().elapsed - began, used.ru_utime + used.ru_stime)


def rows(spent: dict[str, Spent], records: int) -> Iterator[str]:
    """Yield the rows of the table."""
    yield row("Python's own start, for comparison", spent["python"])
    yield row("`matrix --help`", spent["help"], 0.3)
    yield row(f"`matrix status`, {FEW} records", spent[f"status {FEW}"], 0.4)
    yield row(f"`matrix status`, {records:,} records", spent[f"status {records}"], 0.5)
    short = spent["explain 300"]
    yield row("`matrix explain --log` of three lines", short)
    for size, goal in ((SHORT, 0.1), (LONG, 1.1)):
        long = spent[f"explain {size}"]
        beyond = Spent(long.wall - short.wall, long.processor - short.processor)
        yield row(f"of {size / 1e6:.0f} MB of an ordinary training, beyond that", beyond, goal)


def row(what: str, spent: Spent, goal: float | None = None) -> str:
    """Return one row of the table."""
    wanted = "" if goal is None else f"{goal:g}"
    return f"| {what} | {spent.wall:.2f} | {spent.processor:.2f} | {wanted} |"


if __name__ == "__main__":
    main()
