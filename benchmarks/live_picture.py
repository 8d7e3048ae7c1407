"""Draw docs/pictures/live.svg: the live view of a simulated campaign."""

import argparse
import io

from rich.console import Console
from rich.terminal_theme import MONOKAI

from harness.base.paths import CHECKOUT
from harness.evidence.files.app_files import Progress
from harness.evidence.verdicts.verdict import Tier
from harness.screen.live import Current, LiveView, Scene, Square

FILE = CHECKOUT / "docs" / "pictures" / "live.svg"
NOW = 1e9
STACKS = ("rocm6.2-torch2.5.1", "rocm6.3-torch2.7.1", "rocm6.3-torch2.9.1", "rocm7.0-torch2.10.0")
PRESETS = ("plain", "no-hipblaslt", "no-sdma", "notes-stable")
KNOWN: dict[tuple[int, int], tuple[Tier, int, int]] = {
    (0, 0): ("failing", 0, 3),
    (0, 1): ("failing", 0, 2),
    (1, 0): ("flaky", 4, 6),
    (1, 1): ("candidate", 7, 7),
    (2, 0): ("known-good", 33, 33),
    (2, 2): ("good", 17, 17),
    (2, 3): ("seen", 2, 2),
}


def picture() -> str:
    """Return the picture as SVG."""
    console = Console(record=True, width=100, height=24, file=io.StringIO(), force_terminal=True)
    console.print(LiveView(_scene(), NOW))
    return console.export_svg(title="matrix run (synthetic numbers)", theme=MONOKAI)


def _scene() -> Scene:
    squares = [
        Square(f"{stack}-{preset}", stack, preset, *KNOWN.get((up, across), ("untested", 0, 0)))
        for up, stack in enumerate(STACKS)
        for across, preset in enumerate(PRESETS)
    ]
    run = Current("[77] rocm6.3-torch2.9.1-notes-stable (repeat 3)", NOW - 260, squares[11].cell)
    run = run.advanced(_line(0, NOW - 240, None)).advanced(_line(1900, NOW, 0.6687))
    return Scene(NOW - 9 * 3600, tuple(squares), (run,), done=76, ends=NOW + 2.5 * 3600)


def _line(done: int, wall: float, loss: float | None) -> Progress:
    memory = {"rss_bytes": 3_100_000_000, "device_allocated_bytes": 10**9, "device_reserved_bytes": 2_400_000_000}
    told = {"schema": 2, "wall": wall, "monotonic": 0, "rank": 0, "pid": 1, "phase": "step", "done": done}
    rest = {"total": 5400, "max_step_s": None, "loss": loss, "gradient_norm": None, "memory": memory}
    return Progress.model_validate({**told, **rest})


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    FILE.write_text(picture(), encoding="utf-8")
