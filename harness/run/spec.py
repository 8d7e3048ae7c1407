"""Run -> RunSpec: everything that follows from a run, derived once and only read afterwards."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from secrets import token_hex

from harness import __version__
from harness.base.files.hashes import json_hash
from harness.base.paths import REHEARSAL
from harness.environments.executors.container import KFD, WORK, Container, container_of
from harness.environments.executors.job import Job
from harness.environments.executors.pids import pids_limit
from harness.evidence.files.app_files import Phase
from harness.evidence.files.program_files import TakenOver
from harness.evidence.files.run_files import Intent
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder, resumed_steps
from harness.evidence.outcome.request import Request
from harness.host.facts import GpuFacts
from harness.host.processes.processes import ProcessId
from harness.matrix.workload_options import family_of, workload_hash
from harness.run.launch import Launch, PhaseName, base_variables, launch_of, visible_devices
from harness.run.requested_run import Run
from harness.run.verifier_jobs import VerifierJobs

ENV = "/usr/bin/env"


def _since_boot() -> float:
    """Return the seconds since the boot, including those in which the host slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class RunSpec:
    """Everything that follows from a run in its folder.

    Attributes:
        intent: What is written before the start: how the run is made.
        request: What its evidence is compared with.
        work: The folder that the app writes to, under its path on the host.
        gpus: The GPUs of the run that the driver lists; empty on the CPU.
        phases: The processes that train, in order.
        container: The container of these processes, with the device nodes of the GPUs; None where they run without one.
        loader: Returns the process that loads a copy of weights; None where this host has no environment for it.
        verification: The process that computes parts of the run again, in this host's own environment. Its arguments do
            not name the models yet. None where this host has no environment for it.
        app: The app's command without the preset, for processes that do not train, such as probes of GPUs.
        option_names: Options that the app of this environment knows by another name.
        variables: The environment variables of such processes.
        environment_hash: The hash of the environment without the preset.
        workload_hashes: The hashes of the workload, resumed and not.
    """

    intent: Intent
    request: Request
    folder: RunFolder
    work: WorkFolder
    gpus: tuple[GpuFacts, ...]
    phases: Mapping[str, Job]
    links: Mapping[str, str]
    loader: Callable[[Path], Job] | None
    verification: Job | None
    container: Container | None
    app: tuple[str, ...]
    option_names: Mapping[str, str]
    variables: Mapping[str, str]
    environment_hash: str
    workload_hashes: frozenset[str]
    limits: Mapping[Phase, float] | None
    resume_from: tuple[PurePath, ...] | None
    taken_over: TakenOver | None
    _since_boot: float = field(default_factory=_since_boot)
    _awake: float = field(default_factory=time.monotonic)

    @property
    def now(self) -> float:
        """The seconds since 1970 by the clock as it was at the start, because the clock may have been set since."""
        return self.intent.started + _since_boot() - self._since_boot

    @property
    def now_awake(self) -> float:
        """The same without the time for which the host slept: the kernel's log has no such time."""
        return self.intent.started + time.monotonic() - self._awake

    @property
    def kfd_ids(self) -> frozenset[str] | None:
        """The driver's ids of the run's GPUs; None where it lists none of them, so that any GPU may be the run's."""
        return frozenset(str(gpu.kfd_id) for gpu in self.gpus) or None

    def probe(self, gpu: GpuFacts, words: tuple[str, ...]) -> Job:
        """Return the process that probes one GPU and sees no other."""
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
    """Derive everything that follows from a run in its folder; the intent names this process as the run's owner."""
    jobs = VerifierJobs(run, folder, verifier) if (verifier := run.verifier.environment) else None
    environment, preset = run.environment, run.cell.preset
    nonce = token_hex(16)
    contained = environment.image is not None
    work = folder.new_work
    seen = WorkFolder(WORK) if contained else work
    launch = launch_of(run, seen, nonce)
    temporary = seen.temporary if contained else folder.temporary
    plain = {**base_variables(seen, temporary, run.workload.threads), **environment.variables}
    # A container has no device nodes of other GPUs.
    visible = {} if contained else visible_devices(run.gpus)
    shared = {name: value for name, value in plain.items() if name not in launch.without}
    variables = {
        phase: {**shared, **visible, **launch.variables, **preset.variables_of(phase)} for phase in launch.commands
    }
    request = _request(run, launch, nonce)
    container = _container(run, folder, launch.readable)
    note = folder.note_of(folder.log, contained=contained)
    return RunSpec(
        intent=_intent(run, launch, request, container, variables),
        request=request,
        folder=folder,
        work=work,
        gpus=tuple(gpu for gpu in run.host.gpus if environment.device == "cuda" and gpu.index in run.gpus),
        phases={
            phase: Job(
                command,
                {**variables[phase], **launch.unrecorded},
                folder.path,
                folder.log,
                container,
                note,
                Path(work.path),
                launch.within,
            )
            for phase, command in launch.commands.items()
        },
        links=launch.links,
        loader=jobs.load if jobs else None,
        verification=jobs.verify() if jobs and not launch.not_verified else None,
        container=container,
        app=_plain_app(run),
        option_names=environment.option_names,
        variables=plain,
        environment_hash=json_hash(environment.identity),
        workload_hashes=frozenset(
            workload_hash(run.workload, run.data.sha256, resumed=resumed) for resumed in (False, True)
        ),
        limits=run.limits or launch.limits,
        resume_from=run.resume_from,
        taken_over=run.taken_over,
    )


