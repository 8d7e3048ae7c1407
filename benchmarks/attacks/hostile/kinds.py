"""Attacks with files of unexpected kinds, too large, too many, too deep or with odd names."""

import os
import socket
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.attacks.hostile.app import BOTH, ESCAPES, HTML, UNCHANGED, App, attack, link, register, replace

GROUP = "kinds"
TERABYTE = 1 << 40
SMALL_FILES = 200_000
LEVELS = 3_000
NAMES_OF_ODD_FILES = (
    b"new\nline",
    ESCAPES.encode(),
    HTML.replace("/", "").encode(),
    b"\xff\xfe\x80",
    b"a" * 255,
    b"-rf",
)


def _fifo(place: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path) -> None:
    # The path of a socket has at most 107 characters.
    os.chdir(place.parent)
    socket.socket(socket.AF_UNIX).bind(place.name)


def _sparse(place: Path) -> None:
    place.touch()
    os.truncate(place, TERABYTE)


def _zeros(place: Path) -> None:
    place.symlink_to("/dev/zero")


def _device(place: Path) -> None:
    try:
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError as error:
        print(f"refused: {error}", flush=True)


def _dangling(place: Path) -> None:
    place.symlink_to("nowhere")


MAKERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (_fifo, "a FIFO"),
    "socket": (_socket, "a socket"),
    "directory": (Path.mkdir, "a directory"),
    "sparse": (_sparse, "a sparse file of 1 TB"),
    "zeros": (_zeros, "a link to /dev/zero"),
    "device": (_device, "a device node (refused to containers)"),
    "dangling": (_dangling, "a dangling link"),
}
RESULT, MODEL, PROGRESS = "result.json", "output/model.pt", "progress-0.jsonl"
# The place, the kinds, and whether a run may still complete, because the place holds no part of the result.
PLACES: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    (RESULT, ("fifo", "socket", "directory", "sparse", "zeros", "device"), False),
    (MODEL, ("fifo", "directory", "sparse", "zeros"), False),
    ("output", ("fifo",), False),
    (PROGRESS, ("fifo", "directory", "sparse", "zeros", "socket"), True),
    ("progress-1.jsonl", ("fifo", "directory", "dangling", "sparse"), True),
    ("position-0.bin", ("fifo", "sparse"), True),
    ("reference.json", ("fifo", "directory", "sparse"), True),
    ("check-model.txt", ("fifo", "directory"), True),
    ("record.json", ("fifo", "directory"), True),
    ("model_checkpoints", ("fifo",), True),
)
IN_CONTAINERS_TOO = {(RESULT, "fifo"), (RESULT, "zeros"), (MODEL, "fifo"), (PROGRESS, "fifo"), (PROGRESS, "sparse")}
IN_CONTAINERS_TOO |= {("record.json", "directory"), (RESULT, "device"), (MODEL, "sparse")}


def _in_place_of(app: App, place: str, kind: str) -> None:
    app.run()
    MAKERS[kind][0](replace(app.work / place))


for _place, _kinds, _completes in PLACES:
    for _kind in _kinds:
        register(
            f"{_kind}-{_place.replace('.', '-').replace('/', '-')}",
            GROUP,
            f"`{_place}` is {MAKERS[_kind][1]}",
            partial(_in_place_of, place=_place, kind=_kind),
            executors=BOTH if (_place, _kind) in IN_CONTAINERS_TOO else ("process",),
            may_complete=UNCHANGED if _completes else None,
        )


def _stacks(app: App, kind: str) -> None:
    with app.training():
        MAKERS[kind][0](replace(app.work / "stacks-0.txt"))
    app.done()
    sys.exit(1)


for _kind in ("fifo", "zeros", "sparse"):
    register(
        f"{_kind}-stacks", GROUP, f"`stacks-0.txt` is {MAKERS[_kind][1]} when it fails", partial(_stacks, kind=_kind)
    )


@attack(f"{SMALL_FILES:,} small files", may_complete=UNCHANGED)
def many_files(app: App) -> None:
    app.run()
    app.done()
    for group in range(SMALL_FILES // 1000):
        folder = app.work / "many" / str(group)
        folder.mkdir(parents=True)
        for number in range(1000):
            os.close(os.open(folder / str(number), os.O_CREAT | os.O_WRONLY))


@attack(f"{SMALL_FILES // 4:,} files in the folder itself", may_complete=UNCHANGED)
def many_files_in_one_folder(app: App) -> None:
    app.run()
    app.done()
    for number in range(SMALL_FILES // 4):
        os.close(os.open(app.work / f"progress-{'x' * 30}{number}.jsonl", os.O_CREAT | os.O_WRONLY))


def _deep(app: App, top: str) -> None:
    app.run()
    folder = app.work / top
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    app.done()
    for _ in range(LEVELS):
        # This makes a path that is longer than any name the kernel accepts.
        os.mkdir("d")  # noqa: PTH102
        os.chdir("d")
    os.chdir(app.work)


for _top in ("deep", "output/model_checkpoints", "scratch/deep"):
    register(
        f"levels-{_top.replace('/', '-').replace('_', '-')}",
        GROUP,
        f"`{_top}` has folders {LEVELS:,} levels deep",
        partial(_deep, top=_top),
        executors=BOTH if _top.startswith("output") else ("process",),
        may_complete=UNCHANGED,
    )


@attack(
    "files and folders whose names have line breaks, terminal escapes, HTML and invalid UTF-8",
    executors=BOTH,
    may_complete=UNCHANGED,
    shown=True,
)
def odd_names(app: App) -> None:
    app.run()
    for folder in (app.work, app.work / "output", app.work / "scratch", app.work / "output" / "model_checkpoints"):
        folder.mkdir(exist_ok=True)
        for name in NAMES_OF_ODD_FILES:
            place = os.path.join(os.fsencode(folder), name)  # noqa: PTH118
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
    for name in (b"progress-\xff.jsonl", b"progress-1\n.jsonl", b"stacks-\x1b[2J.txt"):
        os.close(os.open(os.path.join(os.fsencode(app.work), name), os.O_CREAT | os.O_WRONLY))  # noqa: PTH118


@attack("the result names a model whose name has a line break and escapes", shown=True)
def odd_model_name(app: App) -> None:
    app.run()
    model = {**app.result()["model"], "file": f"{ESCAPES}\n{HTML}.pt"}
    app.change_result(model=model)


@attack("the result names a model outside: `../../../etc/passwd`", executors=BOTH)
def model_outside(app: App) -> None:
    app.run()
    app.change_result(model={**app.result()["model"], "file": "../../../../../../etc/passwd"})


@attack("the result names a model with a null character in its name")
def model_null(app: App) -> None:
    app.run()
    app.change_result(model={**app.result()["model"], "file": "model\0.pt"})


@attack("the result names a model of 100,000 characters")
def model_long_name(app: App) -> None:
    app.run()
    app.change_result(model={**app.result()["model"], "file": "m" * 100_000})


@attack("every name that the harness reads is a link into a folder of links that lead back", may_complete=None)
def maze(app: App) -> None:
    app.run()
    (app.work / "maze").mkdir()
    for number in range(30):
        link(app.work / "maze" / str(number), str(number + 1))
    link(app.work / "maze" / "30", "0")
    for name in ("result.json", "progress-0.jsonl", "output", "position-0.bin", "reference.json"):
        link(app.work / name, "maze/0")
