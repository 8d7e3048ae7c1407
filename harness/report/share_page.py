"""The page that a user can post: GPUs, firmware, cells, starts and hours, and nothing that identifies the owner."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness import __version__
from harness.base.errors import UserError
from harness.base.files.storage import write_durably
from harness.base.text import printable
from harness.base.wording import many
from harness.campaign.answered import Command, LastAnswer, last_answer
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import counts_of
from harness.evidence.verdicts.of_results import verdicts_on
from harness.evidence.verdicts.recommend import NamedCell, that_train
from harness.evidence.verdicts.scope import parts_of
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import hours_in_words, shows_mtbf
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.registry.share.archive import ENDING
from harness.registry.share.exports import Exported, export_records, shareable
from harness.registry.share.names import read_scrubber
from harness.report.model import AnswerGrid
from harness.report.sections.answer import answer_of
from harness.report.sections.of_host import OfHost
from harness.report.upstream.facts import gpu_in_words, host_facts
from harness.report.upstream.public import Public
from harness.report.words import share, utc

HERE = Path(__file__).parent
PAGE_ENDING = ".html"
GIB = 1 << 30


@dataclass(frozen=True)
class HostCard:
    """A kind of host, identified by its number on the page: its facts by name, and its GPUs."""

    number: int
    facts: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class CellLine:
    """A row of the table: an environment of a cell on a kind of host, and what its runs showed."""

    host: str
    cell: str
    scope: str
    workload: str
    executor: str
    tier: str
    passed: str
    starts: str
    hours: str
    failures: str
    mtbf: str
    boots: int
    note: str


@dataclass(frozen=True)
class Shared:
    """The page that was written, and the archive beside it."""

    page: Path
    archive: Exported


def write_shared(
    results: Results, matrix: Matrix, page: Path, root: Path, hide: tuple[str, ...], *, force: bool
) -> Shared:
    """Write the page and, beside it, an archive of the runs that it is about; `hide`, `force` as in `export_records`.

    Raises:
        UserError: when there is nothing to write, or one of the files exists or cannot be written.
    """
    if page.suffix != PAGE_ENDING:
        raise UserError(f"{page}: give it a name that ends in {PAGE_ENDING}")
    file = page.with_name(f"{page.stem}{ENDING}")
    for there in (page, file):
        if there.exists() and not force:
            raise UserError(f"{there}: is there already; give --force to replace it, or another name")
    host = host_of(results, root)
    archive = export_records(results, file, host, hide, force=force)
    everything = Index(results).rows()
    rows = [row for row in shareable(everything, host.machine, hide) if row.can_be_evidence]
    verdicts = verdicts_on(rows, matrix, counts_of(results, everything), host)
    hosts = _hosts(results, rows)
    public = Public(read_scrubber(results.folder, hide))
    named = last_answer(results, host.machine).named
    text = to_page(verdicts, hosts, matrix, host, archive, public, time.time(), named)
    write_durably(page, printable(text).encode())
    return Shared(page, archive)


def to_page(
    verdicts: Sequence[Verdict],
    hosts: Mapping[str, HostFacts],
    matrix: Matrix,
    host: HostFacts,
    archive: Exported,
    public: Public,
    made: float,
    named: NamedCell | None,
) -> str:
    """Return the page on verdicts as HTML that loads nothing.

    `hosts`: the hosts by kind.
    `made`: when the page is made, seconds since 1970.
    `named`: the cell that the last campaign on this machine named.
    """
    cells = {cell.id for cell in matrix.cells.values() if not cell.excluded}
    here = [one for one in verdicts if one.host_kind == host.kind and one.cell in cells]
    known = OfHost(here, that_train(here, matrix), [], {}, {}, (Command(command="", why=""),))
    answer = answer_of(known, matrix, len(host.gpus), LastAnswer(named))
    numbers = {kind: number for number, kind in enumerate(hosts, 1)}
    environment = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("share.html.j2").render(
        sentence=public.text(answer.sentence.replace("`", "")),
        grids=[_public_grid(grid, public) for grid in answer.grids],
        hosts=[_card(numbers[kind], facts, public) for kind, facts in hosts.items()],
        lines=[_line(one, numbers, public) for one in verdicts],
        archive=public.text(archive.file.name),
        sha256=archive.sha256,
        runs=many(archive.runs, "run"),
        confidence=share(matrix.verdicts.confidence),
        made=utc(made),
        version=__version__,
    )


def _hosts(results: Results, rows: Iterable[Row]) -> dict[str, HostFacts]:
    """Return the facts of each kind of host, from its newest readable record."""
    found: dict[str, HostFacts] = {}
    for row in sorted(rows, key=lambda row: row.started, reverse=True):
        if row.host_kind not in found:
            try:
                record = results.record(row.run_id)
            except UserError:
                continue
            if record:
                found[row.host_kind] = record.intent.host
    return found


def _card(number: int, host: HostFacts, public: Public) -> HostCard:
    facts = [*host_facts(host), *([("simulated", "yes: this host does not exist")] if host.simulated else [])]
    gpus = tuple(public.text(gpu_in_words(gpu)) for gpu in host.gpus) or ("no GPU",)
    return HostCard(number, tuple((name, public.text(value)) for name, value in facts), gpus)


def _line(one: Verdict, numbers: Mapping[str, int], public: Public) -> CellLine:
    totals, notes = one.totals, [f"{name} {count}" for name, count in one.diagnoses.items()]
    if one.stale:
        notes.append("an older environment or host")
    if one.imported:
        notes.append(f"{one.imported} from other hosts")
    return CellLine(
        host=f"host {numbers[one.host_kind]}" if one.host_kind in numbers else "unknown",
        cell=public.text(one.cell),
        scope=parts_of(one.scope).in_words,
        workload=public.text(one.workload),
        executor="container" if one.executor == "docker" else "process",
        tier=one.tier,
        passed=f"{one.passes} of {one.runs}",
        starts=f"{totals.started} of {totals.starts}",
        hours=hours_in_words(totals.hours),
        failures=str(totals.failures),
        mtbf=f"above {hours_in_words(one.mtbf_low)}" if shows_mtbf(one.mtbf_low) else "none yet",
        boots=totals.boots,
        note=public.text("; ".join(notes)),
    )


def _public_grid(grid: AnswerGrid, public: Public) -> AnswerGrid:
    places = tuple(
        place.model_copy(update={"cell": public.text(place.cell), "work": public.text(place.work)})
        for place in grid.places
    )
    stacks, presets = tuple(map(public.text, grid.stacks)), tuple(map(public.text, grid.presets))
    of_grid = {"title": public.text(grid.title), "places": places, "stacks": stacks, "presets": presets}
    return grid.model_copy(update=of_grid)
