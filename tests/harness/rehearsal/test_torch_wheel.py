"""A CPU wheel under another label: what is changed in it, and that nothing else is."""

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from packaging.metadata import parse_email

from harness.matrix.stacks import Stack
from harness.rehearsal.torch_wheel import TorchLabel, relabelled, torch_stub

CPU = "torch-2.13.0+cpu.dist-info"
LIBRARY = bytes(range(256)) * 5000


def cpu_wheel(folder: Path) -> Path:
    made = folder / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    version = "__version__ = '2.13.0+cpu'\ndebug = False\nhip: Optional[str] = None\nrocm: Optional[str] = None\n"
    with ZipFile(made, "w", ZIP_DEFLATED) as archive:
        archive.writestr("torch/version.py", version)
        archive.writestr("torch/lib/libtorch_cpu.so", LIBRARY)
        archive.writestr("torch/hip_version.py", "hip = None\n")
        archive.writestr(f"{CPU}/METADATA", "Metadata-Version: 2.4\nName: torch\nVersion: 2.13.0+cpu\n\nTensors.\n")
        archive.writestr(f"{CPU}/licenses/LICENSE", "free")
        archive.writestr(f"{CPU}/RECORD", f"torch/version.py,sha256=a,1\n{CPU}/METADATA,sha256=b,2\n{CPU}/RECORD,,\n")
    return made


def a_label() -> TorchLabel:
    stack = Stack(name="rocm6.3-torch2.9.1", accelerator="rocm", rocm="6.3", torch="2.9.1")
    return TorchLabel.of(stack, "3.11", ["pytorch-triton-rocm==3.0.0", "rocm-sdk==1; extra == 'device-gfx1100'"])


def test_version_hip_and_requirements_are_those_of_the_stack(tmp_path: Path) -> None:
    wheel = cpu_wheel(tmp_path)
    (tmp_path / "made").mkdir()
    made = relabelled(wheel, a_label(), tmp_path / "made")
    assert made.name == "torch-2.9.1+rocm6.3-cp311-cp311-manylinux_2_28_x86_64.whl"
    with ZipFile(made) as archive:
        assert archive.testzip() is None
        version = archive.read("torch/version.py").decode()
        assert "__version__ = '2.9.1+rocm6.3'\n" in version
        # A number of ROCm's that says that it is none.
        assert "\nhip = '6.3.0-rehearsal'\nrocm: Optional[str] = None\n" in version
        told, _ = parse_email(archive.read("torch-2.9.1+rocm6.3.dist-info/METADATA"))
        record = archive.read("torch-2.9.1+rocm6.3.dist-info/RECORD").decode()
        names = archive.namelist()
    assert told["version"] == "2.9.1+rocm6.3"
    assert told["requires_dist"] == ["pytorch-triton-rocm==3.0.0", "rocm-sdk==1; extra == 'device-gfx1100'"]
    assert told["provides_extra"] == ["device-gfx1100"]
    assert told["description"] == "Tensors.\n"
    assert not any("2.13.0" in text for text in (*names, record))
    assert "sha256=a" not in record
    assert "sha256=b" not in record


def test_everything_else_stays_as_it_is_packed(tmp_path: Path) -> None:
    wheel = cpu_wheel(tmp_path)
    with ZipFile(relabelled(wheel, a_label(), tmp_path)) as made, ZipFile(wheel) as before:
        assert made.read("torch/lib/libtorch_cpu.so") == LIBRARY
        assert made.read("torch/hip_version.py") == b"hip = None\n"
        assert made.read("torch-2.9.1+rocm6.3.dist-info/licenses/LICENSE") == b"free"
        size = before.getinfo("torch/lib/libtorch_cpu.so").compress_size
        assert made.getinfo("torch/lib/libtorch_cpu.so").compress_size == size < len(LIBRARY)


def test_a_stub_says_the_same_of_itself(tmp_path: Path) -> None:
    name, content = torch_stub(a_label())
    assert name == a_label().file
    (tmp_path / name).write_bytes(content)
    with ZipFile(tmp_path / name) as archive:
        assert b"hip = '6.3.0-rehearsal'" in archive.read("torch/version.py")
