"""Tests of the pages: they stay short, and the links, headings, files, cells, presets and diagnoses they name exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from harness.base.paths import CHECKOUT
from harness.diagnosis.rules import load_signatures
from harness.environments.executors.bounded_log import HEAD_BYTES, TAIL_BYTES
from harness.environments.executors.container import MEMORY_SHARE
from harness.environments.executors.pids import LEAST_PIDS, PIDS_PER_CORE_AND_RANK
from harness.evidence.outcome import diagnoses
from harness.host import disk_use
from harness.matrix.cells import Matrix
from harness.run.run_cell import RECORD_BYTES

DOCS = CHECKOUT / "docs"
# The programs that write pages of docs/reference; a test of each program compares its pages.
WRITERS = (
    "harness/cli/schemas.py",
    "harness/diagnosis/reference.py",
    "tests/harness/reference_pages.py",
    "tests/app/reference_pages.py",
)
WRITTEN = {
    DOCS / "reference" / name
    for writer in WRITERS
    for name in re.findall(r'"([\w-]+\.md)"', (CHECKOUT / writer).read_text(encoding="utf-8"))
}
LOOKED_UP = [*sorted(WRITTEN), *sorted((DOCS / "evidence").glob("*.md"))]
# Pages that people write, in any folder of docs.
BY_HAND = sorted({*DOCS.rglob("*.md")} - {*LOOKED_UP})
READ = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *BY_HAND]
EVERY = [*READ, CHECKOUT / "CHANGELOG.md", *LOOKED_UP]
MOST_PAGES, MOST_WORDS = 16, 20_000
# Code of ours that names pages.
CODE = ("harness", "app", "benchmarks", "images", "tests", "Makefile", "matrix.yaml", "pyproject.toml")
PAGE = re.compile(r"(?<![\w./-])docs/[\w./-]*\.(?:md|png|svg|json)(?:#[\w-]+)?")
# Files of the tree as pages name them, except those that a run makes and names with a placeholder (NAME, <stack>).
FILE = re.compile(r"(?<![\w./<-])(?:harness|app|tests|benchmarks|images)/[\w./-]*\w/?(?![\w<*-])")


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def links(page: Path) -> Iterator[str]:
    """Yield the relative links of a page."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" not in link:
            yield link


