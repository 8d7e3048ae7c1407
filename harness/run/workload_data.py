"""The data of workloads: the user's data, checked, and synthetic bars, made once."""

import os
import re
import shlex
import stat
from datetime import date
from pathlib import Path

from harness.base.errors import NoSuchFileError, UserError
from harness.base.files.hashes import file_hash, json_hash
from harness.base.files.untrusted_copy import copy_out
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import UntrustedTree
from harness.base.paths import DATA
from harness.base.wording import many, size_in_words
from harness.environments.docker.own_images import is_own
from harness.environments.environment import Environment, app_hash
from harness.environments.executors.container import container_of, inside
from harness.environments.executors.job import SHELL_SIGNALS, Executor, Exit, Job
from harness.evidence.app_reports.last_line import APP_ERROR, last_line
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.temporary_folder import folder_removed_after
from harness.evidence.files.work_folder import WorkFolder
from harness.matrix.refusals import FEWEST_SESSIONS
from harness.matrix.workload_options import OWN_DATA, arguments, options_of
from harness.matrix.workloads import SHORTEST_LOOKBACK, Workload
from harness.run.watch.watch import Watch

# Longest time in which the app makes or checks data, in seconds: some minutes for the largest data.
LIMIT_SECONDS = 1800
WORK = "work"
LARGEST_DATA = 4 << 30
# Most bytes of the user's data: fifteen years with a bar in every second have about 20 GB, and hashing takes time.
LARGEST_OWN_DATA = 32 << 30
# Time stamp, four prices, volume and VIX.
FEWEST_COLUMNS = 7
DELIMITERS = (b",", b";", b"\t")
PARQUET = b"PAR1"
GZIP = b"\x1f\x8b"
HEAD_BYTES = 1 << 16
# The app knows that column by many names, and each contains this.
VIX = b"vix"
STAMP = b"ts"
DATE_LENGTH = len("2018-01-02")
SATURDAY = 5
# The app's own words, and the words for a user who has only `matrix`.
APP_MERGES = "`vpoc merge` makes one"
VPOC = ".venv/bin/matrix exec cpu-plain vpoc"
MERGE = f"{VPOC} merge --bars {{bars}} --vix VIX.csv --output merged.csv"
HOW_TO_MERGE = f"`{MERGE.format(bars='BARS.csv')}` makes one (docs/data.md)"
ACCEPT = re.compile(r"say --accept (\w+)(?='?$)")


class DataRefusedError(UserError):
    """Raised when the app checked the user's data and found something that would stop training."""

    code = "data-refused"


def read_data(file: Path) -> InputFile:
    """Return the path and the hash of a data file.

    Raises:
        UserError: when the file cannot be read.
    """
    fix = f"give --data an existing merged CSV; {HOW_TO_MERGE}"
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            # Reading a FIFO would block, and a device has no end.
            raise UserError(f"{file}: is not a file; {fix}")
        if status.st_size > LARGEST_OWN_DATA:
            raise UserError(f"{file}: has {size_in_words(status.st_size)}, more than bars can have; {fix}")
        return InputFile(path=str(file.resolve()), sha256=file_hash(file))
    except FileNotFoundError:
        raise NoSuchFileError(f"--data {file}: no such file; {fix}") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; {fix}") from None


def require_table(file: Path) -> None:
    """Check the head of the user's data before anything is downloaded for them; `check_data` reads the rest.

    Raises:
        UserError: when the data cannot be read, have too few columns for bars, no column of VIX, or no row.
    """
    try:
        with file.open("rb") as stream:
            start = stream.read(HEAD_BYTES)
    except OSError as error:
        raise UserError(f"--data {file}: cannot be read: {error.strerror}") from None
    if start.startswith(PARQUET):
        return
    if start.startswith(GZIP):
        packed, unpacked = shlex.quote(str(file)), shlex.quote(f"{file}.csv")
        raise UserError(f"--data {file}: is compressed by gzip; `zcat {packed} > {unpacked}` unpacks it")
    header, _, rows = start.lstrip(b"\xef\xbb\xbf\r\n").partition(b"\n")
    columns = 1 + max(header.count(mark) for mark in DELIMITERS)
    # Binary formats contain zeros; so does UTF-16, which the app reports itself.
    utf16 = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    not_text = b"\0" in start and not utf16
    if not (not_text or utf16 or columns < FEWEST_COLUMNS - 1) and VIX not in header.lower():
        how = MERGE.format(bars=shlex.quote(str(file)))
        raise UserError(f"--data {file}: not a merged CSV: it has no column vix; `{how}` adds one (docs/data.md)")
    if columns < FEWEST_COLUMNS or not_text:
        why = f"its first line has {columns} of at least {FEWEST_COLUMNS} columns"
        if not start:
            why = "it is empty"
        elif not_text:
            why = "it is not text"
        raise UserError(f"--data {file}: not a merged CSV: {why}; {HOW_TO_MERGE}")
    if not rows.strip():
        raise UserError(f"--data {file}: there is a header but no rows; give a file with bars")


