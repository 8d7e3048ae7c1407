"""The live view of a campaign: the grid of cells, the current runs, the time left. Pure: the caller passes `now`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.base.durations import span
from harness.base.wording import many
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Intent
from harness.evidence.verdicts.verdict import Tier, Verdict
from harness.matrix.cells import Cell
from harness.screen.colours import TIER_COLOURS

GAP = 2
BAR_WIDTH = 24
# Columns between a progress bar and its text, and the narrowest useful bar: below it, only the text is shown.
BESIDE_BAR = 2
LEAST_BAR_WIDTH = 8
GB = 10**9
# Phases whose progress lines count the steps of a training.
STEPS = ("first-step", "step", "checkpoint")
# Shortest stall shown, in seconds: a shorter one is only a step that takes a little longer than others.
SHORTEST_STALL_SHOWN_SECONDS = 10.0
# Age in seconds after which a reported stall is taken to be over.
STALL_EXPIRY_SECONDS = 5.0
# A campaign takes long if it exceeds the expected time by this many seconds and by this share of that time.
LATE_SECONDS, LATE_SHARE = 60.0, 0.25
MARKS: Mapping[Tier, str] = {"failing": "!", "flaky": "~", "good": "+", "known-good": "*"}
LEGEND = "! failing  ~ flaky  + good  * known-good  . untested  > running"


@dataclass(frozen=True)
class Square:
    """A cell of the grid, with its verdict and the counts behind it."""

    cell: str
    stack: str
    preset: str
    tier: Tier = "untested"
    passes: int = 0
    runs: int = 0


@dataclass(frozen=True)
class Stall:
    """A stall: `seconds` without progress of any rank, as reported at `at`.

    `limit` is the time limit, None if unknown.
    """

    seconds: float
    phase: str
    limit: float | None
    at: float

    @property
    def words(self) -> str:
        """Return the stall in words."""
        stalls = f"no progress for {self.seconds:.0f} s in phase {self.phase}"
        if self.limit is None:
            return stalls
        if self.seconds <= self.limit:
            return f"{stalls} (limit {self.limit:.0f} s)"
        return f"{stalls}, past the limit of {self.limit:.0f} s: ended once it is confirmed to hang"


@dataclass(frozen=True)
class Current:
    """The current activity: a run, or a step before one.

    `began`: seconds since 1970.
    `cell`: the run's cell; None for a step.
    `intent`: the run's intent, if it was read.
    `lines`: the last progress line of each rank.
    `first`: the first step seen of the current training; `step`: its last step.
    `loss`: the loss that was reported last.
    """

    label: str
    began: float
    cell: str | None = None
    doing: str = ""
    first: Progress | None = None
    step: Progress | None = None
    lines: Mapping[int, Progress] = field(default_factory=dict)
    loss: float | None = None
    stall: Stall | None = None
    intent: Intent | None = None

    @property
    def last(self) -> Progress | None:
        """Return the latest progress line of any rank."""
        return max(self.lines.values(), key=lambda line: line.wall, default=None)

    def advanced(self, line: Progress) -> "Current":
        """Return the state after a line of progress."""
        first = self.first
        if line.phase == "step" and (first is None or first.total != line.total or first.done > line.done):
            first = line
        step = line if line.phase in STEPS else self.step
        loss = self.loss if line.loss is None else line.loss
        return replace(
            self, first=first, step=step, lines={**self.lines, line.rank: line}, loss=loss, doing="", stall=None
        )

    @property
    def advance(self) -> Progress | None:
        """Return the line that says how far a training is: during a validation that of the last step."""
        last = self.last
        return self.step if last and last.phase == "validate" and self.step else last

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that the remaining steps take at the speed so far; None until a speed can be measured."""
        first, last = self.first, self.advance
        if first is None or last is None or last.phase not in STEPS or last.total is None or last.done <= first.done:
            return None
        speed = (last.done - first.done) / max(last.wall - first.wall, 1e-9)
        return max(0.0, (last.total - last.done) / speed - (now - last.wall))


