"""What counts in a log, and what does not."""

import re

from harness.diagnosis.lines import as_lines
from harness.diagnosis.scan import MOST_PROCESSES, RECOVERY_LINES, TAIL_LINES, Found, scan

BLAS = "bgemm_internal_cublaslt error: HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul"
RECOVERED = "Will attempt to recover by calling cublas instead."
QUIET = "epoch 1: loss 0.5"
ILLEGAL = "RuntimeError: HIP error: an illegal memory access was encountered"
TRACEBACK = ["Traceback (most recent call last):", '  File "/home/me/train.py", line 3, in <module>']


def found(*lines: str) -> Found:
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
