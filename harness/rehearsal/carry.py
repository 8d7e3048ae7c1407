"""Takes one stack from lock to record, in a process whose locks and caches belong to the rehearsal.

`python -m harness.rehearsal.carry` reads a job from standard input and writes a line of JSON for each step. Every step
runs the product's own code; only the source of the wheels and the device of the run belong to the rehearsal.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.base import interrupts
from harness.base.errors import UserError
from harness.base.paths import IMAGES, REHEARSAL, REHEARSAL_VARIABLE
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.runner import Runner
from harness.environments.docker.images import find
from harness.environments.environment import Environment
from harness.environments.python.interpreters import choose_python
from harness.environments.python.pins import ensure_lock
from harness.environments.python.wheelhouse import fetch, locked_versions
from harness.environments.verifier import Verifier
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results, new_run_id
from harness.host.engine import Engine
from harness.matrix.cells import Cell, Preset
from harness.matrix.workloads import SyntheticData, Workload
from harness.rehearsal.steps import ChildLine, RehearsalJob, StepDone, StepName

PLAIN = Preset(name="plain", description="nothing set")
WORKLOAD = Workload(
    name="rehearsal",
    description="seconds of training on synthetic bars: two epochs of 29 steps",
    synthetic=SyntheticData(sessions=26),
    lookback=20,
    epochs=2,
    loader_workers=0,
    time_limit=600,
    smoke_test=True,
)
TELL_TORCH = "import torch; print(torch.__version__, torch.version.hip)"
STAND_IN = "stand-in"
WORDS = 300


class _Notifying(Display):
    """A display that writes the current step as a line."""

    def step(self, text: str) -> None:
        """Report a step that precedes a run."""
        _tell(doing=text)


class _Clock:
    """Makes the line of each step, with the seconds since the previous step."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def done(self, step: StepName, did: str, downloaded_bytes: int | None = None) -> ChildLine:
        """Return the line of a step that ends now."""
        began, self._began = self._began, time.monotonic()
        seconds = round(self._began - began, 2)
        return ChildLine(done=StepDone(step=step, did=did, seconds=seconds, downloaded_bytes=downloaded_bytes))


def rehearse_stack(job: RehearsalJob) -> Iterator[ChildLine]:
    """Take a stack from lock to record, and yield each step when it is done.

    Raises:
        UserError: when a step fails.
    """
    stack, cell, display, clock = job.stack, Cell(job.stack, PLAIN), _Notifying(), _Clock()
    results = Results(Path(job.results))
    data = Path(job.data) if job.data else None
    options = BenchOptions(results, data=data, executor=job.executor, root=Path(job.root))
    bench = open_bench(options, [cell], lambda _: ())
    lock = ensure_lock(stack, python=job.python)
    entries = locked_versions(lock)
    rocm = [f"{name} {entries[name]}" for name in entries if "rocm" in name or name.startswith("triton")]
    yield clock.done("lock", f"{len(entries)} packages, each by hash: torch {entries['torch']}, {', '.join(rocm)}")
    here = bench.engine or choose_python(stack)
    if bench.engine or not here:
        wheels = fetch(stack.model_copy(update={"python": job.python}), lock, display.step)
        size = sum(wheel.stat().st_size for wheel in wheels.values())
        built = [name for name in stack.origin.built if name in wheels]
        source = f"; {', '.join(built)} built from source" if built else ""
        yield clock.done("fetch", f"{len(wheels)} wheels, {size / 1e6:.0f} MB, as hashed{source}", size)
    if not here:
        # Stop here, because uv would fetch this Python from the network.
        yield ChildLine(left_out=f"Python {job.python} is not installed here; a real host fetches it, or has it")
        return
    environment = replace(bench.environment(cell, display.step), device="cpu")
    yield clock.done("build", _made(bench.engine, environment, job.python))
    yield clock.done("verify", _verified(job, environment))
    if job.stand_in:
        identity = {**environment.identity, "app": STAND_IN}
        environment = replace(environment, identity=identity, variables={"PYTHONPATH": job.stand_in})
    record = _run(bench, cell, environment, display)
    torch = record.result.torch if record.result else None
    ran = f"torch {torch.version}, HIP {torch.hip}, on {record.ran_on}" if torch else record.detail
    yield clock.done("run", f"{STAND_IN if job.stand_in else 'the app'} with --device cpu: {record.outcome}; {ran}")
    counted = "marked `rehearsal`" if record.intent.rehearsal else "NOT marked as a rehearsal"
    yield clock.done("record", f"{record.intent.run_id}: {counted}, counts for nothing")
    problem = None if record.outcome == "completed" else f"the run {record.outcome}: {record.detail}"
    yield ChildLine(run=record.intent.run_id, outcome=record.outcome, problem=problem)


def _made(engine: Engine | None, environment: Environment, version: str) -> str:
    if engine and environment.image:
        image = find(engine, environment.image)
        return f"image {environment.image[7:19]}, {image.size / 1e6 if image else 0:.0f} MB, without network"
    return f"a virtual environment of Python {version}, every wheel compared with its hash"


def _verified(job: RehearsalJob, environment: Environment) -> str:
    """Have the environment report its torch, and compute a step with it unless torch is a stub.

    Raises:
        UserError: when the torch is not the one that the stack declares.
    """
    stack, version = job.stack, job.python
    declared = (version, stack.torch or "", stack.runtime)
    said = f"Python {version}, torch {stack.torch} and HIP {stack.hip} are installed as declared"
    if environment.image:
        # The build compared the versions already, and would have failed otherwise.
        return f"in the build: {said}; one step of training taken"
    words = [TELL_TORCH] if job.stand_in else []
    command = [environment.python, *(["-c"] if words else [IMAGES / "verify.py"]), *(words or declared)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    told = run.stdout.split()
    stubbed = f"{stack.torch}+{stack.label}", f"{stack.hip}."
    if run.returncode or (words and not (told[0] == stubbed[0] and told[1].startswith(stubbed[1]))):
        raise UserError(f"{stack.name}: {' '.join((run.stderr or run.stdout).split())[-WORDS:]}")
    return f"{said}; {'nothing is computed with a stub' if words else 'one step of training taken'}"


def _run(bench: Bench, cell: Cell, environment: Environment, display: Display) -> Record:
    bench.use_environment(cell, environment)
    runner = Runner(bench, WORKLOAD, display, total=1)
    pending = PendingRun(PlannedRun(cell, 1), new_run_id(cell.id))
    # Verify in the same environment, because the host's cpu stack is not part of the rehearsal.
    _, record = runner.run([pending], change=lambda run: replace(run, verifier=Verifier(environment)))
    return record


def _tell(**values: str) -> None:
    _write(ChildLine.model_validate(values))


def _write(line: ChildLine) -> None:
    sys.stdout.write(line.model_dump_json(exclude_none=True) + "\n")
    sys.stdout.flush()


def carry_given_job() -> None:
    """Read the job from standard input, and take its stack from lock to record."""
    if REHEARSAL is None:
        sys.exit(f"{REHEARSAL_VARIABLE} is not set: `matrix rehearse` does that, and starts this")
    job = RehearsalJob.parse(sys.stdin.read())
    with interrupts.interruptible():
        try:
            for line in rehearse_stack(job):
                _write(line)
        except KeyboardInterrupt:
            sys.exit(interrupts.INTERRUPTED)
        except UserError as error:
            _tell(problem=str(error))
            sys.exit(2)


if __name__ == "__main__":
    carry_given_job()
