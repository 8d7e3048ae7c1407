"""Stub packages of a few hundred bytes, with the names and requirements of the real ones."""

import io
import re
import tarfile
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

LINUX = "py3-none-linux_x86_64"
ANY = "py3-none-any"

# The name of a file, and its content or the path of the file that has it.
IndexFile = tuple[str, bytes | Path]


def stub_wheel(
    name: str, version: str, requires: Iterable[str] = (), tag: str = ANY, modules: Mapping[str, str] | None = None
) -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel; it has the extras that `requires` names.

    `modules`: the files of the wheel by path; by default one package of the wheel's name that can be imported.
    """
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *required_lines(requires)]
    usual = {f"{module}/__init__.py": f"__version__ = {version!r}\n"}
    files = dict(usual if modules is None else modules)
    files |= {f"{info}/METADATA": "\n".join(lines) + "\n", f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n"}
    listed = [f"{path},," for path in (*files, f"{info}/RECORD")]
    files[f"{info}/RECORD"] = "\n".join(listed) + "\n"
    stream = io.BytesIO()
    with ZipFile(stream, "w", ZIP_STORED) as archive:
        for path, text in files.items():
            archive.writestr(ZipInfo(path), text)
    return f"{module}-{version}-{tag}.whl", stream.getvalue()


def required_lines(requires: Iterable[str]) -> list[str]:
    """Return the metadata lines for a package's requirements, and for the extras that the requirements name."""
    extras = sorted({extra for text in requires for extra in re.findall(r"extra == '([^']+)'", text)})
    return [f"Requires-Dist: {text}" for text in requires] + [f"Provides-Extra: {extra}" for extra in extras]


def stub_source(name: str, version: str, requires: Iterable[str]) -> tuple[str, bytes]:
    """Return a source package that contains its own build backend, so that building it needs no network."""
    made, content = stub_wheel(name, version, requires, modules={"rocm_sdk/__init__.py": "SDK = True\n"})
    backend = f"""
import base64, pathlib, zipfile, io
WHEEL = base64.b64decode({b64encode(content)!r})
def build_wheel(folder, config_settings=None, metadata_directory=None):
    pathlib.Path(folder, {made!r}).write_bytes(WHEEL)
    return {made!r}
"""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": backend,
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", stream.getvalue()


def rocm_packages(version: str, targets: Iterable[str]) -> list[IndexFile]:
    """Return ROCm as pip packages: its core, libraries and device code, and the meta package as a source package."""
    targets = tuple(targets)
    device = [f"rocm-sdk-device-{target}=={version}; extra == 'device-{target}'" for target in targets]
    device += [f"rocm-sdk-device-{target}=={version}; extra == 'device-all'" for target in targets]
    requires = [f"rocm-sdk-core=={version}", f"rocm-sdk-libraries=={version}; extra == 'libraries'", *device]
    parts = ["core", "libraries", *(f"device-{target}" for target in targets)]
    return [
        *(stub_wheel(f"rocm-sdk-{part}", version, tag=LINUX) for part in parts),
        stub_source("rocm", version, requires),
    ]
