"""Real podman in the place of Docker's engine."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from tests.images.conftest import wait_until


@pytest.fixture(scope="module")
def podman() -> Iterator[str]:
    """The address of a podman that has nothing; skipped, visibly, without podman."""
    program = shutil.which("podman")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs root, and podman (Debian: apt install podman)")
    # It takes no long paths.
    with tempfile.TemporaryDirectory(prefix="vpoc-podman-", ignore_cleanup_errors=True) as place:
        address = Path(place) / "socket"
        own = ["--root", f"{place}/root", "--runroot", f"{place}/run", "--events-backend", "file"]
        command = [program, *own, "--cgroup-manager", "cgroupfs", "system", "service", "--time", "0"]
        with (Path(place) / "log.txt").open("wb") as log:
            service = subprocess.Popen([*command, f"unix://{address}"], stdout=log, stderr=log)
        try:
            wait_until(lambda: address.exists() or service.poll() is not None, 30)
            assert service.poll() is None, (Path(place) / "log.txt").read_text(encoding="utf-8")
            yield f"unix://{address}"
        finally:
            service.terminate()
            service.wait()
            mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
            for mount in sorted((m for m in mounts if m.startswith(place)), reverse=True):
                subprocess.run(["umount", "--lazy", mount], check=False)


@pytest.mark.parametrize(
    "words", [("build", "cpu-plain"), ("run-cell", "cpu-plain"), ("pull", "cpu-plain", "--registry", "127.0.0.1:1")]
)
def test_podman_is_refused_with_the_reason(words: tuple[str, ...], podman: str, tmp_path: Path) -> None:
    matrix = [str(CHECKOUT / ".venv" / "bin" / "matrix"), "--results", str(tmp_path / "results"), *words]
    environment = {**os.environ, "DOCKER_HOST": podman}
    done = subprocess.run(matrix, capture_output=True, text=True, cwd=CHECKOUT, env=environment, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert last.startswith(f"matrix: the engine at {podman} is Podman ")
    assert "images are built with BuildKit, which Podman lacks" in last
