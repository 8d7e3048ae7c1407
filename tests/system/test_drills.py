"""Every kind of drill once, as processes: found, explained, survived."""

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
from harness.faults.carry_out import make_healthy, why_skipped
from harness.faults.kinds import KINDS
from harness.faults.place import make_place
from harness.matrix.load import load_matrix

# Those that wait longest begin first. Each is a harness of its own, all on one results folder.
BY_LENGTH = sorted(
    (kind for kind in KINDS if "process" in kind.executors),
    key=lambda kind: (kind.name != "slow-checkpoint", kind.stuck is None),
)
SIDE_BY_SIDE = 4
KIND_SECONDS = 240

Ordinary = tuple[Path, subprocess.CompletedProcess[str]]


def drill_in_a_process(results: Path, kind: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("drill_kind.py")), str(results), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=KIND_SECONDS)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drills")


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as made:
        yield made


@pytest.fixture(scope="module")
def ordinary(pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> Future[Ordinary] | None:
    """The command, by somebody without any capability: no mounts, no kernel log, no ptrace of others' processes."""
    results = tmp_path_factory.mktemp("ordinary")
    command = [str(CHECKOUT / ".venv/bin/matrix"), "--results", str(results), "drill", "--executor", "process"]
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
def drilled(pool: ThreadPoolExecutor, folder: Path) -> Mapping[str, Future[dict[str, Any]]]:
    """What becomes of each kind that is made here."""
    made = [kind.name for kind in BY_LENGTH if not why_skipped(kind, "process")]
    return {kind: pool.submit(drill_in_a_process, folder, kind) for kind in made}


# The ordinary user's drills take longest, and begin before the others.
@pytest.mark.usefixtures("ordinary")
@pytest.mark.parametrize("kind", BY_LENGTH, ids=lambda kind: kind.name)
def test_a_fault_is_found_explained_and_leaves_nothing(
    kind: Any, drilled: Mapping[str, Future[dict[str, Any]]]
) -> None:
    if why := why_skipped(kind, "process"):
        pytest.skip(why)
    one = drilled[kind.name].result()
    assert one["objections"] == []
    assert (one["right"], one["found"]) == (True, str(kind.expected))


def test_after_all_of_them_a_healthy_run_completes_and_no_drill_is_evidence(
    folder: Path, drilled: Mapping[str, Future[dict[str, Any]]]
) -> None:
    for one in drilled.values():
        one.result()
    place = make_place(Results(folder), load_matrix(CHECKOUT / "matrix.yaml"), "process", lambda _: None)
    after = make_healthy(place)
    assert (after.outcome, after.drill) == ("completed", None), after.detail
    records = list(place.results.records())
    assert len(records) == len(drilled) + 1
    assert [record.intent.run_id for record in records if record.drill is None] == [after.intent.run_id]


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
    assert all(row.rstrip().endswith("right") for row in rows[:2])
    assert rows[2].endswith("skipped: only root can mount a small disk")
    assert len(list((results / "drills" / "runs").iterdir())) == 4
