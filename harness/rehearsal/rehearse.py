"""Rehearses stacks: each gets an index on loopback, a folder for its locks and caches, and a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.files.hashes import json_hash
from harness.base.files.locks import locked
from harness.base.paths import APPS, CACHE, CHECKOUT, DATA, REHEARSAL_VARIABLE
from harness.environments.compiled_kernel import KERNELS, ensure_kernel
from harness.environments.docker.images import PREFIX
from harness.environments.python.interpreters import choose_python
from harness.environments.python.pins import ensure_lock, pins_file
from harness.environments.python.wheelhouse import fetch
from harness.environments.verifier import verifying_stack
from harness.evidence.records import Results
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, engine_errors
from harness.matrix.cells import Matrix
from harness.matrix.stacks import ExecutorName, Stack
from harness.matrix.wheels import load_wheels, wheel_sources
from harness.rehearsal.real_host import on_a_real_host
from harness.rehearsal.source_places import open_pins, other_packages, source_place
from harness.rehearsal.stand_in_index import StandIn, serving
from harness.rehearsal.steps import ChildLine, RehearsalJob, RehearsedStack, RehearsedStep, StepName

FOLDER = CACHE / "rehearsal"
# Caches that the rehearsal shares with real runs, which is safe because their files are named by content.
SHARED = (KERNELS, APPS, DATA)
NOT_PASSED_ON = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
PINS = "torch=={torch}+{label}\nnumpy\npolars\nclick\nmatplotlib\n"
PYPI_PLACE = "pypi"
STOP_SECONDS = 90
STAND_IN_MAIN = """\
import sys
sys.argv[1:1] = ["-m", "vpoc"]
from vpoc.stand_in_app import stand_in_main
stand_in_main()
"""


@dataclass(frozen=True)
class Rehearsing:
    """A matrix whose stacks are rehearsed, and how. Without an engine the stacks become processes.

    `stub`: use stubs of a few hundred bytes for torch and all other packages, and a stand-in for the app.
    `root`: the folder that holds the host's /sys, /proc and /dev.
    `begun`, `done`: called when a stack begins, and when a step is done.
    `notify`: called with a line of text on what is being done.
    `program`: the command of the process that rehearses one stack; its job is written to standard input.
    """

    matrix: Matrix
    results: Results
    engine: Engine | None = None
    stub: bool = False
    root: Path = Path("/")
    begun: Callable[[RehearsedStack], None] = lambda _: None
    done: Callable[[RehearsedStep], None] = lambda _: None
    notify: Notify = lambda _: None
    program: Sequence[str] = (sys.executable, "-m", "harness.rehearsal.carry")
    _wheels: dict[str, dict[str, Path]] = field(default_factory=dict)

    def all(self, stacks: Sequence[Stack]) -> Generator[RehearsedStack, None, None]:
        """Rehearse stacks one after the other, and yield the result of each.

        Only records remain of the rehearsal, however it ends.

        Raises:
            UserError: when the folder of the rehearsal cannot be created.
            KeyboardInterrupt: when the user interrupts it; running processes are ended first.
        """
        with _own_folder(self.engine, self.notify):
            ensure_kernel(self.notify)
            for stack in stacks:
                yield self._one(stack)

    def _one(self, stack: Stack) -> RehearsedStack:
        executor, python, wheels = self._setting(stack)
        found = RehearsedStack(
            stack=stack.name,
            source=stack.source,
            url=stack.shown_index or stack.index,
            executor=executor,
            torch="relabelled CPU wheel" if wheels else "stub",
            app="the app, on the CPU" if wheels else "a stand-in that writes what the app would",
            steps=(),
        )
        self.begun(found)
        folder = FOLDER / stack.name
        folder.mkdir(parents=True)
        try:
            place = source_place(stack, python, wheels.get("torch"), folder)
            pins = pins_file(stack)
            text = (
                pins.read_text(encoding="utf-8")
                if pins.is_file()
                else PINS.format(torch=stack.torch, label=stack.label)
            )
            with serving({stack.source: place, PYPI_PLACE: other_packages(text, wheels.values())}) as index:
                job = self._job(found, stack, python, index, folder)
                lock = folder / "locks" / f"{job.stack.name}.in"
                lock.parent.mkdir()
                lock.write_text(open_pins(text), encoding="utf-8")
                return self._carried(found, job, index, folder, on_a_real_host(stack, executor))
        finally:
            # The next stack may need the disk space.
            remove_images(self.engine, [rehearsed_name(stack)])
            shutil.rmtree(folder, ignore_errors=True)

    def _setting(self, stack: Stack) -> tuple[ExecutorName, str, dict[str, Path]]:
        """Return how a stack is rehearsed: its executor, its Python, and the CPU wheels (none if stubs are used)."""
        # A stub cannot become an image, because verifying an image computes with torch. An unlisted stack has no base
        # image.
        if self.engine and stack.name in self.matrix.stacks and (wheels := self._cpu_wheels(stack.python)):
            return "docker", stack.python, wheels
        chosen = choose_python(stack)
        python = chosen[0] if chosen else stack.python
        return "process", python, self._cpu_wheels(python)

    def _cpu_wheels(self, python: str) -> dict[str, Path]:
        """Return the wheels of the cpu stack, which this host fetches anyway.

        None for stubs, or if they are unavailable.
        """
        if self.stub:
            return {}
        if python not in self._wheels:
            self._wheels[python] = {}
            stack = verifying_stack(self.matrix)
            try:
                if stack and not stack.torch_from_base:
                    lock = ensure_lock(stack, python=python)
                    own = stack.model_copy(update={"python": python})
                    self._wheels[python] = fetch(own, lock, self.notify)
            except UserError as error:
                self.notify(f"no CPU wheel of torch for Python {python}, so a stub stands in: {error}")
        return self._wheels[python]

    def _job(self, found: RehearsedStack, stack: Stack, python: str, index: StandIn, folder: Path) -> RehearsalJob:
        changes = {"name": rehearsed_name(stack), "mirror": index.url(stack.source), "pypi": index.url(PYPI_PLACE)}
        job = RehearsalJob(
            stack=stack.model_copy(update=changes),
            executor=found.executor,
            python=python,
            results=str(self.results.folder),
            root=str(self.root),
        )
        if found.torch != "stub":
            return job
        package = folder / "app" / "vpoc"
        package.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("stand_in_app.py"), package)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(STAND_IN_MAIN, encoding="utf-8")
        bars = folder / "bars.csv"
        bars.write_text("ts,open,high,low,close,volume,vix\nwhat stands in for bars\n", encoding="utf-8")
        return job.model_copy(update={"data": str(bars), "stand_in": str(package.parent)})

    def _carried(
        self, found: RehearsedStack, job: RehearsalJob, index: StandIn, folder: Path, real: Mapping[StepName, str]
    ) -> RehearsedStack:
        cache = folder / "cache"
        cache.mkdir()
        for shared in SHARED:
            shared.mkdir(parents=True, exist_ok=True)
            (cache / shared.name).symlink_to(shared)
        steps: list[RehearsedStep] = []
        last = ChildLine(problem="it ended without a word")
        asked = refused = 0
        with closing(self._lines(job, folder)) as lines:
            for line in lines:
                if line.doing:
                    self.notify(line.doing)
                elif line.done:
                    counts = {"requests": len(index.asked) - asked, "refused": index.refused - refused}
                    asked, refused = len(index.asked), index.refused
                    steps.append(RehearsedStep(**line.done.model_dump(), real=real[line.done.step], **counts))
                    self.done(steps[-1])
                else:
                    last = line
        return found.model_copy(update={**last.model_dump(exclude={"doing", "done"}), "steps": tuple(steps)})

    def _lines(self, job: RehearsalJob, folder: Path) -> Generator[ChildLine, None, None]:
        """Yield the lines that the process which rehearses a stack writes, until it ends.

        Raises:
            KeyboardInterrupt: when the user interrupts it; the process has ended by then.
        """
        said = folder / "said.txt"
        with said.open("w") as errors:
            # In a session of its own: Ctrl-C reaches only this process, which passes it on and waits.
            child = subprocess.Popen(
                self.program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=CHECKOUT,
                env=_environment(folder),
                start_new_session=True,
            )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(job.model_dump_json())
            child.stdin.close()
            told = False
            for text in child.stdout:
                line = _parsed(text)
                if line:
                    told = told or not (line.doing or line.done)
                    yield line
            child.wait()
            if not told:
                words = " ".join(said.read_text(encoding="utf-8", errors="replace").split())
                yield ChildLine(problem=f"ended with status {child.returncode}: {words[-400:]}")
        finally:
            _end(child)


def rehearsed_name(stack: Stack) -> str:
    """Return the name of a stack in a rehearsal, which keeps image tags and labels apart by checkout."""
    return f"rehearsal-{json_hash(str(CHECKOUT))[:4]}-{stack.name}"


def one_of_each_source(matrix: Matrix, selection: str) -> list[Stack]:
    """Return a stack for each source of wheels: from the selection, else from the matrix, else from wheels.yaml."""
    chosen = matrix.selections[selection].stacks
    ordered = [*(matrix.stacks[name] for name in (chosen if chosen != "all" else ())), *matrix.stacks.values()]
    able = [stack for stack in ordered if can_be_rehearsed(stack)]
    firsts = {source: next((one for one in able if one.source == source), None) for source in wheel_sources()}
    return [first or unlisted_stack(source) for source, first in firsts.items()]


def can_be_rehearsed(stack: Stack) -> bool:
    """Return whether a stack is for ROCm and takes its torch from a source of wheels."""
    return stack.accelerator == "rocm" and stack.framework == "torch" and not (stack.torch_from_base or stack.excluded)


def unlisted_stack(source: str) -> Stack:
    """Return the newest stack of a source that no stack of the matrix uses."""
    release = [one for one in load_wheels().releases if one.source == source][-1]
    torch, rocm, python = release.torch[-1], release.rocm[-1], release.python[-1]
    values = {"accelerator": "rocm", "rocm": rocm, "torch": torch, "python": python, "source": source}
    return Stack.model_validate({"name": f"rocm{rocm}-torch{torch}", **values})


def remove_images(engine: Engine | None, names: Sequence[str]) -> None:
    """Remove the images of the stacks with these names."""
    if engine is None:
        return
    with engine_errors("removing the images of the rehearsal"):
        for name in names:
            for image in engine.client.api.images(filters={"label": f"{PREFIX}.stack={name}"}):
                engine.client.api.remove_image(image["Id"], force=True)


@contextmanager
def _own_folder(engine: Engine | None, say: Notify) -> Iterator[None]:
    """Lock and empty the folder of rehearsals, and remove it at the end."""
    with locked(FOLDER.with_suffix(".lock"), say):
        say("making room for a rehearsal")
        # Leftovers of a rehearsal that was killed.
        remove_images(engine, [f"rehearsal-{json_hash(str(CHECKOUT))[:4]}-{left.name}" for left in FOLDER.glob("*")])
        shutil.rmtree(FOLDER, ignore_errors=True)
        try:
            yield
        finally:
            shutil.rmtree(FOLDER, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of the process that rehearses a stack: no variable leads to another index than ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
    own = {REHEARSAL_VARIABLE: str(folder), "UV_CACHE_DIR": str(folder / "uv"), "PIP_CONFIG_FILE": os.devnull}
    return {**kept, **own, "UV_PYTHON_DOWNLOADS": "never"}


def _parsed(text: str) -> ChildLine | None:
    try:
        return ChildLine.model_validate(json.loads(text))
    except (ValueError, ValidationError):
        return None


def _end(child: "subprocess.Popen[str]") -> None:
    """End the process that rehearses a stack, and what it runs."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if child.stdout:
        child.stdout.close()
