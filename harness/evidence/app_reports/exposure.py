"""The time that a run trained after its first step, over which failures are counted. Pure, except for old runs."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from harness.base.files.untrusted_file import NotAFileError
from harness.evidence.app_reports.progress import MOST_LINES, parse_lines, whole_lines
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import LARGEST
from harness.matrix.programs import STDOUT, Program

STEPPING = ("first-step", "step")
# The lines of a traceback are printed one by one, on a busy host over more than one look.
LAST_WORDS_SECONDS = 2.0


class Exposure(NamedTuple):
    """The end of the first training step, True if it was seen, and the seconds from then to the last advance.

    Each is None where it is unknown.
    """

    first_step: bool | None = None
    seconds: float | None = None


class ExposureWatch:
    """Takes progress lines as they are seen, each with the time of the harness's clock, in seconds.

    A rank's first step has ended once more steps are done than when the rank began to step: a resumed rank has done
    some before. The time after the last advance of any rank is a stall, and no exposure.
    """

    def __init__(self) -> None:
        self._begun_at: dict[int, int] = {}
        self._places: dict[int, tuple[str, int]] = {}
        self._began: float | None = None
        self._last = 0.0

    def saw(self, line: Progress, now: float) -> None:
        """Note a progress line."""
        if self._places.get(line.rank) == (line.phase, line.done):
            return
        self._places[line.rank] = line.phase, line.done
        if self._began is None and line.phase in STEPPING:
            begun_at = self._begun_at.setdefault(line.rank, line.done)
            if line.done > begun_at:
                self._began = now
        self._last = now

    @property
    def exposure(self) -> Exposure:
        """The exposure seen so far."""
        return Exposure(False, 0.0) if self._began is None else Exposure(True, self._last - self._began)


def said_all_at_once(program: Program | None, exposure: Exposure) -> bool:
    """Return whether all that a program printed may be its last words, such as a traceback, and no step."""
    return program is not None and program.progress == STDOUT and (exposure.seconds or 0.0) < LAST_WORDS_SECONDS


def recorded_exposure(record: Record) -> Exposure:
    """Return the exposure that a record states; for an older record, which has none, what its outcome shows."""
    if record.first_step is None and record.outcome == "completed":
        return Exposure(True, None)
    return Exposure(record.first_step, record.exposure_seconds)


def exposure_of(record: Record, folder: RunFolder) -> Exposure:
    """Return the exposure that a record states; for an older record, which has none, what its progress files show.

    The times in progress files are the app's, so they are limited to the time from the intent to the end of the run.
    """
    if record.first_step is not None:
        return recorded_exposure(record)
    watch, none = ExposureWatch(), True
    for line in _progress(folder):
        watch.saw(line, line.monotonic)
        none = False
    if none:
        return recorded_exposure(record)
    first_step, seconds = watch.exposure
    most = max(record.finished - record.intent.started, 0.0)
    return Exposure(first_step, min(max(seconds or 0.0, 0.0), most))


def _progress(folder: RunFolder) -> Iterator[Progress]:
    """Yield the progress of the first rank."""
    work = folder.work
    name = work.progress().get(0)
    if name is None:
        return
    try:
        with work.tree.open(name, LARGEST["progress"]) as file:
            yield from parse_lines(islice(whole_lines(file), MOST_LINES))
    except (FileNotFoundError, NotAFileError):
        return