@dataclass(frozen=True)
class Scene:
    """A campaign at one moment.

    `ends`: its expected end, in seconds since 1970; None if unknown.
    `total`: the number of its runs; None if unknown.
    """

    began: float
    squares: tuple[Square, ...] = ()
    currents: tuple[Current, ...] = ()
    done: int = 0
    total: int | None = None
    ends: float | None = None


def squares_of(cells: Iterable[Cell], verdicts: Iterable[Verdict]) -> tuple[Square, ...]:
    """Return the grid: every cell, and every other that has a verdict, with its newest one that is not stale."""
    squares = {cell.id: Square(cell.id, cell.stack.name, cell.preset.name) for cell in cells}
    for verdict in sorted((v for v in verdicts if not v.stale), key=lambda v: v.last_at):
        place = (verdict.cell, verdict.stack, verdict.preset)
        squares[verdict.cell] = Square(*place, verdict.tier, verdict.passes, verdict.runs)
    return tuple(squares.values())


def expected_end(seconds: Sequence[float], left: int, now: float) -> float | None:
    """Return when `left` runs that begin now will have ended, by the median of `seconds`.

    None without measured runs.
    """
    return now + median(seconds) * left if seconds else None


class LiveView:
    """A rich renderable of a scene: the current runs first, then as much of the grid as fits on the terminal."""

    def __init__(self, scene: Scene, now: float, note: str = "") -> None:
        self._scene = scene
        self._now = now
        self._note = note

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width, options.height or console.height
        below = Group(*(part for one in self._scene.currents for part in _current(one, self._now, width)), self._foot())
        # Leave the last line of the terminal free for the cursor.
        room = height - len(console.render_lines(below, options.update(height=None))) - 1
        running = frozenset(one.cell for one in self._scene.currents if one.cell)
        if len(self._scene.squares) > 1:
            yield _grid(self._scene.squares, running, width, room)
        yield below

    def _foot(self) -> Text:
        scene = self._scene
        counted = f"{scene.done} of {scene.total} runs" if scene.total else many(scene.done, "run")
        parts = [counted] if scene.total or scene.done else []
        parts.append(f"{span(self._now - scene.began)} in all")
        if scene.ends is not None:
            left = scene.ends - self._now
            # A campaign that ends a little later than expected does not take long.
            late = max(LATE_SECONDS, LATE_SHARE * (scene.ends - scene.began))
            if left > 0:
                parts += _left(left)
            elif -left > late:
                parts.append("longer than expected")
        parts += [self._note] if self._note else []
        return Text(", ".join(parts), style="dim")


def advance_in_words(current: Current, now: float) -> str:
    """Return how far an activity is: `step 30/120, loss 0.6931, 2.0 GB RAM, 2 min so far, about 2 min left`."""
    line = current.last
    if line is None or current.doing:
        words = [current.doing or "starting"] if current.cell else []
    else:
        step = current.advance
        words = [*([_counted(step)] if step and step is not line else []), _counted(line), *_numbers(current)]
    words.append(f"{span(now - current.began)} so far")
    return ", ".join([*words, *_left(current.seconds_left(now))])


def _counted(line: Progress) -> str:
    counted = f" {line.done}" + (f"/{line.total}" if line.total else "") if line.done or line.total else ""
    # The harness verifies after the app's last phase, and the app says nothing more.
    return "ending, then verification" if line.phase == "teardown" else f"{line.phase}{counted}"


