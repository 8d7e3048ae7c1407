"""Tests of which lines of a log count and which do not."""

import re

from harness.diagnosis.lines import as_lines
from harness.diagnosis.matcher import Matcher
from harness.diagnosis.rules import load_signatures
from harness.diagnosis.scan import MOST_PROCESSES, RECOVERY_LINES, TAIL_LINES, ScanResult, _Scan, scan

BLAS = "bgemm_internal_cublaslt error: HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul"
RECOVERED = "Will attempt to recover by calling cublas instead."
QUIET = "epoch 1: loss 0.5"
ILLEGAL = "RuntimeError: HIP error: an illegal memory access was encountered"
TRACEBACK = ["Traceback (most recent call last):", '  File "/home/me/train.py", line 3, in <module>']


def found(*lines: str) -> ScanResult:
    return scan(as_lines(lines, "x"))


def rule(*lines: str) -> str | None:
    fatal = found(*lines).fatal
    return fatal.signature.id if fatal else None


def test_the_first_fatal_line_counts() -> None:
    assert rule("RuntimeError: No HIP GPUs are available", ILLEGAL) == "no-hip-gpus"
    assert rule(ILLEGAL, "RuntimeError: No HIP GPUs are available") == "illegal-access"


def test_a_recovery_has_to_follow_soon() -> None:
    assert rule(BLAS, *[QUIET] * (RECOVERY_LINES - 1), RECOVERED) is None
    assert rule(BLAS, *[QUIET] * RECOVERY_LINES, RECOVERED) == "hipblaslt-product"


def test_a_recovery_of_another_failure_is_none_of_this_one() -> None:
    assert rule(f"RuntimeError: CUDA error: {BLAS}", f"UserWarning: {BLAS} {RECOVERED}") == "hipblaslt-product"


def test_what_was_recovered_from_leaves_what_comes_after() -> None:
    assert rule(BLAS, RECOVERED, QUIET, ILLEGAL) == "illegal-access"


def test_a_line_that_calls_itself_a_warning_does_not_count() -> None:
    for line in (
        "x.py:1: UserWarning: HIP initialization: No HIP GPUs are available",
        "WARNING:trainer:HIP out of memory. Tried to allocate 2 GiB; retrying with batch 32",
        "[W1120 10:00:00.1 x.cpp:3] hipErrorOutOfMemory",
        "2026-11-20 10:00:00 - WARNING - torch.OutOfMemoryError: HIP out of memory",
    ):
        assert rule(line) is None, line


def test_a_warning_that_a_connection_is_lost_counts() -> None:
    shut = "[rank1]:[W1120 10:00:00.1 ProcessGroupNCCL.cpp:1662] (maybe TCPStore server has shut down too early)"
    (lost,) = found(QUIET, shut).endings
    assert (lost.signature.id, lost.signature.severity) == ("lost-store", "lost-peer")
    assert not found("[W1120 10:00:00.1 socket.cpp:4] [c10d] failed to connect (Connection refused)").endings


def test_what_torch_says_of_every_exchange_that_failed_hides_no_lost_peer() -> None:
    failed = "[E ProcessGroupNCCL.cpp:681] [Rank 5] Some NCCL operations have failed or timed out."
    ends = found(failed, "ncclRemoteError: A call failed possibly due to a network error").endings
    assert [hit.signature.class_ for hit in ends] == ["lost-peer", "hang-collective"]


def test_an_exception_within_packages_alone_is_not_called_the_programs() -> None:
    within = [TRACEBACK[0], '  File "/opt/venv/lib/python3.11/site-packages/x/y.py", line 5, in f']
    assert rule(*within, "    next(found)", "StopIteration") is None
    assert rule(*TRACEBACK, "    f()", *within[1:], "    next(found)", "StopIteration") == "python-exception"
    assert rule("StopIteration") == "python-exception"
    assert rule(*within, "    x.cuda()", ILLEGAL) == "illegal-access"


def test_source_lines_of_a_traceback_do_not_count() -> None:
    assert rule(*TRACEBACK, '    raise Custom("HIP out of memory. Tried to allocate")', "Custom: sorry") is None


def test_of_chained_exceptions_that_of_the_environment_counts() -> None:
    link = "During handling of the above exception, another exception occurred:"
    chain = [*TRACEBACK, "    a[b]", "KeyError: 'b'", "", link, "", *TRACEBACK, "    c()", ILLEGAL]
    assert rule(*chain) == "illegal-access"
    assert rule(*chain[:-1], "TypeError: no") == "python-exception"
    apart = [line for line in chain if line != link]
    assert rule(*apart) == "python-exception"
    assert rule(*[f"[rank1]: {line}" for line in chain]) == "illegal-access"


