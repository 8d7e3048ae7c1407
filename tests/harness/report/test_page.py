import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from typing import get_args

import pytest

from harness.base.text import printable
from harness.evidence.files.run_files import Record
from harness.evidence.verdicts.verdict import Tier
from harness.report.model import Report
from harness.report.page import BEFORE_UNIT, _answer, as_data, to_html
from harness.report.shades import shade
from tests.harness.report.synthetic import HOSTILE


@pytest.fixture(scope="module")
def html(synthetic: Report) -> str:
    return to_html(synthetic)


class Checker(HTMLParser):
    """A parser that collects unclosed tags, addresses outside the file, handlers in attributes, and scripts."""

    VOID = ("meta", "link", "br", "img", "hr", "wbr", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        told = dict(attributes)
        self.outside += [v for v in told.values() if v and v.startswith(("http:", "https:", "//"))]
        self.handlers += [name for name in told if name.startswith("on")]
        if told.get("http-equiv") == "Content-Security-Policy":
            self.policy = told["content"] or ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    return checker


def test_the_page_is_sound_and_needs_nothing_from_elsewhere(checked: Checker) -> None:
    assert checked.open == []
    assert checked.outside == []
    assert checked.handlers == []


def test_what_a_program_said_cannot_become_markup(html: str, checked: Checker) -> None:
    assert HOSTILE not in html
    assert "img" not in checked.tags
    assert len(checked.scripts) == 3


def test_the_data_in_the_page_are_the_report(synthetic: Report, checked: Checker) -> None:
    assert Report.model_validate(json.loads(checked.scripts[0])) == synthetic
    assert "<" not in as_data(synthetic)


def test_the_browser_is_told_to_run_only_the_scripts_of_the_page(checked: Checker) -> None:
    library = gzip.decompress(base64.b64decode(checked.scripts[1]))
    for script in (checked.scripts[2].encode(), library):
        assert base64.b64encode(hashlib.sha256(script).digest()).decode() in checked.policy
    assert "default-src 'none'" in checked.policy
    assert "unsafe" not in re.split(r";\s*", checked.policy)[1]


def test_every_verdict_is_reported_in_words_and_not_by_colour_alone(synthetic: Report, html: str) -> None:
    for group in synthetic.groups:
        for one in group.places:
            told = f"{one.cell}: {one.count.tier}"
            told += f", {one.count.passes} of {one.count.runs} completed" if one.count.runs else ""
            told += f", {one.reason}" if one.count.tier == "untested" and one.reason else ""
            assert f'aria-label="{told}"' in html


def test_the_grid_of_the_answer_leads_to_every_cell_and_is_coloured_by_its_starts(synthetic: Report, html: str) -> None:
    places = [place for grid in synthetic.answer.grids for place in grid.places]
    for one in places:
        told = ", ".join(part for part in (one.text, one.starts, one.mtbf, one.reason) if part)
        assert f'aria-label="{one.cell}: {told}"' in html
        assert f'href="#/cell/{one.cell}{f"/{one.group}" if one.group else ""}"' in html
        assert one.start_low is None or f'style="{shade(0.0 if one.tier == "failing" else one.start_low)}"' in html
    assert {one.group for one in places} <= {None, *(group.id for group in synthetic.groups)}


def test_the_answer_stands_before_everything_else_in_its_own_words(synthetic: Report, html: str) -> None:
    text = unescape(re.sub("<[^>]*>", "", printable(html).partition("<body>")[2]))
    said = BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", synthetic.answer.sentence.replace("`", ""))
    first, last = (text.index(part) for part in (said, "What failed, and why"))
    assert first < text.index(synthetic.answer.next.command) < text.index(synthetic.answer.grids[0].title) < last


def test_where_nothing_failed_the_page_says_so(
    report_of: Callable[..., Report], make_record: Callable[..., Record]
) -> None:
    report = report_of([make_record("a")])
    section = to_html(report).partition("What failed, and why")[2].partition("</section>")[0]
    assert report.answers.failures[0] == "Nothing failed in 1 counted run."
    assert section.count(report.answers.failures[0]) == 1
    assert to_html(report).count(f"<p>{report.answers.failures[0]}</p>") == 1


def test_the_first_columns_of_the_comparison_which_a_phone_shows_have_cell_and_verdict(html: str) -> None:
    table = html.split('<table id="compared"')[1].split("</tbody>", maxsplit=1)[0]
    names = re.findall(r'class="sort">([^<]*)<', table)
    assert names[:3] == ["cell", "verdict", "passed"]
    first = re.findall(r"<td[^>]*>(.*?)</td>", table.split("<tbody>")[1], re.DOTALL)
    assert first[0] in get_args(Tier)
    assert re.match(r"\d+/\d+", first[1])


def test_an_answer_of_two_clauses_is_two_sentences_to_who_reads_it(synthetic: Report) -> None:
    told = {text: _answer(text) for text in ("Use `x`; y is 3", "Nothing yet.")}
    assert told["Use `x`; y is 3"] == (
        '<strong>Use <code>x</code></strong><span class="unseen">; </span><span class="rest">y is 3</span>'
    )
    # The style adds a full stop after the first of two clauses only; a whole answer ends with its own.
    assert told["Nothing yet."] == "<strong>Nothing yet.</strong>"
    assert "#answer strong:not(:last-child)::after" in to_html(synthetic)
