"""Tests of everything that a hostile program may leave in its folder, on a real file system."""

import errno
import hashlib
import os
import random
import resource
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest

from harness.base.files import tree_removal
from harness.base.files.untrusted_copy import copy_out
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import MOST_NAMES, UntrustedTree
from tests.harness.base.hostile import TERABYTE, TRICKS, Place

MOST = 1 << 20
SECRET = b"the key of the user"

tricks = pytest.mark.parametrize(("trick", "why"), TRICKS.values(), ids=TRICKS)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a work folder in a run folder; beside the run folder lies a secret that the app must not read."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "run" / "work" / "output").mkdir(parents=True)
    return tmp_path / "run" / "work"


def readers(tree: UntrustedTree, name: str, to: Path) -> list[Callable[[], object]]:
    return [
        lambda: tree.read(name, MOST),
        lambda: tree.tail(name, MOST, 100),
        lambda: tree.hash(name, MOST),
        lambda: copy_out(tree, name, to, MOST),
    ]


@tricks
@pytest.mark.parametrize("name", ["result.json", "output/model.pt"])
def test_what_is_no_file_is_not_read(trick: Place, why: str, name: str, work: Path) -> None:
    # For a name in `output`, the link to a file leads to nothing, which makes no difference here.
    trick(work / name)
    began = time.monotonic()
    for read in readers(UntrustedTree(work), name, work.parent / "copy"):
        with pytest.raises(NotAFileError, match=why):
            read()
    assert time.monotonic() - began < 20
    assert not (work.parent / "copy").exists()


@pytest.mark.parametrize("name", ["mod\0el.pt", "output/mod\0el.pt", "mod\0el/model.pt", "\ud800.pt"])
def test_a_name_that_no_file_can_have_is_none(name: str, work: Path) -> None:
    tree = UntrustedTree(work)
    asks: list[Callable[[], object]] = [partial(tree.look, name), partial(tree.entries, name)]
    for ask in [*readers(tree, name, work.parent / "copy"), *asks]:
        with pytest.raises(NotAFileError, match="no file can have that name"):
            ask()
    assert tree.remove(name) == "cannot be read: no file can have that name"


@pytest.mark.parametrize("name", [name for name in TRICKS if name != "a folder"])
def test_what_is_no_folder_is_not_gone_through(name: str, work: Path) -> None:
    (work / "output").rmdir()
    TRICKS[name][0](work / "output")
    for read in readers(UntrustedTree(work), "output/model.pt", work.parent / "copy"):
        with pytest.raises(NotAFileError, match=r"output .*not a folder"):
            read()


def test_a_link_in_between_or_in_place_of_the_whole_is_not_followed(work: Path) -> None:
    target = work.parent / "elsewhere"
    target.mkdir()
    (target / "model.pt").write_bytes(SECRET)
    (work / "output").rmdir()
    (work / "output").symlink_to(target)
    tree = UntrustedTree(work)
    for ask in (
        lambda: tree.read("output/model.pt", MOST),
        lambda: tree.entries("output"),
        lambda: tree.names("output"),
    ):
        with pytest.raises(NotAFileError, match="output is a link, not a folder"):
            ask()
    assert tree.remove("output/model.pt") == "output is a link, not a folder"
    (work.parent / "link").symlink_to(target)
    with pytest.raises(NotAFileError, match="is a link, not a folder"):
        UntrustedTree(work.parent / "link").read("model.pt", MOST)
    assert (target / "model.pt").read_bytes() == SECRET


@pytest.mark.parametrize("name", ["../secret", "output/../../secret", "/etc/passwd"])
def test_no_name_leads_out(name: str, work: Path) -> None:
    with pytest.raises(NotAFileError, match="leads out"):
        UntrustedTree(work).read(name, MOST)


def test_what_is_not_there_is_reported_as_such(work: Path) -> None:
    for name in ("none", "output/none", "none/none"):
        with pytest.raises(FileNotFoundError):
            UntrustedTree(work).read(name, MOST)
    with pytest.raises(FileNotFoundError):
        UntrustedTree(work / "none").entries()
    assert UntrustedTree(work).remove("none") is None