def test_tracebacks_of_two_ranks_may_be_interleaved() -> None:
    own = [*TRACEBACK, "    raise RuntimeError('mine')", "RuntimeError: mine"]
    others = [TRACEBACK[0], '  File "/opt/lib/python3.11/site-packages/torch/x.py", line 3, in f', "    g()"]
    mixed = [f"[rank0]: {own[0]}", f"[rank1]: {others[0]}", f"[rank0]: {own[1]}", f"[rank1]: {others[1]}"]
    mixed += [f"[rank0]: {own[2]}", f"[rank1]: {others[2]}", f"[rank1]: {QUIET}", f"[rank0]: {own[3]}"]
    hit = found(*mixed).fatal
    assert hit is not None
    assert hit.signature.id == "raised-by-the-program"
    assert hit.frame is not None
    assert hit.frame.number == 3


def test_what_only_tells_of_a_lost_peer_comes_last() -> None:
    endings = found("RuntimeError: Connection closed by peer [127.0.0.1]:1", "Signal 9 (SIGKILL) received").endings
    assert [hit.signature.id for hit in endings] == ["killed", "lost-collective-peer"]


def test_a_process_that_is_not_of_the_run_does_not_count() -> None:
    line = "[ 1.0] Out of memory: Killed process 4711 (python) total-vm:1kB"
    pids: list[str] = []

    def of_run(match: re.Match[str]) -> bool:
        pids.append(match["pid"])
        return False

    assert scan(as_lines([line], "k"), ("kernel",), of_run=of_run).fatal is None
    assert pids == ["4711"]


def test_the_kernel_log_is_not_searched_for_what_programs_print() -> None:
    assert scan(as_lines([ILLEGAL], "k"), ("kernel",)).fatal is None


def test_reading_ends_soon_after_the_first_fatal_line() -> None:
    read = []

    def lines() -> list[str]:
        return [ILLEGAL, *[QUIET] * (3 * TAIL_LINES)]

    def counted() -> object:
        for line in as_lines(lines(), "x"):
            read.append(line)
            yield line

    assert scan(counted()).fatal is not None  # type: ignore[arg-type]
    assert len(read) == TAIL_LINES + 2


def test_any_number_of_processes_is_followed() -> None:
    lines = [f"[rank{rank}]: {TRACEBACK[0]}" for rank in range(3 * MOST_PROCESSES)]
    assert rule(*lines, f"[rank7]: {ILLEGAL}") == "illegal-access"


def test_a_catch_all_yields_to_a_line_that_says_more() -> None:
    vague = "RuntimeError: HIP error: unknown error"
    assert rule(vague, "HW Exception by GPU node-1 (Agent handle: 0x5) reason :GPU Hang") == "hardware-gpu-hang"
    assert rule(vague, *TRACEBACK, "    a[b]", "KeyError: 'b'") == "other-hip-error"
    assert rule(vague) == "other-hip-error"


def test_an_indented_traceback_is_followed() -> None:
    for indent in ("    ", "      ", "    | "):
        lines = [*TRACEBACK, "    a[b]", "KeyError: 'b'"]
        assert rule(*(indent + line for line in lines)) == "python-exception", indent


def test_what_a_logger_writes_before_each_line_is_no_part_of_it() -> None:
    lead = "10:00:{0} [job 7 (pid 289)] [09c5] ERROR "
    lines = [*TRACEBACK, "    a[b]", "KeyError: 'b'"]
    assert rule(*(lead.format(10 + number) + line for number, line in enumerate(lines))) == "python-exception"
    assert rule(lead.format(1) + lines[0], *lines[1:]) == "python-exception"
    other = "10:00:20 [job 8 (pid 290)] [77e1] INFO "
    assert rule(lead.format(1) + lines[0], other + lines[-1]) is None


def test_frames_that_lost_their_indentation_are_followed() -> None:
    frames = ['File "/a.py", line 1, in f', "raise Mine(1)", 'File "/b.py", line 2, in g', "raise Mine(2)"]
    assert rule(TRACEBACK[0], *frames, "MineError: 2") == "raised-by-the-program"
    assert rule(TRACEBACK[0], *frames[:3], "g()", "MineError: 2") is None
    assert rule(TRACEBACK[0], 'File "<string>", line 1, in <module>', ILLEGAL) == "illegal-access"


def test_an_import_within_a_package_counts_as_one_unless_the_program_runs_inside_it() -> None:
    package = ['  File "/opt/lib/python3.11/site-packages/a/b.py", line 1, in f', "    import c"]
    inner = ['  File "/opt/lib/python3.11/site-packages/c/d.py", line 2, in g', "    h()"]
    assert rule(*TRACEBACK, "    f()", *package, *inner, "KeyError: 'c'") == "fails-on-import"
    assert rule(*TRACEBACK, "    f()", *inner, "KeyError: 'c'") == "python-exception"
    assert (
        rule(*TRACEBACK, "    f()", *package, *TRACEBACK[1:], "    a[b]", *inner, "KeyError: 'c'") == "python-exception"
    )


