"""Tests of what a run's container may do and see, as seen from inside and by the engine."""

import io
import json
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.environments.executors.bounded_log import MAY_LACK_SOME
from harness.environments.executors.container import Container, DeviceNode, container_of, gpu_devices
from harness.environments.executors.container_handle import ContainerHandle
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.job import Exit, Handle, Job, JobLost
from harness.evidence.files.run_folder import RunFolder
from harness.host.engine import Engine
from harness.host.facts import GpuFacts

RunCode = Callable[..., tuple[Exit, str]]
Start = Callable[..., Handle]

PROBE = """
import json, os, pathlib, resource, socket, tempfile

PLACES = ("/", "/tmp", "/etc", "/opt/venv", "/var/tmp", "/data", "/work", "/work/scratch")

def can_write(place):
    try:
        (pathlib.Path(place) / "probe").write_text("x")
        return True
    except OSError as error:
        return error.strerror

def connects(address):
    try:
        socket.create_connection(address, timeout=3).close()
        return True
    except OSError as error:
        return error.strerror

status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "ids": [os.getuid(), os.getgid(), sorted(os.getgroups())],
    "write": {p: can_write(p) for p in PLACES},
    "append": os.access("/data/data.csv", os.W_OK),
    "read": open("/data/data.csv").read(),
    "network": [connects(("1.1.1.1", 53)), connects(("127.0.0.1", 1))],
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "capabilities": {name: value for name, value in status.items() if name.startswith("Cap")},
    "no new privileges": status["NoNewPrivs"],
    "seccomp": status["Seccomp"],
    "hostname": [socket.gethostname(), socket.gethostbyname(socket.gethostname())],
    "places": [os.environ["HOME"], tempfile.gettempdir(), os.getcwd()],
    "names": [os.environ["USER"], os.environ["LOGNAME"]],
    "first process": pathlib.Path("/proc/1/comm").read_text().strip(),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
    "devices": sorted(str(p) for p in pathlib.Path("/dev").rglob("*") if p.name.startswith(("kfd", "render", "card"))),
}))
"""


def probe(run_code: RunCode, **options: Any) -> dict[str, Any]:
    exit_, text = run_code(PROBE, **options)
    assert exit_.ok, text
    return dict(json.loads(text.splitlines()[-1]))


@pytest.mark.parametrize("user", [(0, 0), (54321, 54321)])
def test_from_inside(user: tuple[int, int], run_code: RunCode, container: Container, folder: Path) -> None:
    for place in (folder, *folder.rglob("*")):
        os.chown(place, *user)
    seen = probe(run_code, container=replace(container, user=user[0], group=user[1]))
    assert seen["ids"][:2] == list(user)
    written = {place for place, result in seen["write"].items() if result is True}
    assert written == {"/work", "/work/scratch"}
    assert set(seen["write"].values()) <= {True, "Read-only file system", "Permission denied"}
    assert seen["append"] is False
    assert seen["read"] == "not to be changed\n"
    # There is no route to an outer address, and a closed port on loopback refuses.
    assert seen["network"] == ["Network is unreachable", "Connection refused"]
    assert seen["interfaces"] == ["lo"]
    assert set(seen["capabilities"].values()) == {"0000000000000000"}
    assert (seen["no new privileges"], seen["seccomp"]) == ("1", "2")
    assert seen["hostname"] == ["matrix", "127.0.0.1"]
    assert seen["places"] == ["/work/scratch", "/work/scratch/tmp", "/work"]
    assert seen["names"] == ["matrix", "matrix"]
    assert seen["first process"] in ("docker-init", "tini")
    assert seen["shm"] == 8 << 30
    assert seen["devices"] == []
    assert {(folder / name).stat().st_uid for name in ("work/probe", "work/scratch/probe")} == {user[0]}


