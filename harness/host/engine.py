"""The Docker engine of this host: finds it, tells where it keeps images, and finds the command that drives BuildKit."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from docker.context import ContextAPI
from docker.errors import DockerException

from harness.base.errors import NoEngineError, NoSpaceError, UserError
from harness.base.files.file_system_sync import sync_file_system
from harness.base.wording import size_in_words
from harness.host.disk_use import RESERVE_BYTES
from harness.host.engine_client import Api, Client
from harness.host.engine_errors import ENGINE_ERRORS, GONE, engine_errors

TransferPart = TypeVar("TransferPart")
USUAL_ADDRESS = "unix:///var/run/docker.sock"
CONNECT_SECONDS = 2
# Longest wait for a short answer, in seconds: a healthy engine takes a few milliseconds.
ANSWER_SECONDS = 10.0
NOT_PERMITTED = (
    "the Docker engine at {address} is there, but this user may not use it: `sudo usermod -aG docker $USER`, "
    "then log in again; or run cells with --executor process"
)
DEAD = (
    "a Docker engine belongs to {address}, but none answers there: start it (`sudo systemctl start docker`), "
    "or run cells with --executor process"
)
DEAD_ELSEWHERE = (
    "DOCKER_HOST is {address}, but no Docker engine answers there: `unset DOCKER_HOST` for the engine of this host, "
    "or start that one, or run cells with --executor process"
)
OTHER_USER = (
    "the Docker engine at {address} maps users (rootless or userns-remap): a container's files would belong to "
    "another user, and this is not supported yet; use an engine that does not, or run cells with --executor process"
)
NAMESPACE = (
    "root here is another user to the Docker engine at {address}, as in a user namespace (unshare -Ur): a container "
    "could not write to its work folder; leave that namespace (`exit`), or run cells with --executor process"
)
# The owner that the kernel shows for files of a user whom the user namespace does not map.
UNKNOWN_USER = 65534
PODMAN = (
    "the engine at {address} is {which}: images are built with BuildKit, which Podman lacks; take Docker's own "
    "(`sudo apt install docker.io`, and no DOCKER_HOST), or run cells with --executor process"
)
NO_BUILDER = (
    "no docker command that drives BuildKit: install buildx (Debian: apt install docker-buildx), "
    "or run cells with --executor process"
)
# The docker command had BuildKit built in up to this major version; later ones need the buildx plugin.
LAST_WITH_BUILDKIT = 22
# Longest wait for an engine, in seconds: a package manager restarts one quickly, but an overloaded one may be silent
# for longer.
WAIT_SECONDS = 120.0
WAITING = f"the Docker engine does not answer; still waiting, {WAIT_SECONDS:.0f} s at most"
AGAIN_SECONDS = 1.0
CONTAINERD_STORE = "io.containerd.snapshotter.v1"
CONTAINERD_FOLDER = Path("/var/lib/containerd")


@dataclass(frozen=True)
class Engine:
    """A Docker engine that answers."""

    address: str
    client: Any

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The engine's description of itself.

        Raises:
            UserError: when the engine does not answer any more.
        """
        with engine_errors("asking the Docker engine about itself"):
            return dict(self.client.info())

    @cached_property
    def client_without_timeout(self) -> Any:
        """A client without a timeout, for transfers of gigabytes."""
        return Client(base_url=self.address, timeout=None)

    @cached_property
    def api_with_timeout(self) -> Any:
        """An API client for short questions, with a timeout of ANSWER_SECONDS."""
        return self._new_api_with_timeout()

    def answers(self) -> bool:
        """Return whether the engine answers on a new connection; while it is ending it still does on open ones."""
        try:
            if self.address.startswith("unix://"):
                _try_socket(self.address.removeprefix("unix://"))
            with closing(self._new_api_with_timeout()) as api:
                return bool(api.ping())
        except (OSError, *ENGINE_ERRORS):
            return False

    def _new_api_with_timeout(self) -> Any:
        version = self.client.api.api_version
        return Api(base_url=self.address, version=version, timeout=ANSWER_SECONDS)

    @property
    def keeps_compressed(self) -> bool:
        """True if the engine also stores the compressed layers of images, as containerd's own store does."""
        return any(CONTAINERD_STORE in row for row in self.facts.get("DriverStatus") or [])

    @cached_property
    def folder(self) -> Path | None:
        """The folder on this host where the engine keeps images; None where it is on another host or cannot be seen."""
        if not self.address.startswith("unix://"):
            return None
        own = Path(str(self.facts.get("DockerRootDir", "")))
        # An engine that starts its own containerd keeps containerd's folder in its own.
        within = own / "containerd"
        stores = (within, CONTAINERD_FOLDER) if self.keeps_compressed else (own,)
        return next((store for store in stores if _has_store(store, within)), None)

    def while_disk_has_room(self, told: Iterable[TransferPart], doing: str) -> Iterator[TransferPart]:
        """Yield the parts of a transfer while the disk of images has room: no manifest says how much room it takes.

        After the last part the images are written to the disk.

        Raises:
            NoSpaceError: when there is too little room, saying how much is left.
        """
        for one in told:
            free = shutil.disk_usage(self.folder).free if self.folder else RESERVE_BYTES
            if free < RESERVE_BYTES:
                raise NoSpaceError(f"{doing}: {self.folder}: only {size_in_words(free)} are left; free space there")
            yield one
        self.sync_images()

    def sync_images(self) -> None:
        """Write new images to the disk: engines do not, and keep an image whose files a host that went down emptied."""
        if self.folder:
            sync_file_system(self.folder)

    @cached_property
    def builder(self) -> "Builder":
        """The docker command that drives BuildKit.

        Raises:
            UserError: when no command on this host does.
        """
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            program = shutil.which("docker", path=folder)
            if not program:
                continue
            if _says(program, "buildx", "version") is not None:
                return Builder(program, self.address, ("buildx", "build", "--load"), ("buildx", "prune"))
            major = (_says(program, "version", "--format", "{{.Client.Version}}") or "").split(".")[0]
            if major.isdigit() and int(major) <= LAST_WITH_BUILDKIT:
                return Builder(program, self.address, ("build",), ("builder", "prune"))
        raise UserError(NO_BUILDER)


