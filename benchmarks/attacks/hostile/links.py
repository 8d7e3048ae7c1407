"""Attacks with links at every name that the harness reads or writes, and at the folders in between."""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.attacks.hostile.app import BOTH, UNCHANGED, App, attack, daemon, link, register, replace

GROUP = "links"
SECRET = "ssh-key"
# Names that the harness writes; it must follow a link at none of them.
WRITTEN = (
    "log.txt",
    "check-model.txt",
    "reference.txt",
    "record.json",
    "intent.json",
    "process.json",
    "container-log.json",
    "container-check-model.json",
    "recovered.txt",
    "imported.json",
)
IN_CONTAINERS_TOO = ("check-model.txt", "record.json", "log.txt", "process.json")
# Larger than the process id of any harness here.
LARGEST_PID = 40_000


def _link_written(app: App, name: str) -> None:
    app.run()
    link(app.work / name, app.canary / SECRET)


for _name in WRITTEN:
    register(
        f"link-{_name.replace('.', '-')}",
        GROUP,
        f"`{_name}` is a link to a file of the host's user",
        partial(_link_written, name=_name),
        executors=BOTH if _name in IN_CONTAINERS_TOO else ("process",),
        may_complete=UNCHANGED,
    )


@attack(
    "`.record.json.PID.tmp` is a link to a file of the host's user, for every pid",
    executors=BOTH,
    may_complete=UNCHANGED,
)
def link_temporary_name(app: App) -> None:
    app.run()
    try:
        pids = [int(json.loads((app.work / "intent.json").read_text(encoding="utf-8"))["owner_pid"])]
    except (OSError, ValueError):
        pids = list(range(1, LARGEST_PID))
    for pid in pids:
        link(app.work / f".record.json.{pid}.tmp", app.canary / SECRET)


@attack("`failure/` is a link to a folder of the host's user, and the run crashes", executors=BOTH)
def link_failure(app: App) -> None:
    with app.training():
        link(app.work / "failure", app.canary)
    app.done()
    os.abort()


@attack("files in `failure/` are links to a file of the host's user, and the run crashes", executors=BOTH)
def link_in_failure(app: App) -> None:
    for name in ("index.json", "processes.txt", "kernel-log.txt", "stacks-1.txt", "container.json", "cgroup.json"):
        link(app.work / "failure" / name, app.canary / SECRET)
    app.done()
    os.abort()


@attack("`result.json` is a link to a file of the host's user", executors=BOTH)
def link_result(app: App) -> None:
    app.run()
    link(app.work / "result.json", app.canary / SECRET)


@attack("`result.json` is a link to the real result elsewhere in `work/`", may_complete=UNCHANGED)
def link_result_inside(app: App) -> None:
    app.run()
    real = app.work / "scratch" / "real.json"
    (app.work / "result.json").rename(real)
    link(app.work / "result.json", "scratch/real.json")


@attack("`result.json` is a link to itself", executors=BOTH)
def link_result_loop(app: App) -> None:
    app.run()
    link(app.work / "result.json", "result.json")


@attack("`result.json` is a link to the kernel's log, of which a read blocks", executors=BOTH)
def link_result_kernel_log(app: App) -> None:
    app.run()
    link(app.work / "result.json", "/proc/kmsg")


@attack("`progress-0.jsonl` and `progress-1.jsonl` are links to a file of the host's user", may_complete=UNCHANGED)
def link_progress(app: App) -> None:
    app.run()
    for rank in (0, 1):
        link(app.work / f"progress-{rank}.jsonl", app.canary / SECRET)


@attack("`position-0.bin` and `stacks-0.txt` are links to files of the host's user while it hangs", executors=BOTH)
def link_position_and_stacks(app: App) -> None:
    with app.training():
        link(app.work / "position-0.bin", app.canary / SECRET)
        link(app.work / "stacks-0.txt", app.canary / SECRET)
    app.done()
    sys.exit(1)


@attack("`reference.json` is a link to a file of the host's user", executors=BOTH, may_complete=UNCHANGED)
def link_reference(app: App) -> None:
    app.run()
    link(app.work / "reference.json", app.canary / SECRET)


@attack("`features.parquet` is a link to a file of the host's user", may_complete=UNCHANGED)
def link_features(app: App) -> None:
    app.run()
    link(app.work / "features.parquet", app.canary / SECRET)


@attack("`output/` is a link to a folder of the host's user that holds checkpoints", executors=BOTH)
def link_output(app: App) -> None:
    app.run()
    link(app.work / "output", app.canary / "training")


@attack("`output/model_checkpoints` is a link to a folder of the host's user", executors=BOTH, may_complete=UNCHANGED)
def link_checkpoints(app: App) -> None:
    app.run()
    link(app.work / "output" / "model_checkpoints", app.canary / "training" / "old_checkpoints")
    link(app.work / "output" / "other_checkpoints", app.canary)


@attack("`output/model.pt` is a link to a file of the host's user", executors=BOTH)
def link_model(app: App) -> None:
    app.run()
    link(app.work / "output" / "model.pt", app.canary / SECRET)


@attack("`output/model.pt` is a link to the real model elsewhere in `work/`", may_complete=UNCHANGED)
def link_model_inside(app: App) -> None:
    app.run()
    (app.work / "output" / "model.pt").rename(app.work / "scratch" / "model.pt")
    link(app.work / "output" / "model.pt", "../scratch/model.pt")


@attack("the model's metadata and curves are links to a file of the host's user", may_complete=UNCHANGED)
def link_metadata(app: App) -> None:
    app.run()
    for name in ("model_metadata.json", "model_curves.csv", "model_curves.png"):
        link(app.work / "output" / name, app.canary / SECRET)


@attack("`scratch/` is a link to a folder of the host's user", executors=BOTH, may_complete=UNCHANGED)
def link_scratch(app: App) -> None:
    app.run()
    link(app.work / "scratch", app.canary)


@attack("folders in `scratch/` are links to folders of the host's user", may_complete=UNCHANGED)
def link_in_scratch(app: App) -> None:
    app.run()
    link(app.work / "scratch" / "tmp", app.canary)
    link(app.work / "scratch" / "cache", app.canary / "training")


@attack(
    "`progress-1.jsonl` is swapped for a link, a FIFO, a folder and a file, as fast as it goes, while it trains",
    executors=BOTH,
    may_complete=UNCHANGED,
)
def swap_progress(app: App) -> None:
    place = app.work / "progress-1.jsonl"
    process = app.start()
    app.done()
    while process.poll() is None:
        _swap(place, app.canary / SECRET)
    replace(place)
    if process.returncode:
        sys.exit(process.returncode)


# If the process is ended between two swaps, the run's own files are left, which are copied and verified as usual.
@attack("a process that is left goes on swapping `output/` and `result.json` for links", may_complete=UNCHANGED)
def swap_output_afterwards(app: App) -> None:
    app.run()
    if daemon():
        until = time.monotonic() + 15
        while time.monotonic() < until:
            try:
                _exchange(app)
            except OSError:
                continue
        os._exit(0)


def _swap(place: Path, target: Path) -> None:
    for make in (partial(link, target=target), os.mkfifo, Path.mkdir, Path.touch):
        make(replace(place))


def _exchange(app: App) -> None:
    output, result, aside = app.work / "output", app.work / "result.json", app.work / "scratch"
    output.rename(aside / "output")
    output.symlink_to(app.canary / "training")
    result.rename(aside / "result.json")
    result.symlink_to(app.canary / SECRET)
    for place in (output, result):
        place.unlink()
        (aside / place.name).rename(place)
