"""The section on the app's code on a GPU: what `make gpu-evidence` observed. It is kept apart from all cells. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import get_args

from harness.base.text import one_line
from harness.evidence.gpus.gpu_evidence import EvidenceFile, GpuEvidence, GpuEvidenceFacts, GpuEvidenceRow, RowVerdict
from harness.report.model import CodeEvidence, CodeRow, CodeRun
from harness.report.words import utc

TITLE = "Code on this GPU"
ABOUT = (
    "This is what `make gpu-evidence` saw of the app's code on the device named, outside of any cell: "
    "no cell qualifies by it, and no verdict, count or tag is made from it. "
    "Where the last column says never, no fault planted in the code has turned the row red yet."
)
# Rows that need attention come first.
ORDER: tuple[RowVerdict, ...] = ("differs", "not-reached", "held", "not-applicable")
WORDS = {"held": "held", "differs": "differing", "not-applicable": "not applicable", "not-reached": "not reached"}
# Longest detail, in characters. It should be one line, but it may come from another machine and hold anything.
LONGEST = 600


def code_evidence(found: Iterable[EvidenceFile]) -> CodeEvidence:
    """Return the section: the newest run of each device and torch in full, each earlier run as one line."""
    found = list(found)
    read = sorted(((one.content.started, one.file, one.content) for one in found if one.content), reverse=True)
    alike: dict[tuple[str | None, ...], list[tuple[str, GpuEvidence]]] = {}
    for _, file, content in read:
        facts = content.facts
        alike.setdefault((content.device, facts.name, facts.gfx, facts.torch), []).append((file, content))
    runs = tuple(_run(file, newest, [one for _, one in older]) for (file, newest), *older in alike.values())
    only_cpu = bool(runs) and not any(run.on_gpu for run in runs)
    return CodeEvidence(
        title=f"{TITLE}: not yet run on one" if only_cpu else TITLE,
        about=ABOUT,
        runs=runs,
        unreadable=tuple(_line(f"{one.file}: {one.problem}; move it away") for one in found if not one.content),
    )


def counts_in_words(counts: Mapping[RowVerdict, int]) -> str:
    """Return how many rows have which verdict."""
    return ", ".join(f"{count} {WORDS[verdict]}" for verdict, count in counts.items())


def _run(file: str, one: GpuEvidence, older: Iterable[GpuEvidence]) -> CodeRun:
    on_gpu = one.device != "cpu"
    rows = sorted(one.rows, key=lambda row: ORDER.index(row.verdict))
    return CodeRun(
        file=_line(file),
        on_gpu=on_gpu,
        ran_on=_line(_device(one.facts) if on_gpu else f"The CPU, no GPU: {one.facts.name}"),
        software=_line(_software(one.facts)),
        revision=_line(_revision(one.facts)),
        started=one.started.timestamp(),
        seconds=one.seconds,
        counts=_counts(one),
        rows=tuple(map(_row, rows)),
        older=tuple(
            f"{utc(each.started.timestamp())}, {_revision(each.facts)}: {counts_in_words(_counts(each))}"
            for each in older
        ),
    )


def _row(row: GpuEvidenceRow) -> CodeRow:
    return CodeRow(
        row=_line(row.row),
        shows=_line(row.shows),
        verdict=row.verdict,
        detail=_line(row.detail),
        seconds=row.seconds,
        gpu_only=row.gpu_only,
        shown_red=row.shown_red,
    )


def _counts(one: GpuEvidence) -> dict[RowVerdict, int]:
    found = Counter(row.verdict for row in one.rows)
    return {verdict: found[verdict] for verdict in get_args(RowVerdict)}


def _device(facts: GpuEvidenceFacts) -> str:
    memory = f", {facts.memory_bytes / 1e9:.1f} GB" if facts.memory_bytes else ""
    return f"{facts.name}{f' ({facts.gfx})' if facts.gfx else ''}{memory}"


def _software(facts: GpuEvidenceFacts) -> str:
    parts = {"torch": facts.torch, "HIP": facts.hip, "CUDA": facts.cuda, "driver": facts.driver}
    parts |= {"kernel": facts.kernel, "Python": facts.python, "numpy": facts.numpy}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


def _revision(facts: GpuEvidenceFacts) -> str:
    changed = {True: ", with changes that were not committed", None: ", perhaps with changes", False: ""}
    return f"revision {facts.source[:12]}{changed[facts.source_dirty]}" if facts.source else "revision unknown"


def _line(text: str) -> str:
    """Return a text on one line, without control sequences for a terminal, and cut to LONGEST characters."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
