import gzip
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.files.hashes import tree_hash
from harness.registry.share import archive
from harness.registry.share.archive import MARK, MARK_CONTENT, write_archive

# Most memory for unpacking three thousand members, in bytes: keeping each of their headers would take a kilobyte.
MOST_TRACED = 3_000_000

RUN = f"runs/{'a' * 64}"
Member = tuple[str, bytes]


def member(name: str, content: bytes = b"", **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for field, value in changes.items():
        setattr(made, field, value)
    return made, content


def pack(file: Path, *members: tuple[tarfile.TarInfo, bytes], mark: bytes = MARK_CONTENT) -> Path:
    with tarfile.open(file, "w:gz") as packed:
        for made, content in (member(MARK, mark), *members):
            packed.addfile(made, io.BytesIO(content))
    return file


def unpack(file: Path, place: Path) -> dict[str, str]:
    return dict(archive.unpack(file, place))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "in" / "here"
    folder.mkdir(parents=True)
    return folder


def test_what_is_packed_is_unpacked(tmp_path: Path, place: Path) -> None:
    members = [(f"{RUN}/log.txt", b"text"), (f"{RUN}/failure/gpus.json", b"{}"), (f"health/{'b' * 16}.jsonl", b"")]
    write_archive(tmp_path / "a.tar.gz", members)
    hashes = unpack(tmp_path / "a.tar.gz", place)
    found = {file.relative_to(place).as_posix(): file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert found == {MARK: MARK_CONTENT, **dict(members)}
    assert hashes == {Path(RUN).name: tree_hash(place / RUN, ["**/*"])}


def test_the_same_members_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.tar.gz", "b.tar.gz"):
        write_archive(tmp_path / name, [(f"{RUN}/log.txt", b"text")])
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


@pytest.mark.parametrize("name", ["a.tar", "a.tar.zst", "a"])
def test_the_name_says_what_the_file_is(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"ends in \.tar\.gz"):
        write_archive(tmp_path / name, [])


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="choose another name"):
        write_archive(tmp_path / "a.tar.gz", [])
    assert (tmp_path / "a.tar.gz").read_text(encoding="utf-8") == "mine"


def test_what_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def members() -> object:
        yield f"{RUN}/log.txt", b"text"
        raise UserError("the middle")

    with pytest.raises(UserError, match="the middle"):
        write_archive(tmp_path / "a.tar.gz", members())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


HOSTILE = {
    "out of the folder": member("../evil.txt", b"x"),
    "out of the run": member(f"{RUN}/../../../evil.txt", b"x"),
    "from the root": member("/tmp/evil.txt", b"x"),
    "a link": member(f"{RUN}/log.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": member(f"{RUN}/log.txt", type=tarfile.LNKTYPE, linkname=f"{RUN}/record.json"),
    "a device": member(f"{RUN}/log.txt", type=tarfile.CHRTYPE),
    "a pipe": member(f"{RUN}/log.txt", type=tarfile.FIFOTYPE),
    "a folder": member(RUN, type=tarfile.DIRTYPE),
    "a model": member(f"{RUN}/output/model.pt", b"x"),
    "a mark of an import": member(f"{RUN}/imported.json", b"{}"),
    "another run": member("runs/r1/log.txt", b"x"),
    "the index": member("records.db", b"x"),
    "a file with holes": member(
        f"{RUN}/log.txt",
        b"1\n0\n5\n".ljust(512, b"\0") + b"abcde",
        pax_headers={
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": f"{RUN}/log.txt",
            "GNU.sparse.realsize": "5",
        },
    ),
    "a line break": member(f"{RUN}/log.txt\n", b"x"),
}


@pytest.mark.parametrize("evil", HOSTILE.values(), ids=list(HOSTILE))
def test_what_is_no_file_of_a_record_is_refused(
    tmp_path: Path, place: Path, evil: tuple[tarfile.TarInfo, bytes]
) -> None:
    file = pack(tmp_path / "a.tar.gz", member(f"{RUN}/intent.json", b"{}"), evil)
    before = {found for found in tmp_path.rglob("*") if place not in found.parents}
    with pytest.raises(UserError, match="is not a file of a record; nothing was imported"):
        unpack(file, place)
    assert {found for found in tmp_path.rglob("*") if place not in found.parents} == before


def test_content_is_copied_and_nothing_else(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.0 is supported, too, but the filter of `TarFile.extract` only exists from 3.11.4 on."""
    monkeypatch.setattr(tarfile.TarFile, "extract", lambda *_, **__: pytest.fail("extract"))
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda *_, **__: pytest.fail("extractall"))
    content = bytes(range(256)) * 9000
    changes = {"mode": 0o4777, "uid": 4242, "mtime": 7}
    unpack(pack(tmp_path / "a.tar.gz", member(f"{RUN}/failure/py-spy.txt", content, **changes)), place)
    made = place / RUN / "failure" / "py-spy.txt"
    assert made.read_bytes() == content
    assert made.stat().st_mode & 0o6111 == 0
    assert (made.stat().st_uid, made.stat().st_mtime > 7) == (os.getuid(), True)


def test_the_same_file_twice_is_refused(tmp_path: Path, place: Path) -> None:
    file = pack(tmp_path / "a.tar.gz", member(f"{RUN}/log.txt", b"1"), member(f"{RUN}/log.txt", b"2"))
    with pytest.raises(UserError, match="twice"):
        unpack(file, place)


@pytest.mark.slow
def test_of_many_members_only_names_and_hashes_are_kept(tmp_path: Path, place: Path) -> None:
    """A million empty members fit into an archive of ten megabytes."""
    file = pack(tmp_path / "x.tar.gz", *(member(f"runs/{number:064x}/log.txt") for number in range(3000)))
    # In a process of its own, so that only its own memory is counted.
    code = (
        "import sys, tracemalloc; from pathlib import Path; from harness.registry.share.archive import unpack\n"
        "tracemalloc.start(); list(unpack(*map(Path, sys.argv[1:]))); print(tracemalloc.get_traced_memory()[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, file, place], capture_output=True, text=True, check=True)
    assert int(done.stdout) < MOST_TRACED


def test_a_large_file_in_a_small_archive_is_refused(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST_FILE", 1000)
    file = pack(tmp_path / "a.tar.gz", member(f"{RUN}/log.txt", bytes(1001)))
    with pytest.raises(UserError, match="larger"):
        unpack(file, place)
    assert not list(place.rglob("log.txt"))


def test_many_files_are_refused(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_MEMBERS", 2)
    file = pack(tmp_path / "a.tar.gz", member(f"{RUN}/log.txt"), member(f"{RUN}/record.json"))
    with pytest.raises(UserError, match="holds more than 2 files; nothing was imported"):
        unpack(file, place)
    with pytest.raises(UserError, match=r"would hold more than 2 files, .*`matrix export FILE CELL"):
        write_archive(tmp_path / "b.tar.gz", [(f"{RUN}/log.txt", b""), (f"{RUN}/record.json", b"")])
    assert not (tmp_path / "b.tar.gz").exists()
    monkeypatch.setattr(archive, "MOST_MEMBERS", 200)
    monkeypatch.setattr(archive, "MOST_OF_RUN", 1)
    with pytest.raises(UserError, match=rf"{RUN}: holds more than 1 files; nothing was imported"):
        unpack(file, place / "other")


def test_a_run_larger_than_an_export_can_hold_in_memory_is_refused(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST_RUN", 1000)
    other = f"runs/{'b' * 64}"
    fits = [member(f"{RUN}/log.txt", bytes(600)), member(f"{other}/log.txt", bytes(600))]
    unpack(pack(tmp_path / "a.tar.gz", *fits), place)
    with pytest.raises(UserError, match=f"{other}: is larger than in any export; nothing was imported"):
        unpack(pack(tmp_path / "b.tar.gz", *fits, member(f"{other}/record.json", bytes(600))), place / "other")
    monkeypatch.setattr(archive, "LARGEST_FILE", 1000)
    logs = [member(f"health/{letter * 16}.jsonl", bytes(600)) for letter in "ab"]
    with pytest.raises(UserError, match="health: is larger than in any export; nothing was imported"):
        unpack(pack(tmp_path / "c.tar.gz", *logs), place / "another")


def test_a_run_is_handed_out_before_the_next_one_is_unpacked(tmp_path: Path, place: Path) -> None:
    other = f"runs/{'b' * 64}/log.txt"
    file = pack(tmp_path / "a.tar.gz", member(f"{RUN}/log.txt"), member(other), member(f"{RUN}/intent.json"))
    runs = archive.unpack(file, place)
    assert (next(runs)[0], (place / other).exists()) == ("a" * 64, False)
    with pytest.raises(UserError, match=f"holds {RUN} twice"):
        list(runs)


def test_much_in_many_files_is_refused(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST_ARCHIVE", 50_000)
    few = [member(f"{RUN}/progress-{n}.jsonl", bytes(9000)) for n in range(4)]
    unpack(pack(tmp_path / "few.tar.gz", *few), place)
    many = [member(f"{RUN}/progress-{n}.jsonl", bytes(9000)) for n in range(8)]
    with pytest.raises(UserError, match="is larger unpacked than records can be"):
        unpack(pack(tmp_path / "many.tar.gz", *many), tmp_path / "second")


def test_a_header_as_large_as_memory_is_refused(tmp_path: Path, place: Path) -> None:
    """tarfile reads such a member, a long name or facts about the next file, in one piece."""
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    with gzip.open(tmp_path / "a.tar.gz", "wb") as packed:
        packed.write(header.tobuf(tarfile.USTAR_FORMAT))
        packed.write(bytes(1 << 12))
    with pytest.raises(UserError, match="is larger unpacked than records can be"):
        unpack(tmp_path / "a.tar.gz", place)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "cut at its end": lambda whole: whole[:-4],
    "followed by empty members": lambda whole: whole + gzip.compress(b""),
    "behind an empty member": lambda whole: gzip.compress(b"") + whole,
    "not packed": gzip.decompress,
    "empty": lambda _: b"",
    "a bit": lambda whole: whole[:60] + bytes([whole[60] ^ 1]) + whole[61:],
    "continues after its end": lambda whole: whole + gzip.compress(bytes(1 << 20)),
    "no archive in it": lambda _: gzip.compress(b"text" * 1000),
    "a size below zero": lambda whole: gzip.compress(
        tarfile.TarInfo.create_pax_global_header({"size": "-5"}) + gzip.decompress(whole)
    ),
    "an index beyond memory": lambda whole: gzip.compress(
        tarfile.TarInfo.create_pax_global_header({"size": f"-{1 << 80}"}) + gzip.decompress(whole)
    ),
    "headers alone": lambda _: gzip.compress(tarfile.TarInfo.create_pax_global_header({"a": "b"}) * 1000),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_file_is_reported(tmp_path: Path, place: Path, damage: Callable[[bytes], bytes]) -> None:
    file = pack(tmp_path / "a.tar.gz", member(f"{RUN}/log.txt", bytes(range(256)) * 40))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=r"a\.tar\.gz: "):
        unpack(file, place)


def test_an_archive_of_something_else_is_reported(tmp_path: Path, place: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as packed:
        packed.addfile(*_as_stream(member(f"{RUN}/log.txt", b"x")))
    with pytest.raises(UserError, match=f"does not begin with {MARK}"):
        unpack(tmp_path / "a.tar.gz", place)


@pytest.mark.parametrize("mark", [b'{"schema": 3}', b"[]", b"{", b"[" * 100_000])
def test_an_archive_of_another_time_is_reported(tmp_path: Path, place: Path, mark: bytes) -> None:
    with pytest.raises(UserError, match="this tool reads 1"):
        unpack(pack(tmp_path / "a.tar.gz", mark=mark), place)


def test_a_schema_that_is_a_long_text_is_not_shown_as_a_whole(tmp_path: Path, place: Path) -> None:
    with pytest.raises(UserError, match="this tool reads 1") as refused:
        unpack(pack(tmp_path / "a.tar.gz", mark=b'{"schema": "%s"}' % (b"x" * 1_000_000)), place)
    assert len(str(refused.value)) < 1000


def _as_stream(made: tuple[tarfile.TarInfo, bytes]) -> tuple[tarfile.TarInfo, io.BytesIO]:
    return made[0], io.BytesIO(made[1])
