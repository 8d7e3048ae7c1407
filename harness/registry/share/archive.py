"""The archive of exported records: a `.tar.gz` that is reproducible when written and untrusted when read.

matrix-records.json             {"schema": 2}
runs/<content hash>/<file>      the files of a run
health/<machine>.jsonl          the health log of the GPUs of a machine
"""

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from harness.base.errors import NoSuchFileError, UserError
from harness.base.files.json_bounds import load_json
from harness.base.files.storage import cannot_be_written, create, sync_folder, unfinished
from harness.registry.share.shared_files import SHARED, hash_of_hashes

ENDING = ".tar.gz"
MARK, MARK_CONTENT = "matrix-records.json", json.dumps({"schema": 2}).encode() + b"\n"
RUNS, HEALTH = "runs", "health"
MEMBER = re.compile(rf"{RUNS}/[0-9a-f]{{64}}/(?:{SHARED.pattern})|{HEALTH}/[0-9a-f]{{16}}\.jsonl|{re.escape(MARK)}")
# Largest size of a file, of a run (an export of the imported run has it in memory), and of all health logs together:
# those of twenty thousand runs have half of it.
LARGEST_FILE = LARGEST_RUN = 64 << 20
# Largest intent, in bytes. One of a host with 64 GPUs has a quarter of it.
LARGEST_INTENT = 256 << 10
LARGEST_ARCHIVE = 16 << 30
# Most files in an archive: those of some twenty thousand runs. Making a file takes as long as reading a hundred
# headers.
MOST_MEMBERS = 200_000
# Most files of a run; with 256 ranks it has some hundreds.
MOST_OF_RUN = 1000
# Largest read of the archive, in bytes: tarfile reads headers in one piece; files are copied in smaller ones.
LARGEST_READ = 1 << 20
# Bytes that are unpacked at once; the rest of a piece is copied again with each small read.
PACKED_PIECE = 1 << 14
# Level of gzip: half the time of the highest level, for an archive that is a few hundredths larger.
LEVEL = 6
# The window size that makes zlib read the format of gzip.
GZIP = 31
TOO_LARGE = "is larger unpacked than records can be; nothing was imported"