@dataclass(frozen=True)
class Builder:
    """A docker command that drives BuildKit, with its arguments for building and for pruning."""

    program: str
    address: str
    build: tuple[str, ...]
    prune: tuple[str, ...]

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment that the command needs."""
        # The engine's own builder, because another one would not see the engine's images.
        chosen = {"BUILDX_BUILDER": "default", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        return {**os.environ, "DOCKER_HOST": self.address, "DOCKER_BUILDKIT": "1", **chosen}


def find_engine() -> Engine | None:
    """Return an engine on which cells can run; None where there is none.

    Raises:
        UserError: as `reach_engine`, and when the engine maps users.
    """
    engine = reach_engine()
    options = (engine.facts.get("SecurityOptions") or []) if engine else []
    if engine and any("rootless" in option or "userns" in option for option in options):
        raise NoEngineError(OTHER_USER.format(address=engine.address))
    return engine


def wait_for_engine(engine: Engine, say: Callable[[str], object]) -> None:
    """Return once an engine answers; say so if it has to be waited for.

    Raises:
        NoEngineError: when the engine does not answer for two minutes.
    """
    began, told = time.monotonic(), False
    while not engine.answers():
        if time.monotonic() - began >= WAIT_SECONDS:
            raise NoEngineError(f"{GONE}; start it and give the same command again")
        if not told:
            say(WAITING)
            told = True
        time.sleep(AGAIN_SECONDS)
    if told:
        say(f"the Docker engine answers again after {time.monotonic() - began:.0f} s")


def reach_engine() -> Engine | None:
    """Return the engine of `DOCKER_HOST` or of the docker command's context, once it has answered; None for no engine.

    Raises:
        UserError: when there is an engine that this user may not use, that takes root in this namespace for another
            user, that does not answer, or that is Podman.
    """
    wanted = os.environ.get("DOCKER_HOST")
    address = wanted or _context_address()
    dead = NoEngineError((DEAD if address == USUAL_ADDRESS or not wanted else DEAD_ELSEWHERE).format(address=address))
    socket_file = Path(address.removeprefix("unix://")) if address.startswith("unix://") else None
    try:
        if socket_file:
            _try_socket(str(socket_file))
        client = Client(base_url=address)
        engine = Engine(address, client)
        _ = engine.facts
    except PermissionError:
        raise NoEngineError(NOT_PERMITTED.format(address=address)) from None
    except FileNotFoundError:
        if wanted:
            raise dead from None
        return None
    except (OSError, UserError, *ENGINE_ERRORS):
        # Falling back to processes would make another campaign.
        raise dead from None
    if podman := _podman(engine.facts):
        raise NoEngineError(PODMAN.format(address=address, which=podman))
    if socket_file and os.getuid() == 0 and socket_file.stat().st_uid == UNKNOWN_USER:
        raise NoEngineError(NAMESPACE.format(address=address))
    return engine


def _podman(facts: Mapping[str, Any]) -> str | None:
    """Return the version of Podman that answers in the engine's place; None where it is Docker's engine."""
    if "BuildahVersion" not in facts:
        return None
    rootless = facts.get("Rootless") or any("rootless" in option for option in facts.get("SecurityOptions") or ())
    which = f"Podman {facts.get('ServerVersion')}"
    return f"{which}, rootless, so that files of containers would belong to other users, too" if rootless else which


def _context_address() -> str:
    try:
        context = ContextAPI.get_current_context()
    except (DockerException, OSError, ValueError):
        context = None
    return str(context.Host) if context and context.Host else USUAL_ADDRESS


def _try_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(path)


def _says(*command: str) -> str | None:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else None


def _has_store(folder: Path, within: Path) -> bool:
    """Return whether a folder of images can be seen; an engine's own containerd has its content in a subfolder."""
    try:
        return (folder / "daemon" if folder == within else folder).is_dir()
    except OSError:
        return False
