"""Tests that names, comments, docstrings, messages and pages use only the field's words; the CHANGELOG is exempt."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import ROOMS
from harness.base.paths import CHECKOUT

# Private words, and the field's words to use instead. A blank also matches `_`, `-` and the end of a line.
WORDS = {
    "sick": "unhealthy",
    "taint(ed|s)?": "discredited by an unhealthy GPU",
    "(stand|stands|stood|standing) still|standstills?": "stall, stalled, hang",
    "drill(s|ed|ing)?": "fault injection, injected fault",
    "rungs?": "check",
    "ladders?": "checks, fallbacks",
    "made up": "synthetic, simulated",
    "the same bits": "bitwise identical",
    "(take|takes|taken|took) up again|(go|goes|going|gone) on from": "resume, continue",
    "mend(s|ed|ing)?": "fix",
    "anew": "again, rebuilt",
    "want of memory": "out of memory",
    "earn(s|ed)? (a |no |its |their )?tags?": "qualifies for promotion",
    "laid to": "attributed to",
    "aftercare|look(s|ed|ing)? after": "post-run checks, recovery",
    "given up": "exhausted, stopped",
    "held against": "compared with",
    "in the dark": "in dark mode",
    "faults? of the host": "infrastructure error, host fault",
    "least p": "minimum p-value",
    "warm up sessions|(?<=--)warm up|warm_up": "lookback",
    "(is|are|was|were) told(?! (apart|to|that))|told of": "is reported",
    r"told(?=\(self)|(?<=\.)told(?!_)": "summary()",
}
# Former names that are still read, or accepted as hidden options: in whole files, and in single lines.
READERS_OF_SCHEMA_1 = {"harness/base/schema1.py"}
ALIASES = {
    'OLD_NAMES = {"warm-up": "lookback", "drill": "inject-fault", "rung": "check"}',
    'RENAMED = {"drill": "inject"}',
    '@click.option("--reboot-when-sick", "reboot_when_unhealthy", is_flag=True, hidden=True)',
    'click.option("--warm-up", "lookback", type=click.IntRange(min=SHORTEST_LOOKBACK), hidden=True),',
    'return click.option("--warm-up", "lookback", hidden=True)(command)',
    '@click.option("--drill", "injected_fault", hidden=True)',
    'FORMER_OPTIONS = {"--lookback": "--warm-up", "--check": "--rung", "--inject-fault": "--drill"}',
    'check: str = Field(validation_alias=AliasChoices("check", "rung"))',
    'checks: list[_Check] = Field(validation_alias=AliasChoices("checks", "rungs"))',
    "LOOKBACK := $(value WARM_UP)",
    "FORMER = WARM_UP",
}
# Tests of whether former names are still read or refused must name them; text quoted from others stays unchanged.
TESTS_OF_FORMER_NAMES = {
    "tests/app/test_cli.py",
    "tests/harness/base/test_schema1.py",
    "tests/harness/cli/test_former_names.py",
    "tests/harness/matrix/test_load.py",
    "tests/harness/run/test_gpu_probe.py",
    "tests/harness/run/test_spec.py",
    "tests/harness/test_makefile.py",
    "tests/harness/training/test_prepare.py",
    "tests/system/test_schema1.py",
}
QUOTED = "tests/harness/diagnosis/threads/"
PARTS = (*(f"harness/{room}" for room in ROOMS), "app", "benchmarks", "docs")
PAGES = ("README.md", "CONTRIBUTING.md", "matrix.yaml", "Makefile", "harness/__init__.py", "harness/__main__.py")
READ = {".py", ".md", ".yaml", ".js", ".j2"}


def _pattern(words: str) -> str:
    return "(?<![a-z])(?:" + words.replace(" ", r"[\s#_-]+") + ")(?![a-z])"


PRIVATE = {re.compile(_pattern(words), re.IGNORECASE): instead for words, instead in WORDS.items()}
FORMER = [
    pattern
    for pattern in PRIVATE
    if any(map(pattern.fullmatch, ("sick", "tainted", "drill", "rung", "warm_up", "standstill")))
]
ANY = re.compile(_pattern("|".join(WORDS)), re.IGNORECASE)


def tracked(part: str) -> list[Path]:
    """Return the files of a part of the project that git tracks and people read."""
    command = ["git", "ls-files", "-z", "--", part]
    names = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout.split("\0")
    files = [CHECKOUT / name for name in names if name]
    return [file for file in files if file.exists() and (file.suffix in READ or file.name == "Makefile")]


def private_words(text: str, *, former_too: bool = True) -> Iterator[str]:
    """Yield each private word of a text, with its line and replacement; `former_too`: former names are private, too."""
    lines = text.split("\n")
    # Split names such as `DrillKind` into their words.
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    if not ANY.search(text):
        return
    for pattern, instead in PRIVATE.items():
        for found in pattern.finditer(text) if former_too or pattern not in FORMER else ():
            number = text.count("\n", 0, found.start())
            if lines[number].strip() not in ALIASES:
                yield f"{number + 1}: {found[0]!r}: say {instead}"


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring, including those below constants and fields."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("part", [*PARTS, *PAGES])
def test_no_private_words(part: str) -> None:
    names = {file.relative_to(CHECKOUT).as_posix(): file for file in tracked(part)}
    assert names
    read = {name: file.read_text(encoding="utf-8") for name, file in names.items() if name not in READERS_OF_SCHEMA_1}
    found = [f"{name}:{word}" for name, text in read.items() for word in (*private_words(name), *private_words(text))]
    assert found == []


def test_no_private_words_in_tests() -> None:
    names = {file.relative_to(CHECKOUT).as_posix(): file for file in tracked("tests") if file != Path(__file__)}
    found = [
        f"{name}:{word}"
        for name, file in names.items()
        if not name.startswith(QUOTED)
        for text in (name, file.read_text(encoding="utf-8"))
        for word in private_words(text, former_too=name not in TESTS_OF_FORMER_NAMES)
    ]
    assert found == []
    assert names.keys() >= TESTS_OF_FORMER_NAMES


@pytest.mark.parametrize("part", [part for part in PARTS if part != "docs"])
def test_a_docstring_says_what_is_returned_or_is_a_noun_phrase(part: str) -> None:
    found = [
        f"{file.relative_to(CHECKOUT)}:{line}: say Return ..., Yield ..., or what it is: {text[:60]!r}"
        for file in tracked(part)
        if file.suffix == ".py" and re.search(r"['\"]\s*(What|Whether)\b", file.read_text(encoding="utf-8"))
        for line, text in docstrings(file.read_text(encoding="utf-8"))
        if re.match(r"\s*(What|Whether)\b", text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a sick GPU", "sick"),
        ("def drill_of(kind)", "drill"),
        ("class DrillKind:", "Drill"),
        ("MADE_UP = 3", "MADE_UP"),
        ("# gives the same\n    # bits", "the same\n    # bits"),
        ("the model is taken up again", "taken up again"),
        ("resolve it anew", "anew"),
        ("an image earns its tag", "earns its tag"),
        ("matrix run --warm-up 21", "warm-up"),
        ("warm_up: int", "warm_up"),
        ("error.told()", "told"),
        ("each is told", "is told"),
    ],
)
def test_a_private_word_is_found(text: str, word: str) -> None:
    assert [f"{word!r}:" in found for found in private_words(text)] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "recommended",
        "brung",
        "amend",
        "the warm-up of the learning rate",
        "told = 3",
        "told apart by names",
        "is told to end",
        "at least part",
        *sorted(ALIASES),
    ],
)
def test_other_words_are_not(text: str) -> None:
    assert list(private_words(text)) == []


def test_every_alias_is_still_there() -> None:
    lines = {
        line.strip()
        for part in ("harness", "app/vpoc/cli.py", "Makefile")
        for file in tracked(part)
        for line in file.read_text(encoding="utf-8").splitlines()
    }
    assert lines >= ALIASES
    assert all((CHECKOUT / name).exists() for name in READERS_OF_SCHEMA_1)
