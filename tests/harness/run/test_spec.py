"""Tests of how a requested run becomes commands, an intent and a verification job."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.contract import CONTRACT
from harness.base.paths import APP
from harness.environments.environment import FORMER_OPTIONS, Environment, app_hash, image_environment
from harness.environments.executors.container import DeviceNode
from harness.environments.verifier import NO_VERIFIER, Verifier
from harness.evidence.app_reports.accounting import asked_of
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Intent
from harness.evidence.files.run_folder import RunFolder
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.workloads import SyntheticData, Workload
from harness.run.requested_run import Run
from harness.run.spec import resolve_run


@pytest.fixture
def run(matrix: Matrix, make_intent: Callable[..., Intent]) -> Run:
    workload = Workload(description="d", synthetic=SyntheticData(sessions=30), epochs=1, time_limit=60)
    data = InputFile(path="/data.csv", sha256="0" * 64)
    environment = Environment(Path("/none/python"), {"app": "a"}, {}, "cpu", contract=CONTRACT)
    own = Environment(Path("/own/python"), {"app": "a"}, {"PYTHONPATH": "/own"}, "cpu", contract=CONTRACT)
    host = make_intent().host
    return Run("r1", matrix.cells["cpu-plain"], workload, data, environment, host, verifier=Verifier(own))


def test_the_app_is_given_the_fault_that_it_injects_and_no_other(run: Run, tmp_path: Path) -> None:
    usual = resolve_run(run, RunFolder(tmp_path)).intent.commands["train"]
    for fault in ("segv@3", "hang-forward@35/1"):
        assert resolve_run(replace(run, injected_fault=fault), RunFolder(tmp_path)).intent.commands["train"] == (
            *usual,
            "--inject-fault",
            fault,
        )
    assert (
        resolve_run(replace(run, injected_fault="import-failure"), RunFolder(tmp_path)).intent.commands["train"]
        == usual
    )


def test_a_record_says_where_torch_comes_from_and_no_password(run: Run, tmp_path: Path) -> None:
    assert resolve_run(run, RunFolder(tmp_path)).intent.index == "https://download.pytorch.org/whl/cpu"
    mirror = {"mirror": "https://me:secret@mirror.example/{platform}"}
    cell = replace(run.cell, stack=run.cell.stack.model_copy(update=mirror))
    mirrored = resolve_run(replace(run, cell=cell), RunFolder(tmp_path)).intent
    assert mirrored.index == "https://mirror.example/cpu"
    assert "secret" not in mirrored.model_dump_json()


def test_the_app_is_given_jax_alone(run: Run, matrix: Matrix, tmp_path: Path) -> None:
    usual = resolve_run(run, RunFolder(tmp_path))
    on_jax = resolve_run(replace(run, cell=matrix.cells["cpu-jax0.10.0-plain"]), RunFolder(tmp_path))
    assert "--framework" not in usual.intent.commands["train"]
    assert re.search("--framework jax( |$)", " ".join(on_jax.intent.commands["train"]))
    assert (usual.request.jax, on_jax.request.jax) == (None, "0.10.0")
    # The workload is the same, so that runs of the two frameworks can be compared.
    assert on_jax.intent.workload_hash == usual.intent.workload_hash
    assert on_jax.verification is not None
    assert "--framework" not in on_jax.verification.arguments


@pytest.mark.parametrize("fault", ["segv@3", "import-failure"])
def test_every_fault_is_in_the_intent_and_no_part_of_any_identity(run: Run, fault: str, tmp_path: Path) -> None:
    one, other = (resolve_run(each, RunFolder(tmp_path)) for each in (replace(run, injected_fault=fault), run))
    injected, usual = one.intent, other.intent
    assert (injected.injected_fault, usual.injected_fault) == (fault, None)
    for key in ("workload_hash", "environment_hash", "options", "variables"):
        assert getattr(injected, key) == getattr(usual, key)
    assert one.request == replace(other.request, injected_fault=fault, nonce=one.request.nonce)
    assert (one.app, one.verification) == (other.app, other.verification)


def test_every_run_in_the_place_of_a_rehearsal_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = resolve_run(run, RunFolder(tmp_path)).intent
    monkeypatch.setattr("harness.run.spec.REHEARSAL", tmp_path)
    assert (usual.rehearsal, resolve_run(run, RunFolder(tmp_path)).intent.rehearsal) == (False, True)


def test_the_features_are_never_injected(run: Run, matrix: Matrix, tmp_path: Path) -> None:
    two = replace(run, cell=replace(run.cell, preset=matrix.presets["notes-aggressive"]), injected_fault="segv@3")
    commands = resolve_run(two, RunFolder(tmp_path)).intent.commands
    assert list(commands) == ["features", "train"]
    assert "--inject-fault" not in commands["features"]
    assert "--inject-fault" in commands["train"]


def test_a_run_has_a_nonce_of_its_own_that_only_its_training_gets(run: Run, tmp_path: Path) -> None:
    spec, other = (resolve_run(run, RunFolder(tmp_path)) for _ in range(2))
    nonce = spec.intent.nonce
    assert nonce is not None
    assert re.fullmatch("[0-9a-f]{32}", nonce)
    assert nonce != other.intent.nonce
    assert spec.request.nonce == nonce
    assert {job.variables.get("VPOC_NONCE") for job in spec.phases.values()} == {nonce}
    assert spec.verification is not None
    assert nonce not in (*spec.verification.variables.values(), *spec.verification.arguments)
    assert (spec.intent.contract, spec.request.contract) == (run.environment.contract,) * 2


def test_what_a_training_may_resume_from_is_expected_of_it(run: Run, tmp_path: Path) -> None:
    run = replace(run, workload=run.workload.model_copy(update={"model": ("mlp", "attention")}))
    assert asked_of(resolve_run(run, RunFolder(tmp_path)).intent).resumed == (0, 0)
    digest = "a" * 64
    checkpoints = tuple(
        Path(f"/r/output/{folder}_checkpoints/step-{steps:09}.{digest}.pt")
        for folder, steps in (("model_mlp", 40), ("model", 7))
    )
    resumed = replace(run, resume_from=checkpoints)
    assert asked_of(resolve_run(resumed, RunFolder(tmp_path)).intent).resumed == (40, 7)
    only_first = replace(run, resume_from=checkpoints[:1])
    assert asked_of(resolve_run(only_first, RunFolder(tmp_path)).intent).resumed == (40, 0)


def test_an_app_of_another_version_is_given_options_by_the_names_that_every_app_takes(
    run: Run, matrix: Matrix, dual_host: HostFacts, tmp_path: Path
) -> None:
    stack = matrix.cells["rocm6.3-torch2.9.1-plain"].stack
    older, current = (image_environment("sha256:i", {"app": app}, 2, stack) for app in ("0" * 64, app_hash()))
    for environment, present, names in ((older, False, ("--warm-up", "--rung", "--drill")), (current, True, ())):
        asked = replace(run, environment=environment, host=dual_host, gpus=(0,), injected_fault="segv@3")
        spec = resolve_run(asked, RunFolder(tmp_path))
        probe = spec.probe(dual_host.gpus[0], ("--check", "import")).arguments
        words = [*spec.intent.commands["train"], *probe]
        assert [name in words for name in FORMER_OPTIONS] == [present] * 3
        assert [name for name in FORMER_OPTIONS.values() if name in words] == list(names)


def test_a_container_has_room_for_the_threads_of_each_rank_on_this_host(run: Run, tmp_path: Path) -> None:
    large = run.host.model_copy(update={"cores": 96})
    image = image_environment("sha256:i", {"app": app_hash()}, CONTRACT, run.cell.stack)
    several = run.workload.model_copy(update={"strategy": "ddp"})
    for workload, pids in ((run.workload, 6144), (several, 12288)):
        spec = resolve_run(replace(run, host=large, environment=image, workload=workload), RunFolder(tmp_path))
        assert spec.container is not None
        assert spec.container.pids == pids
        assert spec.intent.container is not None
        assert spec.intent.container["pids"] == pids


class TestVerification:
    """The job that verifies a run: this host's own app, in a folder of its own."""

    def test_a_process_has_nothing_of_the_run_but_its_options(self, run: Run, tmp_path: Path) -> None:
        preset = run.cell.preset.model_copy(update={"variables": {"HSA_ENABLE_SDMA": "0"}})
        spec = resolve_run(replace(run, cell=replace(run.cell, preset=preset), gpus=(1,)), RunFolder(tmp_path))
        job = spec.verification
        assert job is not None
        assert job.arguments[:4] == ("/own/python", "-m", "vpoc", "verify")
        assert job.variables["PYTHONPATH"] == "/own"
        # Others may write to the current folder where results are shared.
        imports_nothing = ("PYTHONSAFEPATH", "1")
        assert imports_nothing in job.variables.items()
        assert all(imports_nothing in one.items() for one in spec.intent.variables.values())
        assert not {"HSA_ENABLE_SDMA", "ROCR_VISIBLE_DEVICES"} & job.variables.keys()
        assert (job.container, job.work) == (None, tmp_path / "verifying")
        work = str(tmp_path / "work")
        assert not [word for word in (*job.arguments, *job.variables.values()) if work in word]
        assert (spec.intent.verifier, spec.intent.verifier_image) == ({"app": "a"}, None)
        assert spec.intent.verified
        assert spec.request.not_verified is None

    def test_a_container_is_of_this_hosts_image_without_devices_and_reads_the_copies(
        self, run: Run, matrix: Matrix, dual_host: HostFacts, tmp_path: Path
    ) -> None:
        stack = matrix.cells["rocm6.3-torch2.9.1-plain"].stack
        judged = image_environment("sha256:judged", {"app": "a"}, CONTRACT, stack)
        own = image_environment("sha256:own", {"app": "a"}, CONTRACT, matrix.stacks["cpu"])
        node = DeviceNode("/dev/kfd", "/dev/kfd", 1)
        asked = replace(run, environment=judged, host=dual_host, devices=(node,), verifier=Verifier(own))
        spec = resolve_run(asked, RunFolder(tmp_path))
        assert spec.verification is not None
        container = spec.verification.container
        assert container is not None
        assert (container.image, container.devices) == ("sha256:own", ())
        assert (container.work, container.data) == (str(tmp_path / "verifying"), ("/data.csv", str(tmp_path / "kept")))
        assert spec.container is not None
        assert spec.container.image == "sha256:judged"
        assert spec.intent.verifier_image == "sha256:own"

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"verifier": NO_VERIFIER}, "nothing was made"),
            ({"verifier": Verifier(missing="no network")}, "no network"),
            ({"app": "b"}, "its app is another version"),
            ({"contract": 1}, "its app follows another contract"),
        ],
        ids=str,
    )
    def test_without_one_or_with_another_app_a_run_is_not_verified(
        self, change: dict[str, Any], why: str, run: Run, tmp_path: Path
    ) -> None:
        identity = {"app": change.get("app", "a")}
        environment = replace(run.environment, identity=identity, contract=change.get("contract", CONTRACT))
        verifier = change.get("verifier", run.verifier)
        spec = resolve_run(replace(run, environment=environment, verifier=verifier), RunFolder(tmp_path))
        assert spec.verification is None
        assert not spec.intent.verified
        assert spec.intent.not_verified is not None
        assert why in spec.intent.not_verified
        assert spec.request.not_verified == spec.intent.not_verified


@pytest.mark.parametrize("kind", ["verify", "load"])
def test_what_verifies_a_run_imports_nothing_from_its_folder(kind: str, run: Run, tmp_path: Path) -> None:
    own = Environment(Path(sys.executable), {"app": "a"}, {"PYTHONPATH": str(APP)}, "cpu", contract=CONTRACT)
    spec = resolve_run(replace(run, verifier=Verifier(own)), RunFolder(tmp_path))
    job = spec.verification if kind == "verify" else spec.loader and spec.loader(tmp_path / "m.pt")
    assert job
    assert job.work
    job.work.mkdir()
    for name in ("torch", "vpoc", "argparse", "pickletools"):
        (job.work / f"{name}.py").write_text("print('imported from the folder')")
    done = subprocess.run(job.arguments, env=job.variables, cwd=job.work, capture_output=True, text=True, check=False)
    # This test's own environment has no torch.
    assert "No module named" in done.stderr
    assert "from the folder" not in done.stdout