def test_the_frame_shown_is_the_innermost_of_the_program() -> None:
    library = ['  File "/opt/venv/lib/python3.11/site-packages/torch/x.py", line 9, in f', "    g()"]
    hit = found(*TRACEBACK, "    f(x)", *library, "RuntimeError: mat1 and mat2 shapes cannot be multiplied").fatal
    assert hit is not None
    assert hit.frame is not None
    assert hit.frame.number == 2


def test_a_crash_shows_the_innermost_frame_of_the_thread_that_crashed() -> None:
    dump = [
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x1 (most recent call first):",
        '  File "/a.py", line 1',
    ]
    dump += [
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "/b.py", line 2 in f',
        '  File "/c.py", line 3',
    ]
    hit = found(*dump).endings[0]
    assert hit.frame is not None
    assert hit.frame.number == 7
    assert found(dump[0]).endings[0].frame is None


def test_a_page_fault_of_another_process_does_not_count() -> None:
    fault = "[ 1.0] amdgpu 0000:0e:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32775)"
    process = "[ 1.0] amdgpu 0000:0e:00.0: amdgpu:  Process firefox pid 5437 thread firefox:cs0 pid 5451"
    ring = "[ 2.0] amdgpu: ring gfx_0.0.0 timeout"

    def hit(*lines: str, pid: str) -> str | None:
        fatal = scan(
            as_lines(lines, "k"), ("kernel",), of_run=lambda match: match.groupdict().get("pid") in (None, pid)
        )
        return fatal.fatal.signature.id if fatal.fatal else None

    wordings = (
        process,
        process.replace("amdgpu:  Process", " Process"),
        process.replace("Process firefox", "for process firefox"),
    )
    for one in wordings:
        assert hit(fault, one, pid="1") is None
        assert hit(fault, one, pid="5437") == "gpu-page-fault"
    assert hit(fault, ring, process.replace("amdgpu:  Process", "amdgpu:  Processes"), pid="1") == "gpu-page-fault"
    assert hit(fault, process, ring, pid="1") == "ring-timeout"
    # A fault counts even if the name of a process or a file reads like a line of the driver.
    assert hit(fault, "[ 1.0] a[7]: segfault at 0 ip 0 in amdgpu:  Process b pid 7 thread c[1+2]", pid="1")
    for name in ("b pid 7", "b pid 7 thread ", "amdgpu: Process"):
        assert hit(fault, process.replace("firefox", name), pid="5437") == "gpu-page-fault"
        assert hit(fault.replace(")", f", for process {name} pid 5437 thread a pid 7)"), pid="5437") == "gpu-page-fault"


def test_the_whole_kernel_log_is_read_and_each_rule_kept_once() -> None:
    oom = "[ 1.0] Out of memory: Killed process 4711 (python) total-vm:1kB"
    ring = "[ 2.0] amdgpu: ring gfx_0.0.0 timeout"
    seen = scan(as_lines([oom, *[QUIET] * (2 * TAIL_LINES), ring, ring, oom], "k"), ("kernel",)).every
    assert [(hit.signature.id, hit.line.number) for hit in seen] == [
        ("kernel-oom", 1),
        ("ring-timeout", 2 * TAIL_LINES + 2),
    ]


def test_a_block_of_pip_that_was_cut_hides_nothing_that_comes_after() -> None:
    assert (
        rule("  ╰─> [2 lines of output]", "KeyError: 'x'", *[QUIET] * 3, *TRACEBACK, "KeyError: 'y'")
        == "python-exception"
    )
    assert rule("  ╰─> [2 lines of output]", *TRACEBACK, "KeyError: 'y'") is None


def test_details_of_a_page_fault_of_another_process_do_not_count() -> None:
    fault = "amdgpu 0000:03:00.0: [gfxhub] page fault (src_id:0 ring:24, for process {0} pid {1} thread {0} pid {1})"
    details = "amdgpu 0000:03:00.0: GCVM_L2_PROTECTION_FAULT_STATUS:0x00801031"

    # The class of a rule, not its name, makes it one for page faults.
    known = load_signatures().signatures
    others = load_signatures().model_copy(
        update={"signatures": tuple(one.model_copy(update={"id": f"{one.id}-2"}) for one in known)}
    )

    def rules(*lines: str) -> list[str]:
        state = _Scan(others, lambda match: match.groupdict().get("pid", "7") == "7", (), is_kernel_log=True)
        for line in as_lines(lines, "k"):
            state.take(line, Matcher(others.of("kernel")))
        return [hit.signature.id for hit in (*state.found().every, *state.found().endings)]

    assert rules(fault.format("x", 7), details) == ["gpu-page-fault-2", "gpu-page-fault-details-2"]
    assert rules(fault.format("x", 8), details) == []
    later = "amdgpu 0000:03:00.0: amdgpu:  Process x pid 8 thread x pid 8"
    assert rules(fault.partition(", for")[0], later, details) == []