def require_sessions(file: Path, workload: Workload) -> None:
    """Count the weekdays of the user's data before anything is downloaded for them; each has one session at most.

    Files that cannot be read here, such as Parquet, are left to `check_data`, and so are gaps and holidays.

    Raises:
        UserError: when there are fewer days than the sessions that the workload needs.
    """
    fewest = FEWEST_SESSIONS[workload.rows]
    needed = workload.lookback + fewest
    days = _days(file, needed)
    if days is not None and days < needed:
        longest = f"`matrix exec best vpoc check {shlex.quote(str(file))}` prints the longest"
        shorter = f", or a shorter --lookback ({longest})" if days - fewest >= SHORTEST_LOOKBACK else ""
        raise UserError(
            f"--data {file}: has bars of {many(days, 'weekday')}, so no more sessions, and {needed} are needed "
            f"({workload.lookback} for lookback, {fewest} to use); give more data, such as the months before, in one "
            f"file (`tail -n +2 newer.csv >> older.csv`){shorter}"
        )


def _days(file: Path, most: int) -> int | None:
    """Return on how many weekdays in UTC there are bars, up to `most`; None where no column has their time stamps."""
    try:
        with file.open("rb") as stream:
            names = stream.readline(HEAD_BYTES).lstrip(b"\xef\xbb\xbf").strip().lower().split(b",")
            if STAMP not in names:
                return None
            place = names.index(STAMP)
            days: set[bytes] = set()
            while line := stream.readline(HEAD_BYTES):
                if len(line) == HEAD_BYTES:
                    return None
                cells = line.split(b",", place + 1)
                # Something else than a time stamp stops training, too, but the app reports that.
                day = cells[place].strip(b'" \r\n')[:DATE_LENGTH] if place < len(cells) else b""
                if not _is_of_weekend(day):
                    days.add(day)
                if len(days) >= most:
                    break
            return len(days - {b""})
    except OSError as error:
        raise UserError(f"--data {file}: cannot be read: {error.strerror}") from None


def _is_of_weekend(day: bytes) -> bool:
    """Return whether a date is on a weekend; bars of a weekend belong to Monday's session."""
    try:
        return date.fromisoformat(day.decode()).weekday() >= SATURDAY
    except ValueError:
        return False


def synthetic_place(workload: Workload, image: str | None = None) -> Path:
    """Return where the synthetic bars of a workload are, or would be. `image`: the image that makes them, if any.

    Those that somebody else's image makes have a name of their own, so that no other cell ever trains on them.
    """
    made, maker = workload.synthetic, app_hash()
    if image and not is_own(image):
        maker = json_hash([maker, image])
    return DATA / f"synthetic-{made.sessions}-{made.seed}-{maker[:12]}.csv"


def synthetic_file(workload: Workload, environment: Environment, executor: Executor) -> Path:
    """Return the file of the synthetic bars of a workload, made once for each version of the app.

    Raises:
        UserError: when the app cannot make them.
    """
    made = workload.synthetic
    file = synthetic_place(workload, environment.image)
    if not file.is_file():
        options = ("--sessions", str(made.sessions), "--seed", str(made.seed), "--output", file.name)
        with folder_removed_after(DATA, ".synth-") as place:
            ended, said = _app(place, environment, executor, ("synth", *options))
            if not ended.ok:
                raise UserError(f"synthetic data could not be made: {said}")
            made_there = place / file.name
            try:
                copy_out(UntrustedTree(place / WORK), file.name, made_there, LARGEST_DATA)
            except (OSError, NotAFileError) as error:
                raise UserError(f"synthetic data could not be made: {file.name}: {error}") from None
            made_there.replace(file)
    return file


def check_data(file: Path, workload: Workload, environment: Environment, executor: Executor) -> None:
    """Have the app check the user's data before anything is run, so that their faults are not attributed to a cell.

    Raises:
        DataRefusedError: with the app's line when something in the data would stop training.
        UserError: when the app could not check the data to the end.
    """
    with folder_removed_after(DATA, ".check-") as place:
        seen = inside(file.absolute()) if environment.image else file.absolute()
        options = arguments(options_of(workload, ("rows", "lookback", "accepted")))
        words = ("check", str(seen), "--merged", *options)
        ended, said = _app(place, environment, executor, words, file)
    if not 0 <= ended.code < SHELL_SIGNALS or ended.out_of_memory:
        raise UserError(f"--data {file}: could not be checked: vpoc check ended with {ended}: {said}")
    if not ended.ok:
        said = said.replace(str(seen), str(file)).replace(APP_MERGES, HOW_TO_MERGE)
        said = said.replace("`vpoc ", f"`{VPOC} ")
        if workload.name != OWN_DATA:
            # The app names its own command-line option.
            said = ACCEPT.sub(rf"put `accepted: [\1]` under `{workload.name}:` in the matrix file", said)
        raise DataRefusedError(f"--data: {said}")


def _app(
    folder: Path, environment: Environment, executor: Executor, words: tuple[str, ...], *data: Path
) -> tuple[Exit, str]:
    """Run a command of the app, which may write to a folder in `folder`; return how it ended, and its last line.

    Raises:
        UserError: when the command cannot be started, or takes too long or too much of the disk.
    """
    work = folder / WORK
    work.mkdir()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    container = container_of(environment.image, work, data, memory) if environment.image else None
    variables = {"PATH": os.defpath, "HOME": ".", **environment.variables}
    job = Job(environment.app(*words), variables, folder, folder / "said.txt", container, work=work)
    with Watch(RunFolder(folder), executor, work=WorkFolder(work), ranks=1) as watch:
        exit_ = watch.execute(job, LIMIT_SECONDS)
    if exit_ is None or watch.stopped_by:
        raise UserError(f"vpoc {words[0]} could not be run: {watch.stop_detail}")
    # What somebody else's image says is no advice of ours.
    return exit_, last_line(job.log, APP_ERROR, quoted=bool(environment.image and not is_own(environment.image)))