@pytest.mark.parametrize("tells_of_holes", [True, False])
def test_a_file_is_read_up_to_its_limit_and_copied_as_it_is(
    tells_of_holes: bool, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    if not tells_of_holes:
        monkeypatch.setattr("os.lseek", refuse)
    content = os.urandom(3 << 20)
    (work / "output" / "model.pt").write_bytes(content)
    tree = UntrustedTree(work)
    assert tree.read("output/model.pt", len(content)) == content
    copied = copy_out(tree, "output/model.pt", tmp_path / "copy", len(content))
    assert copied == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "copy").read_bytes() == content
    assert tree.hash("output/model.pt", len(content)) == copied
    with pytest.raises(NotAFileError, match="more than"):
        tree.read("output/model.pt", len(content) - 1)


def test_holes_are_copied_as_holes(work: Path, tmp_path: Path) -> None:
    """A file that a program left may have more bytes than the disk."""
    tree, file, copy = UntrustedTree(work), work / "output" / "model.pt", tmp_path / "copy"
    with file.open("wb") as sparse:
        for place in (8 << 20, (16 << 20) + 4096):
            sparse.seek(place)
            sparse.write(os.urandom(8192))
        sparse.truncate(32 << 20)
    assert file.stat().st_blocks * 512 < 1 << 20, "this file system has no holes"
    copied = copy_out(tree, "output/model.pt", copy, 32 << 20)
    assert copy.stat().st_blocks * 512 < 1 << 20
    assert copy.read_bytes() == file.read_bytes()
    assert copied == tree.hash("output/model.pt", 32 << 20)


def test_the_end_is_read_with_the_number_of_lines_before_it(work: Path) -> None:
    (work / "stacks").write_bytes(b"one\ntwo\nthree\n")
    assert UntrustedTree(work).tail("stacks", MOST, 6) == (2, b"three\n")
    assert UntrustedTree(work).tail("stacks", MOST, 100) == (0, b"one\ntwo\nthree\n")


def test_a_copy_goes_to_a_new_place_only(work: Path, tmp_path: Path) -> None:
    (work / "model.pt").write_bytes(b"weights")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    for place in ("secret", "link", "dangling"):
        with pytest.raises(FileExistsError):
            copy_out(UntrustedTree(work), "model.pt", tmp_path / place, MOST)
    assert (tmp_path / "secret").read_bytes() == SECRET
    assert not (tmp_path / "new").exists()


def test_a_copy_that_is_not_what_was_written_is_found(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "model.pt").write_bytes(b"weights")
    monkeypatch.setattr("harness.base.files.untrusted_copy.file_hash", lambda _: "0" * 64)
    with pytest.raises(OSError, match="does not hold what was written"):
        copy_out(UntrustedTree(work), "model.pt", tmp_path / "copy", MOST)
    assert not (tmp_path / "copy").exists()


def test_a_file_that_grows_while_it_is_read_is_left(work: Path, tmp_path: Path) -> None:
    file = work / "result.json"
    file.write_bytes(b"x" * 10)
    with UntrustedTree(work).open("result.json", 100) as opened:
        with file.open("ab") as more:
            more.write(b"x" * 1000)
        for pieces in (opened.pieces, opened.data):
            with pytest.raises(NotAFileError, match="grew beyond 100 bytes"):
                list(pieces(100))


@contextmanager
def swapping(one: Callable[[], object], other: Callable[[], object]) -> Iterator[None]:
    """Call two functions in turn during the block, in a thread, as fast as possible."""
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            one()
            other()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("level", ["file", "folder"])
def test_swapped_for_a_link_while_it_is_read_it_is_read_or_refused(level: str, work: Path) -> None:
    """Neither a link in place of the file nor one in place of its folder is ever followed."""
    outside = work.parent / "elsewhere"
    outside.mkdir()
    (outside / "model.pt").write_bytes(SECRET)
    (work / "output" / "model.pt").write_bytes(b"weights")
    if level == "file":
        place, target, spare = work / "output/model.pt", outside / "model.pt", work / "output/spare"
    else:
        place, target, spare = work / "output", outside, work / "spare"

    def to_link() -> None:
        place.rename(spare)
        place.symlink_to(target)
        time.sleep(0.001)

    def back() -> None:
        place.unlink()
        spare.rename(place)
        time.sleep(0.001)

    tree, seen = UntrustedTree(work), set[str]()
    with swapping(to_link, back):
        began = time.monotonic()
        while (passed := time.monotonic() - began) < 0.5 or (passed < 60 and not {"read", "refused"} <= seen):
            try:
                assert tree.read("output/model.pt", MOST) == b"weights"
                seen.add("read")
            except FileNotFoundError:
                seen.add("gone")
            except NotAFileError:
                seen.add("refused")
    assert {"read", "refused"} <= seen


