"""A real Slurm on loopback: one slurmctld, and several slurmd on this host as nodes with simulated GPUs.

All its files are in one folder and belong to the user who starts it, and the program that starts it also stops it.
It needs no munge, no database and no fixed port. `python tests/slurm/cluster.py FOLDER` runs it until Ctrl-C.
"""

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

# Debian installs the daemons in folders that are not in the PATH of ordinary users.
DAEMONS = "/usr/sbin:/sbin"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
START_SECONDS = 30.0
CONF = """\
ClusterName=loopback
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,{scheduler}
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
SlurmctldTimeout=5
SlurmdTimeout={node_timeout}
KillWait={kill_wait}
MinJobAge={job_age}
InactiveLimit=0
MaxJobCount={most_jobs}
GresTypes=gpu
{more}
{nodes}
PartitionName=gpus Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=10
PartitionName=short Nodes=ALL MaxTime=1 State=UP OverSubscribe=NO PriorityTier=1
"""


def missing_programs() -> list[str]:
    """Return the programs of Slurm that this host lacks."""
    path = f"{os.environ.get('PATH', '')}:{DAEMONS}"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@dataclass
class Cluster:
    """A running Slurm; `nodes`: the names of its nodes; `environment`: makes Slurm's programs talk to this Slurm."""

    folder: Path
    nodes: tuple[str, ...]
    environment: Mapping[str, str]
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ask(self, *words: str) -> str:
        """Return what a program of Slurm prints; RuntimeError if it fails."""
        done = subprocess.run(
            words, env=dict(self.environment), capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def start(self, name: str) -> None:
        """Start `slurmctld`, or the slurmd of a node."""
        words = ["slurmctld", "-D"] if name == "slurmctld" else ["slurmd", "-D", "-N", name]
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                words,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=0,
                preexec_fn=_die_with_starter,  # noqa: PLW1509 - no threads here
            )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon and wait for its end, as when a host goes down or a service is stopped."""
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        daemon.wait(START_SECONDS)

    def signal(self, name: str, number: int) -> None:
        """Send a signal that a daemon survives."""
        self._daemons[name].send_signal(number)

    @property
    def conf(self) -> str:
        """The path of slurm.conf."""
        return self.environment["SLURM_CONF"]

    def wait_until_up(self, seconds: float = START_SECONDS) -> None:
        """Wait until every node is idle."""
        until = time.monotonic() + seconds
        said = ""
        while time.monotonic() < until:
            with suppress(RuntimeError):
                said = self.ask("sinfo", "--noheader", "--Node", "--partition", "gpus", "--format", "%N %t")
                if sorted(said.split("\n")) == sorted(f"{node} idle" for node in self.nodes):
                    return
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self.folder / f'{name}.out').read_text()[-2000:]}")
            time.sleep(0.1)
        raise RuntimeError(f"the nodes are not up after {seconds:.0f} s: {said}")

    def revive(self) -> None:
        """Resume every node that is drained or down, as after a job that was killed there."""
        for node in self.nodes:
            # Slurm refuses the command for a node that needs no resume.
            with suppress(RuntimeError):
                self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.wait_until_up(120.0)

    def stop(self) -> None:
        """End every job and every daemon that was started; no process of them is left."""
        with suppress(RuntimeError, subprocess.TimeoutExpired):
            self.ask("scancel", "--user", pwd.getpwuid(os.getuid()).pw_name)
            until = time.monotonic() + START_SECONDS
            while self.ask("squeue", "--noheader") and time.monotonic() < until:
                time.sleep(0.2)
        for daemon in self._daemons.values():
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        # Processes of job steps whose slurmd is gone; their SLURM_CONF shows that they belong to this cluster.
        for steps in _with_configuration(self.environment["SLURM_CONF"]):
            with suppress(ProcessLookupError):
                os.kill(steps, signal.SIGKILL)


@contextmanager
def cluster(
    folder: Path,
    nodes: int = 4,
    gpus: int = 2,
    *,
    gpu_type: str = "",
    kill_wait: int = 5,
    node_timeout: int = 10,
    most_jobs: int = 10000,
    job_age: int = 300,
    scheduler: str = "defer_batch=no",
    more: str = "",
) -> Iterator[Cluster]:
    """Run a cluster in a folder; all times are seconds, as in slurm.conf. `more`: further lines of slurm.conf."""
    folder.mkdir(parents=True, exist_ok=True)
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    ports = free_ports(nodes + 1)
    for name in ("state", *(f"spool-{one}" for one in names)):
        (folder / name).mkdir(exist_ok=True)
    cores = os.cpu_count() or 1
    type_ = f"{gpu_type}:" if gpu_type else ""
    lines = "\n".join(
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cores} RealMemory=1000"
        f"{f' Gres=gpu:{type_}{gpus}' if gpus else ''} State=UNKNOWN"
        for name, port in zip(names, ports[1:], strict=True)
    )
    devices = "\n".join(
        f"NodeName={name} Name=gpu {f'Type={gpu_type} ' if gpu_type else ''}File={folder}/gpu-{name}-[0-{gpus - 1}]"
        for name in names
    )
    for name in names:
        for number in range(gpus):
            (folder / f"gpu-{name}-{number}").touch()
    (folder / "gres.conf").write_text(f"{devices}\n" if gpus else "")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
    text = CONF.format(
        folder=folder,
        controller_port=ports[0],
        user=pwd.getpwuid(os.getuid()).pw_name,
        nodes=lines,
        kill_wait=kill_wait,
        node_timeout=node_timeout,
        most_jobs=most_jobs,
        job_age=job_age,
        scheduler=scheduler,
        more=more,
    )
    with run_cluster(folder, text, names) as running:
        yield running


@contextmanager
def run_cluster(folder: Path, conf: str, names: tuple[str, ...]) -> Iterator[Cluster]:
    """Run the daemons of a slurm.conf: the controller and these nodes."""
    file = folder / "slurm.conf"
    file.write_text(conf)
    path = f"{os.environ.get('PATH', '')}:{DAEMONS}"
    running = Cluster(folder, names, {**os.environ, "SLURM_CONF": str(file), "PATH": path})
    try:
        running.start("slurmctld")
        for name in names:
            running.start(name)
        running.wait_until_up()
        yield running
    finally:
        running.stop()


def _die_with_starter() -> None:
    """Ask the kernel to send this process, which becomes a daemon, SIGTERM when its starter ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def free_ports(count: int) -> list[int]:
    """Return different ports on which no program listens now."""
    with_ports = [socket.socket() for _ in range(count)]
    try:
        for one in with_ports:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in with_ports]
    finally:
        for one in with_ports:
            one.close()


def _with_configuration(conf: str) -> Iterator[int]:
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (place / "environ").read_bytes().split(b"\0")
            ours = f"SLURM_CONF={conf}".encode() in variables and int(place.name) != os.getpid()
            if ours and (place / "comm").read_text().startswith("slurm"):
                yield int(place.name)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with cluster(Path(sys.argv[1]).resolve()) as running:
        print(f"export SLURM_CONF={running.environment['SLURM_CONF']}", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
