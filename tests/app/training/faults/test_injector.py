"""Tests of every injected fault in a real process: the fault happens, and nothing else does."""

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import forked
import pytest
from ranks.processes import until

from vpoc.step_stage import BACKWARD, EXCHANGE, FORWARD, OUTSIDE, WAITING
from vpoc.training.faults import injector
from vpoc.training.faults.kinds import FAULT_KINDS, InjectedFault

STEP = 3
CRASHES = {
    "kill": (-signal.SIGKILL, ""),
    "segv": (-signal.SIGSEGV, "Fatal Python error: Segmentation fault"),
    "abort": (-signal.SIGABRT, "Fatal Python error: Aborted"),
    "bus-error": (-signal.SIGBUS, "Fatal Python error: Bus error"),
    "exit-0": (0, ""),
}
BLAS = "^RuntimeError: CUDA error: HIPBLAS_STATUS_"
ERRORS = {
    "oom": r"vpoc: step 3: HIP out of memory\. Tried to allocate 1024\.00 GiB \(injected fault\); give --micro-",
    "nan": r"vpoc: step 3: the loss is nan",
    "blas-alloc-failed": rf"{BLAS}ALLOC_FAILED when calling `hipblasCreate\(handle\)`$",
    "blas-not-initialized": rf"{BLAS}NOT_INITIALIZED when calling `hipblasCreate\(handle\)`$",
    "blas-internal-error": rf"{BLAS}INTERNAL_ERROR when calling hipblasLtMatmul with transpose_mat1 1 ",
    "blas-not-supported": rf"{BLAS}NOT_SUPPORTED when calling `HIPBLAS_STATUS_NOT_SUPPORTED`$",
    "illegal-access": r"^(torch\.Accelerator|Runtime)Error: HIP error: an illegal memory access was encountered$",
    "no-kernel-image": r"^(torch\.Accelerator|Runtime)Error: HIP error: invalid device function$",
    "import-error": r"^ImportError: libamdhip64\.so\.6: cannot open shared object file: No such file or directory$",
}
STATUS = {"nan": 4}
HANGS = {
    "sleep": ((STEP - 1, OUTSIDE), "in _between_steps"),
    "hang-forward": ((STEP, FORWARD), "in _before_forward"),
    "hang-backward": ((STEP, BACKWARD), "in backward"),
    "hold-gil": ((STEP, FORWARD), "in hold_gil"),
}
HEALTHY = ("slow", "slow-checkpoint", "torn-progress", "clock-back", "flood-log")
IN_TESTS_OF_THEIR_OWN = {
    *("hang-collective", "hang-loader", "eat-memory", "child-eats-memory", "fill-disk", "flip-gradient"),
    # tests/app/training/test_strategies.py
    "flip-peer-buffer",
}


@pytest.fixture(scope="session")
def features(merged, tmp_path_factory):
    """Return a file of features of the small data file, so that a test only has to train."""
    folder = tmp_path_factory.mktemp("faults")
    words = ["features", "--data", merged, "--output", folder / "f.parquet", "--lookback", 20]
    process = forked.start(words, folder / "log")
    process.join(120)
    assert process.exitcode == 0, (folder / "log").read_text()
    return folder / "f.parquet"


@pytest.fixture
def words(merged, features, tmp_path):
    """Return a function that makes the command line of a training of 11 steps with a fault; options are added."""

    def make(fault, *more):
        small = ["--lookback", 20, "--loader-workers", 0, "--hidden-layers", "8,4", "--batch-size", 8, "--epochs", 1]
        place = ["--output", tmp_path / "out", "--name", "m", "--run-dir", tmp_path / "run"]
        target = ["--target", "prior_vpoc_touched", "--inject-fault", fault]
        return ["train", "--data", merged, "--features", features, *small, *place, *target, *more]

    return make


