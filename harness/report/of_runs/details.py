"""Read the details of a run, which the page shows when the run is opened, from its record and folder."""

from collections.abc import Mapping
from pathlib import Path

from harness.base.text import safe_text
from harness.base.wording import many, percent
from harness.evidence.files.app_files import MemoryPeaks, Result, TimeKind, Training
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.gpu_sensors import read_sensors
from harness.matrix.strategies import RANK_PER_DEVICE
from harness.report.model import RunDetail, TrainingLine
from harness.report.of_runs.by_hand import commands_by_hand
from harness.report.of_runs.curves import RANKS, loss_curves, read_progress
from harness.report.of_runs.gpu_curves import POINTS, gpu_curves
from harness.report.of_runs.kernel_events import kernel_events

# Smallest share of the time that is shown.
SMALLEST_SHARE = 0.01


def detail_of(record: Record, folder: RunFolder) -> RunDetail:
    """Return a run's details, from its record and the files in its folder."""
    intent, result = record.intent, record.result
    progress = read_progress(folder.work, intent.started, intent.started + record.seconds, _ranks(intent))
    trainings = result.trainings if result else ()
    ended = max(record.finished, intent.started + record.seconds)
    samples = list(read_sensors(folder, POINTS))
    clock = samples[0].wall - samples[0].monotonic if samples else progress.clock
    return RunDetail(
        explanation=record.explanation,
        host_problems=record.host_problems,
        injected_fault=record.injected_fault,
        exits=record.exit,
        last_phase=record.last_phase,
        used=_used(result) if result else "",
        memory=_memory(result.memory) if result and result.memory else "",
        data=f"{Path(intent.data.path).name} ({intent.data.sha256[:12]})",
        trainings=tuple(map(_training, trainings)),
        phases=progress.phases,
        memory_curves=progress.memory,
        gpu_curves=gpu_curves(samples, intent.started),
        kernel_events=kernel_events(folder.read_kernel_log(), intent.started, ended, clock),
        loss_curves=loss_curves(progress, trainings),
        variables=intent.variables,
        by_hand=commands_by_hand(intent),
    )


def _ranks(intent: Intent) -> int:
    """Return the most ranks that a run has; the options of an imported run may be anything."""
    if str(intent.options.get("strategy")) not in RANK_PER_DEVICE:
        return 1
    devices = intent.options.get("devices")
    return devices if isinstance(devices, int) else RANKS


def _used(result: Result) -> str:
    devices = "; ".join(
        f"rank {d.rank}: {safe_text(d.name)}{f' ({safe_text(d.gfx)})' if d.gfx else ''}" for d in result.devices
    )
    hip = f", HIP {safe_text(result.torch.hip)}" if result.torch.hip else ""
    jax = f"jax {safe_text(result.jax_version)} beside " if result.jax_version else ""
    return (
        f"{jax}torch {safe_text(result.torch.version)}{hip}, strategy {safe_text(result.strategy)}, {devices}, "
        f"{result.dtype}, {many(result.threads, 'thread')}"
    )


def _training(training: Training) -> TrainingLine:
    batch = f" of {training.batch_size}" if training.batch_size else ""
    micro = (
        f" in parts of {training.micro_batch_size}"
        if training.micro_batch_size not in (None, training.batch_size)
        else ""
    )
    skipped = f", {training.steps_skipped} of them skipped by the scaler" if training.steps_skipped else ""
    resumed = f", resumed at step {', '.join(map(str, training.resumed_at))}" if training.resumed_at else ""
    made = f"{many(training.epochs_done, 'epoch')}, {many(training.steps_done, 'step')}"
    return TrainingLine(
        kind=training.model_kind,
        text=f"{made}{batch}{micro}{skipped}{resumed}, {training.throughput.samples_per_second:.0f} samples/s",
        time=_time(training.time or {}),
    )


def _memory(peaks: MemoryPeaks) -> str:
    sizes = {
        "resident": peaks.peak_rss_bytes,
        "allocated on the device": peaks.peak_allocated_bytes,
        "reserved": peaks.peak_reserved_bytes,
        "in use according to the driver": peaks.peak_driver_bytes,
    }
    said = [f"{size / 1e9:.2f} GB {name}" for name, size in sizes.items() if size is not None]
    owners = [
        f"{safe_text(owner.name or 'pid')} {owner.pid}: {owner.bytes / 1e9:.2f} GB" for owner in peaks.owners or ()
    ]
    if peaks.fragmentation is not None:
        said.append(f"fragmentation {percent(peaks.fragmentation)}")
    return ", ".join(said) + (f" (held by {', '.join(owners)})" if owners else "")


def _time(seconds: Mapping[TimeKind, float]) -> str:
    """Return the share of the time that each kind of work took, the largest first, in words."""
    total = sum(seconds.values())
    shares = sorted(((spent / total, kind) for kind, spent in seconds.items()), reverse=True) if total else []
    return ", ".join(f"{percent(share)} {kind}" for share, kind in shares if share >= SMALLEST_SHARE)
