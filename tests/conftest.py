"""Gives Hypothesis its time; says at the end of a run what was tried on real market data and what on synthetic data."""

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A machine that stalls is no finding. With LONG=1, as in `make test-all`, four times as much is tried.
EXAMPLES = 100 if os.environ.get("LONG") else 25
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES
)
settings.load_profile("unhurried")

# Where several programs share the cores, threads of torch that wait busily use more processor than the work itself.
# Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell without job control starts what it puts in the background with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does `nohup` with the closing of a terminal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What `make test WORKERS=2` was given is not for the `make` that a test runs.
for name in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"):
    os.environ.pop(name, None)


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
