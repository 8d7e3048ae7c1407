"""Tests of every fault injection once, in processes: the fault is found and explained, and leaves nothing behind.

On each change, only one kind for each outcome is injected.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.base.paths import CHECKOUT
from harness.evidence.records import Results
from harness.faults.inject import run_healthy, why_skipped
from harness.faults.kinds import KINDS
from harness.faults.target import make_target
from harness.matrix.load import load_matrix

# The kinds that wait longest start first. Each is injected by its own harness; all share one results folder.
BY_LENGTH = sorted(
    (kind for kind in KINDS if "process" in kind.executors),
    key=lambda kind: (kind.name != "slow-checkpoint", kind.stuck is None),
)
# One kind for each outcome and diagnosis, and kinds that are found by other parts of the harness.
ON_EACH_CHANGE = ("hang-forward", "hang-loader", "segv", "import-error", "exit-0", "nan", "slow", "clock-back")
EVERY_KIND = [
    pytest.param(kind, id=kind.name, marks=() if kind.name in ON_EACH_CHANGE else pytest.mark.long)
    for kind in BY_LENGTH
]
SIDE_BY_SIDE = 4
KIND_SECONDS = 240

Ordinary = tuple[Path, subprocess.CompletedProcess[str]]


def inject_in_a_process(results: Path, kind: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("inject_kind.py")), str(results), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=KIND_SECONDS)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as made:
        yield made


@pytest.fixture(scope="module")
def ordinary(pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> Future[Ordinary] | None:
    """Start `matrix inject` as a user without capabilities: no mounts, kernel log or ptrace of others' processes."""
    results = tmp_path_factory.mktemp("ordinary")
    command = [str(CHECKOUT / ".venv/bin/matrix"), "--results", str(results), "inject", "--executor", "process"]
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            return None
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", *command]
    command += ["hang-forward", "segv", "fill-disk"]

    def run() -> Ordinary:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=KIND_SECONDS)
        return results, done

    return pool.submit(run)


@pytest.fixture(scope="module")
def injections(
    pool: ThreadPoolExecutor, folder: Path, request: pytest.FixtureRequest
) -> Mapping[str, Future[dict[str, Any]]]:
    """Start the injection of each kind chosen here, and return the results by kind."""
    chosen = [
        item.callspec.params["kind"]
        for item in request.session.items
        if hasattr(item, "callspec") and item.path == request.path
    ]
    made = [kind.name for kind in BY_LENGTH if kind in chosen and not why_skipped(kind, "process")]
    return {kind: pool.submit(inject_in_a_process, folder, kind) for kind in made}


# The injections of the ordinary user take longest, so they start before the others.
@pytest.mark.usefixtures("ordinary")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_fault_is_found_explained_and_leaves_nothing(
    kind: Any, injections: Mapping[str, Future[dict[str, Any]]]
) -> None:
    if why := why_skipped(kind, "process"):
        pytest.skip(why)
    one = injections[kind.name].result()
    assert one["objections"] == []
    assert (one["as_expected"], one["found"]) == (True, str(kind.expected))


def test_after_all_of_them_a_healthy_run_completes_and_no_injected_fault_is_evidence(
    folder: Path, injections: Mapping[str, Future[dict[str, Any]]]
) -> None:
    for one in injections.values():
        one.result()
    target = make_target(Results(folder), load_matrix(CHECKOUT / "matrix.yaml"), "process", lambda _: None)
    after = run_healthy(target)
    assert (after.outcome, after.injected_fault) == ("completed", None), after.detail
    records = list(target.results.records())
    assert len(records) == len(injections) + 1
    assert [record.intent.run_id for record in records if record.injected_fault is None] == [after.intent.run_id]


def test_the_command_prints_a_table_also_for_an_ordinary_user(
    ordinary: Future[Ordinary] | None,
) -> None:
    if ordinary is None:
        pytest.skip("root may do everything, and setpriv is not there to give that up")
    results, done = ordinary.result()
    assert done.returncode == 0, done.stdout + done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split()[:4] == ["kind", "expected", "found", "explained"]
    assert [row.split()[0] for row in rows] == ["hang-forward", "segv", "fill-disk"]
    assert all(row.rstrip().endswith(" as expected") and "not as expected" not in row for row in rows[:2])
    assert rows[2].endswith("skipped: only root can mount a small disk")
    assert len(list((results / "faults" / "runs").iterdir())) == 4
