"""Render the kit's document as a page in Markdown."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

VERDICTS = {
    "differs": "**differs**",
    "held": "held",
    "not-applicable": "not applicable",
    "not-reached": "not reached",
}
NEVER_RED = "†"
GIB = 1 << 30


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a gpu-evidence.json."""
    facts, rows = document["facts"], document["rows"]
    counts = Counter(row["verdict"] for row in rows)
    target = f" ({facts['gfx']})" if facts["gfx"] else ""
    runtime = f"HIP {facts['hip']}" if facts["hip"] else f"CUDA {facts['cuda']}" if facts["cuda"] else "no GPU runtime"
    where = f"{facts['name']}{target}, {facts['memory_bytes'] / GIB:.0f} GiB"
    lines = [
        f"# The app's code on {where}",
        "",
        *([] if document["device"] == "cuda" else ["**On a CPU: this says nothing about any GPU.**", ""]),
        f"Written by `python -m benchmarks.gpu_evidence` on {document['started']}, in {document['seconds']:.0f} s.",
        f"Driver {facts['driver'] or 'unknown'}, torch {facts['torch']} ({runtime}), Python {facts['python']}, Linux "
        f"{facts['kernel']}; revision {_revision(facts)}.",
        "It is evidence about code on that device, never about a cell: no verdict counts it.",
        "",
        ", ".join(f"{counts[verdict]} {VERDICTS[verdict].strip('*')}" for verdict in VERDICTS) + ".",
        "",
        "| row | | what was seen | s |",
        "|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        f"{NEVER_RED} No test has planted a fault to see this row differ.",
        "",
    ]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
    mark = "" if row["shown_red"] else f" {NEVER_RED}"
    cells = (
        f"{row['row']}{mark}",
        VERDICTS[row["verdict"]],
        row["detail"].replace("|", "\\|").replace("\n", " "),
        seconds,
    )
    return f"| {' | '.join(cells)} |"


def _revision(facts: Mapping[str, Any]) -> str:
    if not facts["source"]:
        return "unknown"
    return f"{facts['source'][:12]}{' with changes' if facts['source_dirty'] else ''}"
