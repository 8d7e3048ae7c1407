"""The wall time of a training by kind of work."""

import time
from collections.abc import Callable, Mapping

TIME_KINDS = {
    "device": "training",
    "loader": "waiting for the loader",
    "copy": "copying to the device",
    "validate": "validation",
    "checkpoint": "checkpoints",
    "bookkeeping": "bookkeeping",
}
"""The kinds of time, and what each is called when it kept the device from training."""


class Ledger:
    """Adds up wall time by kind. From its creation exactly one kind is running at any time, at first `bookkeeping`.

    `seconds`: those of an earlier ledger, to continue; kinds that it lacks start from 0.
    """

    def __init__(
        self, seconds: Mapping[str, float] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self._seconds = {kind: (seconds or {}).get(kind, 0.0) for kind in TIME_KINDS}
        self._kind = "bookkeeping"
        self._since = clock()

    def to(self, kind: str) -> None:
        """Stop the running kind and start `kind`, one of TIME_KINDS. KeyError for any other."""
        if kind not in TIME_KINDS:
            raise KeyError(kind)
        now = self._clock()
        self._seconds[self._kind] += now - self._since
        self._kind = kind
        self._since = now

    def seconds(self) -> dict[str, float]:
        """Return the seconds by kind, up to now, for every kind."""
        self.to(self._kind)
        return dict(self._seconds)

    def summary(self) -> str:
        """Return one line such as `device 30 % busy: 55 % waiting for the loader, 10 % checkpoints`.

        Shares are of the whole time, the largest first; shares below 1 % are left out.
        """
        seconds = self.seconds()
        total = sum(seconds.values())
        if total <= 0:
            return "device not used"
        busy = seconds.pop("device") / total
        reasons = sorted(((share / total, kind) for kind, share in seconds.items()), reverse=True)
        told = ", ".join(f"{share:.0%} {TIME_KINDS[kind]}" for share, kind in reasons if share >= 0.01)
        line = f"device {busy:.0%} busy" + (f": {told}" if told else "")
        return line.replace("%", " %")
