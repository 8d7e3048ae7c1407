"""A bug report as Markdown, in the form of the issue templates. Pure.

The fields are those of `.github/ISSUE_TEMPLATE/issue_report.yml` in ROCm/.github, which ROCm's repositories share, and
of `.github/ISSUE_TEMPLATE/bug-report.yml` in pytorch/pytorch, in their order.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Literal

from harness.report.upstream.facts import BugFacts
from harness.report.upstream.public import taken_out

Upstream = Literal["rocm", "pytorch"]
ISSUES = {"rocm": "https://github.com/ROCm/ROCm/issues", "pytorch": "https://github.com/pytorch/pytorch/issues"}
# Classes of failures that belong to torch rather than to the libraries and drivers below it.
OF_PYTORCH = frozenset(
    {
        "missing-arch",
        "oom-gpu",
        "compile",
        "install",
        "unavailable",
        "not-finite",
        "loader",
        "lost-peer",
        "rendezvous",
        "shm",
        "hang-import",
        "hang-data",
        "hang-loader",
        "hang-compile",
        "hang-rendezvous",
    }
)
COMPONENTS = {
    "blas-init": "rocBLAS",
    "blas-kernel": "hipBLAS",
    "hipblaslt-kernel": "hipBLASLt",
    "miopen": "MIOpen",
    "rccl": "rccl",
    "hang-collective": "rccl",
    "runtime-resource": "ROCR-Runtime",
    "runtime-error": "ROCR-Runtime",
    "driver": "ROCK-Kernel-Driver",
    "gpu-reset": "ROCK-Kernel-Driver",
    "gpu-overheated": "ROCK-Kernel-Driver",
    "gpu-hang": "ROCK-Kernel-Driver",
}
# Positions where GitHub would link a person or an issue in text; a zero-width space there prevents the link.
LINKED = re.compile(r"(?<=[@#])(?=\w)|(?<=\bGH)(?=-\d)|(?=//)|(?<=\bwww)(?=\.)", re.IGNORECASE)
NO_RESPONSE = "_No response_"
# Classes of runs that were ended on purpose or by a limit, which is no bug of upstream.
NOT_A_BUG = frozenset({"interrupted", "killed", "time-limit", "disk-limit", "not-started", "gpu-overheated"})
# Said to be left out of every report, whatever a log holds.
LEFT_OUT = "ids of the run, the machine and its boots, and lines of the kernel log that are not about GPUs or memory"
NOT_SEEN = (
    "It computes, without our app, what such runs compute, and may or may not show the failure. It was **not** run for "
    "this report: run it on that host before posting, and say here what it printed."
)


def upstream_of(facts: BugFacts) -> Upstream:
    """Return who can most likely fix the bug; for a run without a GPU that is never ROCm."""
    return "pytorch" if facts.class_ in OF_PYTORCH or not facts.on_gpu else "rocm"


def title(facts: BugFacts, upstream: Upstream) -> str:
    """Return the title of the issue, with the prefix of its template."""
    stack = f"torch {facts.version('torch')}, ROCm {facts.version('ROCm of the wheel')}"
    return f"{'[Issue]: ' if upstream == 'rocm' else ''}Training: {facts.what} ({stack})"


def to_issue(facts: BugFacts, script: str | None, upstream: Upstream) -> str:
    """Return the report. Its parts are the fields of upstream's template; `script`, if any, reproduces the failure.

    A comment in front names the checks that are left to the person who posts it; the last part lists what was removed.
    """
    parts = _of_rocm(facts, script) if upstream == "rocm" else _of_pytorch(facts, script)
    body = "\n\n".join(f"### {name}\n\n{text}" for name, text in parts)
    counted = "".join(f"- {what}: {count}\n" for what, count in taken_out(body).items())
    told = f"### What was taken out\n\n{counted}- never written: {LEFT_OUT}\n"
    before = "\n".join(f"- {one}" for one in _before(facts, upstream))
    return f"# {_plain(title(facts, upstream))}\n\n<!-- Before you post it:\n{before}\n-->\n\n{body}\n\n{told}"


def _before(facts: BugFacts, upstream: Upstream) -> Iterator[str]:
    yield f"Search {ISSUES[upstream]} for it; read all of this, and most of all the log."
    yield "A script in it was not tried in a clean container."
    if facts.fault in ("host", "program"):
        yield f"`{facts.class_}` is most often the {facts.fault}'s fault: post it only where you can rule that out."
    if facts.class_ in NOT_A_BUG:
        yield f"`{facts.class_}`: {facts.what}. That is most often no bug of upstream."
    if not facts.on_gpu:
        yield "The run used no GPU: it says nothing about ROCm."


def _of_rocm(facts: BugFacts, script: str | None) -> Sequence[tuple[str, str]]:
    return (
        ("Problem Description", _described(facts)),
        ("Operating System", _plain(f"{facts.version('operating system')}, kernel {facts.version('kernel')}")),
        ("CPU", _plain(facts.version("CPU"))),
        ("GPU", _gpus(facts) or "none"),
        (
            "ROCm Version",
            _plain(f"{facts.version('ROCm of the wheel')}, in the wheel of torch {facts.version('torch')}"),
        ),
        ("ROCm Component", COMPONENTS.get(facts.class_, NO_RESPONSE)),
        ("Steps to Reproduce", _steps(facts, script)),
        ("(Optional for Linux users) Output of /opt/rocm/bin/rocminfo --support", NO_RESPONSE),
        ("Additional Information", "\n\n".join([_versions(facts), *_logs(facts), *_links(facts)])),
    )


def _of_pytorch(facts: BugFacts, script: str | None) -> Sequence[tuple[str, str]]:
    described = [_described(facts), _steps(facts, script), *_logs(facts), *_links(facts)]
    return (
        ("🐛 Describe the bug", "\n\n".join(described)),
        ("Versions", "\n".join(filter(None, [_versions(facts), _gpus(facts)]))),
    )


def _described(facts: BugFacts) -> str:
    said = [f"{facts.what[:1].upper()}{facts.what[1:]} (`{facts.class_}`).", _plain(facts.seen)]
    if facts.cause:
        said.append(f"What explains it: {_plain(facts.cause)}.")
    return "\n\n".join([*said, f"How often: {facts.often}", *filter(None, [_block("\n".join(facts.evidence))])])


def _steps(facts: BugFacts, script: str | None) -> str:
    if script is None:
        return f"No script shows `{facts.class_}` without our app: it was seen in a training alone."
    split = (one.partition("=") for one in facts.variables)
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, _, value in split)
    setting = f"With these variables, which the run had:\n\n{_block(variables, 'sh')}\n\n" if variables else ""
    return f"{setting}{_block(script, 'python')}\n\n{NOT_SEEN}"


def _versions(facts: BugFacts) -> str:
    return "\n".join(f"- {name}: {_plain(value)}" for name, value in facts.versions)


def _gpus(facts: BugFacts) -> str:
    return "\n".join(f"- {_plain(gpu)}" for gpu in facts.gpus)


def _logs(facts: BugFacts) -> Iterator[str]:
    for name, text in (
        ("The end of the log", facts.log),
        ("The kernel log of that time, lines about GPUs and memory", facts.kernel_log),
        ("Where it stood", facts.stacks),
    ):
        if text:
            yield f"{name}:\n\n{_block(text)}"


def _links(facts: BugFacts) -> Iterator[str]:
    if facts.links:
        yield "Known issues of this kind, which may or may not be the same:\n\n" + "\n".join(
            f"- {link}" for link in facts.links
        )


def _plain(text: str) -> str:
    """Return a text for outside of blocks, escaped so that GitHub sees no tag, mention or link to an issue in it."""
    return LINKED.sub("&#8203;", re.sub(r"([\\<&])", r"\\\1", text))


def _block(text: str, language: str = "") -> str:
    """Return a code block whose fence is longer than any in the text, so that the text cannot end the block."""
    if not text.strip():
        return ""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