def test_from_outside(start: Start, engine: Engine, container: Container, folder: Path) -> None:
    handle = start("import time; time.sleep(60)", container=replace(container, user=54321, group=54322))
    (found,) = engine.client.api.containers(filters={"label": f"vpoc.matrix.run={folder}"})
    told = engine.client.api.inspect_container(found["Id"])
    config, limits = told["Config"], told["HostConfig"]
    assert config["User"] == "54321:54322"
    assert config["Hostname"] == "matrix"
    assert limits["ReadonlyRootfs"]
    assert limits["Init"]
    assert limits["CapDrop"] == ["ALL"]
    assert not limits["CapAdd"]
    assert not limits["Privileged"]
    # No other seccomp profile is named, so the engine's default applies.
    assert limits["SecurityOpt"] == ["no-new-privileges"]
    assert limits["NetworkMode"] == "none"
    assert limits["ShmSize"] == 8 << 30
    assert limits["Memory"] == limits["MemorySwap"] == int(0.9 * (2 << 30))
    assert not limits["Devices"]
    assert not limits["Binds"]
    writable = [(m["Source"], m["Destination"]) for m in told["Mounts"] if m["RW"]]
    assert writable == [(str(folder / "work"), "/work")]
    assert [m["Destination"] for m in told["Mounts"] if not m["RW"]] == ["/data/data.csv"]
    locked = {"Name": "memlock", "Hard": -1, "Soft": -1}
    no_dumps = {"Name": "core", "Hard": 0, "Soft": 0}
    kept = json.loads((folder / "container-log.json").read_text(encoding="utf-8"))
    assert kept["HostConfig"] == limits
    # An engine that may not raise this limit cannot give it; the record says which limit the container had.
    assert limits["Ulimits"] == ([locked, no_dumps] if engine_raises_limits() else [no_dumps])
    assert handle.stop(1)
    assert engine.client.api.containers(all=True, filters={"label": f"vpoc.matrix.run={folder}"}) == []


def engine_raises_limits() -> bool:
    """Return whether dockerd has CAP_SYS_RESOURCE (bit 24)."""
    pid = subprocess.run(["pgrep", "--oldest", "--exact", "dockerd"], capture_output=True, text=True, check=True).stdout
    text = Path(f"/proc/{pid.strip()}/status").read_text(encoding="utf-8")
    (mask,) = [line.split()[1] for line in text.splitlines() if line.startswith("CapEff")]
    return bool(int(mask, 16) >> 24 & 1)


def a_gpu(index: int, render_node: str) -> GpuFacts:
    return GpuFacts(index=index, gfx="gfx1100", name="g", memory_bytes=1, render_node=render_node, kfd_id=index + 1)


GPUS = (a_gpu(0, "/dev/dri/renderD128"), a_gpu(1, "/dev/dri/renderD129"))


@pytest.fixture
def fake_devices(tmp_path: Path) -> Path:
    """Create /dev/kfd and two render nodes with amdgpu's modes; they behave like /dev/null."""
    if os.geteuid() != 0:
        pytest.skip("only root can make device nodes")
    root = tmp_path / "root"
    (root / "dev/dri").mkdir(parents=True)
    for name, group in (("kfd", 4242), ("dri/renderD128", 4243), ("dri/renderD129", 4243), ("dri/card0", 44)):
        node = root / "dev" / name
        os.mknod(node, stat.S_IFCHR | 0o660, os.makedev(1, 3))
        node.chmod(0o660)
        os.chown(node, 0, group)
    return root