@pytest.fixture
def begin(words, tmp_path):
    """Yield a function that starts such a training; processes that still run are killed at the end of the test."""
    started = []

    def start(fault, *more, **how):
        started.append(forked.start(words(fault, *more), tmp_path / "log", **how))
        return started[-1]

    yield start
    for process in started:
        # A hanging loader worker does not notice that its parent has ended.
        left = descendants(process.pid) if process.is_alive() else []
        process.kill()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.join(30)


def finished(process, tmp_path, seconds=60):
    """Wait until the process has ended, and return its output."""
    process.join(seconds)
    assert process.exitcode is not None, "it still runs"
    return (tmp_path / "log").read_text()


def position(tmp_path, rank=0):
    try:
        return struct.unpack("<qq", (tmp_path / "run" / f"position-{rank}.bin").read_bytes())
    except (OSError, struct.error):
        return None


def require_stalled_at(tmp_path, place, rank=0):
    """Assert that the training reaches `place` and stays there."""
    assert until(lambda: position(tmp_path, rank) == place), position(tmp_path, rank)
    assert not until(lambda: position(tmp_path, rank) != place, 0.3)


def complete(file):
    """Return the text of a file to which nothing is being added: stacks are written piece by piece."""
    text = None
    while text != (text := file.read_text()):
        time.sleep(0.2)
    return text


def stacks_of(tmp_path, pid, word, rank=0):
    """Return the stacks that `pid` writes on a signal, without Python's lock if necessary; they contain `word`."""
    file = tmp_path / "run" / f"stacks-{rank}.txt"
    before = len(complete(file))
    os.kill(pid, signal.SIGUSR1)
    if not until(lambda: word in file.read_text()[before:], 3):
        os.kill(pid, signal.SIGUSR2)
    assert until(lambda: word in file.read_text()[before:], 10), file.read_text()
    return file.read_text()[before:]


def result(tmp_path):
    return json.loads((tmp_path / "run" / "result.json").read_text())


def lines(tmp_path):
    """Return the intact progress lines."""
    found = []
    for line in (tmp_path / "run" / "progress-0.jsonl").read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def test_every_kind_is_tried():
    assert {*CRASHES, *ERRORS, *HANGS, *HEALTHY, *IN_TESTS_OF_THEIR_OWN} == set(FAULT_KINDS)


def test_a_fault_is_what_its_name_says():
    for kind in FAULT_KINDS:
        fault = InjectedFault(kind, 12, 3)
        assert InjectedFault.parse(str(fault)) == fault
        assert InjectedFault.parse(f"{kind}@12") == InjectedFault(kind, 12, 0)


@pytest.mark.parametrize("text", ["lunch@3", "kill", "kill@0", "kill@3/", "kill@3/x", "kill @3", "KILL@3", ""])
def test_what_is_no_fault_lists_those_there_are(text):
    with pytest.raises(ValueError, match="hang-loader"):
        InjectedFault.parse(text)


@pytest.mark.parametrize("kind", CRASHES)
def test_crash(begin, tmp_path, kind):
    process = begin(f"{kind}@{STEP}")
    status, said = CRASHES[kind]
    log = finished(process, tmp_path)
    assert process.exitcode == status, log
    assert said in log
    assert position(tmp_path) == (STEP, FORWARD)
    assert not (tmp_path / "run" / "result.json").exists()
    assert not [path for path in (*Path.cwd().glob("core*"), *tmp_path.rglob("core*")) if path.is_file()]


@pytest.mark.parametrize("kind", ERRORS)
def test_error(begin, tmp_path, kind):
    process = begin(f"{kind}@{STEP}")
    log = finished(process, tmp_path)
    assert process.exitcode == STATUS.get(kind, 1), log
    assert re.search(ERRORS[kind], log, re.MULTILINE), log
    assert position(tmp_path)[0] == STEP
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("kind", HANGS)
def test_hang(begin, tmp_path, kind):
    process = begin(f"{kind}@{STEP}")
    place, frame = HANGS[kind]
    require_stalled_at(tmp_path, place)
    stacks_of(tmp_path, process.pid, frame)
    # SIGTERM asks for a clean end first, which does not come; a process that can handle it ends at a repeated one.
    holds = kind == "hold-gil"
    ends = until(lambda: process.terminate() or process.join(0.3) or not process.is_alive(), 2 if holds else 30)
    assert ends != holds


