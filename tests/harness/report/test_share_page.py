"""Tests of `matrix report --share`: a page that names nobody, and records that another host can import."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.campaign.answered import LastAnswer, remember_answer
from harness.cli.records import report
from harness.cli.shared import Settings
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.evidence.verdicts.recommend import NamedCell
from harness.host.facts import HostFacts
from harness.registry.share.imports import import_records
from harness.registry.share.scrub import HOST, Scrubber

PLANTED = ("kraken-box", "alice", "198.51.100.23", "/srv/secret", "es-2024.csv")
HOSTILE = "a CPU <img src=x onerror='window.hurt = 1'> of alice on kraken-box at 198.51.100.23"
Command = Callable[..., Result]


@pytest.fixture
def shared_host(dual_host: HostFacts) -> HostFacts:
    return dual_host.model_copy(update={"cpu": HOSTILE, "kernel": "6.8.0-kraken-box", "driver": "6.12.12"})


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_host: HostFacts, make_record: Callable[..., Record]
) -> Command:
    """Return a function that runs `matrix report` on runs of this host, a run of another host, and a rehearsal."""
    results = Results(tmp_path / "results")
    scrubber = Scrubber({}, {"kraken-box": HOST, "alice": "<user>"})
    for module in ("harness.report.share_page", "harness.registry.share.exports"):
        monkeypatch.setattr(f"{module}.read_scrubber", lambda *_: scrubber)
    monkeypatch.setattr("harness.report.share_page.host_of", lambda *_: shared_host)
    told = {
        "cell": "rocm6.3-torch2.9.1-plain",
        "stack": "rocm6.3-torch2.9.1",
        "host": shared_host,
        "device": "cuda",
        "gpus": (0,),
        "data": {"path": "/srv/secret/es-2024.csv", "sha256": "a" * 64},
    }
    other = shared_host.model_copy(update={"machine": "o" * 16})
    for record in (
        make_record("r1", **told),
        make_record("r2", "failed", "crash", "in /srv/secret/es-2024.csv", **told),
        make_record("r3", **told | {"host": other}),
        make_record("r4", rehearsal=True, **told),
    ):
        results.begin(record.intent)
        results.finish(record)

    def run(*arguments: str) -> Result:
        settings = Settings(CHECKOUT / "matrix.yaml", results.folder, None)
        done = CliRunner().invoke(report, arguments, obj=settings)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return run


class Tags(HTMLParser):
    """A parser that collects the tags of a page and the addresses that they load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_shows_cards_cells_starts_and_hours_and_nobodys_name(command: Command, tmp_path: Path) -> None:
    done = command("--share", str(tmp_path / "mine.html"))
    assert done.stdout == f"{tmp_path}/mine.html: 2 runs; post {tmp_path}/mine.tar.gz beside it\n"
    assert "left out: 1 rehearsal" in done.stderr
    assert "left out: 1 run of other hosts" in done.stderr
    text = (tmp_path / "mine.html").read_text(encoding="utf-8")
    found = [telling for telling in (*PLANTED, "m" * 16, str(tmp_path)) if telling in text]
    assert not found
    assert re.findall("<table([^>]*)>", text)[-1:] == [' aria-label="Cells"']
    assert "<table>" not in text
    tags = Tags(text)
    assert not tags.names & {"script", "img", "link"}
    assert tags.loaded == []
    for told in (
        "GPU 0: RX 7900 XT (gfx1100), 20 GiB; VBIOS not known; firmware not known",
        "kernel: 6.8.0-&lt;host&gt;",
        "<td>rocm6.3-torch2.9.1-plain</td><td>one GPU (gfx1100)</td>",
        "<td>1 of 2</td>\n<td>1 of 2</td><td>1.0 h</td><td>0</td>",
        "crash 1",
        '<td class="flaky">1/2 flaky</td>',
        "matrix import mine.tar.gz",
    ):
        assert told in text, told


def test_the_page_is_about_the_cell_that_the_last_campaign_named(
    command: Command, tmp_path: Path, shared_host: HostFacts, make_record: Callable[..., Record]
) -> None:
    results, named = Results(tmp_path / "results"), NamedCell("rocm6.3-torch2.9.1-no-sdma", "single")
    stack, preset = "rocm6.3-torch2.9.1", "no-sdma"
    on_gpu = {"cell": named.cell, "stack": stack, "preset": preset, "host": shared_host, "device": "cuda", "gpus": (0,)}
    for number, cell in enumerate((named.cell, *["rocm7.0-torch2.10.0-plain"] * 4)):
        record = make_record(f"other{number}", **on_gpu | {"cell": cell})
        results.begin(record.intent)
        results.finish(record)
    page = Path(json.loads(command("--share", "--json").stdout)["page"])
    assert f"the most promising so far is {named.cell}" not in page.read_text(encoding="utf-8")
    remember_answer(results, shared_host.machine, LastAnswer(named))
    command("--share")
    assert f"the most promising of the last campaign is {named.cell}" in page.read_text(encoding="utf-8")


def test_the_page_among_the_results_is_rewritten_each_time(command: Command) -> None:
    first = json.loads(command("--share", "--json").stdout)
    Path(first["page"]).write_text("", encoding="utf-8")
    again = json.loads(command("--share", "--json").stdout)
    assert again == first
    assert again["sha256"] in Path(again["page"]).read_text(encoding="utf-8")


def test_another_host_can_import_what_lies_beside_it(command: Command, tmp_path: Path, host: HostFacts) -> None:
    told = json.loads(command("--share", "--json").stdout)
    assert told["page"] == str(tmp_path / "results" / "share.html")
    there = host.model_copy(update={"machine": "t" * 16})
    imported = import_records(Results(tmp_path / "there"), Path(told["file"]), there)
    assert (len(imported.runs), imported.sha256) == (2, told["sha256"])
    assert told["sha256"] in Path(told["page"]).read_text(encoding="utf-8")


def test_nothing_that_is_there_is_replaced_unless_it_is_said(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.html: is there already; give --force"):
        command("--share", str(tmp_path / "mine.html"))
    assert not (tmp_path / "mine.tar.gz").exists()
    command("--share", str(tmp_path / "mine.html"), "--force")
    assert (tmp_path / "mine.tar.gz").exists()
    (tmp_path / "mine.html").unlink()
    with pytest.raises(UserError, match=r"mine\.tar\.gz: is there already"):
        command("--share", str(tmp_path / "mine.html"))
    with pytest.raises(UserError, match="--force is for --share"):
        command("--force")
    with pytest.raises(UserError, match=r"ends in \.html"):
        command("--share", str(tmp_path / "mine.txt"))
    with pytest.raises(UserError, match="--hide is for --share"):
        command("--hide", "x")
