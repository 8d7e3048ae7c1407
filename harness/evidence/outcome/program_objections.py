"""Objections to a run of a program of the user's own that ended by itself, from what it left and did. Pure."""

import math
from collections.abc import Iterator

from harness.base.text import safe_text
from harness.base.wording import many, some_of
from harness.evidence.outcome.diagnoses import Diagnosis
from harness.evidence.outcome.evidence import Evidence, ProgramEvidence
from harness.evidence.outcome.request import Request
from harness.matrix.programs import Program

MOST_NAMED = 3


def program_objections(request: Request, evidence: Evidence, seen: ProgramEvidence) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the run, the gravest first."""
    if request.device != "cpu" and (evidence.gpus_seen or 0) < request.gpus:
        found = "nothing was seen" if evidence.gpus_seen is None else f"{evidence.gpus_seen} were seen"
        yield "wrong-device", f"asked for {request.gpus} GPU; from outside {found} in use"
    if seen.changed:
        source = some_of(map(safe_text, seen.changed), MOST_NAMED)
        yield "work-folder", f"it changed its own source ({source}), which it may only read"
    if seen.survivors:
        left = some_of(map(safe_text, seen.survivors), MOST_NAMED)
        yield "no-result", f"exit 0, but it left processes running, now ended ({left}); have it wait for them"
    for one in seen.products:
        if one.problem:
            yield one.diagnosis, f"exit 0, but {one.product.file} {one.problem}"
    if seen.loss is not None and not math.isfinite(seen.loss):
        yield "not-finite", f"the last loss that it reported, at step {seen.step}, is {seen.loss}"
    if seen.loss_unread:
        yield (
            "incomplete-result",
            "its last loss is in progress that was skipped, as there were too many lines; report fewer",
        )
    if not (request.program and request.program.produces) and not (seen.advances or seen.printed):
        yield "no-result", "exit 0, but it printed nothing, and `produces:` names no file that shows what it did"


def program_in_words(program: Program, seen: ProgramEvidence) -> str:
    """Return in words what a completed run of a program showed."""
    of = f" of {seen.total}" if seen.total is not None else ""
    loss = f", loss {seen.loss:.6g}" if seen.loss is not None else ""
    summary = (
        f"{many(seen.advances, 'line')} of progress, the last of step {seen.step}{of}{loss}"
        if seen.advances
        else program.no_progress
    )
    files = len(seen.products)
    checked = f", {many(files, 'file')} checked" if files else ""
    unchecked = "".join(
        f"; {one.product.file} was not loaded: {one.unchecked}" for one in seen.products if one.unchecked
    )
    return f"exit 0, {summary}{checked}; numbers not checked{unchecked}"
