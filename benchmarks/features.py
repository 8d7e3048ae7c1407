"""Measure how fast bars become features: against peers in memory, against reading the CSV, and at ten times the size.

Every figure is a ratio of times from one execution: a round does every job once, every other round in reverse order,
and the figure is the median of the rounds' ratios. The page is printed, and written to
docs/evidence/features-speed.md if it covers all 1,014 sessions. The page says what was not measured.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import click

from benchmarks import pages
from benchmarks.pages import hardware
from harness.base.files.hashes import file_hash
from harness.base.paths import CACHE, CHECKOUT, ENVIRONMENTS
from harness.environments.python.uv_process import uv

SESSIONS = 1014
LARGER = 10
BENCH = CACHE / "bench"
APP_PYTHON = ENVIRONMENTS / "cpu-test" / "bin" / "python"
WORKER = Path(__file__).with_name("features_worker.py")
PEERS = Path(__file__).with_name("peers.txt")
PAGE = CHECKOUT / "docs" / "evidence" / "features-speed.md"
RESULT = "features.parquet"
JOBS = {
    "vpoc": "app: profile and value area of every session, two rows at a time, spread over low..high, exact; one core",
    "marketprofile": "MarketProfile of the same: volume at the close; one core",
    "wickra": "wickra ValueArea of the same: spread over low..high in floats, a bin per tick; one core",
    **dict.fromkeys(("naive", "chunked", "preallocated", "pooled"), "device path, on the CPU; one core"),
    "read": "polars.read_csv of every column, types given, stamps by an explicit format; in a warm process",
    "python": "`python -c pass`",
    "imports": "`python -c 'import numpy, polars'`",
    "session rows, CSV": "`vpoc features --rows session`, whole command, no cache",
    "session rows, cache": "the same, where an earlier run left its output and cache",
    "bar rows, CSV": "`vpoc features --rows bar`, whole command, no cache",
    "bar rows, cache": "the same, where an earlier run left its output and cache",
}
"""The jobs and their names on the page; a job uses all cores unless its name says otherwise."""

# An installed app has its bytecode; PYTHONDONTWRITEBYTECODE would make every command compile the app again.
KEEPING_BYTECODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

Job = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """A row of the table; `each`: the figure of every round, empty if not measured, and `why` gives the reason."""

    what: str
    each: list[float]
    bound: str = ""
    goal: float = 0
    unit: str = "x"
    why: str = ""

    def cells(self) -> list[str]:
        """Return the job, goal, figure, verdict and the rounds, as text."""
        goal = f"{self.bound} {self.goal:g} {self.unit}" if self.bound else "-"
        if not self.each:
            return [self.what, goal, f"not measured: {self.why}", "-", "-"]
        figure = median(self.each)
        met = {"at least": figure >= self.goal, "at most": figure <= self.goal, "more than": figure > self.goal}
        verdict = {True: "met", False: "**not met**", None: "-"}[met.get(self.bound)]
        return [self.what, goal, f"{short(figure)} {self.unit}", verdict, listed(self.each)]


@dataclass
class Series:
    """Seconds of every job by round, and what else was measured."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    peaks: dict[str, list[float]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def run(self, jobs: dict[str, Job], rounds: int) -> None:
        """Run every job once a round, every other round in reverse order."""
        for number in range(rounds):
            for name in list(jobs)[:: 1 if number % 2 == 0 else -1]:
                self.seconds.setdefault(name, []).append(jobs[name]())
            told = ", ".join(f"{name} {short(self.seconds[name][-1])} s" for name in jobs)
            print(f"  round {number + 1}: {told}", file=sys.stderr, flush=True)

    def less(self, job: str, other: str | None) -> list[float]:
        """Return the seconds of `job` minus those of `other` in the same round; empty if not measured."""
        taken = self.seconds.get(job, [])
        return [a - b for a, b in zip(taken, self.seconds[other], strict=True)] if other and taken else taken

    def ratio(self, job: str, to: str, less: str | None = None, to_less: str | None = None) -> list[float]:
        """Return, by round, seconds of `job` minus `less` over those of `to` minus `to_less`; empty if not measured."""
        above, below = self.less(job, less), self.less(to, to_less)
        return [a / b for a, b in zip(above, below, strict=True)] if above else []