def test_a_file_with_no_rights_is_reported_or_read_by_who_has_all(work: Path) -> None:
    (work / "result.json").write_bytes(b"{}")
    (work / "result.json").chmod(0)
    if os.geteuid() == 0:
        assert UntrustedTree(work).read("result.json", MOST) == b"{}"
    else:
        with pytest.raises(NotAFileError, match="Permission denied"):
            UntrustedTree(work).read("result.json", MOST)


@pytest.mark.slow
def test_of_too_many_names_none_is_looked_at(work: Path) -> None:
    for number in range(MOST_NAMES + 1):
        os.close(os.open(work / f"f{number}", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(NotAFileError, match=f"more than {MOST_NAMES} names"):
        UntrustedTree(work).entries()
    assert UntrustedTree(work.parent).remove("work") is None
    assert not work.exists()


def test_names_that_would_fill_the_memory_are_not_listed(work: Path) -> None:
    with chdir(work):
        for _ in range(17):
            os.mkdir("d" * 255)  # noqa: PTH102
            os.chdir("d" * 255)
        Path("file").write_bytes(b"x")
    with pytest.raises(NotAFileError, match="too deep"):
        list(UntrustedTree(work).files())


def test_entries_are_reported_without_being_opened(work: Path) -> None:
    for name, (trick, _) in TRICKS.items():
        trick(work / "output" / name)
    (work / "output" / "a file").write_bytes(b"12345")
    found = {entry.name: entry for entry in UntrustedTree(work).entries("output")}
    assert found["a FIFO"].kind == "a FIFO"
    assert found["a socket"].kind == "a socket"
    assert found["a link to a file"].kind == "a link"
    assert found["a sparse file"].size == TERABYTE
    assert [entry.name for entry in found.values() if entry.is_file]
    assert found["a file"].size == 5
    assert {name for name, entry in found.items() if entry.is_folder} == {"a folder"}


@pytest.mark.parametrize("trick", [trick for trick, _ in TRICKS.values()], ids=TRICKS)
def test_everything_can_be_removed_and_nothing_that_links_lead_to(trick: Place, work: Path) -> None:
    inner = work / "scratch" / "inner"
    inner.mkdir(parents=True)
    (inner / "home").symlink_to(work.parents[1])
    trick(inner / "x")
    tree = UntrustedTree(work)
    assert tree.remove("scratch") is None
    trick(work / "y")
    assert tree.remove("y") is None
    assert sorted(place.name for place in work.iterdir()) == ["output"]
    assert (work.parents[1] / "secret").read_bytes() == SECRET


def deep(folder: Path, levels: int) -> None:
    with chdir(folder):
        for _ in range(levels):
            os.mkdir("d")  # noqa: PTH102
            os.chdir("d")
        Path("file").write_bytes(b"x")


@pytest.mark.slow
def test_a_tree_of_3000_levels_is_removed(work: Path) -> None:
    deep(work, 3000)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        assert UntrustedTree(work).remove("d") is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert list(work.iterdir()) == [work / "output"]


def test_folders_that_were_closed_are_removed_too(work: Path) -> None:
    (work / "scratch" / "inner").mkdir(parents=True)
    (work / "scratch" / "inner" / "file").touch()
    (work / "scratch" / "inner").chmod(0)
    (work / "scratch").chmod(0)
    work.chmod(0o500)
    assert UntrustedTree(work).remove("scratch") is None


def test_what_another_removes_meanwhile_does_not_keep_the_rest(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "d/inner").mkdir(parents=True)
    for name in ("d/one", "d/inner/two"):
        (work / name).touch()
    looks = [["gone"], ["one", "inner"], ["gone"]]
    names = tree_removal._some_names
    monkeypatch.setattr(tree_removal, "_some_names", lambda folder: looks.pop(0) if looks else names(folder))
    assert UntrustedTree(work).remove("d") is None
    assert not (work / "d").exists()


def test_what_cannot_be_removed_is_reported(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "scratch" / "inner").mkdir(parents=True)
    (work / "scratch" / "inner" / "file").touch()
    monkeypatch.setattr("harness.base.files.tree_removal.LONGEST_SECONDS", -1.0)
    assert "cannot be removed: holds more than can be removed in" in str(UntrustedTree(work).remove("scratch"))


NAMES = [
    b"output",
    b"scratch",
    b"result.json",
    b"progress-0.jsonl",
    b"a\nb",
    b"\xff\xfe",
    b"\x1b[2J",
    b"x" * 255,
    b"..",
]


def random_tree(folder: bytes, rng: random.Random, levels: int = 3) -> None:
    """Fill a folder at random with files, links, devices and other folders."""
    for name in rng.sample(NAMES[:-1], rng.randrange(1, 7)):
        place = os.path.join(folder, name)  # noqa: PTH118 (names of bytes)
        kind = rng.randrange(9)
        if kind == 0:
            os.symlink(rng.choice([b"/dev/zero", b"/etc/passwd", b"..", name, b"nothing", folder]), place)  # noqa: PTH211
        elif kind == 1:
            os.mkfifo(place)
        elif kind == 2:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
            os.truncate(place, rng.choice([0, 17, MOST + 1, TERABYTE]))
        elif kind == 3:
            with open(place, "wb") as file:  # noqa: PTH123
                file.write(rng.randbytes(rng.randrange(2000)))
            os.chmod(place, rng.choice([0o644, 0]))  # noqa: PTH101
        elif kind == 4:
            with socket.socket(socket.AF_UNIX) as bound, suppress(OSError):
                # Fails for paths that are too long for a socket.
                bound.bind(place)
        elif kind == 5:
            with suppress(PermissionError):
                # A device like /dev/null or /dev/zero, which only root may make.
                os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, rng.choice([3, 5])))
        else:
            os.mkdir(place)  # noqa: PTH102
            if levels:
                random_tree(place, rng, levels - 1)
            os.chmod(place, rng.choice([0o755, 0o755, 0]))  # noqa: PTH101


