"""Installs the wheels in /srv into /opt/venv while an image is built. Run by the base's Python: install.py PART ...

With the wheels is `lock.txt`, which names every one of them with its hash; pip lies beside this file. Torch, with ROCm,
is several layers: `install.py torch N` unpacks the files that `layers/N.json` beside its wheels lists; the last one,
for which there is no list, is the rest, as pip installs it.

Bytecode is compiled in the same step, so that it shares the layer, and is never checked against its source, whose time
means nothing in an image. Only what training imports is compiled: all of it would be a seventh of the image.

At the end everything that is newer than SOURCE_DATE_EPOCH gets that time, so that the same wheels are the same layer,
also where the builder cannot do that. What is in torch's layers gets a time that is the same for every stack: where
their files are the same, so are their layers.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from zipfile import ZipFile, ZipInfo

TOOLS, WHEELS = Path(__file__).resolve().parent, Path("/srv")
VENV = Path("/opt/venv")
PYTHON = VENV / "bin" / "python"
INSTALL = ("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--require-hashes", "--root-user-action=ignore")
COMPILE = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
SHARED_EPOCH = 1_700_000_000
LONGEST_WAIT = 60.0
# Folders of the base that steps of a build write to, or the builder makes mount points in.
TOUCHED = ("/", "/etc", "/opt", "/root", "/run", "/tmp", "/var/tmp")
# Half of torch's modules: tests, converters and the compiler, which training does not import.
SELDOM_IMPORTED = (
    r"/torch/(_inductor|_numpy|_vendor|ao|masked|onnx|package|testing|_dynamo/backends|utils/(hipify|tensorboard|benchmark)"
    r"|distributed/(_tools|checkpoint|elastic|pipelining))/"
)


def main() -> None:
    """Install, compile and, once torch can be imported, verify."""
    part, epoch = sys.argv[1], int(os.environ["SOURCE_DATE_EPOCH"])
    pass_by(epoch)
    layers = {file.stem: json.loads(file.read_text()) for file in (WHEELS / "layers").glob("*.json")}
    if part == "torch" and sys.argv[2] in layers:
        unpack(set(layers[sys.argv[2]]))
        set_times(epoch, SHARED_EPOCH)
        return
    with tempfile.TemporaryDirectory() as scratch:
        wheels = without({path for paths in layers.values() for path in paths}, Path(scratch)) if layers else WHEELS
        if list(wheels.glob("*.whl")):
            pip = [sys.executable, str(TOOLS / "pip"), "--python", PYTHON, "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "install", *INSTALL, "--find-links", wheels, "-r", wheels / "lock.txt"], check=True)
    if part == "others":
        with tempfile.TemporaryDirectory() as scratch:
            # Importing torch's compiler makes a folder for it.
            places = {"HOME": scratch, "TMPDIR": scratch}
            subprocess.run([PYTHON, TOOLS / "verify.py", *sys.argv[2:]], check=True, env={**os.environ, **places})
    for package in VENV.glob(f"lib/python3*/site-packages/{part}"):
        # Not checked: one of torch's files is of a newer Python, and compileall calls that a failure.
        subprocess.run([PYTHON, *COMPILE, "-x", SELDOM_IMPORTED, package], check=False, stdout=subprocess.DEVNULL)
    set_times(epoch, SHARED_EPOCH if part == "torch" else epoch)


def pass_by(epoch: int) -> None:
    """Wait until a time has passed, by seconds at most: what is made before it would keep the time of this build."""
    behind = epoch + 1 - time.time()
    if behind > LONGEST_WAIT:
        sys.exit(f"image: error: the clock of this host is {behind:.0f} s behind the newest input of the image; set it")
    time.sleep(max(0.0, behind))


def unpack(paths: set[str]) -> None:
    """Unpack files of the wheels as pip does."""
    (site,) = VENV.glob("lib/python3*/site-packages")
    for wheel in sorted(WHEELS.glob("*.whl")):
        with ZipFile(wheel) as archive:
            for member in (one for one in archive.infolist() if one.filename in paths):
                place = site / member.filename
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as packed, place.open("wb") as stream:
                    shutil.copyfileobj(packed, stream)
                if member.external_attr >> 16 & 0o111:
                    place.chmod(0o755)


def without(paths: set[str], folder: Path) -> Path:
    """Put into a folder the wheels, less some of their files: what pip writes of the whole wheel is in its RECORD.

    pip would write those files again, into another layer. Each wheel's hash is compared with the lock here.
    """
    lock = (WHEELS / "lock.txt").read_text()
    for wheel in WHEELS.glob("*.whl"):
        given = digest_of(wheel)
        if given not in lock:
            sys.exit(f"image: error: {wheel.name} has no hash of the lock")
        made = folder / wheel.name
        with ZipFile(wheel) as old, ZipFile(made, "w") as new:
            for member in (one for one in old.infolist() if one.filename not in paths):
                info = ZipInfo(member.filename, member.date_time)
                info.external_attr, info.file_size = member.external_attr, member.file_size
                with old.open(member) as packed, new.open(info, "w") as stream:
                    shutil.copyfileobj(packed, stream)
        lock = lock.replace(given, digest_of(made))
    (folder / "lock.txt").write_text(lock)
    return folder


def digest_of(file: Path) -> str:
    """The SHA-256 of a file, in the form of a lock."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def set_times(newer: int, epoch: int) -> None:
    """Give what is `newer` than any input one time; of the base only folders in which something was made."""
    inside = (Path(folder, name) for folder, *names in os.walk("/opt") for name in (*names[0], *names[1]))
    for path in (*inside, *map(Path, TOUCHED)):
        if path.lstat().st_mtime > newer:
            os.utime(path, (epoch, epoch), follow_symlinks=False)


if __name__ == "__main__":
    main()
