"""Measure the cost of ten thousand records: `matrix status`, the index, the report and its page, export and import.

The runs are synthetic, of the default selection, with health records of their GPUs, in a temporary folder. Commands
are timed from start to exit. Writes docs/evidence/records-figures.md.
"""

import argparse
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from playwright.sync_api import sync_playwright

from benchmarks.pages import machine_and_load, today, write_page
from harness.base.paths import CHECKOUT
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import health_file
from harness.evidence.records import Results
from harness.matrix.load import load_matrix
from tests.harness.report.synthetic import Kind, write_runs

FIGURES = CHECKOUT / "docs" / "evidence" / "records-figures.md"
MATRIX = [str(CHECKOUT / ".venv" / "bin" / "matrix"), "--matrix", str(CHECKOUT / "matrix.yaml"), "--results"]
RATES = (1.0, 0.97, 0.9, 0.5, 0.1)
REPEATS = 5
STATUS_SECONDS, REPORT_SECONDS, PAGE_SECONDS = 0.5, 5.0, 2.0


class Spent(NamedTuple):
    """Wall-clock seconds, and processor seconds if they are known."""

    wall: float
    processor: float | None


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=int, nargs="?", default=10_000)
    count = parser.parse_args().records
    with tempfile.TemporaryDirectory() as place:
        results = synthetic(Path(place), count)
        lines = list(figures(results, Path(place)))
    text = [
        f"# {count:,} records, measured",
        "",
        f"Written by `make bench-records` on {today()}: {machine_and_load()}. "
        "The runs of the default selection are synthetic. Commands are timed whole, with Python's start and all "
        f"imports. The columns show the median of {REPEATS} calls, the fastest call, and the least processor time of a "
        "call. If the load is above the number of cores, the clock also measures other processes.",
        "",
        "| what | seconds | fastest | of processor, least | goal |",
        "|---|---|---|---|---|",
        *lines,
    ]
    write_page(FIGURES, text)


def synthetic(place: Path, count: int) -> Results:
    """Write a results folder of that many runs, each on a GPU and with the probe that followed it."""
    declared = load_matrix(CHECKOUT / "matrix.yaml")
    cells = declared.select("default")
    kinds = [Kind(cell.stack.name, cell.preset.name, RATES[n % len(RATES)]) for n, cell in enumerate(cells)]
    results = write_runs(place / "results", declared, count, kinds)
    for run_id in results.begun():
        # Imported runs would have ids of another form.
        results.folder_of(run_id).imported.unlink(missing_ok=True)
    steps = [_probe(record) for record in results.records() if record.intent.gpus]
    file = health_file(results, steps[0].machine)
    file.parent.mkdir()
    file.write_text("".join(f"{step.model_dump_json(by_alias=True)}\n" for step in steps), encoding="utf-8")
    return results


def _probe(record: Record) -> HealthStep:
    host = record.intent.host
    return HealthStep(
        machine=host.machine,
        boot_id=host.boot_id,
        run_id=record.intent.run_id,
        environment=record.intent.environment_hash,
        when="after-completion" if record.outcome == "completed" else "after-failure",
        check="probe",
        gpu=record.intent.gpus[0],
        good=True,
        detail="5 checks passed",
        at=record.finished + 5,
        seconds=4.0,
    )


def figures(results: Results, place: Path) -> list[str]:
    """Return the rows of the table."""
    folder = str(results.folder)
    archive, third = place / "records.tar.gz", place / "third"
    report = results.folder / "report.html"
    return [
        row("index of all run folders, rebuilt (`matrix index`)", seconds(lambda: matrix(folder, "index"), 1)),
        row("`matrix status`", seconds(lambda: matrix(folder, "status")), STATUS_SECONDS),
        row("`matrix status --json`", seconds(lambda: matrix(folder, "status", "--json")), STATUS_SECONDS),
        row("`matrix --version`, for comparison", seconds(lambda: matrix(folder, "--version"))),
        row("`matrix report`", seconds(lambda: matrix(folder, "report"), 3), REPORT_SECONDS),
        row(
            f"its page ({report.stat().st_size / 1e6:.1f} MB) in Chromium, until loaded",
            page_loads(report),
            PAGE_SECONDS,
        ),
        row(
            "`matrix export --hide other`",
            seconds(lambda: matrix(folder, "export", str(archive), "--hide", "other"), 1),
        ),
        row(
            f"`matrix import` of it ({archive.stat().st_size / 1e6:.0f} MB) into an empty folder",
            seconds(lambda: matrix(str(third), "import", str(archive)), 1),
        ),
        row("`matrix import` of it again", seconds(lambda: matrix(str(third), "import", str(archive)), 1)),
    ]


def matrix(results: str, *words: str) -> None:
    """Run a command of the console script."""
    subprocess.run([*MATRIX, results, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds(work: Callable[[], None], repeats: int = REPEATS) -> list[Spent]:
    """Call `work` several times, and return the times of each call."""
    found = []
    for _ in range(repeats):
        began, before = time.perf_counter(), _processor_seconds()
        work()
        found.append(Spent(time.perf_counter() - began, _processor_seconds() - before))
    return found


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def page_loads(report: Path) -> list[Spent]:
    """Return the time until the page was loaded, each time in a new tab; empty without Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return []
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(REPEATS):
            page = browser.new_page()
            page.goto(report.as_uri())
            loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
            found.append(Spent(loaded / 1000, None))
        browser.close()
    return found


def row(what: str, spent: list[Spent], goal: float | None = None) -> str:
    """Return a row of the table."""
    walls = [one.wall for one in spent]
    told = f"{median(walls):.2f} | {min(walls):.2f}" if walls else "not measured |"
    processor = min((one.processor for one in spent if one.processor is not None), default=None)
    return (
        f"| {what} | {told} | {'' if processor is None else f'{processor:.2f}'} | {f'under {goal:g}' if goal else ''} |"
    )


if __name__ == "__main__":
    main()