def short(number: float) -> str:
    """Return a number with three significant digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def listed(numbers: list[float]) -> str:
    """Return the numbers as text, in the order of the rounds."""
    return ", ".join(map(short, numbers))


def peers_python() -> Path:
    """Return the interpreter that has the peers, installed as locked."""
    folder = BENCH / "peers"
    stamp, python = folder / "lock", folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != file_hash(PEERS):
        uv("venv", "--quiet", "--clear", "--python", "3.11", folder)
        uv("pip", "sync", "--quiet", "--require-hashes", "--only-binary", ":all:", "--python", python, PEERS)
        stamp.write_text(file_hash(PEERS), encoding="utf-8")
    return python


def command(*words: str | Path) -> tuple[float, float]:
    """Return wall seconds and peak bytes of a command in the app's interpreter; exit if the command fails."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen([APP_PYTHON, *words], stdout=said, stderr=said, env=KEEPING_BYTECODE)
        # wait4 reports the peak memory of this process alone.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise SystemExit(f"benchmarks/features.py: {' '.join(map(str, words))}: {' '.join(last)}")
    return seconds, usage.ru_maxrss * 1024


def output_of(*words: str | Path) -> str:
    """Return the output of a command in the app's interpreter."""
    return subprocess.run([APP_PYTHON, *words], check=True, capture_output=True, text=True).stdout


def synthetic(folder: Path, sessions: int) -> Path:
    """Write a synthetic file of that many sessions and return its path."""
    file = folder / f"{sessions}.csv"
    command("-m", "vpoc", "synth", "--sessions", str(sessions), "--output", file)
    return file


@contextmanager
def worker(python: Path, kind: str, file: Path, series: Series) -> Iterator[dict[str, Job]]:
    """Yield the jobs of a process that runs a job when it is asked to; see features_worker.py."""
    with pages.worker(python, WORKER, kind, file) as (ready, done):
        series.versions |= ready["versions"]
        yield {name: partial(done, name) for name in ready["jobs"]}


@contextmanager
def commands(data: Path, series: Series, options: dict[str, list[str]], size: str = "") -> Iterator[dict[str, Job]]:
    """Yield jobs `NAME, CSV`, in an empty folder, and `NAME, cache`, in a used one, for every NAME in `options`."""
    with tempfile.TemporaryDirectory(dir=data.parent) as place:

        def features(job: str, folder: Path, chosen: list[str]) -> float:
            told = ("--data", data, "--output", folder / RESULT)
            seconds, peak = command("-m", "vpoc", "features", *told, *chosen)
            series.peaks.setdefault(job, []).append(peak)
            return seconds

        def afresh(job: str, chosen: list[str]) -> float:
            with tempfile.TemporaryDirectory(dir=place) as folder:
                return features(job, Path(folder), chosen)

        jobs: dict[str, Job] = {}
        for name, chosen in options.items():
            used = Path(place) / name.replace(" ", "-")
            used.mkdir()
            features("", used, chosen)
            series.rows[f"{name}{size}"] = height(used / RESULT)
            first, again = f"{name}, CSV{size}", f"{name}, cache{size}"
            jobs[first] = partial(afresh, first, chosen)
            if any(file.is_file() and file.name != RESULT for file in used.rglob("*")):
                jobs[again] = partial(features, again, used, chosen)
        yield jobs


def height(file: Path) -> int:
    """Return the number of rows of a Parquet file."""
    code = "import polars, sys; print(polars.scan_parquet(sys.argv[1]).select(polars.len()).collect().item())"
    return int(output_of("-c", code, file))


def in_memory(file: Path, rounds: int, series: Series) -> None:
    """Measure profile and value area from columns in memory on one core, and the device paths."""
    with ExitStack() as stack:
        jobs: dict[str, Job] = {}
        # The app's worker comes first, because it leaves the columns for the peers.
        for python, kind in ((APP_PYTHON, "profile"), (peers_python(), "marketprofile"), (peers_python(), "wickra")):
            jobs |= stack.enter_context(worker(python, kind, file, series))
        series.run(jobs, rounds)
    with worker(APP_PYTHON, "device", file, series) as paths:
        series.run(paths, rounds)


def from_files(file: Path, rounds: int, series: Series) -> None:
    """Measure the whole command and polars.read_csv of the same file."""
    options = {"session rows": ["--rows", "session"], "bar rows": ["--rows", "bar"]}
    starts: dict[str, Job] = {
        "python": lambda: command("-c", "pass")[0],
        "imports": lambda: command("-c", "import numpy, polars")[0],
    }
    with worker(APP_PYTHON, "read", file, series) as reading, commands(file, series, options) as writing:
        series.run({**starts, **reading, **writing}, rounds)


