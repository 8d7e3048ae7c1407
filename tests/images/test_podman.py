"""Tests with a real podman instead of Docker's engine."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from tests.images.conftest import wait_until

USER = 54321


@pytest.fixture(scope="module", params=["rootful", "rootless"])
def podman(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of an empty podman, root's or another user's; visibly skipped without podman."""
    program = shutil.which("podman")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs root, and podman (Debian: apt install podman)")
    # podman does not accept long paths.
    with tempfile.TemporaryDirectory(prefix="vpoc-podman-", ignore_cleanup_errors=True) as place:
        address = Path(place) / "socket"
        command = [program, "--events-backend", "file", "--cgroup-manager", "cgroupfs"]
        environment = dict(os.environ)
        if request.param == "rootless":
            os.chown(place, USER, USER)
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
            environment |= {"HOME": place, "XDG_RUNTIME_DIR": place, "XDG_CONFIG_HOME": place, "XDG_DATA_HOME": place}
        else:
            command += ["--root", f"{place}/root", "--runroot", f"{place}/run"]
        command += ["system", "service", "--time", "0", f"unix://{address}"]
        with (Path(place) / "log.txt").open("wb") as log:
            service = subprocess.Popen(
                command, cwd=place, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            wait_until(lambda: address.exists() or service.poll() is not None, 30)
            assert service.poll() is None, (Path(place) / "log.txt").read_text(encoding="utf-8")
            yield f"unix://{address}"
        finally:
            # A rootless podman has two processes, and the one in the name space does not end with the other.
            os.killpg(service.pid, signal.SIGKILL)
            service.wait()
            # Another process holds the name space of the user's containers until it is killed.
            for holder in Path(place).rglob("pause.pid"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(holder.read_text()), signal.SIGKILL)
            mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
            for mount in sorted((m for m in mounts if m.startswith(place)), reverse=True):
                subprocess.run(["umount", "--lazy", mount], check=False)


@pytest.mark.parametrize(
    "words", [("build", "cpu-plain"), ("run-cell", "cpu-plain"), ("pull", "cpu-plain", "--registry", "127.0.0.1:1")]
)
def test_podman_is_refused_with_the_reason(
    words: tuple[str, ...], podman: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    matrix = [str(CHECKOUT / ".venv" / "bin" / "matrix"), "--results", str(tmp_path / "results"), *words]
    environment = {**os.environ, "DOCKER_HOST": podman}
    done = subprocess.run(matrix, capture_output=True, text=True, cwd=CHECKOUT, env=environment, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert last.startswith(f"matrix: the engine at {podman} is Podman ")
    assert "images are built with BuildKit, which Podman lacks" in last
    rootless = "rootless, so that files of containers would belong to other users, too" in last
    assert rootless == ("rootless" in request.node.callspec.id)
