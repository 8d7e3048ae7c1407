"""One run: what is asked for, and everything that follows from it, derived once and only read afterwards."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from secrets import token_hex
from typing import Any

from harness import __version__
from harness.base.contract import NONCE_VARIABLE, OLD_CONTRACT
from harness.base.paths import REHEARSAL
from harness.base.storage import json_hash
from harness.environments.environment import Environment
from harness.environments.executors.container import KFD, WORK, Container, DeviceNode, container_of, inside
from harness.environments.executors.job import Job
from harness.environments.executors.pids import pids_limit
from harness.environments.verifier import NO_VERIFIER, Verifier
from harness.evidence.app_files import InputFile, Phase
from harness.evidence.outcome import COMPARED_STEPS, Request
from harness.evidence.run_files import Intent
from harness.evidence.run_folder import RunFolder
from harness.evidence.work_folder import WorkFolder, resumed_steps
from harness.host.facts import GpuFacts, HostFacts
from harness.host.processes import ProcessId
from harness.matrix.cells import Cell, Workload
from harness.matrix.workload_options import (
    CHOICE_OPTIONS,
    FEATURE_OPTIONS,
    REFERENCE_OPTIONS,
    arguments,
    device_count,
    family_of,
    options_of,
    train_options,
    workload_hash,
)

ENV = "/usr/bin/env"


@dataclass(frozen=True)
class Run:
    """One execution of one workload in one cell on one host, as it is asked for.

    `devices` are the nodes of `gpus`, for a container; `confine` may limit that otherwise. `limits` are the watchdog's;
    without, it learns them. `injected_fault` is the fault injected on purpose, if any: `KIND@STEP` or `KIND@STEP/RANK`
    where the app injects it, a bare name where it comes from outside. It is no part of the identity of what is run, and
    such a run is no evidence. `verifier`: what this host verifies runs in.
    """

    run_id: str
    cell: Cell
    workload: Workload
    data: InputFile
    environment: Environment
    host: HostFacts
    gpus: tuple[int, ...] = ()
    campaign: str | None = None
    repeat: int = 1
    limits: Mapping[Phase, float] | None = None
    devices: tuple[DeviceNode, ...] = ()
    injected_fault: str | None = None
    name: str = "model"
    resume_from: tuple[PurePath, ...] | None = None
    confine: Callable[[Container], Container] = lambda container: container
    verifier: Verifier = NO_VERIFIER

    @property
    def not_verified(self) -> str | None:
        """Why nothing of this host's verifies it; None where something does."""
        return self.verifier.why_not(self.environment)

    @property
    def workload_hash(self) -> str:
        """Identity of what is run."""
        return workload_hash(self.workload, self.data.sha256, resumed=bool(self.resume_from))

    @property
    def device_count(self) -> int:
        """The number of devices that its strategy uses."""
        return device_count(self.workload, self.environment.device, self.gpus)


@dataclass(frozen=True)
class RunSpec:
    """Everything that follows from a run in its folder.

    `phases` are the processes that train, in order; `container` is theirs, with the nodes of GPUs. What probes its GPUs
    has the environment without preset: `app` and `variables`. `verification` computes parts of the run again, in this
    host's own environment; it lacks the words on the models, and is None where this host has none for it. `gpus`: those
    given to the run of which the driver tells; none on the CPU. `work`: the folder that the app writes to, as the host
    calls it. `environment_hash` is that of the environment without preset; `workload_hashes` are those of the workload,
    resumed or not. `option_names`: options that the app knows by another name.
    """

    intent: Intent
    request: Request
    folder: RunFolder
    work: WorkFolder
    gpus: tuple[GpuFacts, ...]
    phases: Mapping[str, Job]
    verification: Job | None
    container: Container | None
    app: tuple[str, ...]
    option_names: Mapping[str, str]
    variables: Mapping[str, str]
    environment_hash: str
    workload_hashes: frozenset[str]
    limits: Mapping[Phase, float] | None
    resume_from: tuple[PurePath, ...] | None

    @property
    def kfd_ids(self) -> frozenset[str] | None:
        """The driver's ids of its GPUs; None where it tells of none, so that any may be meant."""
        return frozenset(str(gpu.kfd_id) for gpu in self.gpus) or None

    def probe(self, gpu: GpuFacts, words: tuple[str, ...]) -> Job:
        """Return the process that checks one GPU and sees no other."""
        options = (self.option_names.get(word, word) for word in words)
        command = (*self.app, "probe", "--device", self.intent.device, "--json", *options)
        container, visible = None, visible_devices((gpu.index,))
        if self.container:
            nodes = tuple(node for node in self.container.devices if node.inside in (KFD, gpu.render_node))
            container, visible = replace(self.container, devices=nodes), {}
        log = self.folder.new_probe_log(gpu.index)
        note = self.folder.note_of(log, contained=container is not None)
        variables = {**self.variables, **visible}
        return Job(command, variables, self.folder.path, log, container, note, Path(self.work.path))


