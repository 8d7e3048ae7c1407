"""The memory of a run, and whether it grew, from what the ranks reported while they trained. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from harness.evidence.files.app_files import Phase, Progress

# Seconds between two samples: a day of eight ranks then takes some megabytes.
SAMPLE_SECONDS = 10.0
# Most samples that are kept: some twenty megabytes, whatever a run reports.
MOST_SAMPLES = 100_000
# Shortest training that is judged, in seconds: in less, caches and the pools of allocators still fill.
MIN_SECONDS = 1800.0
# Growth that is allowed. For comparison: half a kilobyte kept per step, at 100 steps a second, is 92 MB between the two
# quarters of an hour.
ALLOWED_SHARE = 0.05
ALLOWED_BYTES = 64 << 20
TRAINING_PHASES: frozenset[Phase] = frozenset({"first-step", "step", "validate", "checkpoint"})


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The memory of one process at a moment of one training. `seconds`: by the process's own monotonic clock."""

    rank: int
    pid: int
    training: int
    seconds: float
    rss_bytes: int
    reserved_bytes: int | None


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a run: its growth over a long training in words, if any, and the most reserved on a device."""

    growth: str | None = None
    most_reserved_bytes: int = 0

    @classmethod
    def of(cls, samples: Sequence[MemorySample]) -> "MemoryUse":
        """Return the use that the samples of all ranks show."""
        return cls(growth(samples), max((sample.reserved_bytes or 0 for sample in samples), default=0))


class MemoryHistory:
    """Takes the progress lines of a run, and keeps a memory sample of each rank every ten seconds of training.

    When there are more than MOST_SAMPLES, every second one of each rank is dropped, and the interval is doubled.
    """

    def __init__(self) -> None:
        self._interval = SAMPLE_SECONDS
        self._samples: list[MemorySample] = []
        self._last: dict[int, MemorySample] = {}
        self._phase: dict[int, Phase] = {}

    @property
    def samples(self) -> tuple[MemorySample, ...]:
        """The samples that were kept, in order."""
        return tuple(self._samples)

    def saw(self, line: Progress) -> None:
        """Note a progress line. A model's training begins with its first step."""
        before = self._phase.get(line.rank)
        self._phase[line.rank] = line.phase
        if line.phase not in TRAINING_PHASES:
            return
        last = self._last.get(line.rank)
        begins = line.phase == "first-step" != before
        number = (last.training if last else 0) + begins
        if last and last.pid == line.pid and not begins and line.monotonic - last.seconds < self._interval:
            return
        held = line.memory
        sample = MemorySample(line.rank, line.pid, number, line.monotonic, held.rss_bytes, held.device_reserved_bytes)
        self._last[line.rank] = sample
        self._samples.append(sample)
        if len(self._samples) > MOST_SAMPLES:
            self._thin_out()

    def _thin_out(self) -> None:
        self._interval *= 2
        seen: Counter[int] = Counter()
        thinned = []
        for sample in self._samples:
            seen[sample.rank] += 1
            if seen[sample.rank] % 2:
                thinned.append(sample)
        self._samples = thinned


def growth(samples: Iterable[MemorySample]) -> str | None:
    """Return in words how memory grew during a training of half an hour or more; None where it did not grow.

    The medians of the second and the last quarter are compared: the first quarter has the warm-up, and a checkpoint
    does not change a median.
    """
    trainings: dict[tuple[int, int, int], list[MemorySample]] = defaultdict(list)
    for sample in samples:
        trainings[sample.rank, sample.pid, sample.training].append(sample)
    for (rank, _, _), told in trainings.items():
        began, seconds = told[0].seconds, told[-1].seconds - told[0].seconds
        if seconds < MIN_SECONDS:
            continue
        second = [s for s in told if seconds / 4 <= s.seconds - began < seconds / 2]
        last = [s for s in told if seconds * 3 / 4 <= s.seconds - began]
        kinds = {
            "resident": ([s.rss_bytes for s in second], [s.rss_bytes for s in last]),
            "reserved device": (_known(second), _known(last)),
        }
        for kind, (early, late) in kinds.items():
            if early and late and median(late) > median(early) * (1 + ALLOWED_SHARE) + ALLOWED_BYTES:
                return (
                    f"rank {rank}: {kind} memory rose from {median(early) / 1e9:.2f} GB to {median(late) / 1e9:.2f} GB "
                    f"between the second and the last quarter of {seconds / 60:.0f} min"
                )
    return None


def _known(samples: Iterable[MemorySample]) -> list[int]:
    return [s.reserved_bytes for s in samples if s.reserved_bytes is not None]
