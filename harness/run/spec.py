"""One run: what is asked for, and everything that follows from it, derived once and only read afterwards."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from secrets import token_hex

from harness import __version__
from harness.base.files.storage import json_hash
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
from harness.run.asked import Run
from harness.run.launch import Launch, base_variables, launch_of, visible_devices
from harness.run.verifying import VerifierJobs

ENV = "/usr/bin/env"


def _since_boot() -> float:
    """Return seconds, with those that the host slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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

    @property
    def now(self) -> float:
        """The seconds since 1970 by the clock as it stood at the start: it may have been set since."""
        return self.intent.started + _since_boot() - self._since_boot

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
    jobs = VerifierJobs(run, folder, verifier) if (verifier := run.verifier.environment) else None
    environment, preset, owner = run.environment, run.cell.preset, ProcessId.mine()
    nonce = token_hex(16)
    contained = environment.image is not None
    work = folder.new_work
    seen = WorkFolder(WORK) if contained else work
    launch = launch_of(run, seen, nonce)
    temporary = seen.temporary if contained else folder.temporary
    plain = {**base_variables(seen, temporary, run.workload.threads), **environment.variables}
    # In a container other GPUs have no device nodes.
    visible = {} if contained else visible_devices(run.gpus)
    shared = {name: value for name, value in plain.items() if name not in launch.without}
    variables = {
        phase: {**shared, **visible, **launch.variables, **preset.variables_of(phase)} for phase in launch.commands
    }
    request = _request(run, launch, nonce)
    container = _container(run, folder, launch.readable)
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
        nonce=nonce,
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
    )
    return RunSpec(
        intent=intent,
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


def _container(run: Run, folder: RunFolder, readable: tuple[Path, ...]) -> Container | None:
    """Return what limits the container of the phases; None where they run as processes."""
    if run.environment.image is None:
        return None
    memory = run.host.memory_bytes // (1 + len(run.beside))
    alone = container_of(run.environment.image, Path(folder.new_work.path), readable, memory)
    return run.confine(replace(alone, devices=run.devices, pids=pids_limit(run.host.cores, run.device_count)))


def _request(run: Run, launch: Launch, nonce: str) -> Request:
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
    """Return a command of the app without the preset, which in an image is baked in."""
    unset = (word for name in run.cell.preset.variables for word in ("--unset", name))
    return (*((ENV, *unset) if run.environment.image else ()), *run.environment.app())
