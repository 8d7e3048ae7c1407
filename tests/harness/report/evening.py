"""Write the records of a synthetic evening on a simulated host with two GPUs, for pictures and to try pages on."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.gpu_sensors import GpuSensors, GpuSensorSample, SensorLog
from harness.evidence.records import Results
from harness.matrix.cells import Matrix
from tests.harness.report.synthetic import Kind, gpu_host, progress_lines_of, record_of

STARTED = 1.79e9
WORKLOAD = "standard"
SAMPLES = 120
SAID = {
    "hung": "rank 0 has not advanced for 31 s: torch/cuda/streams.py:245 synchronize",
    "failed": "Memory access fault by GPU node-1 on address 0x7f5c2e400000. Reason: Page not present",
}
MB = 10**6


@dataclass(frozen=True)
class Planted:
    """How a cell behaves: its number of runs, how many of them fail, and the hours that each run trains."""

    stack: str
    preset: str
    runs: int
    failed: int
    hours: float
    devices: int = 1
    diagnosis: str = "no-progress"


PLANTED = (
    Planted("rocm6.3-torch2.9.1", "plain", 24, 1, 0.9),
    Planted("rocm6.3-torch2.9.1", "no-p2p", 14, 0, 0.9, 2),
    Planted("rocm6.3-torch2.9.1", "no-sdma", 9, 0, 0.5),
    Planted("rocm6.3-torch2.9.1", "plain", 5, 5, 0.0, 2),
    Planted("rocm6.3-torch2.9.1", "notes-aggressive", 8, 5, 0.2, diagnosis="crash"),
    Planted("rocm6.2-torch2.5.1", "plain", 8, 7, 0.1),
    Planted("rocm6.2-torch2.5.1", "no-sdma", 5, 1, 0.3),
    Planted("rocm7.0-torch2.10.0", "plain", 12, 1, 0.6, diagnosis="crash"),
    Planted("rocm7.0-torch2.10.0", "plain", 5, 2, 0.4, 2),
    Planted("rocm7.0-torch2.10.0", "no-p2p", 6, 0, 0.4, 2),
    Planted("rocm7.2-torch2.12.1", "plain", 4, 0, 0.3),
    Planted("rocm7.2-torch2.12.1", "expandable-segments", 3, 0, 0.3),
    Planted("cpu", "plain", 3, 0, 0.05),
)


def write_evening(folder: Path, matrix: Matrix) -> Results:
    """Write the records, progress, samples of the GPUs and kernel logs; return the results folder of the evening."""
    results = Results(folder)
    for record in evening(matrix):
        run = RunFolder(results.run_folder(record.intent.run_id))
        run.path.mkdir(parents=True)
        run.write(RunFolder.INTENT, record.intent)
        run.write(RunFolder.RECORD, record)
        for rank in range(max(1, len(record.intent.gpus))):
            _write_progress(record, run, rank)
        if record.intent.gpus:
            _write_samples(record, run)
        if record.outcome != "completed" and record.intent.gpus:
            _write_kernel_log(record, run)
    return results


def evening(matrix: Matrix) -> Iterator[Record]:
    """Yield the records, in the order of time."""
    chance = random.Random(7)
    todo = [(one, number < one.failed) for one in PLANTED for number in range(one.runs)]
    chance.shuffle(todo)
    at = STARTED
    for number, (one, fails) in enumerate(todo):
        record = _record(matrix, one, number, at, chance.random(), fails=fails)
        at = record.finished + 30
        yield record


def _record(matrix: Matrix, one: Planted, number: int, started: float, share: float, *, fails: bool) -> Record:
    kind = Kind(one.stack, one.preset, 0, one.diagnosis)
    record = record_of(matrix, kind, WORKLOAD, number, completed=not fails)
    hours = one.hours * (share if fails else 1.0)
    seconds = 60 + 3600 * hours
    intent = record.intent
    host = gpu_host().model_copy(update={"simulated": True, "boot_id": f"boot {number % 2}"})
    intent = intent.model_copy(
        update={
            "started": started,
            "run_id": f"run-{number:03}-{intent.cell}",
            "host": host,
            "injected_fault": None,
            "gpus": tuple(range(one.devices)) if intent.gpus else (),
            "options": intent.options | ({"strategy": "ddp", "devices": 2} if one.devices > 1 else {}),
        }
    )
    said = SAID.get(record.outcome, record.detail)
    explanation = record.explanation
    if explanation:
        line = explanation.lines[0].model_copy(update={"text": said})
        explanation = explanation.model_copy(update={"lines": (line,), "link": None})
    return record.model_copy(
        update={
            "intent": intent,
            "detail": said,
            "explanation": explanation,
            "finished": started + seconds,
            "seconds": seconds,
            "first_step": hours > 0,
            "exposure_seconds": 3600 * hours or None,
        }
    )


def _write_progress(record: Record, run: RunFolder, rank: int) -> None:
    lines = list(progress_lines_of(record, SAMPLES))
    ended = len(lines) if record.outcome == "completed" else int(0.7 * len(lines))
    text = "".join(lines[:ended]).replace('"rank": 0', f'"rank": {rank}')
    (run.path / f"progress-{rank}.jsonl").write_text(text, encoding="utf-8")


def _write_samples(record: Record, run: RunFolder) -> None:
    log, intent = SensorLog(run), record.intent
    hung = record.outcome == "hung"
    for number in range(SAMPLES):
        share = number / SAMPLES
        works = 0.05 < share < (0.7 if hung else 0.97)
        wall = intent.started + share * record.seconds
        wave = (number * 7 + intent.gpus[0]) % 5
        gpus = tuple(
            GpuSensors(
                gpu=gpu,
                busy_percent=98 + wave % 2 if works or hung else 0,
                power_watts=270.0 + 5 * wave - 12 * gpu if works else 38.0 + wave,
                celsius={
                    "edge": 42.0 + 3 * gpu + (22 * min(1, 6 * share) if works else 6),
                    "junction": 48.0 + 5 * gpu + (34 * min(1, 6 * share) if works else 6),
                },
                megahertz={
                    "sclk": 2350.0 - 20 * wave - 90 * gpu if works else 60.0,
                    "mclk": 1249.0 if works or hung else 96.0,
                },
                used_bytes=(13_200 + 30 * wave) * MB if works or hung else 600 * MB,
            )
            for gpu in intent.gpus
        )
        log.add(GpuSensorSample(wall=wall, monotonic=wall - STARTED + 5000, gpus=gpus))
    log.close()


def _write_kernel_log(record: Record, run: RunFolder) -> None:
    at = record.intent.started - STARTED + 5000 + 0.72 * record.seconds
    reset = "amdgpu 0000:03:00.0: amdgpu: GPU reset begin!"
    fault = "amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770)"
    timeout = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=6641, emitted seq=6643"
    said = [(at, timeout), (at + 4, reset)] if record.outcome == "hung" else [(at, fault)]
    said.insert(0, (at - 20, "usb 1-4: new high-speed USB device number 5 using xhci_hcd"))
    run.failure.mkdir(exist_ok=True)
    run.write(RunFolder.KERNEL_LOG, "".join(f"[{when:12.6f}] {text}\n" for when, text in said))