def larger(small: Path, large: Path, rounds: int, series: Series) -> None:
    """Measure session rows of the large file, which is read in blocks, and of the small file."""
    few = {"session rows": ["--rows", "session"]}
    with commands(small, series, few, " (1x)") as one, commands(large, series, few, " (10x)") as ten:
        series.run({"python (10x)": lambda: command("-c", "pass")[0], **one, **ten}, rounds)


def table(series: Series) -> list[Row]:
    """Return every row of the table, measured or not."""
    profile = "profile + value area in memory, one core:"
    lines = [
        Row(f"{profile} MarketProfile over app", series.ratio("marketprofile", "vpoc"), "at least", 90),
        Row(f"{profile} wickra over app", series.ratio("wickra", "vpoc"), "more than", 1),
    ]
    for start in ("python", "imports"):
        for job, goal in (("session rows, CSV", 2.0), ("session rows, cache", 0.4), ("bar rows, CSV", 6.0)):
            each = series.ratio(job, "read", less=start)
            what = f"{job}, less {JOBS[start]}, over polars.read_csv"
            lines.append(Row(what, each, "at most", goal, why="no cache was left beside the output"))
    large, start = "session rows, CSV (10x)", "python (10x)"
    small = "session rows, CSV (1x)"
    absent = "needs --large"
    growth = series.ratio(large, small, less=start, to_less=start)
    lines.append(
        Row("session rows, CSV, of 10 x the rows over 1 x, both less python", growth, "at most", 11, why=absent)
    )
    peaks = {job: [peak / 1e9 for peak in taken] for job, taken in series.peaks.items()}
    what = "peak memory of the whole command at 10 x the rows, in blocks"
    lines.append(Row(what, peaks.get(large, []), "at most", 1, "GB", absent))
    return lines


def page(series: Series, sessions: int, loads: list[float]) -> str:
    """Return the page as Markdown."""
    told = ", ".join(f"{name} {version}" for name, version in series.versions.items())
    counted = ", ".join(f"{name}: {count:,}" for name, count in series.rows.items())
    return "\n".join(
        [
            "# Speed of the features",
            "",
            "`make bench-features` wrote this page (`LARGE=1`: also at 10 x the rows). Figures are ratios of",
            "times taken in one run, in alternating order. Each is the median of the rounds beside it.",
            "",
            f"Machine: {hardware()}; load average {short(loads[0])} before, {short(loads[1])} after. {told}.",
            f"Data: `vpoc synth --sessions {sessions}`, {sessions * 1380:,} rows. Rows out: {counted}.",
            "",
            *markdown(["what", "goal", "measured", "met", "rounds"], [row.cells() for row in table(series)]),
            "",
            "The answers of the device paths were compared with the CPU's before they were timed, and were identical.",
            "",
            *markdown(
                ["seconds of", "what it is", "median", "rounds"],
                [
                    [job, JOBS.get(job.partition(" (")[0], ""), short(median(each)), listed(each)]
                    for job, each in series.seconds.items()
                ],
            ),
            "",
        ]
    )


def markdown(head: list[str], lines: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]


@click.command()
@click.option("--sessions", type=click.IntRange(min=100), default=SESSIONS, help="Sessions of the synthetic file.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, help="Rounds of each race.")
@click.option("--large", is_flag=True, help="Also 10 times the sessions: minutes, and gigabytes of disk.")
@click.option("--large-rounds", type=click.IntRange(min=1), default=3, help="Rounds at 10 times the sessions.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Page to write.  [default: in docs, if it is all there]"
)
def main(sessions: int, rounds: int, large: bool, large_rounds: int, output: Path | None) -> None:
    """Measure, print the page, and write it."""
    series, load = Series(), os.getloadavg()[0]
    BENCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BENCH) as place:
        file = synthetic(Path(place), sessions)
        in_memory(file, rounds, series)
        from_files(file, rounds, series)
        if large:
            larger(file, synthetic(Path(place), LARGER * sessions), large_rounds, series)
    text = page(series, sessions, [load, os.getloadavg()[0]])
    print(text)
    if output is not None or sessions == SESSIONS:
        (output or PAGE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
