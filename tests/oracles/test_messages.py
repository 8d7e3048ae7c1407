"""Tests that the diagnosis and the doctor explain what AMD's own programs print where no GPU can be used."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.doctor.checks import examine
from harness.doctor.read import read_machine
from harness.host.simulated import SimulatedHost
from harness.matrix.cells import Matrix
from tests.harness.diagnosis.in_memory import explain_log
from tests.oracles.programs import Programs

KERNEL = Path(__file__).with_name("kernel.hip")
Situation = Callable[[SimulatedHost], None]


def explained(printed: str) -> str:
    """Return the class that explains what a program printed; the explanation must be certain and have a remedy."""
    found = explain_log(printed.splitlines(), "log")
    assert found.rule, printed
    assert found.remedy, found
    return found.class_


def checks_with_problems(matrix: Matrix, host: SimulatedHost) -> set[str]:
    """Return the doctor's checks that found a problem; each must have a command that fixes it."""
    found = [finding for finding in examine(read_machine(matrix, host.root)) if finding.level == "problem"]
    assert all(finding.fix for finding in found)
    return {finding.check for finding in found}


def no_module(host: SimulatedHost) -> None:
    host.remove("sys/module/amdgpu")
    host.remove("sys/class/kfd")
    host.remove("dev/kfd")
    host.remove("dev/dri")
    for gpu in host.gpus:
        host.remove(gpu / "driver")


def module_not_live(host: SimulatedHost) -> None:
    host.write("sys/module/amdgpu/initstate", "coming")


def no_kfd(host: SimulatedHost) -> None:
    host.remove("dev/kfd")


def no_right(host: SimulatedHost) -> None:
    host.remove("dev/kfd")
    host.write("dev/kfd", "")
    (host.root / "dev/kfd").chmod(0)


def silent(host: SimulatedHost) -> None:
    """Make the device node exist and open, but answer no request: behind it is /dev/null."""


def a_plain_file(host: SimulatedHost) -> None:
    host.remove("dev/kfd")
    host.write("dev/kfd", "")
    (host.root / "dev/kfd").chmod(0o666)


SITUATIONS: dict[str, tuple[Situation, str]] = {
    "no module": (no_module, "driver"),
    "a module that is not live": (module_not_live, "driver"),
    "no /dev/kfd": (no_kfd, "no-device"),
    "no right to /dev/kfd": (no_right, "permissions"),
    "a /dev/kfd that does not answer": (silent, "runtime-resource"),
    "a /dev/kfd that is a plain file": (a_plain_file, "runtime-resource"),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_rocminfo(programs: Programs, host: SimulatedHost, situation: str) -> None:
    arrange, class_ = SITUATIONS[situation]
    arrange(host)
    assert explained(programs.rocminfo(host.root)) == class_


@pytest.mark.parametrize("situation", ["no module", "a module that is not live"])
def test_amd_smi(programs: Programs, host: SimulatedHost, situation: str) -> None:
    SITUATIONS[situation][0](host)
    assert explained(programs.amd_smi(host.root, "list")) == "driver"


@pytest.mark.parametrize("situation", ["no /dev/kfd", "no right to /dev/kfd", "a /dev/kfd that does not answer"])
def test_amd_smi_says_nothing_of_what_programs_cannot_use(
    programs: Programs, host: SimulatedHost, situation: str
) -> None:
    SITUATIONS[situation][0](host)
    printed = programs.amd_smi(host.root, "list")
    assert printed.count("GPU: ") == len(host.gpus)
    assert explain_log(printed.splitlines(), "log").rule is None


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_program_of_hip(programs: Programs, host: SimulatedHost, situation: str) -> None:
    SITUATIONS[situation][0](host)
    printed = programs.hip_devices(host.root)
    assert "no ROCm-capable device is detected" in printed
    assert explained(printed) == "no-device"


def test_jax_without_a_gpu(programs: Programs, jax: Path, empty: SimulatedHost) -> None:
    printed = programs.jax_devices(empty.root, jax)
    assert "No AMD GPUs were found" in printed
    assert "CpuDevice" in printed
    assert explained(printed) == "no-device"


def test_jax_that_is_told_to_use_rocm(programs: Programs, jax: Path, empty: SimulatedHost) -> None:
    printed = programs.jax_devices(empty.root, jax, platforms="rocm")
    assert "Unable to initialize backend 'rocm'" in printed
    assert explained(printed) == "no-device"


def test_jax_sees_the_gpus_of_a_simulated_host_and_misses_rocm(
    programs: Programs, jax: Path, host: SimulatedHost
) -> None:
    printed = programs.jax_devices(host.root, jax)
    assert "No AMD GPUs were found" not in printed
    assert explained(printed) == "install"


@pytest.mark.parametrize(
    ("situation", "check"),
    [("no module", "amdgpu"), ("no /dev/kfd", "kfd"), ("no right to /dev/kfd", "kfd")],
)
def test_the_doctor_names_what_the_programs_cannot_use(
    matrix: Matrix, host: SimulatedHost, situation: str, check: str
) -> None:
    SITUATIONS[situation][0](host)
    assert check in checks_with_problems(matrix, host)


def test_a_kernel_that_amds_compiler_makes_finds_no_gpu(
    programs: Programs, empty: SimulatedHost, tmp_path: Path
) -> None:
    program = tmp_path / "twice"
    assert programs.hipcc(empty.root, "--offload-arch=gfx1100", KERNEL, "-o", program) == ""
    assert b"amdgcn-amd-amdhsa--gfx1100" in program.read_bytes()
    printed = programs.run_compiled(empty.root, program)
    assert printed == "hipErrorNoDevice: no ROCm-capable device is detected\n"
    assert explained(printed) == "no-device"


def test_amds_compiler_that_is_to_find_the_gpu(programs: Programs, empty: SimulatedHost, tmp_path: Path) -> None:
    printed = programs.hipcc(empty.root, "--offload-arch=native", "-c", KERNEL, "-o", tmp_path / "twice.o")
    assert "cannot determine amdgcn architecture" in printed
    assert explained(printed) == "no-device"


def test_amds_compiler_without_its_code_for_devices(programs: Programs, empty: SimulatedHost, tmp_path: Path) -> None:
    without = ("--offload-arch=gfx1100", f"--rocm-device-lib-path={tmp_path}")
    printed = programs.hipcc(empty.root, *without, "-c", KERNEL, "-o", tmp_path / "twice.o")
    assert "cannot find ROCm device library" in printed
    assert explained(printed) == "compile"
