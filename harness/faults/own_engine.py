"""A separate Docker engine that may be killed and restarted, with its own bridge and data folder."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker

from harness.base.errors import UserError
from harness.host.engine import Engine

START_SECONDS = 60.0
_POLL_SECONDS = 0.1
# Capability numbers from linux/capability.h.
NET_ADMIN, SYS_ADMIN = 12, 21


def has_capabilities(*numbers: int, root: Path = Path("/")) -> bool:
    """Return whether this process has all of these capabilities in effect; even root may lack them."""
    try:
        status = (root / "proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    return all(effective >> number & 1 for number in numbers)


def why_no_own_engine() -> str | None:
    """Return why this user cannot start an engine; None if it is possible."""
    if os.geteuid() != 0 or not has_capabilities(NET_ADMIN, SYS_ADMIN):
        return "only root can start a Docker engine of its own"
    missing = [program for program in ("dockerd", "ip") if not shutil.which(program)]
    return f"{' and '.join(missing)} not found" if missing else None


class OwnEngine:
    """A second dockerd. It needs a bridge of its own, because otherwise it would take over the first engine's.

    `data`: the folder of its images.
    `address`: the address of its socket.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = folder / "socket"
        self.data = folder / "data"
        self.address = f"unix://{self._socket}"
        # Names of network interfaces have at most 15 characters.
        self._bridge = f"vpoc{os.getpid()}"

    def start(self, *options: str) -> Engine:
        """Start the engine, with further options of `dockerd`, and wait until it answers.

        Raises:
            UserError: when it does not start.
        """
        folders = ["--data-root", str(self.data), "--exec-root", f"{self._folder}/exec"]
        network = ["--bridge", self._bridge, "--iptables=false", "--ip6tables=false", "--ip-masq=false"]
        subprocess.run(["ip", "link", "add", "name", self._bridge, "type", "bridge"], check=False, capture_output=True)
        log = self._folder / "dockerd.log"
        with log.open("ab") as said:
            command = [
                "dockerd",
                "--host",
                self.address,
                *folders,
                "--pidfile",
                f"{self._folder}/pid",
                *network,
                *options,
            ]
            self._process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
                raise UserError(f"dockerd does not start: {last}")
            time.sleep(_POLL_SECONDS)
        return Engine(self.address, docker.DockerClient(base_url=self.address))

    def kill(self) -> None:
        """Kill the engine and everything that it runs, as in a crash, without an orderly shutdown."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for pid in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Clean up as a boot would: a killed containerd that nobody reaped would count as still running.
        (self._folder / "pid").unlink(missing_ok=True)
        shutil.rmtree(self._folder / "exec", ignore_errors=True)

    def stop(self) -> None:
        """Stop the engine in an orderly way, as a package manager does before it installs another version."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def remove(self) -> None:
        """Stop the engine in an orderly way and remove its bridge."""
        self.stop()
        subprocess.run(["ip", "link", "delete", self._bridge], check=False, capture_output=True)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(str(self._socket))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200 OK" in connection.recv(1024)
        return False

    def _children(self) -> Iterator[int]:
        """Yield the engine's containerd and its children, recognised by this engine's folder on their command lines."""
        mark = str(self._folder / "exec").encode()
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (place / "cmdline").read_bytes():
                    yield int(place.name)


@contextlib.contextmanager
def own_engine() -> Iterator[OwnEngine]:
    """Yield an engine that is not started yet; remove all its traces afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="vpoc-engine-"))
    engine = OwnEngine(folder)
    try:
        yield engine
    finally:
        engine.remove()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(folder))), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(folder, ignore_errors=True)
