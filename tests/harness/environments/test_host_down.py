"""Tests that what is made once, and never again, is whole on the disk when a host goes down right afterwards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NO_LOOP = 77
# What the file system has on its disk while it is mounted is what is left if the host goes down.
GO_DOWN = f"""
mount -o loop disk before || exit {NO_LOOP}
"$0" -c "$1" before && cp --sparse=always disk left && mount -o loop left after || exit 1
find after -regex '.*\\.\\(py\\|txt\\|whl\\)' -printf '%s\\n'
"""
APP = """
import sys
from pathlib import Path
from harness.base.files.storage import write_json
from harness.environments import environment
environment.APPS = Path(sys.argv[1], "apps")
environment.install_app()
write_json(Path(sys.argv[1], "intent.json"), {})
"""
ENVIRONMENT = """
import sys
from pathlib import Path
from harness.base.paths import CHECKOUT
from harness.environments import environment
from harness.matrix.load import load_matrix
def install(_stack, _version, python, notify):
    package = python.parent.parent / "lib" / "torch.py"
    package.parent.mkdir(parents=True)
    package.write_text("version = 1")
    return Path(sys.executable), "own"
environment.ENVIRONMENTS = Path(sys.argv[1], "envs")
environment.ensure_python = lambda *_: ("3.11", Path(sys.executable))
environment.uv, environment.install_stack = lambda *_: None, install
environment.install_app = lambda _: Path("app")
environment.ensure_environment(load_matrix(CHECKOUT / "matrix.yaml").stacks["cpu"])
"""
PROGRAM = """
import sys
from pathlib import Path
from types import SimpleNamespace
from harness.base.files.storage import write_json
from harness.base.paths import CHECKOUT
from harness.environments.python import packages
from harness.matrix.load import load_matrix
packages.PROGRAMS = Path(sys.argv[1])
packages._make = lambda *given: (given[4] / "einops.py").write_text("version = 1")
program = SimpleNamespace(requirements="requirements.txt", taken=SimpleNamespace(requirements=("einops",)))
packages.ensure_packages(program, load_matrix(CHECKOUT / "matrix.yaml").stacks["cpu"], None)
write_json(Path(sys.argv[1], "intent.json"), {})
"""
LOCK = """
import sys
from pathlib import Path
from harness.base.files.storage import write_json
from harness.base.paths import CHECKOUT
from harness.environments.python import pins
from harness.matrix.load import load_matrix
pins.try_sources = lambda _, *words, build: Path(words[words.index("-o") + 1]).write_text("torch==2.13.0")
pins.make_lock(load_matrix(CHECKOUT / "matrix.yaml").stacks["cpu"], Path(sys.argv[1], "cpu.txt"))
write_json(Path(sys.argv[1], "intent.json"), {})
"""
OWN_IMAGE = """
import sys
from pathlib import Path
from types import SimpleNamespace
from harness.base.files.storage import write_json
from harness.environments.docker import own_images
own_images.OWN_IMAGES = Path(sys.argv[1], "own-images.txt")
own_images.remember(SimpleNamespace(id="sha256:1"))
write_json(Path(sys.argv[1], "intent.json"), {})
"""
BUILT_WHEEL = """
import sys
from pathlib import Path
from types import SimpleNamespace
from harness.base.files.storage import write_json
from harness.environments.python import index_pages, source_packages
def build(*words, variables):
    made = words[words.index("--out-dir") + 1]
    made.mkdir()
    (made / "rocm.whl").write_text("a wheel")
source_packages.WHEELS, source_packages.uv = Path(sys.argv[1]), build
index_pages.files_of, index_pages.download = lambda *_: [("rocm.tar.gz", "")], lambda *_: "hash"
source_packages.built_wheel(SimpleNamespace(name="", pypi=""), "rocm", "1", ["hash"])
write_json(Path(sys.argv[1], "intent.json"), {})
"""
INTERPRETER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from harness.base.files.storage import write_json
from harness.environments.python import interpreters
python = Path(sys.argv[1], "python.py")
class Find:
    cache_clear = staticmethod(lambda: None)
    def __call__(self, version):
        return python if python.exists() else None
interpreters.choose_python, interpreters.find_python = lambda _: None, Find()
interpreters.uv = lambda *_: python.write_text("an interpreter")
interpreters.ensure_python(SimpleNamespace(python="3.11"))
write_json(Path(sys.argv[1], "intent.json"), {})
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mkfs.ext4"), reason="needs root and mkfs.ext4")
@pytest.mark.parametrize("make", [APP, ENVIRONMENT, PROGRAM, LOCK, OWN_IMAGE, BUILT_WHEEL, INTERPRETER])
def test_no_file_is_empty(make: str, tmp_path: Path) -> None:
    with (tmp_path / "disk").open("wb") as disk:
        disk.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", tmp_path / "disk"], check=True)
    for place in ("before", "after"):
        (tmp_path / place).mkdir()
    words = ["unshare", "--mount", "sh", "-c", GO_DOWN, sys.executable, make]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode == NO_LOOP or done.stderr.startswith("unshare:"):
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    sizes = [int(size) for size in done.stdout.split()]
    assert sizes, done.stderr
    assert min(sizes) > 0, f"{sizes.count(0)} of {len(sizes)} files are empty"
