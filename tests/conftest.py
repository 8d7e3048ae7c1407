"""Set up every test run: Hypothesis, threads and signals; report at its end which tests had real market data."""

import gc
import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadline, because a machine that stalls is not a bug. LONG=1, as in `make test-all`: four times as many examples.
EXAMPLES = 100 if os.environ.get("LONG") else 25
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES
)
settings.load_profile("unhurried")

# Several test programs share the cores, and threads of torch that wait busily would slow the others down.
# torch reads this variable when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# What is imported and collected lives as long as the tests do, and looking for garbage in it takes a seventh of a run.
gc.disable()

# A shell without job control starts background programs with Ctrl-C ignored, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup` does the same with SIGHUP.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Options of `make test WORKERS=2` must not reach a `make` that a test runs.
for name in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"):
    os.environ.pop(name, None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    def count(outcome: str, *, real: bool) -> int:
        reports = terminalreporter.stats.get(outcome, [])
        return sum(("real_data" in report.keywords) == real for report in reports if hasattr(report, "keywords"))

    real, missing = count("passed", real=True), count("skipped", real=True)
    line = f"real market files: {real} tests passed, {missing} skipped; "
    line += f"synthetic data: {count('passed', real=False)} passed"
    terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_data: uses a real market data file; skips visibly where it is absent")
    config.addinivalue_line("markers", "docker: needs a Docker engine; skips visibly where none answers")
