"""Fixtures of the harness's tests: the matrix, and synthetic hosts, intents, results and records."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from harness.base.paths import CHECKOUT
from harness.base.silent_hosts import forget_silent
from harness.evidence.files.app_files import Result
from harness.evidence.files.run_files import HealthStep, Intent, Record
from harness.evidence.isolations import FaultIsolation
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix
from harness.registry.tags.promotions import KnownGood
from tests.harness.gpu_tree import TwoGpuHost, a_gpu
from tests.harness.right_result import DATA, OPTIONS, WORKLOAD, right_result

# Temporary folders are kept in memory, because waiting for the disk takes half of the time of these tests.
IN_MEMORY = Path("/dev/shm")
if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate each test from what others leave: from silent hosts and GPUs, and from the user's own state folder.

    Every disk has room for every stack, however full this machine's disk is.
    """
    forget_silent()
    free = shutil.disk_usage("/")._replace(free=1000 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    # `mktemp` is not used: it lists all existing folders, which takes longer with every test.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "states" / uuid4().hex))


@pytest.fixture(autouse=True, scope="session")
def _processes() -> Iterator[None]:
    """Run cells as processes, so that these tests need no Docker engine and use none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MATRIX_EXECUTOR", "process")
        yield


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    """Return the project's own matrix file."""
    return load_matrix(CHECKOUT / "matrix.yaml")


@pytest.fixture
def write_matrix(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a small valid matrix file; a keyword replaces the section of that name."""
    sections = {
        "stacks": 'stacks:\n  cpu: {accelerator: cpu, torch: "2.13.0"}\n',
        "presets": "presets:\n  plain: {description: nothing set}\n",
        "workloads": (
            "workloads:\n  quick: {description: small, synthetic: {sessions: 30}, epochs: 1, time_limit: 60}\n"
        ),
        "selections": "selections:\n  default: {description: all, stacks: [cpu], presets: [plain]}\n",
    }

    def write(text: str) -> Path:
        text = text.rstrip("\n") + "\n"
        given = text.split(":", 1)[0].strip()
        content = "schema: 2\n" + "".join(text if name == given else s for name, s in sections.items())
        file = tmp_path / "matrix.yaml"
        file.write_text(content if given in sections else content + text, encoding="utf-8")
        return file

    return write


@pytest.fixture
def result_values() -> dict[str, Any]:
    """Return a result.json in which nothing is wrong, as plain values."""
    return right_result()


@pytest.fixture
def host() -> HostFacts:
    """Return a host without a GPU."""
    return HostFacts(
        fingerprint="f" * 16,
        kind="k" * 16,
        machine="m" * 16,
        operating_system="Debian GNU/Linux 12 (bookworm)",
        kernel="6.1.0",
        driver=None,
        cpu="a CPU",
        cores=2,
        memory_bytes=1 << 34,
        gpus=(),
        boot_id="boot",
    )


@pytest.fixture
def dual_host(host: HostFacts) -> HostFacts:
    """Return a host with two GPUs."""
    return host.model_copy(update={"gpus": (a_gpu(0), a_gpu(1))})


@pytest.fixture
def make_intent(host: HostFacts) -> Callable[..., Intent]:
    """Return a function that makes an intent; keywords replace its fields."""

    def make(run_id: str = "r1", **changes: Any) -> Intent:
        values: dict[str, Any] = {
            "run_id": run_id,
            "campaign": None,
            "repeat": 1,
            "cell": "cpu-plain",
            "stack": "cpu",
            "preset": "plain",
            "executor": "process",
            "host": host,
            "environment_hash": "e" * 64,
            "environment": {},
            "workload": "quick",
            "workload_hash": WORKLOAD,
            "data": {"path": "merged.csv", "sha256": DATA},
            "device": "cpu",
            "gpus": (),
            "torch": "2.13.0",
            "rocm": None,
            "options": OPTIONS,
            "time_limit": 60,
            "commands": {"train": ("python", "-m", "vpoc", "train")},
            "variables": {"train": {}},
            "nonce": "0" * 32,
            "contract": 2,
            "verifier": {},
            "harness_version": "0.1.0",
            "owner_pid": 1,
            "owner_started": 0,
            "started": 1e9,
        }
        return Intent.model_validate({**values, **changes})

    return make


@pytest.fixture
def make_record(make_intent: Callable[..., Intent], result_values: dict[str, Any]) -> Callable[..., Record]:
    """Return a function that makes a record.

    Keywords replace fields of its intent; `outcome` and `diagnosis` replace those of the record itself.
    """

    def make(
        run_id: str = "r1", outcome: str = "completed", diagnosis: str | None = None, detail: str = "", **intent: Any
    ) -> Record:
        return Record.model_validate(
            {
                "intent": make_intent(run_id, **intent),
                "outcome": outcome,
                "diagnosis": diagnosis,
                "detail": detail,
                "exit": {"train": "exit 0"},
                "ran_on": "cpu (a CPU) x1",
                "finished": 1e9 + 3605,
                "seconds": 5.0,
                "last_phase": "teardown",
                "first_step": outcome == "completed",
                "exposure_seconds": 3600.0 if outcome == "completed" else 0.0,
                "result": Result.model_validate(result_values) if outcome == "completed" else None,
            }
        )

    return make


@pytest.fixture
def make_evidence(host: HostFacts) -> Callable[..., KnownGood]:
    """Return a function that makes the evidence of a tag that was promoted on `host` without a registry.

    Keywords replace its fields.
    """

    def make(**changes: Any) -> KnownGood:
        values: dict[str, Any] = {
            "tag": "known-good-cpu",
            "scope": "cpu",
            "cell": "cpu-plain",
            "stack": "cpu",
            "digest": None,
            "repository": None,
            "image": "sha256:" + "1" * 64,
            "passes": 33,
            "runs": 33,
            "low": 0.9,
            "high": 1.0,
            "confidence": 0.95,
            "host_kind": host.kind,
            "host_fingerprint": host.fingerprint,
            "gfx": (),
            "gpu_count": 0,
            "driver": None,
            "kernel": host.kernel,
            "environment_hash": "e" * 64,
            "environment": {},
            "workload": "quick",
            "workload_hash": WORKLOAD,
            "executor": "docker",
            "run_ids": ("r1",),
            "promoted_at": 2e9 - 60,
            "expires_at": 2e9 + 60,
            "harness_version": "0.1.0",
            "previous": None,
        }
        return KnownGood.model_validate({**values, **changes})

    return make


@pytest.fixture
def make_isolation(host: HostFacts) -> Callable[..., FaultIsolation]:
    """Return a function that makes a fault isolation whose cause is GPU 1; keywords replace its fields."""

    def make(**changes: Any) -> FaultIsolation:
        values: dict[str, Any] = {
            "id": "isolate-a",
            "cell": "cpu-plain",
            "stack": "cpu",
            "workload": "quick",
            "machine": host.machine,
            "failures": 3,
            "cause": "gpu",
            "sound": False,
            "possible": ["gpu"],
            "not_varied": [],
            "runs_left": 0,
            "error": 0.05,
            "counts": [
                {"cell": "cpu-plain", "gpus": [1], "passes": 1, "runs": 9},
                {"cell": "cpu-plain", "gpus": [0], "passes": 9, "runs": 9},
            ],
            "at": 1e9,
        }
        return FaultIsolation.model_validate({**values, **changes})

    return make


@pytest.fixture
def make_step(host: HostFacts) -> Callable[..., HealthStep]:
    """Return a function that makes a step of a GPU's recovery, a passed probe of GPU 0; keywords replace its fields."""

    def make(**changes: Any) -> HealthStep:
        values: dict[str, Any] = {
            "machine": host.machine,
            "boot_id": host.boot_id,
            "run_id": "r1",
            "environment": "e",
            "when": "after-failure",
            "check": "probe",
            "gpu": 0,
            "good": True,
            "detail": "5 checks passed",
            "at": 1e9,
            "seconds": 9.0,
        }
        return HealthStep.model_validate({**values, **changes})

    return make


@pytest.fixture
def tree(tmp_path: Path) -> TwoGpuHost:
    return TwoGpuHost(tmp_path / "root")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return a function that puts a shell script on a PATH that otherwise holds only `sh`, `cat` and `sleep`."""
    places = tmp_path / "bin"
    places.mkdir()
    for tool in ("sh", "cat", "sleep"):
        (places / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(places))

    def make(name: str, script: str) -> Path:
        """Return the file to which the script appends the arguments of each call, one line a call."""
        said = tmp_path / f"{name}.calls"
        file = places / name
        file.write_text(f'#!/bin/sh\necho "$@" >> {said}\n{script}\n', encoding="utf-8")
        file.chmod(0o755)
        return said

    return make
