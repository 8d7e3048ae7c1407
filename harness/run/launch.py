"""The processes of a run in its cell: our app's, or a program of the user's own. Everything else is the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

from harness.base.contract import NONCE_VARIABLE, OLD_CONTRACT
from harness.environments.executors.container import DATA, inside
from harness.evidence.files.app_files import Phase
from harness.evidence.files.work_folder import WorkFolder
from harness.matrix.programs import Program
from harness.matrix.workload_options import CHOICE_OPTIONS, FEATURE_OPTIONS, arguments, options_of, train_options
from harness.run.requested_run import Run
from harness.run.watch.limits import LIMITS

NOT_CHECKED = "numbers not checked: only this project's own training can be computed again for comparison"


PhaseName = Literal["features", "train"]


@dataclass(frozen=True)
class Launch:
    """The processes that a run starts, in order, what they can read, and what is known of their work.

    Attributes:
        readable: The files and folders that they can read.
        contract: The version of the contract that their files follow.
        variables: Environment variables that only these processes get; those of the preset come after them.
        without: Variables of the environment that these processes do not get.
        unrecorded: Variables that no record repeats.
        within: The folder in the work folder where they start.
        links: Symbolic links in the work folder: what each leads to, by name.
        limits: The watchdog's limits; None where it learns them.
        not_verified: Why this host computes nothing of the run again; None where it does.
    """

    commands: Mapping[PhaseName, tuple[str, ...]]
    options: dict[str, Any]
    readable: tuple[Path, ...]
    contract: int
    variables: Mapping[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    unrecorded: Mapping[str, str] = field(default_factory=dict)
    within: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[Phase, float] | None = None
    not_verified: str | None = None


def launch_of(run: Run, seen: WorkFolder, nonce: str) -> Launch:
    """Return what a run starts. `seen`: its work folder, under the path that the processes see."""
    program = run.workload.program
    return _of_app(run, seen, nonce) if program is None else _of_program(run, program, seen)


def _of_app(run: Run, seen: WorkFolder, nonce: str) -> Launch:
    data = Path(run.data.path)
    options = train_options(run.workload, run.device_count)
    if run.environment.contract == OLD_CONTRACT:
        options = {name: value for name, value in options.items() if name not in CHOICE_OPTIONS}
    words = {
        "features": arguments(options_of(run.workload, FEATURE_OPTIONS)),
        "train": arguments(options),
    }
    found = inside(data) if run.environment.image else data
    return Launch(
        commands={phase: _app_command(phase, run, words[phase], seen, found) for phase in run.cell.preset.phases},
        options=options,
        readable=(data,),
        contract=run.environment.contract,
        # Nothing is imported from the current folder, which others who share the results may have put there.
        variables={"PYTHONSAFEPATH": "1"},
        unrecorded={NONCE_VARIABLE: nonce},
        not_verified=run.not_verified,
    )


def _app_command(phase: str, run: Run, words: tuple[str, ...], seen: WorkFolder, data: Path) -> tuple[str, ...]:
    app, where = run.environment.app, ("--data", str(data))
    device = ("--device", run.environment.device)
    run_dir = ("--run-dir", str(seen.path))
    if phase == "features":
        return app("features", *where, "--output", str(seen.features), *run_dir, *device, *words)
    handed_over = ("--features", str(seen.features)) if "features" in run.cell.preset.phases else ()
    made = ("--output", str(seen.output), "--name", run.name)
    framework = run.cell.stack.framework
    # Apps from before the option was added do not know it.
    stated = ("--framework", framework) if framework != "torch" else ()
    known = (*device, *stated, "--workload-hash", run.workload_hash)
    resumed = ("--resume",) if run.resume_from else ()
    injected = ("--inject-fault", run.injected_fault) if run.injected_fault and "@" in run.injected_fault else ()
    return app("train", *where, *handed_over, *made, *run_dir, *known, *words, *resumed, *injected)


def _of_program(run: Run, program: Program, seen: WorkFolder) -> Launch:
    """Return the one process of a program; its working folder has a link to each thing in its source."""
    if program.taken is None:
        raise ValueError("a program is run from the copy that was taken of it")
    contained = run.environment.image is not None
    source, data = Path(program.taken.folder), tuple(Path(place).absolute() for place in program.data)
    read = tuple(place for place in (source, run.packages, *data) if place)
    found = {place: str(inside(place) if contained else place) for place in read}
    names = [one.name for one in source.iterdir()]
    links = {f"{seen.PROGRAM}/{name}": f"{found[source]}/{name}" for name in sorted(names)}
    if not contained:
        links |= {f"{seen.DATA}/{place.name}": found[place] for place in data}
    paths = [str(run.environment.python.parent), "/usr/local/bin", "/usr/bin", "/bin"]
    own = {}
    if run.packages:
        paths.insert(0, f"{found[run.packages]}/bin")
        own = {"PYTHONPATH": found[run.packages]}
    data_folder = str(DATA if contained else seen.data)
    command = program.words(data_folder, run.taken_over.checkpoint if run.taken_over else None)
    # A program that gives no stacks counts as hung after twice its limit.
    limits: dict[Phase, float] = dict.fromkeys(LIMITS, program.stall_limit / 2)
    return Launch(
        commands={"train": command},
        options=train_options(run.workload, run.device_count),
        readable=read,
        contract=OLD_CONTRACT,
        variables={
            **program.environment,
            **own,
            "PATH": ":".join(paths),
            # A program may go by the variable to choose between data that it is given and its own.
            **({"MATRIX_DATA": data_folder} if data else {}),
            "MATRIX_PROGRESS": str(seen.program_progress),
        },
        # The app is not part of the program.
        without=frozenset({"PYTHONPATH"}),
        within=seen.PROGRAM,
        links=links,
        limits=limits,
        not_verified=NOT_CHECKED,
    )


def base_variables(work: WorkFolder, temporary: PurePath, threads: int) -> dict[str, str]:
    """Return the variables that every process of a run gets before those of preset and devices.

    No variable of the caller is passed on.

    `work`: the work folder, with every cache, under the path that the process sees.
    """
    places = {
        "HOME": work.scratch,
        "TMPDIR": temporary,
        "XDG_CACHE_HOME": work.cache,
        **{variable: work.cache / name for variable, name in work.CACHES.items()},
    }
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        # torch below 2.13 dies if the uid has no name.
        "USER": "matrix",
        "LOGNAME": "matrix",
        "PYTHONUNBUFFERED": "1",
        # A crash in a library then shows where, also in a program of the user's own.
        "PYTHONFAULTHANDLER": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(threads),
        # Without any other network, the usual rendezvous by host name waits for ever.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        **{name: str(place) for name, place in places.items()},
    }


def visible_devices(gpus: tuple[int, ...]) -> dict[str, str]:
    """Return the variables that limit a process to some of the host's GPUs, given by index."""
    return {"ROCR_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