def _current(current: Current, now: float, width: int) -> Iterator[RenderableType]:
    yield Text(current.label, style="bold")
    text = advance_in_words(current, now)
    bar = min(BAR_WIDTH, width - len(text) - BESIDE_BAR)
    counts = current.advance
    if counts is None or current.doing or not counts.total or bar < LEAST_BAR_WIDTH:
        yield Text(f"  {text}")
    else:
        done = min(counts.done, counts.total)
        row = Table.grid(padding=(0, BESIDE_BAR))
        row.add_column(width=bar)
        row.add_row(ProgressBar(counts.total, done, width=bar, complete_style="cyan", finished_style="cyan"), text)
        yield row
    stall = current.stall
    if stall and stall.seconds >= SHORTEST_STALL_SHOWN_SECONDS and now - stall.at < STALL_EXPIRY_SECONDS:
        yield Text(f"  {stall.words}", style="yellow")


def _left(seconds: float | None) -> list[str]:
    """Return the expected time left, in words; nothing if it is less than a second."""
    return [] if seconds is None or seconds < 1 else [f"about {span(seconds)} left"]


def _numbers(current: Current) -> Iterator[str]:
    if current.loss is not None:
        yield f"loss {current.loss:.4f}"
    memories = [line.memory for line in current.lines.values()]
    device = sum(memory.device_reserved_bytes or 0 for memory in memories)
    beside = f" + {device / GB:.1f} GB on devices" if device else ""
    if resident := sum(memory.rss_bytes for memory in memories):
        # Nothing is shown for a program of the user's own, which does not report its memory.
        yield f"{resident / GB:.1f} GB RAM{beside}"


def _grid(squares: Sequence[Square], running: frozenset[str], width: int, height: int) -> RenderableType:
    """Return the most detailed form of the grid that fits; if none fits, the number of cells of each tier."""
    for short, numbered in ((False, False), (True, False), (True, True)):
        # Presets in rows come first, as in the answer at the end.
        for turned in (True, False):
            head, rows, legend = _rows(squares, running, short=short, numbered=numbered, turned=turned)
            under = Text("\n".join(legend), style="dim")
            lines = 1 + len(rows) + sum(-(-cell_len(line) // width) for line in legend)
            if _width([head, *(list(map(str, row)) for row in rows)]) <= width and lines <= height:
                return Group(_table(head, rows), under) if legend else _table(head, rows)
    counts = {tier: sum(square.tier == tier for square in squares) for tier in TIER_COLOURS}
    parts = [Text(f"{count} {tier}", style=TIER_COLOURS[tier]) for tier, count in counts.items() if count]
    return Text(f"{len(squares)} cells: ").append_text(Text(", ").join(parts))


def _rows(
    squares: Sequence[Square], running: frozenset[str], *, short: bool, numbered: bool, turned: bool
) -> tuple[list[str], list[list[Text]], list[str]]:
    """Return the head, the rows and the legend of the grid; `turned`: one row for each preset instead of each stack."""
    place = {(s.preset, s.stack) if turned else (s.stack, s.preset): s for s in squares}
    ups, acrosses = dict.fromkeys(up for up, _ in place), dict.fromkeys(across for _, across in place)
    numbers = {name: str(at) for at, name in enumerate(acrosses, start=1)}
    head = ["", *(numbers[name] if numbered else name for name in acrosses)]
    rows = [[Text(up), *(_text(place.get((up, across)), running, short=short) for across in acrosses)] for up in ups]
    legend = [LEGEND] if short else []
    if numbered:
        legend = ["  ".join(f"{number} {name}" for name, number in numbers.items()), *legend]
    return head, rows, legend


def _text(square: Square | None, running: frozenset[str], *, short: bool) -> Text:
    if square is None:
        return Text()
    now = ">" if square.cell in running else ""
    if square.tier == "untested":
        return Text(now or ".", style="bold" if now else "dim")
    text = f"{square.passes}/{square.runs}"
    text += MARKS.get(square.tier, "") if short else f" {square.tier}"
    return Text(f"{now}{text}", style=TIER_COLOURS[square.tier])


def _width(lines: Sequence[Sequence[str]]) -> int:
    return sum(max(map(cell_len, column)) + GAP for column in zip(*lines, strict=True)) - GAP


def _table(head: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name in head:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
