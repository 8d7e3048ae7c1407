"""Run faulty programs of a user for real, as processes, and check outcome, cause and processes that are left.

Writes the section "Injected faults" of docs/evidence/own-programs-figures.md, in about two minutes.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any

from benchmarks.pages import python_and_cores, today
from harness.base.paths import CHECKOUT
from harness.environments.environment import Environment, ensure_environment
from harness.environments.executors.process import ProcessExecutor
from harness.environments.python.programs import take_program
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.fingerprint import read_host
from harness.host.processes.run_processes import processes_of_run
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix
from harness.matrix.programs import Program
from harness.matrix.workloads import Workload
from harness.run.requested_run import Run
from harness.run.run_cell import run_cell

PAGE = CHECKOUT / "docs" / "evidence" / "own-programs-figures.md"
HEADING = "## Injected faults"
STEPS = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)"
STALL_LIMIT = 3
BEGINS = "import os, signal, sys, threading, time\nprint('step 1/9 loss 1', flush=True)\n"
FOR_EVER = "while True: time.sleep(.05)\n"
DETACHED = "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    time.sleep(300)\n"
WEIGHTS = {"produces": [{"file": "model.safetensors", "loads": "safetensors"}]}


@dataclass(frozen=True)
class Fault:
    """A program that does something wrong, and the outcome and diagnosis that it must get.

    `signal`: the signal that the program gets at its first step, or None.
    `program`: further keys of the program in the matrix file.
    """

    name: str
    text: str
    outcome: str
    diagnosis: str
    signal: int | None = None
    time_limit: int = 60
    program: dict[str, Any] = field(default_factory=dict)


FAULTS = (
    Fault("a null pointer in native code", BEGINS + "import ctypes\nctypes.string_at(0)", "failed", "crash"),
    Fault("`abort()`", BEGINS + "os.abort()", "failed", "crash"),
    Fault("killed from outside", BEGINS + FOR_EVER, "failed", "crash", SIGKILL),
    Fault("an exception in a step", BEGINS + "raise RuntimeError('no such column')", "failed", "app-error"),
    Fault("a module that is not there", "import no_such_module", "failed", "app-error"),
    Fault("too little memory", BEGINS + "bytearray(1 << 60)", "failed", "app-error"),
    Fault("exit status 2 after a step", BEGINS + "time.sleep(1)\nsys.exit(2)", "failed", "app-error"),
    Fault("an option that it does not know", "import sys\nsys.exit(2)", "failed", "refused"),
    Fault("reads standard input", BEGINS + "input()", "failed", "app-error"),
    Fault("a command that is not there", "", "failed", "not-started", program={"command": "pyhton train.py"}),
    Fault("stopped (SIGSTOP)", BEGINS + FOR_EVER, "hung", "no-progress", SIGSTOP),
    Fault("a loop without end", BEGINS + "while True: pass", "hung", "no-progress"),
    Fault("waits for a lock that nobody gives up", BEGINS + "(lock := threading.Lock()).acquire()\nlock.acquire()",
          "hung", "no-progress"),
    Fault("waits for a child that does not end", BEGINS + "import subprocess\nsubprocess.run(['sleep', '300'])",
          "hung", "no-progress"),
    Fault("ends well when the watchdog stops it", BEGINS + "signal.signal(15, lambda *_: sys.exit(0))\n" + FOR_EVER,
          "hung", "no-progress"),
    Fault("takes longer than it may, and ignores SIGTERM",
          BEGINS + "signal.signal(15, signal.SIG_IGN)\nn = 1\nwhile n := n + 1:\n"
          "    time.sleep(.1)\n    print(f'step {n}/9 loss 1', flush=True)", "failed", "time-limit", time_limit=2),
    Fault("becomes a daemon and ends", BEGINS + DETACHED, "failed", "no-result"),
    Fault("leaves a child running", BEGINS + "import subprocess\nsubprocess.Popen(['sleep', '300'])",
          "failed", "no-result"),
    Fault("prints and writes nothing", "", "failed", "no-result"),
    Fault("does not write its model", BEGINS, "failed", "no-result", program=WEIGHTS),
    Fault("writes half of its model", BEGINS + "open('model.safetensors', 'wb').write(b'\\x40' + bytes(30))",
          "failed", "model-does-not-load", program=WEIGHTS),
    Fault("a FIFO in place of its model", BEGINS + "os.mkfifo('model.safetensors')", "failed", "no-result",
          program=WEIGHTS),
    Fault("a loss that is no number", BEGINS + "print('step 2/9 loss nan')", "failed", "not-finite"),
    Fault("writes to its own source",
          BEGINS + "place = os.path.dirname(os.path.realpath(__file__))\nos.chmod(place, 0o755)\n"
          "open(place + '/cache', 'w').write('x')", "failed", "work-folder"),
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """The end of a run with a fault, and the number of its processes that were left."""

    fault: Fault
    record: Record
    left: int

    @property
    def right(self) -> bool:
        """Return whether outcome and diagnosis are right, and no process was left."""
        told = (self.record.outcome, self.record.diagnosis)
        return told == (self.fault.outcome, self.fault.diagnosis) and not self.left


def inject(fault: Fault, place: Path, matrix: Matrix, environment: Environment) -> Seen:
    """Run a faulty program once, in its own folder."""
    source = place / "code"
    source.mkdir(parents=True)
    (source / "train.py").write_text(fault.text, encoding="utf-8")
    values = {"command": "python train.py", "source": str(source), "progress": STEPS, "stall_limit": STALL_LIMIT}
    program = take_program(Program.model_validate({**values, **fault.program}), fault.name)
    about = {"name": "fault", "description": fault.name, "time_limit": fault.time_limit}
    workload = Workload.model_validate({**about, "program": program.model_dump()})
    data = InputFile(path=str(source), sha256=program.taken.version if program.taken else "")
    run = Run("run", matrix.cells["cpu-plain"], workload, data, environment, read_host(Path("/")))
    results = Results(place / "results")
    folder = results.run_folder("run")

    def send(_: object) -> None:
        for process in processes_of_run(folder) if fault.signal else ():
            os.kill(process.pid, fault.signal or 0)

    record = run_cell(run, results, ProcessExecutor(), send)
    return Seen(fault, record, len(processes_of_run(folder)))


def section(seen: Sequence[Seen], origin: str) -> list[str]:
    """Return the lines of the page about these faults, below their heading."""
    right = sum(one.right for one in seen)
    return [
        f"{origin} {right} of {len(seen)} faults were reported as what they are; "
        f"{sum(one.left for one in seen)} processes were left running.",
        "",
        "| the program | outcome | cause by `matrix explain` | left | seconds | as it should be |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(_row, seen),
    ]


def _row(one: Seen) -> str:
    record = one.record
    cause = record.explanation.class_ if record.explanation else "-"
    ended = f"{record.outcome} ({record.diagnosis})"
    cells = (one.fault.name, ended, cause, one.left, f"{record.seconds:.1f}", "yes" if one.right else "no")
    return f"| {' | '.join(map(str, cells))} |"


def measure() -> Iterator[Seen]:
    """Run each faulty program, and yield how it ended."""
    matrix = load_matrix(CHECKOUT / "matrix.yaml")
    environment = ensure_environment(matrix.stacks["cpu"])
    with tempfile.TemporaryDirectory(prefix="program-faults-") as place:
        for number, fault in enumerate(FAULTS):
            yield inject(fault, Path(place) / f"{number}", matrix, environment)


def main() -> None:
    """Measure every fault, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the section and write nothing")
    asked = parser.parse_args()
    seen = []
    for one in measure():
        seen.append(one)
        told = f"{one.record.outcome} ({one.record.diagnosis}): {one.record.detail}"
        print(f"{time.strftime('%H:%M:%S')} {'right' if one.right else 'WRONG'} {one.fault.name}: {told}", flush=True)
    origin = (
        f"Written by `.venv/bin/python -m benchmarks.program_faults` on {today()}: "
        f"{python_and_cores()} shared with other work, as processes, no GPU, "
        f"a stall limit of {STALL_LIMIT} s."
    )
    lines = section(seen, origin)
    if asked.print:
        print("\n".join(lines))
    else:
        before = PAGE.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")[0].rstrip("\n")
        PAGE.write_text("\n".join([before, "", HEADING, "", *lines, ""]), encoding="utf-8")
    sys.exit(0 if all(one.right for one in seen) else 1)


if __name__ == "__main__":
    main()
