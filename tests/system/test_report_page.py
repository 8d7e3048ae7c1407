"""Tests of the report in a real browser."""

import re
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from harness.base.paths import CHECKOUT
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.matrix.load import load_matrix
from harness.report.build import build_report
from harness.report.model import Report
from harness.report.page import to_html
from harness.report.reader import Reader
from tests.harness.report.synthetic import write_runs
from tests.system.report_screens import DRAWN, PHONE, SCREEN, evening_report, hung_run, pictures, take

CHROMIUM = shutil.which("chromium")
RUNS = 240
# While other test suites run, drawing may take longer than the default of five seconds.
expect.set_options(timeout=60_000)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    matrix = load_matrix(CHECKOUT / "matrix.yaml")
    results = write_runs(tmp_path_factory.mktemp("results"), matrix, RUNS)
    rows = [Row.of(record, imported=results.imported(record.intent.run_id)) for record in results.records()]
    return build_report(results, rows, matrix, {}, count_runs(rows), Reader(1e9))


@pytest.fixture(scope="module")
def file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(to_html(report), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses to start as root, and CI runs as root.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def evening(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report on an evening on a simulated host with two GPUs."""
    return evening_report(tmp_path_factory.mktemp("evening"))


@pytest.fixture(scope="module")
def evening_file(evening: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("evening-page") / "report.html"
    file.write_text(to_html(evening), encoding="utf-8")
    return file


@contextmanager
def opened(browser: Browser, file: Path) -> Iterator[Page]:
    """Open the page; any message on the browser's console and any request to another place fails the test."""
    context = browser.new_context(viewport=SCREEN)
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


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    with opened(browser, file) as page:
        yield page


@pytest.fixture
def evening_page(browser: Browser, evening_file: Path) -> Iterator[Page]:
    with opened(browser, evening_file) as page:
        yield page


def go(page: Page, address: str) -> None:
    page.evaluate("(address) => { location.hash = address }", address)
    expect(page.locator("#view h1")).to_be_focused()


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
def test_the_first_screen_has_the_sentence_the_next_command_and_the_grid(
    evening_page: Page, evening: Report, size: ViewportSize
) -> None:
    evening_page.set_viewport_size(size)
    expect(evening_page.locator("#answer")).to_be_in_viewport(ratio=1)
    expect(evening_page.locator("#next code")).to_be_in_viewport(ratio=1)
    expect(evening_page.locator("#next .copy")).to_be_in_viewport(ratio=1)
    first = evening.answer.grids[0]
    assert first.title.startswith("On two simulated GPUs")
    for place in first.places:
        expect(evening_page.locator(".scope").first.get_by_role("link", name=f"{place.cell}:")).to_be_in_viewport(
            ratio=1
        )
    # A page wider than its window would have to be scrolled sideways for every line.
    assert evening_page.evaluate("document.documentElement.scrollWidth") == size["width"]
    # If a table were wider, a phone would hide the columns that matter most.
    all_of = "() => [...document.querySelectorAll('.scroll, html')]"
    wider = f"{all_of}.filter((one) => one.scrollWidth > one.clientWidth).length"
    evening_page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert evening_page.evaluate(wider) == 0
    # An option that is wrapped after its hyphens would read as two words.
    assert (
        evening_page.evaluate(
            """() => {
          const texts = document.createTreeWalker(document.querySelector("#next code"), NodeFilter.SHOW_TEXT);
          const range = document.createRange(), broken = [];
          while (texts.nextNode()) for (const option of texts.currentNode.data.matchAll(/--[a-z-]+/g)) {
            range.setStart(texts.currentNode, option.index);
            range.setEnd(texts.currentNode, option.index + option[0].length);
            if (range.getClientRects().length > 1) broken.push(option[0]);
          }
          return broken;
        }"""
        )
        == []
    )
    go(evening_page, f"#/cell/{first.places[0].cell}")
    assert evening_page.evaluate(wider) == 0


def test_on_a_phone_a_long_name_without_hyphens_is_broken(evening_page: Page) -> None:
    evening_page.set_viewport_size(PHONE)
    evening_page.evaluate(
        """() => {
          document.querySelectorAll("details").forEach((one) => { one.open = true; });
          const named = "h2, h4, th, td:not(:has(a), .number), td > a:not(.place), .place span + span";
          for (const one of document.querySelectorAll(named)) one.textContent = "x".repeat(90);
        }"""
    )
    all_of = "() => [...document.querySelectorAll('.scroll, html')]"
    assert evening_page.evaluate(f"{all_of}.filter((one) => one.scrollWidth > one.clientWidth).length") == 0


def test_on_a_screen_every_grid_stands_above_the_fold(evening_page: Page, evening: Report) -> None:
    assert len(evening.answer.grids) == 3
    for grid in evening_page.locator(".scope table").all():
        expect(grid).to_be_in_viewport(ratio=1)


def test_untested_and_excluded_cells_are_told_apart_by_more_than_their_colour(evening_page: Page) -> None:
    looks = evening_page.evaluate(
        """() => Object.fromEntries(["untested", "excluded", "seen"].map((tier) => {
          const one = document.querySelector(`.scope .place.${tier}`), style = getComputedStyle(one);
          return [tier, [one.textContent.trim().split(" ")[0], style.borderTopStyle, style.backgroundImage !== "none"]];
        }))"""
    )
    assert looks == {
        "untested": ["untested", "dashed", False],
        "excluded": ["excluded", "solid", True],
        "seen": ["seen", "solid", False],
    }


def test_a_cell_that_fails_is_told_apart_from_one_with_its_first_passes_by_more_than_its_colour(
    evening_page: Page,
) -> None:
    marks = evening_page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".scope .place")].map((one) =>
          [one.className.split(" ")[1], getComputedStyle(one, "::before").content.includes("\u2717")]))"""
    )
    assert marks == {
        "failing": True,
        "flaky": True,
        **dict.fromkeys(("seen", "candidate", "good", "untested", "excluded"), False),
    }
    assert "\u2717: runs failed" in evening_page.locator(".legend").inner_text()


def test_every_cell_and_run_opens_by_its_address(page: Page, report: Report) -> None:
    # Charts are tested elsewhere and disabled here, because drawing two hundred of them takes a minute.
    page.evaluate("() => { delete window.DecompressionStream }")
    cells = sorted({place.cell for group in report.groups for place in group.places})
    cells += [cell for one in report.excluded for cell in one.cells]
    addresses = {f"#/cell/{cell}": cell for cell in cells}
    addresses |= {f"#/cell/{place.cell}/{group.id}": place.cell for group in report.groups for place in group.places}
    addresses |= {f"#/run/{run.run_id}": f"Run {run.run_id}" for run in report.runs}
    shown = page.evaluate(
        """async (addresses) => {
          const shown = {};
          for (const address of addresses) {
            const moved = new Promise((done) => addEventListener("hashchange", done, { once: true }));
            location.hash = address;
            await moved;
            const view = document.querySelector("#view");
            shown[address] = [view.querySelector("h1").textContent, view.textContent];
          }
          return shown;
        }""",
        list(addresses),
    )
    assert {address: title for address, (title, _) in shown.items()} == addresses
    assert not [address for address, (_, text) in shown.items() if "nothing about" in text or "no run of" in text]
    for run in report.runs:
        text = shown[f"#/run/{run.run_id}"][1]
        if run.again is None:
            assert run.uncounted == "injected fault"
            assert "No command of this host repeats it" in text
            continue
        where = [text.find(part) for part in (run.outcome, run.diagnosis or "", report.again[run.again].command)]
        assert -1 not in where
        assert where[2] < text.find("Files: ")


def test_an_address_from_elsewhere_opens_at_once_and_a_wrong_one_says_so(
    browser: Browser, file: Path, report: Report
) -> None:
    page = browser.new_page()
    run = report.runs[0].run_id
    page.goto(f"{file.as_uri()}#/run/{run}")
    expect(page.get_by_role("heading", name=f"Run {run}", level=1)).to_be_visible()
    assert run in page.title()
    for address in ("#/run/none", "#/cell/%E0%A4%A", "#/elsewhere", "#/"):
        go(page, address)
        expect(page.locator("#view")).to_contain_text(re.compile("no run of that name|nothing"))
    page.goto(f"{file.as_uri()}#comparison")
    expect(page.locator("#comparison")).to_be_in_viewport()
    page.close()


@pytest.mark.parametrize("name", ["constructor", "__proto__"])
def test_a_name_that_every_object_of_the_browser_has_is_of_no_cell_and_no_run(name: str, page: Page) -> None:
    go(page, f"#/cell/{name}")
    expect(page.locator("#view")).to_contain_text("This report has nothing about a cell of that name.")
    go(page, f"#/run/{name}")
    expect(page.locator("#view")).to_contain_text("This report has no run of that name.")


def test_a_failed_run_comes_with_evidence_remedy_and_how_to_repeat_it(page: Page, report: Report) -> None:
    run = next(one for one in report.runs if one.diagnosis == "no-progress" and one.run_id in report.details)
    go(page, f"#/run/{run.run_id}")
    view = page.locator("#view")
    expect(view.get_by_text("a copy between host and GPU does not come to an end")).to_be_in_viewport()
    expect(view.get_by_text("copies without the DMA engines")).to_be_in_viewport()
    expect(view.get_by_text("copies without the DMA engines").locator("code")).to_contain_text("matrix doctor")
    expect(view.get_by_text("log.txt:7")).to_be_visible()
    # Hostile text is shown literally.
    expect(view.locator("li pre").first).to_contain_text("</script><script>window.hurt = 1</script>")
    expect(view.locator(".command code")).to_contain_text(f"run-cell {run.cell}")
    view.get_by_text("Run it by hand").click()
    expect(view.get_by_text("docker run --rm")).to_be_visible()
    view.get_by_role("link", name=run.cell, exact=True).first.click()
    view.get_by_text("Dockerfile", exact=True).first.click()
    expect(view.get_by_text(f"# Cell {run.cell}")).to_be_visible()


def test_a_run_is_shown_over_time_with_gpus_and_the_kernels_words(evening_page: Page, evening: Report) -> None:
    run = hung_run(evening)
    go(evening_page, f"#/run/{run}")
    evening_page.wait_for_function(DRAWN)
    chart = evening_page.get_by_role(
        "img", name=re.compile("^Over time: phases, power, temperature, clocks, GPU memory")
    )
    expect(chart).to_be_visible()
    assert chart.locator(".shape-group path, .shapelayer path").count() >= len(evening.details[run].kernel_events) == 2
    expect(evening_page.get_by_role("cell", name=re.compile("amdgpu_job_timedout"))).to_be_visible()
    last = chart.evaluate("(one) => Math.max(...one._fullData.flatMap((trace) => [...trace.x]))")
    assert last == pytest.approx(evening.details[run].gpu_curves[0].seconds[-1], abs=1)
    loss = evening_page.get_by_role("img", name=re.compile("^Loss of"))
    assert f"the last at step {evening.details[run].loss_curves[0].steps[-1]}" in (
        loss.get_attribute("aria-label") or ""
    )


def test_commands_by_hand_have_a_line_each(evening_page: Page, evening: Report) -> None:
    run = hung_run(evening)
    go(evening_page, f"#/run/{run}")
    again = next(one.again for one in evening.runs if one.run_id == run)
    assert again is not None
    command = evening.again[again].command
    assert "\n" in command
    assert evening_page.locator("#view .command code").inner_text() == command


@pytest.mark.parametrize("width", [390, 700, 1400])
def test_titles_and_keys_of_charts_do_not_overlap(evening_page: Page, evening: Report, width: int) -> None:
    evening_page.set_viewport_size({"width": width, "height": 900})
    go(evening_page, f"#/run/{hung_run(evening)}")
    evening_page.wait_for_function(DRAWN)
    overlapping = evening_page.evaluate(
        """() => {
          const texts = [...document.querySelectorAll("[data-chart=time] .annotation-text-g text")];
          const boxes = texts.map((one) => [one.getBoundingClientRect(), one.textContent]);
          return boxes.flatMap(([a, name], at) => boxes.slice(at + 1)
            .filter(([b]) => a.left < b.right && b.left < a.right && a.top < b.bottom - 3 && b.top < a.bottom - 3)
            .map(([, other]) => [name, other]));
        }"""
    )
    assert overlapping == []


def test_more_runs_of_a_cell_can_be_listed(page: Page, report: Report) -> None:
    cell = "rocm6.3-torch2.9.1-plain"
    group = next(group for group in report.groups if any(place.cell == cell for place in group.places))
    go(page, f"#/cell/{cell}/{group.id}")
    rows = page.locator("#view tr[data-run]")
    before = rows.count()
    page.get_by_role("button", name="Show more of the").first.click()
    assert before < rows.count() <= sum(run.cell == cell for run in report.runs)


def test_the_page_of_a_cell_leads_to_its_newest_failure(evening_page: Page, evening: Report) -> None:
    one = next(one for one in evening.verdicts if one.tier == "good")
    failed = next(run for run in evening.runs if run.failed and (run.cell, run.group) == (one.cell, one.group))
    go(evening_page, f"#/cell/{one.cell}/{one.group}")
    view = evening_page.locator("#view")
    expect(view).to_contain_text("and 21.0 h of training had 1 failure: MTBF above 3.0 h.")
    # With both GPUs it failed in its first step: nothing can be said of hours.
    expect(view).to_contain_text("0 of 5 starts succeeded (the share is above 0 %). Failures:")
    view.get_by_role("link", name=failed.run_id).first.click()
    expect(evening_page.get_by_role("heading", name=f"Run {failed.run_id}")).to_be_visible()


def test_nothing_is_cut_off_on_paper(evening_page: Page) -> None:
    # About the width of A4 between its margins.
    evening_page.set_viewport_size({"width": 720, "height": 1000})
    evening_page.emulate_media(media="print")
    printed = "[...document.querySelectorAll('.scroll, html')].filter((one) => one.checkVisibility())"
    assert evening_page.evaluate(f"{printed}.filter((one) => one.scrollWidth > one.clientWidth).length") == 0
    expect(evening_page.get_by_label("Only rows with")).to_be_hidden()


def test_without_javascript_the_page_says_what_is_missing(browser: Browser, evening_file: Path) -> None:
    page = browser.new_page(viewport=SCREEN, java_script_enabled=False)
    page.goto(evening_file.as_uri())
    expect(page.locator("noscript .caution")).to_be_in_viewport()
    expect(page.locator(".copy").first).to_be_hidden()
    page.close()


def test_the_comparison_is_sorted_by_click_and_by_keyboard(evening_page: Page) -> None:
    column = evening_page.locator("#compared tbody tr td:nth-child(8)")
    head = evening_page.get_by_role("columnheader", name="trained")

    def hours() -> list[float]:
        values: list[float] = column.evaluate_all("cells => cells.map((cell) => Number(cell.dataset.value))")
        return values

    heights = evening_page.locator("button.sort").evaluate_all("all => all.map((one) => one.offsetHeight)")
    assert min(heights) >= 24, "WCAG 2.2, 2.5.8"
    button = head.get_by_role("button")
    button.click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert hours() == sorted(hours())
    button.focus()
    evening_page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert hours() == sorted(hours(), reverse=True)
    assert hours()[0] > 20
    evening_page.get_by_role("columnheader", name="cell").get_by_role("button").click()
    names = evening_page.locator("#compared tbody th").all_inner_texts()
    assert names[0] == "cpu-plain"
    assert evening_page.locator("#compared [aria-sort]").count() == 1
    evening_page.get_by_label("Only rows with").fill("NO-P2P")
    expect(evening_page.locator("#rows-shown")).to_have_text(f"2 of {len(names)} rows")
    assert evening_page.locator("#compared tbody tr:visible").count() == 2
    evening_page.set_viewport_size({"width": 1280, "height": 900})
    table = evening_page.locator("#compared")
    assert table.evaluate("(table) => table.offsetWidth <= table.parentElement.clientWidth")


def test_the_command_is_copied(browser: Browser, evening_file: Path, evening: Report) -> None:
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(evening_file.as_uri())
    page.get_by_role("button", name="Copy the command").first.click()
    expect(page.locator("#said")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == evening.answer.next.command
    context.close()


def test_where_nothing_may_be_copied_the_command_is_selected(evening_page: Page, evening: Report) -> None:
    evening_page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    evening_page.get_by_role("button", name="Copy the command").first.click()
    expect(evening_page.locator("#said")).to_contain_text("Selected")
    assert evening_page.evaluate("getSelection().toString()") == evening.answer.next.command


def test_the_filters_show_only_what_was_chosen(page: Page, report: Report) -> None:
    page.get_by_text("Verdicts by stack and preset").click()
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
    page.get_by_text("Verdicts by stack and preset").click()
    group, place = next((g, p) for g in report.groups for p in g.places if p.own != p.count)
    link = page.locator(f'a[data-group="{group.id}"][data-cell="{place.cell}"]')
    expect(link).to_contain_text(f"{place.count.passes} of {place.count.runs}")
    page.get_by_label("runs", exact=True).select_option("own")
    expect(link).to_have_text(f"{place.own.tier}{f' {place.own.passes} of {place.own.runs}' if place.own.runs else ''}")
    page.get_by_label("runs", exact=True).select_option("count")
    expect(link).to_contain_text(f"{place.count.passes} of {place.count.runs}")
    expect(link).to_have_attribute("aria-label", re.compile(f"{place.count.passes} of {place.count.runs} completed$"))


def test_a_cell_and_its_run_are_opened_read_and_left_with_the_keyboard_alone(evening_page: Page) -> None:
    def focused(what: str) -> bool:
        return bool(evening_page.evaluate(f"document.activeElement.matches('{what}')"))

    seen = []
    for _ in range(12):
        evening_page.keyboard.press("Tab")
        seen.append(evening_page.evaluate("document.activeElement.className"))
        if focused(".scope .place"):
            break
    assert "copy" in seen
    cell = evening_page.evaluate("document.activeElement.getAttribute('aria-label').split(':')[0]")
    evening_page.keyboard.press("Enter")
    expect(evening_page.get_by_role("heading", name=cell, level=1)).to_be_focused()
    while not focused("[data-run] a"):
        evening_page.keyboard.press("Tab")
    evening_page.keyboard.press("Enter")
    expect(evening_page.get_by_role("heading", name=re.compile("^Run run-"), level=1)).to_be_focused()
    evening_page.go_back()
    expect(evening_page.get_by_role("heading", name=cell, level=1)).to_be_focused()
    evening_page.go_back()
    expect(evening_page.locator("#home")).to_be_visible()
    assert evening_page.evaluate("document.activeElement.getAttribute('aria-label').split(':')[0]") == cell


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const mixed = (colours) => {
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (parts) => parts.map((one) => one / 255)
    .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
  const grounds = (one) => {
    const layers = [[]];
    for (let at = one; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      // Of a pattern every colour is behind some letter.
      const pattern = style.backgroundImage.match(/rgba?\\([^)]*\\)/g) ?? [];
      const choices = [style.backgroundColor, ...pattern];
      layers.splice(0, layers.length, ...layers.flatMap((above) => choices.map((colour) => [colour, ...above])));
    }
    return layers;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement, text = walker.currentNode.textContent.replaceAll("\u25a0", "").trim();
    if (!text || one.closest("script, noscript, .unseen") || !one.checkVisibility()) continue;
    const style = getComputedStyle(one), svg = one instanceof SVGElement;
    for (const ground of grounds(one)) {
      const lights = [light(mixed(ground)), light(mixed([...ground, svg ? style.fill : style.color]))];
      const [low, high] = lights.sort((a, b) => a - b);
      found.push([(high + 0.05) / (low + 0.05), text.slice(0, 40)]);
    }
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_light_and_dark(evening_page: Page, evening: Report, scheme: str) -> None:
    """All text on the first page, a cell's and a run's has the contrast that WCAG 2.1 requires for level AA."""
    evening_page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    evening_page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    background = evening_page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")
    run = hung_run(evening)
    for address in ("", f"#/cell/{run.split('-', 2)[2]}", f"#/run/{run}"):
        if address:
            go(evening_page, address)
            evening_page.wait_for_function(DRAWN)
        ratios = evening_page.evaluate(CONTRASTS)
        assert len(ratios) > 20
        assert [one for one in ratios if one[0] < 4.5] == [], address


def test_charts_follow_when_the_scheme_changes(evening_page: Page, evening: Report) -> None:
    go(evening_page, f"#/run/{hung_run(evening)}")
    evening_page.wait_for_function(DRAWN)
    label = "document.querySelector('[data-chart=loss] .xtick text')"
    light = evening_page.evaluate(f"getComputedStyle({label}).fill")
    evening_page.emulate_media(color_scheme="dark")
    evening_page.wait_for_function(f"() => {label} && getComputedStyle({label}).fill !== '{light}'")
    assert evening_page.evaluate(f"getComputedStyle({label}).fill") != light


def test_a_screen_reader_hears_a_name_for_whatever_can_be_used_or_seen(evening_page: Page, evening: Report) -> None:
    used = {"link", "button", "combobox", "searchbox", "textbox", "dialog", "navigation"}
    roles = used | {"image", "img", "region", "table"}
    session = evening_page.context.new_cdp_session(evening_page)
    evening_page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    run = hung_run(evening)
    cell = next(one.cell for one in evening.runs if one.run_id == run)
    for address in ("", f"#/run/{run}", f"#/cell/{cell}"):
        if address:
            go(evening_page, address)
            evening_page.wait_for_function(DRAWN)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        told = [
            (node["role"]["value"], node.get("name", {}).get("value", "").strip())
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in roles
        ]
        assert len(told) >= 10
        assert [role for role, name in told if not name] == []
    expect(evening_page.get_by_role("navigation", name="Where this is")).to_be_visible()


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


def test_the_library_of_charts_stays_packed_until_the_first(page: Page, report: Report) -> None:
    assert page.evaluate("typeof window.Plotly") == "undefined"
    go(page, f"#/run/{next(iter(report.details))}")
    page.wait_for_function("() => typeof window.Plotly === 'object'")


@pytest.mark.long
def test_the_pictures_of_the_docs_can_be_made_again(
    browser: Browser, evening: Report, evening_file: Path, tmp_path: Path
) -> None:
    for picture in pictures(hung_run(evening)):
        take(browser, evening_file, picture, tmp_path)
        made, kept = ((folder / picture.name).read_bytes() for folder in (tmp_path, CHECKOUT / "docs" / "pictures"))
        size = picture.size["width"], picture.size["height"]
        assert struct.unpack(">II", made[16:24]) == struct.unpack(">II", kept[16:24]) == size
        # Fonts differ between machines, but an empty page or another page would have a very different size.
        assert 0.5 < len(made) / len(kept) < 2
