"""Verifies a run: copies what the run left, and computes parts of it again with this host's own app."""

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath

from harness.base.errors import NoSpaceError
from harness.base.files.hashes import file_hash
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import ANY_SIZE
from harness.base.wording import size_in_words
from harness.environments.executors.container import inside
from harness.environments.executors.job import Executor, Job
from harness.evidence.app_reports.last_line import last_line
from harness.evidence.files.app_files import KeptState, Phase, Result
from harness.evidence.files.kept_copies import keep_models, keep_state, keep_verification
from harness.evidence.files.kept_states import pick
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.outcome.decide import stands_so_far
from harness.evidence.outcome.diagnoses import StoppedBy
from harness.evidence.outcome.evidence import Evidence, PickedState
from harness.host.disk_use import DiskLimit
from harness.run.notes import Unreadable
from harness.run.products import Loader
from harness.run.spec import RunSpec
from harness.run.watch.limits import KNOWN_LIMITS, Limits
from harness.run.watch.watch import Watch

# Limits of the watchdog, in seconds without an advance. Nothing is compiled and no device is waited for, but the disk
# may be slow, and the app of the run chose the content of the files.
STALL_LIMITS: Mapping[Phase, float] = {**KNOWN_LIMITS, "import": 120, "data": 300, "features": 600, "step": 120}
# Longest verification, in seconds: the largest model takes half an hour for the samples of fifteen years.
LIMIT_SECONDS = 3600
# Longest time to load a file of weights, in seconds.
LOAD_SECONDS = 600
# A file of fewer bytes that takes longer is itself the reason, not a slow disk.
LOADS_IN_TIME_BYTES = 1 << 30
# Most bytes of the copies of a run's models, with a state of each.
MOST_KEPT_BYTES = 8 << 30
# Reasons that end the run as a whole: the verification could not be started, which is not the run's fault, or its
# process cannot be killed.
PASSED_ON: Mapping[StoppedBy, StoppedBy] = {"start": "engine", "host": "host"}
KILLED = -signal.SIGKILL


def verify_run(spec: RunSpec, executor: Executor, evidence: Evidence, result: Result, root: Path) -> Evidence:
    """Return the evidence with what was kept and found of a run that ended by itself and left a result.

    Raises:
        UserError, KeyboardInterrupt: as `verify` does.
    """
    unreadable = Unreadable()
    with unreadable.reading():
        evidence = verify(spec, executor, keep(spec, evidence, result), result, root)
    return evidence.also_left(*unreadable)


def keep(spec: RunSpec, evidence: Evidence, result: Result) -> Evidence:
    """Copy the models of a run, and one picked state of each, to where the app cannot reach them.

    Raises:
        UserError: when the folder cannot be written to, or its disk is too full for the copies, which is the host's
            problem.
    """
    folder = spec.folder
    if [training.model_kind for training in result.trainings] != spec.request.models:
        # The run has failed by that; besides, its result may list any number of models.
        return evidence
    states = [pick(training) for training in result.trainings]
    if too_much := _too_much_to_keep(folder, result, states):
        return evidence.also_left(too_much)
    (*earlier, model), problem = keep_models(folder, result)
    problems = [problem]
    picked: list[PickedState | None] = []
    for number, state in enumerate(states, 1):
        sha256, problem = keep_state(folder, state, number) if state else (None, "")
        picked.append(PickedState(state, sha256) if state else None)
        problems.append(problem)
    kept = replace(evidence, model_sha256=model, earlier_sha256=tuple(earlier), picked=tuple(picked))
    return kept.also_left(*problems)


def _too_much_to_keep(folder: RunFolder, result: Result, states: Sequence[KeptState | None]) -> str:
    """Return in words why the models and states of a run are too large to be copied; empty where they are not.

    Raises:
        NoSpaceError: when too little of the disk is left for them.
    """
    work = folder.work
    names = [f"{work.OUTPUT}/{PurePath(training.model.file).name}" for training in result.trainings]
    names += [f"{work.STATES}/{PurePath(state.file).name}" for state in states if state]
    size = on_disk = 0
    for name in names:
        # A file that is missing, or has too many holes, is reported when it is copied.
        with suppress(FileNotFoundError, NotAFileError), work.tree.open(name, ANY_SIZE) as file:
            size, on_disk = size + file.size, on_disk + file.size - max(0, file.holes)
    if size > MOST_KEPT_BYTES:
        return f"its models and states have {size_in_words(size)}, more than {size_in_words(MOST_KEPT_BYTES)}"
    most = DiskLimit.of(folder.path).bytes
    if on_disk <= most:
        return ""
    raise NoSpaceError(
        f"{folder.path}: no room for copies of its models and states of {size_in_words(on_disk)}, "
        f"{size_in_words(most)} may be taken; free space there, then give the same command"
    )


