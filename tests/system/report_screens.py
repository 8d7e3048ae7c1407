"""Take pictures of the report on a synthetic evening: `python -m tests.system.report_screens docs/pictures`."""

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, ViewportSize, sync_playwright

from harness.base.paths import CHECKOUT
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.matrix.load import load_matrix
from harness.report.build import build_report
from harness.report.model import Report
from harness.report.page import to_html
from harness.report.reader import Reader
from tests.harness.report.evening import STARTED, write_evening
from tests.harness.report.synthetic import gpu_host

SCREEN: ViewportSize = {"width": 1400, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
DAY = 86400.0
# A function, because the page's policy does not allow text to be run as a script.
DRAWN = "() => [...document.querySelectorAll('[data-chart]')].every((one) => one.dataset.drawn)"


@dataclass(frozen=True)
class Picture:
    """A picture of the page: the size of the browser's window, its colour scheme and the address."""

    name: str
    size: ViewportSize
    scheme: Literal["light", "dark"] = "light"
    address: str = ""


def evening_report(folder: Path) -> Report:
    """Return the report on the synthetic evening, which is written into a folder."""
    matrix = load_matrix(CHECKOUT / "matrix.yaml")
    results = write_evening(folder, matrix)
    rows = [Row.of(record) for record in results.records()]
    return build_report(results, rows, matrix, {}, count_runs(rows), Reader(STARTED + DAY, gpu_host().kind))


def hung_run(report: Report) -> str:
    """Return the id of the newest run on two GPUs that hung and whose details the report shows."""
    groups = {group.id: group.scope for group in report.groups}
    return next(
        run.run_id
        for run in report.runs
        if run.outcome == "hung" and groups[run.group].endswith("-2") and run.run_id in report.details
    )


def pictures(run: str) -> tuple[Picture, ...]:
    """Return the pictures of a report that has a run of that id."""
    return (
        Picture("report.png", SCREEN),
        Picture("report-dark.png", SCREEN, scheme="dark"),
        Picture("report-phone.png", PHONE),
        Picture("report-run.png", {"width": 1400, "height": 1250}, address=f"#/run/{run}"),
    )


def take(browser: Browser, page_file: Path, picture: Picture, folder: Path) -> None:
    """Write one picture into a folder."""
    page = browser.new_page(viewport=picture.size, color_scheme=picture.scheme)
    page.goto(f"{page_file.resolve().as_uri()}{picture.address}")
    page.wait_for_function(DRAWN)
    page.screenshot(path=folder / picture.name)
    page.close()


def main(folder: Path) -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        report = evening_report(Path(place))
        file = Path(place) / "report.html"
        file.write_text(to_html(report), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for picture in pictures(hung_run(report)):
            take(browser, file, picture, folder)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
