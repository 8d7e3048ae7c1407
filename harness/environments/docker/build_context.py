"""Fills the folder that an image is built from: wheels, the app, and the tools that install them."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pip

from harness.base.files.hashes import file_hash
from harness.base.paths import IMAGES
from harness.environments.app_wheel import app_wheel
from harness.environments.docker import layers
from harness.environments.docker.images import TOOLS
from harness.environments.python.wheelhouse import fetch, read_lock, requirement
from harness.host.engine_errors import Notify
from harness.matrix.stacks import Stack


def fill_runtime(stack: Stack, lock: Path, notify: Notify, context: Path) -> None:
    """Put everything that a runtime is made from into a folder, hard-linked if possible."""
    wheels = fetch(stack, lock, notify)
    _fill_tools(context)
    for folder in ("torch", "others"):
        (context / folder).mkdir()
    for entry in read_lock(lock):
        place = context / ("torch" if entry.name in with_torch(stack, wheels) else "others")
        _place(wheels[entry.name], place)
        with (place / "lock.txt").open("a", encoding="utf-8") as stream:
            stream.write(requirement(entry, wheels[entry.name]))
    _list_layers(stack, context / "torch")


def fill_app(context: Path) -> None:
    """Put the app, and the tools that install it, into a folder."""
    _fill_tools(context)
    (context / "vpoc").mkdir()
    app = app_wheel(context / "vpoc")
    name, version = app.name.split("-")[:2]
    line = f"{name}=={version} --hash=sha256:{file_hash(app)}\n"
    (context / "vpoc" / "lock.txt").write_text(line, encoding="utf-8")


def with_torch(stack: Stack, names: Iterable[str]) -> set[str]:
    """Return the packages in torch's layers: torch, and if ROCm comes as packages, those as well."""
    packages = stack.origin.rocm == "packages"
    return {
        name for name in names if name == "torch" or (packages and name.startswith(("rocm", "amd-torch", "triton")))
    }


def listed_layers(context: Path) -> list[Path]:
    """Return the files that list the content of each of torch's layers except the last."""
    return sorted((context / "torch" / "layers").glob("*.json"))


def _list_layers(stack: Stack, torch: Path) -> None:
    """List beside torch's wheels the files of each of their layers except the last."""
    files = layers.files_in_wheels(sorted(torch.glob("*.whl")), rocm=stack.rocm is not None)
    (torch / "layers").mkdir()
    for number, paths in enumerate(layers.split(files, layers.LAYER_BYTES), 1):
        (torch / "layers" / f"{number}.json").write_text(json.dumps(paths), encoding="utf-8")


def _fill_tools(context: Path) -> None:
    """Put the tools that install wheels in a build into a folder."""
    (context / "tools").mkdir(parents=True)
    for name in TOOLS:
        shutil.copy(IMAGES / name, context / "tools" / name)
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(pip.__file__).parent, context / "tools" / "pip", ignore=without)


def _place(wheel: Path, folder: Path) -> None:
    try:
        os.link(wheel, folder / wheel.name)
    except OSError:
        shutil.copyfile(wheel, folder / wheel.name)
