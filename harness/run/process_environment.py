"""The environment a run's processes get: the same everywhere, and every cache inside the run folder."""

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.environments.executors.container import WORK, inside
from harness.evidence.leftovers import OUTPUT

SCRATCH, TEMPORARY = "scratch", "tmp"
CACHES = ("miopen-db", "miopen", "triton", "inductor", "matplotlib")
SCRATCH_PLACES = (TEMPORARY, *(f"cache/{name}" for name in CACHES))
# Loader workers put sockets under TMPDIR, and the path of a socket has at most 107 characters. A longer TMPDIR does not
# fail: it leaves the training waiting for its first batch for ever.
LONGEST_TEMPORARY = 64


@dataclass(frozen=True)
class View:
    """Where the app finds its run folder, its data, and a place for temporary files."""

    folder: Path
    data: Path
    temporary: Path


def view_of(folder: Path, data: Path, *, contained: bool) -> View:
    """What the app sees of the run folder and the data: in a container, under fixed short names."""
    if contained:
        return View(WORK, inside(data), WORK / SCRATCH / TEMPORARY)
    return View(folder, data, temporary_folder(folder))


def temporary_folder(folder: Path) -> Path:
    """The TMPDIR of a process that runs in that folder: short, so not in that folder."""
    name = f"matrix-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:12]}"
    usual = Path(tempfile.gettempdir()) / name
    return usual if len(str(usual)) <= LONGEST_TEMPORARY else Path("/tmp") / name  # noqa: S108


def base_variables(view: View, threads: int) -> dict[str, str]:
    """Everything but the preset and the devices. Nothing of the caller's environment is passed on."""
    scratch = view.folder / SCRATCH
    cache = scratch / "cache"
    inside = {
        "HOME": scratch,
        "TMPDIR": view.temporary,
        "XDG_CACHE_HOME": cache,
        "MIOPEN_USER_DB_PATH": cache / "miopen-db",
        "MIOPEN_CUSTOM_CACHE_DIR": cache / "miopen",
        "TRITON_CACHE_DIR": cache / "triton",
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "MPLCONFIGDIR": cache / "matplotlib",
    }
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        # torch below 2.13 dies on a uid that has no name.
        "USER": "matrix",
        "LOGNAME": "matrix",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(threads),
        # With no other network, the usual rendezvous by host name waits for ever.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        **{name: str(place) for name, place in inside.items()},
    }


def make_scratch(folder: Path) -> None:
    """Make the places that `base_variables` names.

    Raises:
        UserError: when another's files are where the temporary folder should be.
    """
    temporary = temporary_folder(folder)
    # A run folder is new, so what is there already was left by a crash.
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"{temporary}: cannot be made: {error.strerror}; remove what is there") from None
    for place in SCRATCH_PLACES:
        (folder / SCRATCH / place).mkdir(parents=True, exist_ok=True)


def remove_scratch(folder: Path, *, all_of_it: bool) -> None:
    """Remove the temporary folder of a run and, with `all_of_it`, its home, caches and checkpoints too."""
    shutil.rmtree(temporary_folder(folder), ignore_errors=True)
    if all_of_it:
        for needless in (folder / SCRATCH, *(folder / OUTPUT).glob("*_checkpoints")):
            shutil.rmtree(needless, ignore_errors=True)


def visible_devices(gpus: tuple[int, ...]) -> dict[str, str]:
    """What limits a process to some GPUs, by their index among the host's."""
    return {"ROCR_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