@pytest.mark.parametrize(("given", "nodes"), [((1,), ["renderD129"]), ((0, 1), ["renderD128", "renderD129"])])
def test_only_the_given_gpus_are_there_with_their_groups(
    given: tuple[int, ...], nodes: list[str], fake_devices: Path, run_code: RunCode, container: Container, folder: Path
) -> None:
    for place in (folder, *folder.rglob("*")):
        os.chown(place, 54321, 54321)
    devices = gpu_devices(tuple(gpu for gpu in GPUS if gpu.index in given), fake_devices)
    mine = replace(container, user=54321, group=54321, devices=devices)
    seen = probe(run_code, container=mine)
    assert seen["devices"] == [*(f"/dev/dri/{node}" for node in nodes), "/dev/kfd"]
    assert set(seen["ids"][2]) == {4242, 4243, 54321}
    use = "\n".join(f'open("{node}", "r+b", 0).write(b"x")' for node in seen["devices"])
    assert run_code(use, container=mine)[0].ok
    # Without the groups the same nodes cannot be opened, so it is the groups that give access.
    outsider = replace(mine, devices=tuple(replace(device, group=54321) for device in devices))
    exit_, text = run_code(use, container=outsider)
    assert not exit_.ok
    assert "Permission denied" in text


def test_a_missing_node_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dev/kfd: no such device; load the driver"):
        gpu_devices(GPUS, tmp_path)
    assert gpu_devices((), tmp_path) == ()


def test_two_processes_train_together_without_a_network(run_code: RunCode) -> None:
    exit_, text = run_code(GLOO)
    assert exit_.ok, text
    weights = set(re.findall(r"rank\d (\[.*?\]\])", text))
    assert text.count("rank") == 2
    assert len(weights) == 1