def is_there(link: str, page: Path) -> bool:
    """Return whether a link on a page leads to a file or folder, and to a heading where it names one."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_what_is_read_is_short() -> None:
    words = {page.name: len(text(page).split()) for page in READ}
    assert len(READ) <= MOST_PAGES
    assert sum(words.values()) <= MOST_WORDS, words


def test_what_is_written_by_hand_does_not_stand_among_the_references() -> None:
    assert [page.name for page in BY_HAND if page.parent != DOCS] == []
    assert [page.name for page in WRITTEN if not page.exists()] == []


def test_there_is_nothing_else_among_the_docs() -> None:
    assert {entry.name for entry in DOCS.iterdir() if not entry.is_file()} == {"evidence", "pictures", "reference"}
    assert {file.suffix for file in DOCS.iterdir() if file.is_file()} == {".md"}


def test_every_page_is_reached_from_the_readme_and_every_other_file_from_some_page() -> None:
    told = {link.partition("#")[0] for link in links(CHECKOUT / "README.md")}
    assert [page.name for page in READ[1:] if str(page.relative_to(CHECKOUT)) not in told] == []
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in EVERY for link in links(page)}
    others = [*LOOKED_UP, *(DOCS / "pictures").iterdir()]
    assert [file.name for file in others if file not in linked] == []


def test_every_link_leads_somewhere() -> None:
    assert [(page.name, link) for page in EVERY for link in links(page) if not is_there(link, page)] == []


def test_every_page_that_code_names_is_there() -> None:
    missing = []
    for root in map(CHECKOUT.joinpath, CODE):
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if file.is_file() and file.suffix in {"", ".py", ".yaml", ".toml", ".j2", ".css", ".js"}:
                named = PAGE.findall(file.read_text(encoding="utf-8", errors="ignore"))
                missing += [
                    f"{file.relative_to(CHECKOUT)}: {one}" for one in named if not is_there(one, CHECKOUT / "page")
                ]
    assert missing == []


def test_every_file_that_a_page_names_is_there() -> None:
    named = {(page.name, one.rstrip(".")) for page in READ for one in FILE.findall(text(page))}
    assert sorted((page, one) for page, one in named if not (CHECKOUT / one).exists()) == []


def test_every_cell_that_a_page_names_is_in_the_matrix(matrix: Matrix) -> None:
    stacks = "|".join(re.escape(name) for name in matrix.stacks if name != "host")
    cell = re.compile(rf"(?<![\w.:/-])(?:{stacks})-[a-z][\w.-]*\w")
    named = {(page.name, one) for page in READ for one in cell.findall(text(page))}
    assert sorted((page, one) for page, one in named if one not in {*matrix.cells, *matrix.stacks}) == []


def test_the_presets_to_try_are_those_of_the_diagnosis(matrix: Matrix) -> None:
    remedies: dict[str, set[str]] = {}
    for rule in load_signatures().signatures:
        remedies.setdefault(rule.class_, set()).update(rule.presets)
    table = text(DOCS / "my-gpu-hangs.md").partition("| `matrix explain` says |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    assert len(rows) > 5
    listed = {one for classes, _ in rows for one in re.findall(r"`([\w-]+)`", classes)}
    of_gpus = {name for name, one in load_signatures().classes.items() if one.gpu in ("reset", "faulted")}
    assert sorted(of_gpus - listed) == [], "my-gpu-hangs.md says what to try after each kind of reset or fault"
    for classes, presets in rows:
        named = {name for name in re.findall(r"`([\w-]+)`", presets) if name in matrix.presets}
        for one in re.findall(r"`([\w-]+)`", classes):
            assert one in load_signatures().classes
            assert named <= remedies.get(one, set()), f"{one}: {named}"


def test_the_diagnoses_are_those_of_the_table_of_outcomes() -> None:
    table = text(DOCS / "running.md").partition("| diagnosis | the run |")[2].partition("\n\n")[0]
    told = {name for row in table.splitlines() for name in re.findall(r"`([a-z-]+)`", row[: row.find("|", 1)])}
    assert told == {*get_args(diagnoses.EndDiagnosis), *get_args(diagnoses.ResultDiagnosis)}


def test_what_a_run_may_take_is_documented() -> None:
    page = " ".join(text(DOCS / "running.md").partition("## What a run may take")[2].partition("\n## ")[0].split())
    told = (
        f"| {LEAST_PIDS:,}, or {PIDS_PER_CORE_AND_RANK} x cores x ranks if that is more; containers only |",
        f"| {MEMORY_SHARE:.0%} of the host's;".replace("%", " %"),
        f"| {disk_use.MOST_BYTES / 1e9:.0f} GB, or {disk_use.SHARE_OF_FREE * 100:.0f} % of what is free at the start "
        f"if that is less; {disk_use.MOST_ENTRIES:,} files; {disk_use.MOST_LEVELS} levels |",
        f"| until {disk_use.RESERVE_BYTES >> 30} GB is free, or a tenth of what was free",
        f"| its first and its last {HEAD_BYTES >> 20} MB |",
        f"if {RECORD_BYTES >> 20} MB are free",
    )
    assert [one for one in told if one not in page] == []
    assert (HEAD_BYTES, disk_use.RESERVE_SHARE) == (TAIL_BYTES, 0.1)


def test_synthetic_bars_never_get_the_name_of_the_users_own() -> None:
    made = [
        (page.name, name) for page in EVERY for name in re.findall(r"\bsynth\b[^\n`]*--output[ =](\S+)", text(page))
    ]
    assert [page for page, name in made if name.rstrip("`.,") == "merged.csv"] == []
