"""Write a results folder of synthetic runs: on a host with two GPUs that does not exist, and on hosts without a GPU."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.contract import CONTRACT
from harness.evidence.files.app_files import Training
from harness.evidence.files.run_files import EvidenceLine, Explanation, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import train_options, workload_hash
from tests.harness.gpu_tree import a_gpu
from tests.harness.right_result import DATA, right_result

STARTED = 1.7e9
HOSTILE = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'> \x1b[31m"
CPU = "a synthetic CPU <img src=x onerror='window.hurt = 1'>"
EVIDENCE = {
    "crash": (
        "a GPU kernel touched memory that is not its own",
        "run it with AMD_SERIALIZE_KERNEL=3",
        "debug-serialize",
    ),
    "no-progress": (
        "a copy between host and GPU does not come to an end",
        "copies without the DMA engines (`matrix doctor`)",
        "no-sdma",
    ),
}


EXPLANATION = Explanation(
    rule="x",
    class_="kernel-fault",
    cause="a kernel touched foreign memory",
    remedy="serialise the kernels",
    link=None,
    presets=("debug-serialize",),
    lines=(EvidenceLine(file="log.txt", line=1, text="boom"),),
)


@dataclass(frozen=True)
class Kind:
    """How the runs of a cell end: the share that completes, and the diagnosis of the others."""

    stack: str
    preset: str
    rate: float
    diagnosis: str = "crash"


KINDS = (
    Kind("rocm6.3-torch2.9.1", "plain", 1.0),
    Kind("rocm6.3-torch2.9.1", "notes-stable", 1.0),
    Kind("rocm6.3-torch2.9.1", "notes-aggressive", 0.4, "no-progress"),
    Kind("rocm6.3-torch2.9.1", "no-sdma", 0.97),
    Kind("rocm6.2-torch2.5.1", "plain", 0.1, "no-progress"),
    Kind("rocm6.2-torch2.5.1", "notes-stable", 0.9, "no-progress"),
    Kind("rocm6.2-torch2.5.1", "no-sdma", 0.95),
    Kind("cpu", "plain", 1.0),
    Kind("cpu", "no-sdma", 1.0),
)


def cpu_host(number: int = 0) -> HostFacts:
    """Return a host without a GPU."""
    return HostFacts(
        fingerprint=f"{number:016x}",
        kind=f"c{number:015x}",
        machine=f"m{number:015x}",
        operating_system="synthetic Linux",
        kernel="6.1.0",
        driver=None,
        cpu=CPU,
        cores=2,
        memory_bytes=1 << 34,
        gpus=(),
        boot_id="boot",
    )


def gpu_host() -> HostFacts:
    """Return a host with two GPUs."""
    changes = {"fingerprint": "f" * 16, "kind": "9" * 16, "machine": "e" * 16, "gpus": (a_gpu(0), a_gpu(1))}
    return cpu_host().model_copy(update={**changes, "driver": "6.12.12"})


def every_kind(matrix: Matrix) -> tuple[Kind, ...]:
    """Return a kind for every cell that can be run."""
    cells = [cell for cell in matrix.cells.values() if not cell.excluded and cell.stack.torch]
    return tuple(Kind(cell.stack.name, cell.preset.name, 0.9) for cell in cells)


def write_runs(
    folder: Path, matrix: Matrix, count: int, kinds: Sequence[Kind] = KINDS, progress_lines: int = 40
) -> Results:
    """Write runs of every kind in turn, with injected faults, imported runs and hostile logs; return their results."""
    results = Results(folder)
    for number, record in enumerate(synthetic_records(matrix, count, kinds)):
        run = results.run_folder(record.intent.run_id)
        run.mkdir(parents=True)
        for name, value in ((RunFolder.INTENT, record.intent), (RunFolder.RECORD, record)):
            (run / name).write_text(value.model_dump_json(by_alias=True), encoding="utf-8")
        (run / "progress-0.jsonl").write_text("".join(progress_lines_of(record, progress_lines)), encoding="utf-8")
        if number % 7 == 3:
            (run / RunFolder.IMPORTED).write_text("{}", encoding="utf-8")
    return results


def synthetic_records(matrix: Matrix, count: int, kinds: Sequence[Kind] = KINDS) -> Iterator[Record]:
    """Yield the records of the runs."""
    chance = random.Random(1)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        workload = "standard" if number // len(kinds) % 3 < 2 else "immediate"
        yield record_of(matrix, kind, workload, number, completed=chance.random() < kind.rate)


def record_of(matrix: Matrix, kind: Kind, workload_name: str, number: int, *, completed: bool) -> Record:
    """Return the record of one run of a kind."""
    workload, stack = matrix.workloads[workload_name], matrix.stacks[kind.stack]
    on_gpu = stack.accelerator == "rocm"
    host = gpu_host() if on_gpu else cpu_host(number % 2)
    run_id = f"synthetic-{number:06}-{kind.stack}-{kind.preset}"
    work = f"/results/runs/{run_id}"
    intent = Intent(
        run_id=run_id,
        campaign=None,
        repeat=1,
        cell=f"{kind.stack}-{kind.preset}",
        stack=kind.stack,
        preset=kind.preset,
        executor="docker" if on_gpu else "process",
        host=host,
        environment_hash="e" * 64,
        environment={},
        container=_container(work) if on_gpu else None,
        workload=workload_name,
        workload_hash=workload_hash(workload, DATA),
        data={"path": "/data/synthetic-120-7-abcdef012345.csv", "sha256": DATA},
        device="cuda" if on_gpu else "cpu",
        gpus=(0,) if on_gpu else (),
        torch=stack.torch,
        rocm=stack.rocm,
        options=train_options(workload, 1),
        contract=CONTRACT,
        nonce="c" * 32,
        verifier={"app": "a" * 64},
        time_limit=60,
        commands={"train": ("/python", "-m", "vpoc", "train", "--run-dir", "/work" if on_gpu else work)},
        variables={"train": {"HOME": work, **matrix.presets[kind.preset].variables}},
        harness_version="0.1.0",
        owner_pid=1,
        owner_started=0,
        injected_fault="flip-gradient@3" if number == 5 else None,
        started=STARTED + 60 * number,
    )
    diagnosis = None if completed else kind.diagnosis
    values: dict[str, Any] = {
        "intent": intent,
        "outcome": "completed" if completed else "hung" if diagnosis == "no-progress" else "failed",
        "diagnosis": diagnosis,
        "detail": "1 epoch, 360 steps, verified" if completed else HOSTILE,
        "exit": {"train": "exit 0" if completed else "signal 11"},
        "ran_on": f"{'gfx1100 (a synthetic GPU)' if on_gpu else f'cpu ({CPU})'} x1",
        "finished": intent.started + 50,
        "seconds": 50.0,
        "last_phase": "teardown" if completed else "step",
        "result": _result(intent) if completed else None,
        "explanation": None if diagnosis is None else _explanation(diagnosis),
    }
    return Record.model_validate(values)


def _container(work: str) -> dict[str, Any]:
    node = {"host": "/dev/kfd", "inside": "/dev/kfd", "group": 105}
    return {"image": "sha256:1", "user": 1000, "group": 1000, "work": work, "data": ["/data/x.csv"], "devices": [node]}


def _explanation(diagnosis: str) -> dict[str, Any]:
    cause, remedy, preset = EVIDENCE[diagnosis]
    line = {"file": "log.txt", "line": 7, "text": HOSTILE}
    told = {"rule": "synthetic", "class": diagnosis, "cause": cause, "remedy": remedy, "presets": [preset]}
    return {**told, "link": "https://example.org/1", "lines": [line]}


def _result(intent: Intent) -> dict[str, Any]:
    right = right_result()
    first = [{"step": n, "loss": 0.7 - n / 100, "gradient_norm": 0.5} for n in range(1, 17)]
    right |= {"batch_size": 8, "steps_per_epoch": 180, "steps_done": 360, "first_steps": first, "states": []}
    training = {name: right[name] for name in Training.model_fields if name in right}
    return {
        **right,
        "model_kind": "attention",
        "earlier": [training],
        "workload_hash": intent.workload_hash,
        "options": intent.options,
        "torch": {"version": f"{intent.torch}", "hip": intent.rocm, "cuda": None},
        "device": intent.device,
        "devices": [{"rank": 0, "device": intent.device, "name": "a synthetic device", "gfx": None, "memory_bytes": 1}],
        "dtype": "float16" if intent.device == "cuda" else "float32",
    }


def progress_lines_of(record: Record, lines: int) -> Iterator[str]:
    """Yield the lines of progress of a run, spread evenly over its time."""
    phases = ["import", "init", "data", "features", "first-step"]
    phases += ["step"] * (lines - len(phases) - 2) + ["validate", "teardown"]
    for number, phase in enumerate(phases[:lines]):
        yield (
            json.dumps(
                {
                    "schema": 2,
                    "wall": record.intent.started + record.seconds * number / lines,
                    "monotonic": record.seconds * number / lines,
                    "rank": 0,
                    "pid": 1,
                    "phase": phase,
                    "done": 9 * (number - 4) if phase == "step" else 0,
                    "total": 360,
                    "max_step_s": 0.1,
                    "loss": 0.7 - number / 1000 if phase == "step" else None,
                    "gradient_norm": 0.5,
                    "memory": {
                        "rss_bytes": 10**9 + number * 10**6,
                        "device_allocated_bytes": None,
                        "device_reserved_bytes": 2 * 10**9 if record.intent.device == "cuda" else None,
                    },
                }
            )
            + "\n"
        )
