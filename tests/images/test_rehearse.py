"""Tests of the rehearsal with images: a stack of each wheel source from lock to record, and the page about it."""

import os
import platform
import re
import subprocess
import time
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.docker.images import PREFIX
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.engine import Engine
from harness.matrix.wheels import load_wheels, wheel_sources
from harness.rehearsal.rehearse import FOLDER

PROGRAM = str(CHECKOUT / ".venv" / "bin" / "matrix")
# The page is written only if this variable is set, because a test should not change the tree each time.
WRITE = "WRITE_EVIDENCE"
PAGE = CHECKOUT / "docs" / "evidence" / "first-contact.md"
STEP = re.compile(r"^  (\w+) +([\d.]+) s  (.*)$")


def stacks_of(printed: str) -> dict[str, dict[str, tuple[float, str]]]:
    """Return the steps of each stack, with their seconds and words, by the printed heading of the stack."""
    found: dict[str, dict[str, tuple[float, str]]] = {}
    for line in printed.splitlines():
        if ", from source " in line:
            steps = found[line] = {}
        elif match := STEP.match(line):
            steps[match[1]] = (float(match[2]), match[3])
    return found


HEAD = """\
# First contact, rehearsed

`matrix rehearse` took one stack of each source of wheels from lock to record. Every step is the product's own, but
wheels come from an index on loopback, and the run is on the CPU. Torch is its CPU wheel under the name, version and
requirements of the ROCm wheel, with `torch.version.hip` set. Triton and ROCm's packages are stubs of a few hundred
bytes, and `rocm` is a source package. AMD's indexes and PyTorch's 7.14 index answer 403 for files that they do not
have.
**No ROCm wheel was fetched, installed or run, and no GPU was used.**

Written by `WRITE_EVIDENCE=1 .venv/bin/python -m pytest tests/images/test_rehearse.py` on {date} ({machine}, two cores
shared with other work, Docker {docker}, base image from Debian 12's packages), in {minutes:.0f} minutes. The times
show what is slow, not how fast it is elsewhere. A build of a few seconds reuses layers that the builder kept from an
earlier rehearsal.

| source | stack | lock | fetch | build | run | fetched | made |
|---|---|---|---|---|---|---|---|
{rows}

## The command, and what it printed

For the stack of AMD's folders, no CPU wheel of torch was available for its Python, 3.12. So torch was a stub there, and
the app a stand-in.

```text
$ {command}
{printed}
```

## What confirmed each source

No index itself was read. Each source was compared with these pages, last on {checked}; the versions are in
[wheels.yaml](../../harness/matrix/wheels.yaml). A real host confirms a pair with `matrix lock`.

| source | where | said by |
|---|---|---|
{sources}
"""


def row_of(heading: str, steps: dict[str, tuple[float, str]]) -> str:
    """Return the table row of a stack, from its printed heading and steps."""
    named = re.match(r"(\S+), from source (\S+),", heading)
    assert named
    seconds = [f"{steps[name][0]:.0f} s" if name in steps else "in build" for name in ("lock", "fetch", "build", "run")]
    fetched = re.search(r"\d+ wheels, \d+ MB", steps.get("fetch", (0, ""))[1])
    made = re.search(r"(?<=, )\d+ MB|virtual environment", steps["build"][1])
    cells = [named[2], named[1], *seconds, fetched[0] if fetched else "stubs", made[0] if made else ""]
    return f"| {' | '.join(cells)} |"


def page_of(command: str, printed: str, engine: Engine, minutes: float) -> str:
    """Return the page about a rehearsal."""
    sources = [
        f"| {name}: {source.description} | `{source.url}` | {'<br>'.join(source.said_by)} |"
        for name, source in wheel_sources().items()
    ]
    return HEAD.format(
        date=time.strftime("%Y-%m-%d"),
        machine=platform.machine(),
        docker=engine.client.version()["Version"],
        minutes=minutes,
        rows="\n".join(row_of(heading, steps) for heading, steps in stacks_of(printed).items()),
        command=command,
        printed=printed.rstrip(),
        checked=load_wheels().checked,
        sources="\n".join(sources),
    )


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_a_stack_of_each_source_goes_from_lock_to_record(
    engine: Engine, bases: tuple[str, str], tmp_path: Path
) -> None:
    command = [PROGRAM, "--base", bases[0], "--results", str(tmp_path / "results"), "rehearse"]
    began = time.monotonic()
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    minutes = (time.monotonic() - began) / 60
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    carried = stacks_of(run.stdout)
    assert len(carried) == len(wheel_sources())
    as_images = [steps for heading, steps in carried.items() if ", as an image;" in heading]
    # All sources but AMD's folders, whose Python no base here has.
    assert len(as_images) >= len(carried) - 1
    assert all(list(steps) == ["lock", "fetch", "build", "verify", "run", "record"] for steps in as_images)
    results = Results(tmp_path / "results" / "rehearsal")
    records = list(results.records())
    assert [record.outcome for record in records] == ["completed"] * len(carried)
    assert all(record.intent.rehearsal and record.intent.device == "cpu" for record in records)
    assert {record.intent.executor for record in records} >= {"docker"}
    hips = {record.result.torch.hip for record in records if record.result}
    assert all(hip and hip.endswith("-rehearsal") for hip in hips)
    assert not any(row.qualifies_for_promotion or row.can_be_evidence for row in Index(results).rows())
    assert not Results(tmp_path / "results").runs.exists()
    # Only the records of the rehearsal are left.
    for intent in (record.intent for record in records):
        assert engine.client.images.list(filters={"label": f"{PREFIX}.stack={intent.stack}"}) == []
        assert not (FOLDER / intent.stack.split("-", 2)[2]).exists()
    if os.environ.get(WRITE):
        PAGE.write_text(page_of(f"matrix --base {bases[0]} rehearse", run.stdout, engine, minutes), encoding="utf-8")


def test_the_page_is_about_every_source() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in wheel_sources() if f"| {name}: " not in text or f"from source {name}," not in text] == []
