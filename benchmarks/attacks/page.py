"""Write the table of the attacks' results."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import benchmarks.attacks.hostile.__main__  # noqa: F401 - enters all attacks in the list
from benchmarks.attacks.hostile.app import ATTACKS
from benchmarks.attacks.run import Row
from harness.base.paths import CHECKOUT

PAGE = CHECKOUT / "docs" / "evidence" / "attacks.md"
FIGURES = CHECKOUT / "docs" / "evidence" / "attacks-figures.json"
TITLES = {
    "links": "Links at the names that the harness reads or writes",
    "kinds": "Files of other kinds, sizes, numbers and names",
    "contents": "False or malformed contents of files",
    "resources": "Exhausted resources",
    "processes": "Processes that hide, stop or stay",
    "folders": "The run folder itself",
}


def totals(rows: Sequence[Row]) -> dict[str, int]:
    """Return the counts; all except the first three and the last must be 0."""
    return {
        "attacks": len({row.attack for row in rows}),
        "runs": len(rows),
        "ok": sum(row.carried_out and not row.wrong for row in rows),
        "writes outside work/": sum(len(row.writes) for row in rows),
        "hangs over 60 s": sum(row.hang for row in rows),
        "tracebacks": sum(row.traceback for row in rows),
        "false completed": sum(row.false_completed for row in rows),
        "campaigns ended": sum(row.campaign_ended for row in rows),
        "leftovers unsaid": sum("left, unsaid" in " ".join(row.wrong) for row in rows),
        "not carried out: of a command of the image that the harness does not run": sum(
            not row.carried_out for row in rows
        ),
    }


def read_trees(figures: Path = FIGURES) -> dict[str, object] | None:
    """Return the counts of random trees (trees, minutes, day) as last written; None if no trees were tried."""
    try:
        return json.loads(figures.read_text(encoding="utf-8")).get("random_trees")  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None


def read_rows(figures: Path = FIGURES) -> list[Row]:
    """Return the rows that were last written; an empty list if there are none."""
    try:
        told = json.loads(figures.read_text(encoding="utf-8"))["rows"]
    except FileNotFoundError:
        return []
    lists = ("writes", "leftovers", "wrong")
    rows = [Row(**{**row, **{name: tuple(row[name]) for name in lists}}) for row in told]
    return [row for row in rows if row.attack in ATTACKS]


def merged(before: Sequence[Row], now: Sequence[Row]) -> list[Row]:
    """Return the rows of now, and of before where an attack was not carried out now, in the order of the list."""
    found = {(row.attack, row.executor): row for row in (*before, *now)}
    order = {name: number for number, name in enumerate(ATTACKS)}
    return sorted(found.values(), key=lambda row: (order[row.attack], row.executor))


def write_page(
    rows: Sequence[Row], page: Path = PAGE, figures: Path = FIGURES, trees: dict[str, object] | None = None
) -> None:
    """Write the page and its figures; without `trees`, keep the earlier counts of random trees."""
    trees = trees or read_trees(figures)
    value = {"schema": 1, "totals": totals(rows), "random_trees": trees, "rows": [asdict(row) for row in rows]}
    figures.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    page.write_text("\n".join(_lines(rows, trees)) + "\n", encoding="utf-8")


def _lines(rows: Sequence[Row], trees: dict[str, object] | None) -> list[str]:
    days = sorted({row.day for row in rows})
    where = f"Linux {platform.release()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    lines = [
        "# Attacks of a hostile app",
        "",
        f"Written by `make bench-attacks`; its rows are of {' and '.join(days)} (the last: {where}). Each row is a",
        "campaign of two runs under a watchdog: first an app that attacks, then an honest app. In containers, the",
        "attacking app wraps the real app, in an image made from the real image of `cpu-plain`, and most attacks also",
        "do an honest training of 58 steps. As processes, it wraps a stand-in for the app, which is also the honest",
        "run afterwards. A row is `ok` if nothing outside `work/` was changed, the record came within 60 s, the",
        "harness printed no traceback, used at most 200 MB and left nothing behind that the record does not name, and",
        "the honest run completed. An attack may complete only if what its result claims is true.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {number} |" for name, number in totals(rows).items()),
        "",
    ]
    if trees:
        lines += [
            f"The module that reads `work/` was tried for {trees['minutes']:g} minutes ({trees['on']}) on",
            f"{trees['count']:,} random trees of links, FIFOs, sockets, devices, odd names and files of any size;",
            "every second tree changed while it was read. The module raised only the errors that it promises, removed",
            "every tree, and left no file open (`make",
            "bench-attacks ARGS='--trees MINUTES'`).",
            "",
        ]
    for group, title in TITLES.items():
        mine = [row for row in rows if row.group == group]
        if mine:
            heads = ("attack", "executor", "what it does", "record", "allowed", "s", "MB", "day", "verdict")
            lines += [f"## {title}", "", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *map(_row, mine), ""]
    return lines[:-1]


def _row(row: Row) -> str:
    said = f"{row.outcome} ({row.diagnosis})" if row.diagnosis else row.outcome
    attack = ATTACKS[row.attack]
    allowed = (
        f"completed: {attack.may_complete}" if attack.may_complete else " or ".join(attack.diagnoses) or "not completed"
    )
    quiet = "ok" if row.carried_out else "not carried out: the harness does not run this command of the image"
    verdict = f"**NOT OK**: {'; '.join(row.wrong)}" if row.wrong else quiet
    cells = (
        row.attack,
        row.executor,
        row.what,
        said,
        allowed,
        f"{row.seconds:.1f}",
        f"{row.memory / 1e6:.0f}",
        row.day,
        verdict,
    )
    return f"| {' | '.join(map(_plain, cells))} |"


def _plain(text: str) -> str:
    """Return a text that is safe in a cell of a Markdown table."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return printable.replace("|", "\\|").replace("<", "&lt;")
