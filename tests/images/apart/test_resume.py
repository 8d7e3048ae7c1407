"""Tests of pushes and pulls that are killed, cut off and resumed over a slow line that counts its bytes."""

import gzip
import io
import json
import os
import random
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import requests

from benchmarks.metered_line import MeteredLine
from harness.base.paths import CHECKOUT
from harness.environments.docker.images import PREFIX, Image, find
from harness.faults.own_engine import own_engine, why_no_own_engine
from harness.host.engine import Engine
from harness.registry.kept_layers import LAYERS
from harness.registry.oci import IMAGE_MANIFEST, Manifest, Repository, digest_of
from tests.images.conftest import serve_registry, wait_until

CELL = "cpu-plain"
LAYER_COUNT, LAYER_BYTES = 8, 2_000_000
RATE = 6e6
# Bytes on their way, in sockets and unfinished layers, when a process is killed.
ON_THE_WAY = 500_000
PUSH = """
import sys
from harness.host.engine import find_engine
from harness.registry.push_pull import push_image
print(push_image(find_engine(), *sys.argv[1:], lambda text: print(text, file=sys.stderr)))
"""


def pack(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(f"data/{digest_of(content)[7:19]}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def put_blob(host: str, content: bytes) -> dict[str, object]:
    begun = requests.post(f"http://{host}/v2/vpoc/blobs/uploads/", timeout=30)
    place = begun.headers["Location"]
    with requests.put(place, params={"digest": digest_of(content)}, data=content, timeout=60) as done:
        assert done.status_code == 201, done.text
    return {"digest": digest_of(content), "size": len(content)}


def put_image(host: str) -> Manifest:
    """Push an image of several incompressible layers, labelled as the cell's."""
    chance = random.Random(time.time_ns())
    tars = [pack(chance.randbytes(LAYER_BYTES)) for _ in range(LAYER_COUNT)]
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    layers = [{"mediaType": kind, **put_blob(host, gzip.compress(tar, 1, mtime=0))} for tar in tars]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": {f"{PREFIX}.cell": CELL}},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in tars]},
    }
    described = {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        **put_blob(host, json.dumps(config).encode()),
    }
    document = {"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "config": described, "layers": layers}
    manifest = Manifest(json.dumps(document).encode(), IMAGE_MANIFEST)
    Repository(f"{host}/vpoc").put_manifest(CELL, manifest)
    return manifest


@dataclass
class Far:
    """A registry behind a slow line, an image in it, and a local engine."""

    line: MeteredLine
    storage: Path
    manifest: Manifest
    engine: Engine
    registry: subprocess.Popen[bytes]
    serve: Callable[[], tuple[tuple[str, int], subprocess.Popen[bytes]]]

    def restart(self) -> None:
        self.line.to, self.registry = self.serve()

    @property
    def size(self) -> int:
        return sum(int(layer["size"]) for layer in self.manifest.parsed["layers"])

    def begin(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "DOCKER_HOST": self.engine.address, **variables}
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=CHECKOUT, env=environment, stdout=pipe, stderr=pipe, text=True)

    def is_beyond(self, count: float, pulling: subprocess.Popen[str]) -> bool:
        """Return whether more than `count` bytes have come, or the pull has ended."""
        return self.line.down > count or pulling.poll() is not None

    def pull(self) -> subprocess.Popen[str]:
        matrix = str(CHECKOUT / ".venv" / "bin" / "matrix")
        return self.begin(matrix, "pull", CELL, "--registry", self.line.host, "--json")

    def push(self, name: str) -> subprocess.Popen[str]:
        return self.begin(str(CHECKOUT / ".venv" / "bin" / "python"), "-c", PUSH, self.image.id, name)

    @property
    def image(self) -> Image:
        found = find(self.engine, f"{self.line.host}/vpoc@{self.manifest.digest}")
        assert found is not None
        return found

    def check_pulled(self, pulling: subprocess.Popen[str]) -> str:
        """Check that the pull succeeded and gave the right image without partial files, and return its output."""
        out, said = pulling.communicate(timeout=300)
        assert pulling.returncode == 0, said
        assert json.loads(out)["digests"] == [f"{self.line.host}/vpoc@{self.manifest.digest}"]
        assert self.image.id == self.manifest.parsed["config"]["digest"] or self.engine.keeps_compressed
        files = [LAYERS / layer["digest"].removeprefix("sha256:") for layer in self.manifest.parsed["layers"]]
        assert not any(file.exists() for file in files)
        return said


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    if why := why_no_own_engine():
        pytest.skip(why)
    storage = tmp_path / "registry"
    with own_engine() as own, ExitStack() as stack:

        def serve() -> tuple[tuple[str, int], subprocess.Popen[bytes]]:
            host, process = stack.enter_context(serve_registry(storage, tmp_path / "settings.yml"))
            name, port = host.split(":")
            return (name, int(port)), process

        to, registry = serve()
        line = MeteredLine(to, rate=RATE)
        stack.enter_context(line.serving())
        yield Far(line, storage, put_image(f"{to[0]}:{to[1]}"), own.start(), registry, serve)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_pull_that_is_killed_goes_on_where_it_stopped(far: Far) -> None:
    far.line.down = 0
    # The pulls are killed after these numbers of bytes.
    ends = sorted(random.Random().uniform(0.02, 0.95) * far.size for _ in range(2))
    for end in ends:
        pulling = far.pull()
        wait_until(partial(far.is_beyond, end, pulling), 120)
        assert pulling.poll() is None, pulling.communicate()
        kill(pulling)
    far.check_pulled(far.pull())
    twice = far.line.down - far.size
    assert twice < (len(ends) + 1) * ON_THE_WAY, f"{twice} bytes were fetched twice"


def test_a_pull_goes_on_by_itself_when_it_is_cut_and_the_registry_killed(far: Far) -> None:
    far.line.down = 0
    pulling = far.pull()
    for part in (0.2, 0.4):
        wait_until(partial(far.is_beyond, part * far.size, pulling))
        far.line.cut()
    wait_until(lambda: far.line.down > 0.6 * far.size)
    far.registry.kill()
    far.registry.wait()
    time.sleep(2)
    far.restart()
    assert "trying again in 1 s" in far.check_pulled(pulling)
    assert far.line.down < far.size + 4 * ON_THE_WAY


@pytest.mark.long
def test_a_registry_that_stays_away_is_one_line_and_what_came_is_kept(far: Far) -> None:
    pulling = far.pull()
    far.line.down = 0
    wait_until(lambda: far.line.down > far.size / 2)
    came = far.line.down
    far.registry.kill()
    far.registry.wait()
    _, said = pulling.communicate(timeout=120)
    assert pulling.returncode == 2, said
    last = said.splitlines()[-1]
    assert last.startswith(f"matrix: pulling {far.line.host}/vpoc:{CELL}: registry ")
    assert "6 times in a row" in last
    assert "give the command again" in last
    far.restart()
    far.line.down = 0
    far.check_pulled(far.pull())
    assert far.line.down < far.size - came + ON_THE_WAY


@pytest.mark.long
@pytest.mark.parametrize("what", ["the client", "the registry"])
def test_a_push_that_was_cut_short_sends_the_rest(what: str, far: Far, tmp_path: Path) -> None:
    far.line.rate = None
    far.check_pulled(far.pull())
    far.line.rate = RATE
    # Push to another registry, because the engine does not send a registry the layers that it pulled from it.
    with ExitStack() as stack:
        storage = tmp_path / "other"

        def serve() -> subprocess.Popen[bytes]:
            host, process = stack.enter_context(serve_registry(storage, tmp_path / "other.yml"))
            far.line.to = (host.split(":")[0], int(host.split(":")[1]))
            return process

        def held() -> int:
            """Return how many bytes of complete blobs the registry has."""
            return sum(file.stat().st_size for file in storage.glob("data/docker/registry/v2/blobs/*/*/*/data"))

        other, far.line.up = serve(), 0
        pushing = far.push(f"{far.line.host}/other:{CELL}")
        wait_until(lambda: held() > far.size / 2, 120)
        again = 0
        if what == "the client":
            kill(pushing)
            there, far.line.up = held(), 0
            pushing = far.push(f"{far.line.host}/other:{CELL}")
        else:
            other.kill()
            other.wait()
            there, far.line.up = held(), 0
            # The engine itself repeats the five layers that it sends at a time.
            again = 5 * LAYER_BYTES
            serve()
        out, said = pushing.communicate(timeout=300)
        assert pushing.returncode == 0, said
        # The engine packs the layers again, so their sizes differ by some bytes.
        assert far.line.up < far.size - there + again + ON_THE_WAY
        assert Repository(f"{far.line.host}/other").manifest(out.strip())
