"""Writes the signatures as docs/reference/signatures.md: run `python -m harness.diagnosis.reference`."""

from collections.abc import Iterator

from harness.base.paths import CHECKOUT
from harness.diagnosis.rules import Signature, load_signatures

PAGE = CHECKOUT / "docs" / "reference" / "signatures.md"
MOST_PATTERNS = 3
HEAD = """\
# Rules of the diagnosis

Made from `signatures.yaml` by `make schemas`. [Why a run failed](../running.md#why-a-run-failed-matrix-explain) says
how they are used, [CONTRIBUTING](../../CONTRIBUTING.md#a-kernel-log-rule) how to add one. Of two rules that match a
line the first counts.

| key of a rule | meaning |
|---|---|
| `id` | its name |
| `where` | `log`; `build` (pip and docker); `kernel`; `exit` (how the process ended, in words); `stack` (path and \
function of a frame); `end` (the last line, where nothing else was found). Kernel rules also apply to any log |
| `text`, `regex` | literal parts of a line, regular expressions; one match is enough. Both need four letters in a \
row, for a fast search, and no look-around |
| `unless` | regular expressions: a match in whose text one is found is none |
| `severity` | `fatal` (the default); `ending` (how a process ended); `lost-peer` (another rank noticed that end); \
`symptom` (counts only if nothing else is found); `benign` |
| `catch_all` | `true`: unspecific; a later fatal line of the environment or host counts instead |
| `generic` | `true`: says only that something failed; the end of a process named before it counts instead |
| `in_warnings` | `true`: also in a line that is a warning by its own word |
| `in_program` | `true`: not for an exception with frames of installed packages only |
| `recovered_by` | literal text, on the line or within the next five, that shows that it was recovered from |
| `signals` | as `SIGSEGV`: every known wording of a process that was ended by one of these |
| `traceback` | `importing-a-package`, `compiling-a-kernel`, `building-an-extension`, `joining-the-ranks`, \
`raised-by-the-program`: only for an exception raised so |
| `memory` | `enough-was-free`, `enough-was-reserved`, `more-than-there-is`: only for a message of torch whose numbers \
say so |
| `rocm`, `torch` | versions it applies to, such as `>=7.0`; such a rule never applies if the version is unknown |
| `class` | one of the classes below |
| `cause`, `remedy`, `link` | one sentence each, and the source |
| `cpu` | what helps a run that used no GPU, in place of the remedy; also of a class, where its rules do not say |
| `presets` | presets of `matrix.yaml` that apply the remedy |

A group `(?P<pid>...)` in the regular expression of a kernel rule keeps lines about other processes out.

"""


def page() -> str:
    """Return the page: the meanings of the keys, the classes and the signatures."""
    return f"{HEAD}## Classes\n\n{_lines(_classes())}\n## Rules\n\n{_lines(_signatures())}"


def _lines(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def _classes() -> Iterator[str]:
    yield "| class | whose | what | what helps without a GPU |"
    yield "|---|---|---|---|"
    for name, one in load_signatures().classes.items():
        yield f"| `{name}` | {one.fault} | {one.what} | {one.cpu or ''} |"


def _signatures() -> Iterator[str]:
    yield "| rule | where | counts as | class | recognised by | why | what helps | presets |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in load_signatures().signatures:
        name = f"[{one.id}]({one.link})" if one.link else one.id
        versions = "".join(f" ({what} {have})" for what, have in (("ROCm", one.rocm), ("torch", one.torch)) if have)
        cells = [name, one.where, f"{one.severity}{versions}", f"`{one.class_}`", _patterns(one), one.cause]
        helps = f"{one.remedy} (without a GPU: {one.cpu})" if one.cpu else one.remedy
        yield f"| {' | '.join([*cells, helps, ', '.join(one.presets)])} |"


def _patterns(one: Signature) -> str:
    """Return the first patterns of a signature; the file has all of them."""
    patterns = [*one.signals, *one.text, *one.regex]
    shown = [f"`{pattern.replace('|', chr(92) + '|').replace('`', chr(39))}`" for pattern in patterns[:MOST_PATTERNS]]
    return ", ".join(shown) + (", ..." if len(patterns) > MOST_PATTERNS else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