def resolve_run(run: Run, folder: RunFolder) -> RunSpec:
    """Derive everything that follows from a run in its folder, with the intent of this process to run it now."""
    verifier = run.verifier.environment
    environment, preset, owner = run.environment, run.cell.preset, ProcessId.mine()
    nonce = token_hex(16)
    contained = environment.image is not None
    options = train_options(run.workload, run.device_count)
    if environment.contract == OLD_CONTRACT:
        options = {name: value for name, value in options.items() if name not in CHOICE_OPTIONS}
    words = {
        "features": arguments(options_of(run.workload, FEATURE_OPTIONS)),
        "train": arguments(options),
    }
    work = folder.new_work
    seen = WorkFolder(WORK) if contained else work
    data = inside(Path(run.data.path)) if contained else Path(run.data.path)
    temporary = seen.temporary if contained else folder.temporary
    plain = {**base_variables(seen, temporary, run.workload.threads), **environment.variables}
    # In a container other GPUs have no device nodes.
    visible = {} if contained else visible_devices(run.gpus)
    commands = {phase: _phase_command(phase, run, words[phase], seen, data) for phase in preset.phases}
    variables = {phase: {**plain, **visible, **preset.variables_of(phase)} for phase in preset.phases}
    told = {NONCE_VARIABLE: nonce}
    app = _plain_app(run)
    request = _request(run, options, nonce)
    container = _container(run, folder)
    note = folder.note_of(folder.log, contained=contained)

    intent = Intent(
        run_id=run.run_id,
        campaign=run.campaign,
        repeat=run.repeat,
        cell=run.cell.id,
        stack=run.cell.stack.name,
        preset=preset.name,
        executor="docker" if contained else "process",
        host=run.host,
        environment_hash=environment.hash(preset),
        environment=environment.identity,
        python=environment.version,
        image=environment.image,
        container=container.plain if container else None,
        workload=run.workload.name,
        workload_hash=run.workload_hash,
        family=family_of(options, run.workload.max_device_memory, smoke_test=run.workload.smoke_test),
        smoke_test=run.workload.smoke_test,
        data=run.data,
        device=environment.device,
        gpus=run.gpus,
        torch=run.cell.stack.torch,
        rocm=run.cell.stack.rocm,
        index=run.cell.stack.shown_index,
        options=options,
        time_limit=run.workload.time_limit,
        commands=commands,
        variables=variables,
        nonce=nonce,
        contract=environment.contract,
        verifier=None if run.not_verified or not verifier else verifier.identity,
        verifier_image=None if run.not_verified or not verifier else verifier.image,
        not_verified=run.not_verified,
        harness_version=__version__,
        owner_pid=owner.pid,
        owner_started=owner.started,
        injected_fault=run.injected_fault,
        rehearsal=REHEARSAL is not None,
        started=time.time(),
    )
    return RunSpec(
        intent=intent,
        request=request,
        folder=folder,
        work=work,
        gpus=tuple(gpu for gpu in run.host.gpus if environment.device == "cuda" and gpu.index in run.gpus),
        phases={
            phase: Job(
                commands[phase], {**variables[phase], **told}, folder.path, folder.log, container, note, Path(work.path)
            )
            for phase in preset.phases
        },
        verification=None if run.not_verified or not verifier else _verification(run, folder, verifier),
        container=container,
        app=app,
        option_names=environment.option_names,
        variables=plain,
        environment_hash=json_hash(environment.identity),
        workload_hashes=frozenset(
            workload_hash(run.workload, run.data.sha256, resumed=resumed) for resumed in (False, True)
        ),
        limits=run.limits,
        resume_from=run.resume_from,
    )


