"""Installs the wheels in /srv into /opt/venv while an image is built. Run by the base's Python: install.py PART ...

With the wheels is `lock.txt`, which names every one of them with its hash; pip lies beside this file. Bytecode is
compiled in the same step, so that it shares the layer, and is never checked against its source, whose time means
nothing in an image. Only what training imports is compiled: all of it would be a seventh of the image.

At the end everything that is newer than SOURCE_DATE_EPOCH gets that time, so that the same wheels are the same layer,
also where the builder cannot do that.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS, WHEELS = Path(__file__).resolve().parent, Path("/srv")
PYTHON = "/opt/venv/bin/python"
INSTALL = ("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--require-hashes", "--root-user-action=ignore")
COMPILE = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
# Folders of the base that steps of a build write to, or the builder makes mount points in.
TOUCHED = ("/", "/etc", "/opt", "/root", "/run", "/tmp", "/var/tmp")
# Half of torch's modules: tests, converters and the compiler, which training does not import.
SELDOM_IMPORTED = (
    r"/torch/(_inductor|_numpy|_vendor|ao|masked|onnx|package|testing|_dynamo/backends|utils/(hipify|tensorboard|benchmark)"
    r"|distributed/(_tools|checkpoint|elastic|pipelining))/"
)


def main() -> None:
    """Install, compile and, once torch can be imported, verify."""
    part = sys.argv[1]
    if list(WHEELS.glob("*.whl")):
        pip = [sys.executable, str(TOOLS / "pip"), "--python", PYTHON, "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *INSTALL, "--find-links", WHEELS, "-r", WHEELS / "lock.txt"], check=True)
    if part == "others":
        with tempfile.TemporaryDirectory() as scratch:
            # Importing torch's compiler makes a folder for it.
            places = {"HOME": scratch, "TMPDIR": scratch}
            subprocess.run([PYTHON, TOOLS / "verify.py", *sys.argv[2:]], check=True, env={**os.environ, **places})
    for package in Path("/opt/venv/lib").glob(f"python3*/site-packages/{part}"):
        # Not checked: one of torch's files is of a newer Python, and compileall calls that a failure.
        subprocess.run([PYTHON, *COMPILE, "-x", SELDOM_IMPORTED, package], check=False, stdout=subprocess.DEVNULL)
    set_times(int(os.environ["SOURCE_DATE_EPOCH"]))


def set_times(epoch: int) -> None:
    """Give what was made the time of the newest input; of the base only folders in which something was made."""
    inside = (Path(folder, name) for folder, *names in os.walk("/opt") for name in (*names[0], *names[1]))
    for path in (*inside, *map(Path, TOUCHED)):
        if path.lstat().st_mtime > epoch:
            os.utime(path, (epoch, epoch), follow_symlinks=False)


if __name__ == "__main__":
    main()