def test_a_hang_in_the_exchange_leaves_the_others_waiting(begin, tmp_path):
    folder = tmp_path / "meet"
    folder.mkdir()
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "VPOC_EXCHANGE": str(folder)}
    ranks = [
        begin(
            f"hang-collective@{STEP}/1",
            *("--strategy", "averaging"),
            variables={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]
    for rank in (0, 1):
        require_stalled_at(tmp_path, (STEP, EXCHANGE), rank)
    assert "in hang" in stacks_of(tmp_path, ranks[1].pid, "in _exchange", rank=1)
    # This frame is written last, so the stacks are complete.
    assert "exchange.py" in stacks_of(tmp_path, ranks[0].pid, "in synchronise", rank=0)


@pytest.mark.parametrize(("workers", "method"), [(0, "fork"), (2, "fork"), (1, "spawn")])
def test_a_hang_in_the_loader_is_in_the_process_that_makes_batches(begin, tmp_path, workers, method):
    prepare = partial(multiprocessing.set_start_method, method, force=True)
    process = begin(f"hang-loader@{STEP}", "--loader-workers", workers, prepare=prepare)
    require_stalled_at(tmp_path, (STEP, WAITING))
    makers = children(process.pid) if workers else [process.pid]
    assert len(makers) == max(workers, 1)
    found = [stacks_of(tmp_path, pid, "most recent call first") for pid in makers]
    assert until(lambda: sum(map(partial(stalls, tmp_path), makers)) == 1, 10), found
    assert "in hang" not in stacks_of(tmp_path, process.pid, "in _step") or not workers


def stalls(tmp_path, pid):
    return "in hang" in stacks_of(tmp_path, pid, "most recent call first")


def descendants(pid):
    found = []
    # The process may have ended.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [*found, *(lower for child in found for lower in descendants(child))]


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if "resource_tracker" not in Path(f"/proc/{child}/cmdline").read_text()]


def resident_mib(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def test_memory_is_eaten_until_somebody_kills(begin, tmp_path):
    process = begin(f"eat-memory@{STEP}")
    assert until(lambda: position(tmp_path) == (STEP, FORWARD))
    before = resident_mib(process.pid)
    assert until(lambda: resident_mib(process.pid) > before + 300)
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"
    os.kill(process.pid, signal.SIGKILL)


def test_a_child_that_eats_memory_is_missed(begin, tmp_path):
    process = begin(f"child-eats-memory@{STEP}")
    assert until(lambda: position(tmp_path) == (STEP, FORWARD) and children(process.pid))
    (child,) = children(process.pid)
    # Until the child has executed its own program, it shares its parent's memory.
    assert until(lambda: Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n")
    assert until(lambda: resident_mib(child) > 300)
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "0\n"
    os.kill(child, signal.SIGKILL)
    log = finished(process, tmp_path)
    assert process.exitcode == 1
    assert f"vpoc: process {child}, which this one started and needs, was killed by SIGKILL\n" in log


def test_a_child_that_eats_memory_dies_with_its_parent(begin, tmp_path):
    process = begin(f"child-eats-memory@{STEP}")
    assert until(lambda: position(tmp_path) == (STEP, FORWARD) and children(process.pid))
    (child,) = children(process.pid)
    assert until(lambda: Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n")
    assert until(lambda: resident_mib(child) > 100)
    process.kill()
    assert until(lambda: not Path(f"/proc/{child}").exists(), 10)


@pytest.mark.slow
def test_a_full_disk_is_the_apps_own_error(words, tmp_path):
    """The disk is a small file system that only this process sees."""
    unshare = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    small = tmp_path / "out"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=32m none {small}"
    if not shutil.which("unshare") or subprocess.run([*unshare, mount], check=False, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here, not even in a name space of our own")
    script = f'{mount} && "$@"; status=$?; df --output=avail {small} | tail -1; exit $status'
    vpoc = [sys.executable, "-m", "vpoc", *map(str, words(f"fill-disk@{STEP}"))]
    done = subprocess.run([*unshare, script, "sh", *vpoc], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "the disk is full; free some space or choose another folder" in done.stderr
    assert done.stderr.startswith(f"vpoc: {small}/")
    assert int(done.stdout.split()[-1]) > 30 << 10, "its room is free again"


def test_a_flipped_bit_of_the_gradient_changes_the_numbers(begin, tmp_path):
    process = begin(f"flip-gradient@{STEP}")
    log = finished(process, tmp_path)
    assert process.exitcode in (0, 4), log
    if process.exitcode == 0:
        norms = [step["gradient_norm"] for step in result(tmp_path)["first_steps"]]
        assert norms[STEP - 1] > 1e6 * norms[STEP - 2]


def _quick():
    def sleep(seconds):
        print(f"slept {seconds} s", flush=True)
        wait(seconds)

    wait, injector.time.sleep = time.sleep, sleep
    injector.SLOW_CHECKPOINT_S = 1


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy(begin, tmp_path, kind):
    """`slow` acts in the last two of 11 steps, and `slow-checkpoint` is shortened."""
    fault = InjectedFault(kind, 10)
    process = begin(fault, prepare=_quick)
    log = finished(process, tmp_path)
    assert process.exitcode == 0, log
    assert result(tmp_path)["injected_fault"] == str(fault)
    assert result(tmp_path)["steps_done"] == 11
    effect = globals()[f"was_{kind.replace('-', '_')}"]
    effect(tmp_path, log)


def was_slow(tmp_path, _log):
    seconds = [line["max_step_s"] or 0 for line in lines(tmp_path)]
    assert sum(longest > 2 for longest in seconds) == 2


def was_slow_checkpoint(tmp_path, log):
    times = [(line["phase"], line["monotonic"]) for line in lines(tmp_path)]
    spans = [end - begin for (phase, begin), (_, end) in pairwise(times) if phase == "checkpoint"]
    assert max(spans) > 1
    # On a busy machine, each of the spans may take that long.
    assert (len(spans), log.count("slept 1 s")) == (2, 1), "only the next one"


def was_torn_progress(tmp_path, _log):
    content = (tmp_path / "run" / "progress-0.jsonl").read_bytes()
    assert b'\n{"schema": 1, "wall": 17\n\x00\x01\xff' in content
    assert content.count(b"\n") > len(lines(tmp_path)) > 3
    assert lines(tmp_path)[-1]["phase"] == "teardown"


def was_clock_back(tmp_path, _log):
    walls = [line["wall"] for line in lines(tmp_path)]
    steps = [after - before for before, after in pairwise(walls)]
    assert -3601 < min(steps) < -3500
    assert sum(step < 0 for step in steps) == 1


def was_flood_log(_tmp_path, log):
    assert log.count("\n") > 200_000
    assert "wrote " in log.splitlines()[-1]


def test_a_fault_that_could_never_come_is_refused(begin, tmp_path):
    """Faults of ranks and steps that do not exist are tested in tests/app/training/test_strategies.py."""
    process = begin("hang-loader@3", "--loop", "resident")
    last = finished(process, tmp_path).splitlines()[-1]
    assert process.exitcode == 2
    assert last.startswith("vpoc: --inject-fault ")
    assert "--loop resident has no loader; choose --loop plain" in last


@pytest.mark.parametrize("kind", ["torn-progress", "clock-back"])
def test_faults_of_the_run_folder_need_one(words, tmp_path, kind):
    chosen = words(f"{kind}@3")
    place = chosen.index("--run-dir")
    process = forked.start(chosen[:place] + chosen[place + 2 :], tmp_path / "log")
    log = finished(process, tmp_path)
    assert process.exitcode == 2
    assert log.splitlines()[-1].endswith("progress is written with --run-dir only; give one")
