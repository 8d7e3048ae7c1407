"""Pictures of a report: `python -m tests.system.report_screens results/report.html docs/pictures`."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZE = 1180, 860


def main(report: Path, folder: Path) -> None:
    """Write report.png, report-dark.png and report-cell.png (the first cell, opened) into a folder."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto(report.resolve().as_uri())
        page.screenshot(path=folder / "report.png")
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=folder / "report-dark.png")
        page.emulate_media(color_scheme="light")
        page.locator("button.place").first.click()
        page.locator("[data-chart=phases][data-drawn]").wait_for()
        page.set_viewport_size({"width": SIZE[0], "height": 2 * SIZE[1]})
        # The charts take the new width.
        page.wait_for_timeout(500)
        page.locator("dialog").screenshot(path=folder / "report-cell.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