GLOO = """
import os, subprocess, sys
RANK = '''
import sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="tcp://matrix:29511", rank=rank, world_size=2)
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(f"rank{rank} {[p.tolist() for p in model.parameters()]}", flush=True)
dist.destroy_process_group()
'''
ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", RANK, str(rank)]) for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""

EAT = "b = []\nwhile True: b.append(bytearray(1 << 24))"


def test_running_out_of_memory_is_distinguished_from_being_killed(run_code: RunCode, container: Container) -> None:
    small = replace(container, memory_bytes=200 << 20)
    exit_, _ = run_code(EAT, container=small)
    assert exit_ == Exit(-9, out_of_memory=True)
    exit_, _ = run_code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", container=small)
    assert exit_ == Exit(-9, out_of_memory=False)


def test_a_child_that_ran_out_of_memory_is_reported(run_code: RunCode, container: Container) -> None:
    code = f"import subprocess, sys; sys.exit(3 if subprocess.run([sys.executable, '-c', {EAT!r}]).returncode else 0)"
    exit_, _ = run_code(code, container=replace(container, memory_bytes=200 << 20))
    assert exit_ == Exit(3, out_of_memory=True)


def test_an_exit_status_is_not_taken_for_a_signal(run_code: RunCode) -> None:
    assert run_code("import sys; sys.exit(-1)")[0] == Exit(255)


def test_output_that_could_not_be_followed_is_fetched_at_the_end(
    run_code: RunCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContainerHandle, "_copy_output", lambda *_: None)

    def said(code: str) -> str:
        # A container that was seen running gets this line, because the engine may have been restarted meanwhile.
        return run_code(code)[1].replace(f"\n{MAY_LACK_SOME}\n", "")

    assert said("print('first')") == "first\n"
    # A second phase appends to the same log.
    assert said("print('second')") == "first\nsecond\n"


def test_a_crash_is_reported_by_its_signal(run_code: RunCode) -> None:
    # The first process of a container would ignore this signal, so an init process runs before it.
    exit_, _ = run_code("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert str(exit_) == "SIGSEGV"


def test_a_killed_container_is_distinguished_from_one_that_was_removed(
    start: Start, engine: Engine, folder: Path
) -> None:
    handle = start("import time; time.sleep(60)")
    (found,) = engine.client.containers.list(filters={"label": f"vpoc.matrix.run={folder}"})
    found.kill()
    found.wait()
    assert handle.poll() == Exit(-9)
    handle = start("import time; time.sleep(60)")
    (found,) = engine.client.containers.list(filters={"label": f"vpoc.matrix.run={folder}"})
    found.remove(force=True)
    with pytest.raises(JobLost, match="removed from outside"):
        handle.poll()


def test_stopping_asks_first(start: Start, folder: Path) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('ready'); time.sleep(60)"
    handle = start(code)
    while "ready" not in (folder / "log.txt").read_text():
        pass
    assert handle.stop(10)
    assert handle.poll() == Exit(7)


@pytest.mark.parametrize(
    ("tree", "leads_to", "why"),
    [
        ("data", "", "/data of its image is a file, which .*; put a folder there"),
        ("work", "/proc", "/work of its image is a link, which .*; put a folder there"),
        # The engine creates folders of root below the link's target.
        ("data", "/work/a/b", "/data of its image is a link, which .*; put a folder there"),
        ("sbin", "", "starts the same container of an empty image, and refuses this one"),
    ],
)
def test_an_image_whose_own_tree_lets_no_container_start_is_at_fault(
    tree: str, leads_to: str, why: str, engine: Engine, folder: Path
) -> None:
    """Such a start counts as a failure of the cell; blaming the engine would hide it."""
    (folder.parent / "data.csv").touch()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        entry = tarfile.TarInfo(tree)
        if leads_to:
            entry.type, entry.linkname = tarfile.SYMTYPE, leads_to
        made.addfile(entry)
    before = {found["Id"] for found in engine.client.api.images(all=True)}
    image = json.loads(engine.client.api.import_image_from_data(archive.getvalue()))["status"]
    limits = container_of(image, Path(RunFolder(folder).new_work.path), (folder.parent / "data.csv",), 1 << 30)
    job = Job(("true",), {}, folder, folder / "log.txt", limits)
    try:
        with pytest.raises(OSError, match=why):
            DockerExecutor(engine, folder.parent).start(job)
    finally:
        engine.client.api.remove_image(image)
    assert engine.client.containers.list(all=True, filters={"label": f"vpoc.matrix.run={folder}"}) == []
    assert not (Path(limits.work) / "a").exists()
    assert not {found["Id"] for found in engine.client.api.images(all=True) if not found["Size"]} - before


def test_what_an_image_has_at_a_path_is_seen_without_opening_it(engine: Engine) -> None:
    api, archive = engine.client.api, io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        for name, kind in (("pipe", tarfile.FIFOTYPE), ("link", tarfile.SYMTYPE), ("folder", tarfile.DIRTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/file" if name == "link" else ""
            made.addfile(entry)
        entry = tarfile.TarInfo("file")
        entry.size = 3
        made.addfile(entry, io.BytesIO(b"abc"))
    image = json.loads(api.import_image_from_data(archive.getvalue()))["status"]
    container = api.create_container(image, command=["none"])["Id"]
    try:
        seen = {name: api.seen_in(container, f"/{name}") for name in ("pipe", "link", "folder", "file", "none")}
    finally:
        api.remove_container(container)
        api.remove_image(image)
    assert seen["file"] == (0, 3)
    assert seen["none"] is None
    assert [seen[name][0] for name in ("pipe", "link", "folder")] == [1 << 25, 1 << 27, 1 << 31]


def test_what_cannot_be_started_is_one_line_and_leaves_nothing(
    start: Start, container: Container, engine: Engine, folder: Path
) -> None:
    gone = replace(container, devices=(DeviceNode("/dev/none-such", "/dev/kfd", 0),))
    # This is no failure of the cell, so nothing may be concluded from it.
    with pytest.raises(JobLost, match=r"refuses the container: .*/dev/none-such") as caught:
        start("pass", container=gone)
    assert "\n" not in str(caught.value)
    with pytest.raises(JobLost, match="refuses the container"):
        start("pass", container=replace(container, image="sha256:" + "0" * 64))
    assert engine.client.containers.list(all=True, filters={"label": f"vpoc.matrix.run={folder}"}) == []