def write_archive(file: Path, members: Iterable[tuple[str, bytes]], *, force: bool = False) -> None:
    """Write members, by name and content, into a file; after a crash the file is complete, or as it was before.

    Raises:
        UserError: when the file exists and may not be replaced (`force`), cannot be written, or would hold more than
            `unpack` accepts.
    """
    if not file.name.endswith(ENDING):
        raise UserError(f"{file}: give it a name that ends in {ENDING}")
    if file.exists() and not force:
        raise UserError(f"{file}: exists already; choose another name")
    temporary = unfinished(file)
    try:
        with create(temporary) as raw:
            # Leave out name and time, so that equal records give equal bytes.
            with (
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0, compresslevel=LEVEL) as packed,
                # Write large pieces, because most members are small, and tarfile copies its stream's buffer for each of
                # them.
                io.BufferedWriter(packed, LARGEST_READ) as pieces,
                tarfile.open(fileobj=pieces, mode="w", format=tarfile.USTAR_FORMAT) as archive,
            ):
                for count, (name, content) in enumerate(chain(((MARK, MARK_CONTENT),), members)):
                    if count >= MOST_MEMBERS:
                        raise UserError(
                            f"{file}: would hold more than {MOST_MEMBERS:,} files, which no import takes; "
                            "name some of the cells: `matrix export FILE CELL...`"
                        )
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(content), 0o644
                    archive.addfile(member, io.BytesIO(content))
            raw.flush()
            os.fsync(raw.fileno())
        temporary.replace(file)
        sync_folder(file.absolute().parent)
    except OSError as error:
        raise cannot_be_written(file, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def unpack(file: Path, place: Path) -> Iterator[tuple[str, str]]:
    """Unpack an archive into an empty folder, checking each member first; yield the name and content hash of each run.

    A run is yielded as soon as its files are there, so that an invalid run is refused without unpacking the rest.

    Raises:
        UserError: when the archive is damaged, larger than records are, or holds anything but plain files of records.
    """
    with _readable(file) as archive:
        made: set[Path] = set()
        run, hashes, sizes = "", dict[str, str](), Counter[str]()
        for member in _members(file, archive):
            target = place / member.name
            kind, _, inner = member.name.partition("/")
            owner, _, name = inner.partition("/")
            if kind == RUNS and owner != run:
                if run:
                    yield run, hash_of_hashes(hashes)
                if (place / RUNS / owner).exists():
                    raise UserError(f"{file}: holds {RUNS}/{owner} twice; nothing was imported")
                run, hashes = owner, {}
            if target.parent not in made:
                target.parent.mkdir(parents=True, exist_ok=True)
                made.add(target.parent)
            try:
                sha256 = _copy(archive, member, target)
            except FileExistsError:
                raise UserError(f"{file}: holds {member.name} twice; nothing was imported") from None
            if member.name == MARK:
                _check_mark(file, target)
            if kind == RUNS:
                hashes[name] = sha256
            if len(hashes) > MOST_OF_RUN:
                raise UserError(f"{file}: {RUNS}/{run}: holds more than {MOST_OF_RUN:,} files; nothing was imported")
            part, most = (f"{RUNS}/{run}", LARGEST_RUN) if kind == RUNS else (kind, LARGEST_FILE)
            sizes[part] += member.size
            if sizes[part] > most:
                raise UserError(f"{file}: {part}: is larger than in any export; nothing was imported")
    if run:
        yield run, hash_of_hashes(hashes)


def _members(file: Path, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive, each checked.

    Raises:
        UserError: when a member is one that no export writes, or there are too many.
    """
    count = 0
    for member in archive:
        # Drop the entries, or else the archive keeps them all.
        archive.members.clear()  # type: ignore[attr-defined]
        plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
        if not plain or not MEMBER.fullmatch(member.name):
            raise UserError(
                f"{file}: holds {member.name[:200]!r}, which is not a file of a record; nothing was imported"
            )
        if member.size > LARGEST_FILE:
            raise UserError(f"{file}: {member.name}: is larger than files of records are; nothing was imported")
        if count >= MOST_MEMBERS:
            raise UserError(f"{file}: holds more than {MOST_MEMBERS:,} files; nothing was imported")
        if not count and member.name != MARK:
            raise UserError(f"{file}: does not begin with {MARK}; `matrix export` makes such a file")
        count += 1
        yield member
    if not count:
        raise UserError(f"{file}: is empty; `matrix export` makes such a file")


def _copy(archive: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> str:
    """Copy a plain file into a new one, without the owner, mode and times in the archive; return its SHA-256.

    `TarFile.extract` is not used, because without a `filter`, which Python before 3.11.4 lacks, it trusts the archive.
    """
    content = archive.extractfile(member)
    assert content is not None
    digest = hashlib.sha256()
    with content, create(file) as target:
        while piece := content.read(min(member.size, LARGEST_READ)):
            digest.update(piece)
            target.write(piece)
    return digest.hexdigest()


@contextmanager
def _readable(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with file.open("rb") as packed:
            unpacked = _Unpacked(file, packed)
            # Reading the members in order only moves forward in the stream.
            with tarfile.open(fileobj=unpacked, mode="r:") as archive:  # type: ignore[call-overload]
                yield archive
            # Read to the end, where gzip verifies the checksum. The rest only fills the last record of the archive.
            if len(unpacked.read(LARGEST_READ)) == LARGEST_READ:
                raise UserError(f"{file}: {TOO_LARGE}")
    except FileNotFoundError:
        raise NoSuchFileError(f"{file}: no such file") from None
    # tarfile calls itself for each header that describes the next member, and takes any number in one for a size.
    except (tarfile.TarError, EOFError, zlib.error, RecursionError, ValueError, OverflowError) as error:
        raise UserError(f"{file}: is damaged, or not a {ENDING}: {error}; ask for it to be sent again") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be unpacked: {error.strerror or error}") from None


class _Unpacked:
    """The content of a gzip file, which is read no further, and in no larger pieces, than archives of records need.

    The file must have one gzip member, as `write_archive` makes it: of empty members, the gzip library reads millions
    before it returns.
    """

    def __init__(self, file: Path, packed: BinaryIO) -> None:
        self._file, self._packed, self._at = file, packed, 0
        self._unpacker = zlib.decompressobj(GZIP)

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> None:
        while self._at < offset and self.read(min(offset - self._at, LARGEST_READ)):
            pass

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LARGEST_READ or self._at > LARGEST_ARCHIVE:
            raise UserError(f"{self._file}: {TOO_LARGE}")
        content = b""
        while len(content) < size and not self._unpacker.eof:
            piece = self._unpacker.unconsumed_tail or self._packed.read(PACKED_PIECE)
            if not piece:
                raise EOFError("it has no end")
            content += self._unpacker.decompress(piece, size - len(content))
        if self._unpacker.eof and (self._unpacker.unused_data or self._packed.read(1)):
            raise zlib.error("it continues after its end")
        self._at += len(content)
        return content


def _check_mark(file: Path, mark: Path) -> None:
    try:
        schema = load_json(mark.read_bytes())["schema"]
    except (ValueError, KeyError, TypeError):
        schema = None
    if schema not in (1, 2):
        shown = repr(schema)[:80]
        raise UserError(f"{file}: has schema {shown}, this tool reads 1 and 2; use the version that made the file")
