"""The report in a real browser."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from harness.base.paths import CHECKOUT
from harness.evidence.index import Row
from harness.evidence.verdicts.counting import count_runs
from harness.matrix.load import load_matrix
from harness.report.build import build_report
from harness.report.model import Report
from harness.report.page import to_html
from tests.harness.report.synthetic import write_runs

CHROMIUM = shutil.which("chromium")
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}
RUNS = 240
# Beside other suites a picture may take longer than the usual five seconds.
expect.set_options(timeout=60_000)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    matrix = load_matrix(CHECKOUT / "matrix.yaml")
    results = write_runs(tmp_path_factory.mktemp("results"), matrix, RUNS)
    rows = [Row.of(record, imported=results.imported(record.intent.run_id)) for record in results.records()]
    return build_report(results, rows, matrix, {}, count_runs(rows), made=1e9)


@pytest.fixture(scope="module")
def file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(to_html(report), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses to start as root, as CI runs.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    """The page, opened. Whatever a browser complains of, and whatever it asks of another place, fails the test."""
    context = browser.new_context(viewport=VIEWPORT)
    page = context.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    yield page
    assert page.evaluate("window.hurt") is None
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def open_cell(page: Page, name: str) -> None:
    page.get_by_role("button", name=re.compile(f"^{re.escape(name)}: ")).first.click()
    expect(page.get_by_role("dialog", name=name)).to_be_visible()


def test_the_first_screen_has_the_answers_and_the_next_command(page: Page) -> None:
    for heading in (
        "Which cell to use",
        "What else to type",
        "What failed most here",
        "The user\N{RIGHT SINGLE QUOTATION MARK}s own criteria",
    ):
        title = page.get_by_role("heading", name=heading, exact=True)
        expect(title).to_be_in_viewport()
    expect(page.locator("#answer")).to_be_in_viewport()
    expect(page.locator("#next code.command")).to_be_in_viewport()


def test_every_cell_opens_and_draws(page: Page, report: Report) -> None:
    for group in report.groups:
        for place in group.places:
            button = page.locator(f'button[data-group="{group.id}"][data-cell="{place.cell}"]')
            button.click()
            dialog = page.get_by_role("dialog", name=place.cell, exact=True)
            expect(dialog.locator("h2")).to_have_text(place.cell)
            runs = [run for run in report.runs if (run.group, run.cell) == (group.id, place.cell)]
            if runs:
                expect(dialog.get_by_text(f"Runs, newest first ({len(runs)})")).to_be_visible()
                expect(dialog.locator("[data-chart=phases][data-drawn] .main-svg").first).to_be_visible()
                expect(dialog.locator("[data-chart=memory] .main-svg").first).to_be_visible()
            elif place.reason:
                expect(dialog.get_by_text(place.reason)).to_be_visible()
            page.keyboard.press("Escape")
            expect(dialog).to_be_hidden()
            expect(button).to_be_focused()


def test_a_failed_run_comes_with_evidence_remedy_and_how_to_repeat_it(page: Page) -> None:
    open_cell(page, "rocm6.2-torch2.5.1-plain")
    detail = page.locator("dialog .detail")
    expect(detail.get_by_text("a copy between host and GPU does not come to an end")).to_be_visible()
    expect(detail.get_by_text("copies without the DMA engines")).to_be_visible()
    expect(detail.get_by_text("log.txt:7")).to_be_visible()
    # Hostile words are shown as they are.
    expect(detail.locator("li pre").first).to_contain_text("</script><script>window.hurt = 1</script>")
    detail.get_by_text("Run it by hand").click()
    expect(detail.get_by_text("docker run --rm")).to_be_visible()
    page.get_by_text("Dockerfile", exact=True).click()
    expect(page.locator("dialog").get_by_text("# Cell rocm6.2-torch2.5.1-plain")).to_be_visible()


def test_another_run_can_be_chosen_and_more_be_listed(page: Page, report: Report) -> None:
    open_cell(page, "rocm6.3-torch2.9.1-plain")
    names = page.locator("dialog button.run")
    second = names.nth(1).inner_text()
    names.nth(1).click()
    expect(page.get_by_role("heading", name=f"Run {second}")).to_be_focused()
    rows = page.locator("dialog tr[data-run]")
    before = rows.count()
    page.get_by_role("button", name="Show more of the").click()
    total = sum(run.cell == "rocm6.3-torch2.9.1-plain" and run.group == report.groups[0].id for run in report.runs)
    assert before < rows.count()
    assert total in (rows.count(), total)


def test_the_filters_show_only_what_was_chosen(page: Page, report: Report) -> None:
    groups = page.locator(".group:visible")
    assert groups.count() == len(report.groups)
    host = report.groups[0].host_kind
    page.get_by_label("host", exact=True).select_option(host)
    assert groups.count() == sum(group.host_kind == host for group in report.groups)
    page.get_by_label("workload", exact=True).select_option("immediate")
    both = sum(group.host_kind == host and group.workload == "immediate" for group in report.groups)
    assert groups.count() == both
    expect(page.locator("#filtered")).to_have_text(f"{both} of {len(report.groups)} tables shown")


def test_imported_runs_can_be_left_out(page: Page, report: Report) -> None:
    group, place = next((g, p) for g in report.groups for p in g.places if p.own != p.count)
    button = page.locator(f'button[data-group="{group.id}"][data-cell="{place.cell}"]')
    expect(button).to_contain_text(f"{place.count.passes} of {place.count.runs}")
    page.get_by_label("runs", exact=True).select_option("own")
    expect(button).to_have_text(
        f"{place.own.tier}{f' {place.own.passes} of {place.own.runs}' if place.own.runs else ''}"
    )
    page.get_by_label("runs", exact=True).select_option("count")
    expect(button).to_contain_text(f"{place.count.passes} of {place.count.runs}")
    expect(button).to_have_attribute("aria-label", re.compile(f"{place.count.passes} of {place.count.runs} completed$"))


def test_a_cell_can_be_opened_read_and_closed_with_the_keyboard_alone(page: Page) -> None:
    page.get_by_label("runs", exact=True).focus()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('button.place')"):
            break
    cell = page.evaluate("document.activeElement.dataset.cell")
    page.keyboard.press("Enter")
    expect(page.locator("#cell-title")).to_have_text(cell)
    expect(page.locator("#cell-title")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        inside = "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
        assert page.evaluate(inside)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    assert page.evaluate("document.activeElement.dataset.cell") == cell


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    # Contrast after WCAG 2.1, of every verdict's words on their ground.
    ratios = page.evaluate(
        """() => [...document.querySelectorAll(".place")].map((one) => {
          const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
          const light = (colours) => {
            for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
            return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((one) => one / 255)
              .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
              .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
          };
          const ground = [getComputedStyle(document.body).backgroundColor, getComputedStyle(one).backgroundColor];
          const [low, high] = [light(ground), light([...ground, getComputedStyle(one).color])].sort((a, b) => a - b);
          return (high + 0.05) / (low + 0.05);
        })"""
    )
    assert min(ratios) >= 4.5
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")


def test_charts_follow_when_the_scheme_changes(page: Page) -> None:
    open_cell(page, "rocm6.3-torch2.9.1-plain")
    label = page.locator("[data-chart=memory][data-drawn] .xtick text").first
    expect(label).to_be_visible()
    light = label.evaluate("(one) => getComputedStyle(one).fill")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        f"getComputedStyle(document.querySelector('[data-chart=memory] .xtick text')).fill !== '{light}'"
    )


def test_every_control_and_picture_has_a_name(page: Page) -> None:
    open_cell(page, "rocm6.3-torch2.9.1-plain")
    expect(page.locator("[data-chart=phases][data-drawn]")).to_be_visible()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, select, [role=img], [role=region], a[href]")]
          .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
          .map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    for name in ("Loss of mlp", "Memory", "Phases"):
        expect(page.get_by_role("img", name=name)).to_be_visible()


def test_a_script_that_got_into_the_page_would_not_run(browser: Browser, file: Path) -> None:
    page = browser.new_page()
    page.goto(file.as_uri())
    blocked = page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener("securitypolicyviolation", () => done(true));
          document.body.append(Object.assign(document.createElement("script"), { textContent: "window.hurt = 1" }));
          setTimeout(() => done(false), 2000);
        })"""
    )
    assert blocked
    assert page.evaluate("window.hurt") is None
    page.close()


def test_the_library_of_charts_stays_packed_until_the_first(page: Page) -> None:
    assert page.evaluate("typeof window.Plotly") == "undefined"
    open_cell(page, "rocm6.3-torch2.9.1-plain")
    page.wait_for_function("typeof window.Plotly === 'object'")