def verify(spec: RunSpec, executor: Executor, evidence: Evidence, result: Result, root: Path) -> Evidence:
    """Compute parts of a run again, if nothing else speaks against the run and this host has an environment for that.

    If a limit of this host or its Docker engine ended the verification, the run counts as not verified. Any other error
    of the verifying process speaks against the run, because the files of the run may have caused it.

    Raises:
        UserError: when the folder cannot be written to.
        KeyboardInterrupt: when it is interrupted; the verifying process is ended by then.
    """
    if spec.verification is None or not stands_so_far(spec.request, evidence):
        return evidence
    folder = spec.folder
    job = _with_files(spec.verification, folder, evidence, result)
    with _watch(folder, executor, root) as watch:
        exit_ = watch.execute(job, LIMIT_SECONDS, Limits.fixed(STALL_LIMITS))
    if watch.stopped_by:
        if by := PASSED_ON.get(watch.stopped_by):
            return replace(evidence, stopped_by=by, stop_detail=watch.stop_detail)
        return replace(evidence, not_verified=f"{watch.stopped_by}: {watch.stop_detail}")
    if exit_ is not None and (exit_.out_of_memory or exit_.code == KILLED):
        return replace(evidence, not_verified=f"out-of-memory: the process that verifies it ended with {exit_}")
    found, problem = None, f"the process that verifies it ended with {exit_}"
    if exit_ is not None and exit_.ok:
        found, problem = keep_verification(folder)
    if (found is None or found.data_sha256 != spec.request.data_sha256) and _has_other_data(spec):
        return replace(evidence, not_verified="its data were changed during the run")
    return replace(evidence, verification=found, verification_problem=problem)


def _has_other_data(spec: RunSpec) -> bool:
    """Return whether the data file is no longer the one that the run was to be trained on."""
    data = spec.intent.data
    try:
        return file_hash(Path(data.path)) != data.sha256
    except OSError:
        return True


def loader_of(spec: RunSpec, executor: Executor, root: Path) -> Loader | None:
    """Return the function that loads a copy of weights in a process of this host's; None where no environment can."""
    make = spec.loader
    if make is None:
        return None

    def loads(file: Path) -> tuple[str, str]:
        job = make(file)
        with _watch(spec.folder, executor, root) as watch:
            exit_ = watch.execute(job, LOAD_SECONDS)
        if watch.stopped_by == "time-limit" and file.stat().st_size < LOADS_IN_TIME_BYTES:
            return f"does not load within {LOAD_SECONDS} seconds", ""
        if watch.stopped_by or exit_ is None or exit_.out_of_memory or exit_.code == KILLED:
            return "", f"{watch.stopped_by}: {watch.stop_detail}" if watch.stopped_by else f"ended with {exit_}"
        return ("", "") if exit_.ok else (f"does not load: {last_line(job.log)}", "")

    return loads


def _watch(folder: RunFolder, executor: Executor, root: Path) -> Watch:
    """Return the watch of a process that verifies a run, with a new work folder for that process.

    Raises:
        UserError: when the folder cannot be made.
    """
    folder.make_verifying()
    return Watch(folder, executor, root=root, work=folder.verifying, ranks=1)


def _with_files(job: Job, folder: RunFolder, evidence: Evidence, result: Result) -> Job:
    """Return the process with the arguments that name the copies of models and states."""

    def seen(file: Path) -> str:
        return str(inside(folder.kept) / file.name if job.container else file)

    words: list[str] = []
    for number, (training, picked) in enumerate(zip(result.trainings, evidence.picked, strict=True), 1):
        words += ["--trained", training.model_kind, seen(folder.kept_model(number))]
        if picked and picked.sha256:
            words += ["--state", training.model_kind, str(picked.state.step), seen(folder.kept_state(number))]
    return replace(job, arguments=(*job.arguments, *words))
