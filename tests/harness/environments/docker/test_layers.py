"""Tests of how torch and ROCm are split into layers, and that installing by layers gives what pip gives at once."""

import importlib.util
import io
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pip
import pytest

from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.base.paths import IMAGES
from harness.environments.docker.layers import LAYER_BYTES, WheelFile, files_in_wheels, split
from harness.rehearsal.packages import stub_wheel

GB = 10**9
# The time of an app: it differs from the time of the layers below, and everything made here is newer.
EPOCH = 1_750_000_000
# Sizes as in a wheel of torch for ROCm 6, in bytes.
TORCH = {
    "torch/lib/libtorch_hip.so": 17 * GB // 10,
    "torch/lib/libtorch_cpu.so": GB // 2,
    "torch/lib/libc10.so": 1_000_000,
    "torch/lib/libaotriton_v2.so": 1_000_000,
    "torch/lib/aotriton.images/amd-gfx942/flash.aks2": 3_000_000,
    "torch/_C.cpython-311-x86_64-linux-gnu.so": 20_000,
}
ROCM = {
    **{f"torch/lib/rocblas/library/TensileLibrary_gfx{n}.co": GB // 4 for n in range(900, 909)},
    "torch/lib/libMIOpen.so": GB,
    "torch/lib/libamdhip64.so": 20_000_000,
    "torch/share/miopen/db/gfx942.kdb": GB // 2,
}
PYTHON = {"torch/__init__.py": 100_000, "torch-2.9.1.dist-info/RECORD": 900_000, "torch-2.9.1.data/purelib/a": 5}


def listed(limit: int = LAYER_BYTES, **changed: int) -> list[list[str]]:
    files = [WheelFile(path, size, path in ROCM) for path, size in {**TORCH, **ROCM, **PYTHON, **changed}.items()]
    # A wheel may list its files in any order.
    return split(reversed(files), limit)


def test_no_layer_is_above_the_limit_but_that_of_a_file_that_is() -> None:
    layers, sizes = listed(), TORCH | ROCM
    room = [sum(sizes[path] for path in paths) for paths in layers]
    alone = ["torch/lib/libtorch_hip.so"]
    assert [paths for paths, size in zip(layers, room, strict=True) if size > LAYER_BYTES] == [alone]
    assert len(layers) == 5
    assert len({path for paths in layers for path in paths}) == sum(map(len, layers))


def test_layers_of_rocm_come_first_and_do_not_know_what_torch_is_beside_them() -> None:
    layers = listed()
    of_rocm = [paths for paths in layers if set(paths) <= set(ROCM)]
    assert layers[: len(of_rocm)] == of_rocm
    assert {path for paths in of_rocm for path in paths} == set(ROCM)
    other = listed(**{"torch/lib/libtorch_cpu.so": 1, "torch/new.txt": 9, "torch/__init__.py": 7})
    assert other[: len(of_rocm)] == of_rocm


def test_what_pip_changes_or_compiles_is_left_to_the_last_layer() -> None:
    assert not {path for paths in listed(limit=1) for path in paths} & set(PYTHON)


def test_what_fits_into_one_layer_is_not_split() -> None:
    assert split([WheelFile("torch/lib/libtorch_cpu.so", GB, of_rocm=False)], LAYER_BYTES) == []


def packed(folder: Path, name: str, files: dict[str, int]) -> Path:
    wheel = folder / name
    with ZipFile(wheel, "w") as archive:
        for path in files:
            archive.writestr(path, "x")
    return wheel


def test_files_of_rocm_are_known_by_their_place_in_torch_or_their_package(tmp_path: Path) -> None:
    wheels = [packed(tmp_path, "torch-2.9.1-py3-none-any.whl", TORCH | ROCM | PYTHON)]
    wheels.append(packed(tmp_path, "rocm_sdk_core-7.14-py3-none-any.whl", {"_rocm_sdk_core/lib/libhsa.so": 1}))
    found = {file.path for file in files_in_wheels(wheels, rocm=True) if file.of_rocm}
    assert found == {*ROCM, "_rocm_sdk_core/lib/libhsa.so"}
    assert not any(file.of_rocm for file in files_in_wheels(wheels, rocm=False))


@pytest.mark.parametrize("path", ["../../../bin/sh", "torch/../../x", "/etc/passwd"])
def test_a_wheel_with_a_file_that_lies_elsewhere_is_refused(path: str, tmp_path: Path) -> None:
    wheel = packed(tmp_path, "torch-2.9.1-py3-none-any.whl", {path: 1})
    with pytest.raises(UserError, match=rf"^torch-2\.9\.1-\S+: {path} would lie outside of site-packages"):
        files_in_wheels([wheel], rocm=False)


def test_a_wheel_that_is_none_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.9.1-py3-none-any.whl"
    wheel.write_bytes(b"x")
    with pytest.raises(UserError, match=r"^torch-2\.9\.1-\S+: is no wheel, or damaged"):
        files_in_wheels([wheel], rocm=False)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return images/install.py, which runs in a build, as a module."""
    found = importlib.util.spec_from_file_location("install", IMAGES / "install.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "TOOLS", Path(pip.__file__).parent.parent)
    # Do not change the times of this host's own folders.
    monkeypatch.setattr(module, "TOUCHED", ())
    walk = os.walk
    monkeypatch.setattr(module.os, "walk", lambda top: walk(module.VENV if top == "/opt" else top))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    return module


def wheels_of_torch(folder: Path) -> Path:
    """Write two wheels with what installers treat specially (scripts, data, file modes), and a lock for them."""
    folder.mkdir()
    lock = ""
    modules = {
        "torch/__init__.py": "A = 1\n",
        "torch/bin/program": "#!/bin/sh\n",
        "torch/lib/libtorch_cpu.so": "t" * 2000,
        "torch/lib/librocblas.so": "r",
    }
    points = {"torch-2.9.1.dist-info/entry_points.txt": "[console_scripts]\ntorchrun = torch:main\n"}
    placed = {"torch-2.9.1.data/scripts/tool": "#!python\n", "torch-2.9.1.data/purelib/torch/lib/data.bin": "d"}
    wheels = [
        stub_wheel("torch", "2.9.1", modules=modules | points | placed),
        stub_wheel("rocm", "7.14", modules={"rocm/bin/program": "#!/bin/sh\n"}),
    ]
    for name, content in wheels:
        made = folder / name
        with ZipFile(io.BytesIO(content)) as old, ZipFile(made, "w") as new:
            for member in old.infolist():
                info = ZipInfo(member.filename)
                # Record which files are programs, as some packers do.
                info.external_attr = (stat.S_IFREG | (0o755 if member.filename.endswith("program") else 0o644)) << 16
                new.writestr(info, old.read(member), ZIP_DEFLATED)
        package, version = name.split("-")[:2]
        lock += f"{package}=={version} --hash=sha256:{'0' * 64} --hash=sha256:{file_hash(made)}\n"
    (folder / "lock.txt").write_text(lock, encoding="utf-8")
    return folder


def installed(
    install: ModuleType, venv: Path, layers: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[int, float, object]]:
    """Install layer by layer into a virtual environment; return its tree, with modes, times and contents."""
    # Always at the same path, because a script names its interpreter.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    monkeypatch.setattr(install, "VENV", venv)
    monkeypatch.setattr(install, "PYTHON", venv / "bin" / "python")
    for number in range(1, layers + 1):
        monkeypatch.setattr(sys, "argv", ["install.py", "torch", str(number)])
        install.main()
    tree: dict[str, tuple[int, float, object]] = {
        str(path.relative_to(venv)): (path.lstat().st_mode, path.lstat().st_mtime, path.is_file() and path.read_bytes())
        for path in venv.rglob("*")
    }
    shutil.rmtree(venv)
    return tree


@pytest.mark.slow
def test_layer_by_layer_it_is_what_pip_installs_at_once(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = wheels_of_torch(tmp_path / "wheels")
    monkeypatch.setattr(install, "WHEELS", wheels)
    at_once = installed(install, tmp_path / "venv", 1, monkeypatch)
    # Every stack has the same time in its layers, whatever the time of its app.
    assert {time for _, time, _ in at_once.values()} == {install.SHARED_EPOCH}
    layers = split(files_in_wheels(sorted(wheels.glob("*.whl")), rocm=True), 4100)
    assert [len(paths) for paths in layers] == [2, 1, 1]
    (wheels / "layers").mkdir()
    for number, paths in enumerate(layers, 1):
        (wheels / "layers" / f"{number}.json").write_text(json.dumps(paths), encoding="utf-8")
    assert installed(install, tmp_path / "venv", len(layers) + 1, monkeypatch) == at_once
    assert "lib/python3.11/site-packages/rocm/bin/program" in {
        path.replace(f"python3.{sys.version_info.minor}", "python3.11") for path in at_once
    }


def test_a_wheel_that_the_lock_does_not_name_is_refused(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = wheels_of_torch(tmp_path / "wheels")
    monkeypatch.setattr(install, "WHEELS", wheels)
    with ZipFile(next(wheels.glob("torch*.whl")), "a") as archive:
        archive.writestr("torch/more.txt", "x")
    with pytest.raises(SystemExit, match=r"torch-2\.9\.1-\S+ has no hash of the lock"):
        install.without({"torch/lib/libtorch_cpu.so"}, tmp_path)


def test_on_a_host_whose_clock_is_behind_the_inputs_nothing_is_built(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made then cannot be told from the base by its time, and the layers would differ from host to host."""
    waited: list[float] = []
    monkeypatch.setattr(install.time, "time", lambda: 1000.0)
    monkeypatch.setattr(install.time, "sleep", waited.append)
    install.pass_by(998)
    install.pass_by(1002)
    assert waited == [0.0, 3.0]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "4600")
    monkeypatch.setattr(sys, "argv", ["install.py", "vpoc"])
    with pytest.raises(SystemExit, match="the clock of this host is 3601 s behind the newest input"):
        install.main()