def change(work: Path, rng: random.Random) -> None:
    """Replace or change one thing, as a process beside the harness may do at any time."""
    name = os.fsencode(work / os.fsdecode(rng.choice(NAMES[:-1])))
    if rng.randrange(2):
        name = os.path.join(name, rng.choice(NAMES[:-1]))  # noqa: PTH118 (names of bytes)
    spare = os.fsencode(work.parent / "spare")
    with suppress(OSError):
        kind = rng.randrange(4)
        if kind == 0:
            os.replace(name, spare)  # noqa: PTH105
            os.symlink(b"/etc/passwd", name)  # noqa: PTH211
        elif kind == 1:
            # Links are not followed, because some lead to the host's own files.
            file = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with suppress(OSError):
                os.truncate(file, rng.choice([0, 17, MOST + 1, TERABYTE]))
            os.close(file)
        elif kind == 2:
            os.replace(spare, name)  # noqa: PTH105
        else:
            os.mkdir(spare)  # noqa: PTH102


def check_tree(work: Path, rng: random.Random, *, changing: bool = False) -> None:
    """Read, copy and remove whatever is in a folder, which may raise only the errors that are documented.

    `changing`: whether parts of the folder are replaced while they are read.
    """
    tree = UntrustedTree(work)
    names = [os.fsdecode(name) for name in NAMES]
    changes = partial(change, work, random.Random(rng.random()))
    with swapping(changes, changes) if changing else nullcontext():
        for name in [*names, *(f"{rng.choice(names)}/{name}" for name in names)]:
            copy = work.parent / "copy"
            asks: list[Callable[[], object]] = [*readers(tree, name, copy), partial(tree.entries, name)]
            asks.append(partial(tree.look, name))
            for ask in asks:
                with suppress(FileNotFoundError, NotAFileError):
                    ask()
            copy.unlink(missing_ok=True)
    for name in list(tree.names()):
        assert tree.remove(name) is None
    assert tree.names() == []


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_trees_break_nothing(tmp_path: Path) -> None:
    """Tries 40 trees, from seed 1 on; with `MINUTES=10 SEED=7` it goes on for ten minutes, from seed 7 on."""
    seed, minutes = int(os.environ.get("SEED", "1")), float(os.environ.get("MINUTES", "0"))
    until, count = time.monotonic() + 60 * minutes, 0
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    while count < 40 or time.monotonic() < until:
        work = tmp_path / f"{seed + count}" / "work"
        work.mkdir(parents=True)
        rng = random.Random(seed + count)
        random_tree(os.fsencode(work), rng)
        check_tree(work, rng, changing=count % 2 == 1)
        count += 1
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    sys.stderr.write(f"{count} random trees\n")
