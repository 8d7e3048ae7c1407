"""When the harness injects its faults."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.environments.executors.job import Exit, Job
from harness.environments.executors.process import ProcessExecutor
from harness.faults.external import ExternalFault, Site
from harness.faults.triggers import STEP_POLL_SECONDS, BackgroundInjection, InjectingExecutor


def test_the_fault_is_made_before_the_first_process_and_only_there(tmp_path: Path) -> None:
    made: list[Path] = []

    class Noted(ExternalFault):
        def before_start(self, folder: Path) -> None:
            made.append(folder)

    executor = InjectingExecutor(ProcessExecutor(), Noted())
    for _ in range(2):
        handle = executor.start(Job(("/bin/true",), {}, tmp_path, tmp_path / "log.txt"))
        while (exit_ := handle.poll()) is None:
            time.sleep(0.01)
        assert exit_ == Exit(0)
    assert made == [tmp_path]


@pytest.mark.parametrize("trains", [True, False])
def test_a_fault_of_the_training_waits_for_steps_and_is_not_made_without(
    trains: bool, tmp_path: Path, line: Callable[..., str]
) -> None:
    made: list[Path] = []

    class Noted(ExternalFault):
        acts_while_training = True

        def while_training(self, site: Site) -> None:
            made.append(site.folder)

    file = tmp_path / "work" / "progress-0.jsonl"
    file.parent.mkdir()
    file.write_text(line(1.0, phase="features"), encoding="utf-8")
    with BackgroundInjection(Noted(), Site(tmp_path, None, None)) as background:
        time.sleep(3 * STEP_POLL_SECONDS)
        assert made == []
        if trains:
            with file.open("a", encoding="utf-8") as stream:
                stream.write(line(2.0))
            until = time.monotonic() + 10
            while not made and time.monotonic() < until:
                time.sleep(0.01)
    assert made == ([tmp_path] if trains else [])
    assert (background.injected is not None) == trains
    assert background.problem == (None if trains else "the training made no step")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(1, "not permitted"), "not permitted"),
        (psutil.NoSuchProcess(4711), "4711"),
        (AssertionError(), "AssertionError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_that_cannot_be_made_is_said_and_one_waits_for_the_run_folder(
    error: Exception, said: str, tmp_path: Path, line: Callable[..., str]
) -> None:
    class Refused(ExternalFault):
        acts_while_training = True

        def while_training(self, site: Site) -> None:
            raise error

    folder = tmp_path / "later"
    with BackgroundInjection(Refused(), Site(folder, None, None)) as background:
        time.sleep(2 * STEP_POLL_SECONDS)
        (folder / "work").mkdir(parents=True)
        (folder / "work" / "progress-0.jsonl").write_text(line(2.0), encoding="utf-8")
        until = time.monotonic() + 10
        while not background.problem and time.monotonic() < until:
            time.sleep(0.01)
    assert said in (background.problem or "")
    assert background.injected is None