def _intent(
    run: Run,
    launch: Launch,
    request: Request,
    container: Container | None,
    variables: Mapping[PhaseName, Mapping[str, str]],
) -> Intent:
    """Return the intent, which names this process as the run's owner."""
    environment, preset, verifier = run.environment, run.cell.preset, run.verifier.environment
    owner = ProcessId.mine()
    return Intent(
        run_id=run.run_id,
        campaign=run.campaign,
        repeat=run.repeat,
        cell=run.cell.id,
        stack=run.cell.stack.name,
        preset=preset.name,
        executor="docker" if environment.image else "process",
        host=run.host,
        environment_hash=environment.hash(preset),
        environment=environment.identity,
        python=environment.version,
        image=environment.image,
        revision=environment.revision,
        container=container.plain if container else None,
        workload=run.workload.name,
        workload_hash=run.workload_hash,
        family=family_of(launch.options, run.workload.max_device_memory, smoke_test=run.workload.smoke_test),
        smoke_test=run.workload.smoke_test,
        data=run.data,
        device=environment.device,
        gpus=run.gpus,
        torch=run.cell.stack.torch,
        rocm=run.cell.stack.rocm,
        index=run.cell.stack.shown_index,
        options=launch.options,
        program=run.workload.program,
        time_limit=run.workload.time_limit,
        commands={str(phase): words for phase, words in launch.commands.items()},
        variables=variables,
        nonce=request.nonce,
        contract=launch.contract,
        resumed=request.resumed,
        verifier=None if launch.not_verified or not verifier else verifier.identity,
        verifier_image=None if launch.not_verified or not verifier else verifier.image,
        not_verified=launch.not_verified,
        harness_version=__version__,
        owner_pid=owner.pid,
        owner_started=owner.started,
        injected_fault=run.injected_fault,
        beside=run.beside,
        rehearsal=REHEARSAL is not None,
        scheduled=run.scheduled,
        started=time.time(),
        since_boot=_since_boot(),
    )


def _container(run: Run, folder: RunFolder, readable: tuple[Path, ...]) -> Container | None:
    """Return the container of the phases, with its limits; None where they run as processes."""
    if run.environment.image is None:
        return None
    memory = run.host.memory_bytes // (1 + len(run.beside))
    alone = container_of(run.environment.image, Path(folder.new_work.path), readable, memory)
    return run.confine(replace(alone, devices=run.devices, pids=pids_limit(run.host.cores, run.device_count)))


def _request(run: Run, launch: Launch, nonce: str) -> Request:
    """Return the request, with which the evidence is compared."""
    return Request(
        workload_hash=run.workload_hash,
        data_sha256=run.data.sha256,
        device=run.environment.device,
        # The strategy `single` uses one GPU, however many the run can see.
        gpus=0 if run.environment.device == "cpu" else run.device_count,
        torch=run.cell.stack.torch,
        rocm=run.cell.stack.rocm,
        hip=run.cell.stack.hip,
        jax=run.cell.stack.jax,
        options=launch.options,
        program=run.workload.program,
        phases=tuple(launch.commands),
        devices=run.device_count,
        max_device_memory=run.workload.max_device_memory,
        injected_fault=run.injected_fault,
        contract=launch.contract,
        nonce=nonce,
        resumed=resumed_steps(run.workload.model, run.name, run.resume_from or ()),
        not_verified=launch.not_verified,
    )


def _plain_app(run: Run) -> tuple[str, ...]:
    """Return a command of the app without the preset, whose variables are part of an image."""
    unset = (word for name in run.cell.preset.variables for word in ("--unset", name))
    return (*((ENV, *unset) if run.environment.image else ()), *run.environment.app())