def base_variables(work: WorkFolder, temporary: PurePath, threads: int) -> dict[str, str]:
    """Return what every process of a run has set but for preset and devices: no variable of the caller's is passed on.

    `work`: the work folder as the process calls it, which has every cache.
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
        # torch below 2.13 dies on a uid that has no name.
        "USER": "matrix",
        "LOGNAME": "matrix",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(threads),
        # With no other network, the usual rendezvous by host name waits for ever.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        **{name: str(place) for name, place in places.items()},
    }


def visible_devices(gpus: tuple[int, ...]) -> dict[str, str]:
    """Return the variables that limit a process to some GPUs, by their index among the host's."""
    return {"ROCR_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}


def _container(run: Run, folder: RunFolder) -> Container | None:
    """Return what limits the container of the phases; None where they run as processes."""
    if run.environment.image is None:
        return None
    data = (Path(run.data.path),)
    alone = container_of(run.environment.image, Path(folder.new_work.path), data, run.host.memory_bytes)
    return run.confine(replace(alone, devices=run.devices, pids=pids_limit(run.host.cores, run.device_count)))


def _request(run: Run, options: dict[str, Any], nonce: str) -> Request:
    """Return what the evidence is compared with."""
    return Request(
        workload_hash=run.workload_hash,
        data_sha256=run.data.sha256,
        device=run.environment.device,
        # The strategy `single` uses one GPU, however many it can see.
        gpus=0 if run.environment.device == "cpu" else run.device_count,
        torch=run.cell.stack.torch,
        rocm=run.cell.stack.rocm,
        hip=run.cell.stack.hip,
        options=options,
        phases=run.cell.preset.phases,
        devices=run.device_count,
        max_device_memory=run.workload.max_device_memory,
        injected_fault=run.injected_fault,
        contract=run.environment.contract,
        nonce=nonce,
        resumed=resumed_steps(run.workload.model, run.name, run.resume_from or ()),
        data_bytes=_size(Path(run.data.path)),
        not_verified=run.not_verified,
    )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        # What reads it says so.
        return 0


def _plain_app(run: Run, *words: str) -> tuple[str, ...]:
    """Return a command of the app without the preset, which in an image is baked in."""
    command = run.environment.app(*words)
    if run.environment.image is None:
        return command
    unset = (word for name in run.cell.preset.variables for word in ("--unset", name))
    return (ENV, *unset, *command)


def _verification(run: Run, folder: RunFolder, verifier: Environment) -> Job:
    """Return the process that verifies the run, but for its models: without devices, in a folder of its own.

    In a container it can read the data and the copies of what the run left.
    """
    work, data = folder.verifying, Path(run.data.path)
    contained = verifier.image is not None
    seen = WorkFolder(WORK) if contained else work
    container = None
    if verifier.image is not None:
        alone = container_of(verifier.image, Path(work.path), (data, folder.kept), run.host.memory_bytes)
        container, data = replace(alone, pids=pids_limit(run.host.cores, 1)), inside(data)
    words = arguments(options_of(run.workload, REFERENCE_OPTIONS))
    places = ("--data", str(data), "--output", str(seen.verification), "--run-dir", str(seen.path))
    asked = ("--workload-hash", run.workload_hash, "--steps", str(COMPARED_STEPS))
    temporary = seen.temporary if contained else folder.temporary
    variables = {**base_variables(seen, temporary, run.workload.threads), **verifier.variables}
    log = folder.verification_log
    note = folder.note_of(log, contained=contained)
    command = verifier.app("verify", *places, *asked, *words)
    return Job(command, variables, folder.path, log, container, note, Path(work.path))


def _phase_command(phase: str, run: Run, words: tuple[str, ...], seen: WorkFolder, data: Path) -> tuple[str, ...]:
    app, where = run.environment.app, ("--data", str(data))
    device = ("--device", run.environment.device)
    run_dir = ("--run-dir", str(seen.path))
    if phase == "features":
        return app("features", *where, "--output", str(seen.features), *run_dir, *device, *words)
    handed_over = ("--features", str(seen.features)) if "features" in run.cell.preset.phases else ()
    made = ("--output", str(seen.output), "--name", run.name)
    known = (*device, "--workload-hash", run.workload_hash)
    resumed = ("--resume",) if run.resume_from else ()
    injected = ("--inject-fault", run.injected_fault) if run.injected_fault and "@" in run.injected_fault else ()
    return app("train", *where, *handed_over, *made, *run_dir, *known, *words, *resumed, *injected)
