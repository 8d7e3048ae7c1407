"""`matrix watch`: shows what another process runs."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape

from harness.campaign.under_way import left_under_way, under_way
from harness.cli.in_background import last_output
from harness.cli.shared import INTERRUPTED, Settings, as_json, err, out, pass_settings, print_json
from harness.evidence.records import RUN_ID
from harness.host.fingerprint import machine_of
from harness.host.processes.run_processes import marked_runs
from harness.screen.display import STALL_SECONDS, StallLines
from harness.screen.fitted import print_folded
from harness.screen.live import Scene
from harness.screen.live_scene import LiveScene
from harness.screen.log_lines import advances_in_words, finished_lines, print_stamped
from harness.screen.watched import Snapshot, Watched, describe

if TYPE_CHECKING:
    from harness.campaign.answered import Command

LOOK_SECONDS = 1.0
# How long nothing may run before watching ends, in seconds: between two runs there can be a short gap.
QUIET_SECONDS = 5.0


@click.command()
@as_json
@pass_settings
def watch(settings: Settings, as_json: bool) -> None:
    """Show what runs with this results folder, whichever process of this host started it, until it ends.

    That is a campaign (`matrix run`), a single run or a supervised training. Ctrl-C ends only the watching. No file of
    the results is written. --json prints the current state once.
    """
    watched = Watched(settings.results_to_read, settings.matrix)
    now = time.time()
    look = watched.look()
    scene = watched.scene(look, now)
    orphans = [] if look.goes_on else _without_harness(settings)
    if as_json:
        print_json({**describe(look, scene, now), "without_harness": orphans})
        return
    if not look.goes_on:
        following = _what_follows(settings)
        if orphans:
            _say_orphans(orphans, following)
            return
        print_folded(
            out, f"Nothing runs with {settings.results.folder} on this host; `{following.command}` {following.why}."
        )
        if log := last_output(settings.results.folder):
            print_folded(out, f"What ran last without a terminal wrote its output to {log}.")
        return
    machine = machine_of(settings.root)
    before = left_under_way(settings.results_to_read, machine)
    try:
        _follow(watched, look, scene, err, settings.invocation.command)
    except KeyboardInterrupt:
        for one in under_way(settings.results_to_read):
            print_folded(out, f"`{one.command}` goes on; `kill -INT {one.process.pid}` ends it")
        sys.exit(INTERRUPTED)
    if killed := [one for one in left_under_way(settings.results_to_read, machine) if one not in before]:
        print_folded(out, " ".join(f"{one.in_words[0].upper()}{one.in_words[1:]}." for one in killed))
    else:
        print_folded(out, f"It has ended; `{settings.invocation.command('status')}` sums up.")
    if orphans := _without_harness(settings):
        _say_orphans(orphans, _what_follows(settings))


def _without_harness(settings: Settings) -> list[str]:
    """Return the runs whose processes are still there, without their harness."""
    # Any process can carry a mark with a name that could pass for our own words.
    return sorted(filter(RUN_ID.fullmatch, marked_runs(settings.results_to_read.runs)))


def _say_orphans(runs: Sequence[str], following: "Command") -> None:
    ends = f"the next `{following.command}` ends them"
    print_folded(out, f"Processes of {', '.join(runs)} run on, though their harness is gone; {ends}.")


def _what_follows(settings: Settings) -> "Command":
    """Return the command to type next, and what it does; unfinished work comes before a new campaign."""
    # Imported here because it is needed only when there is nothing to watch.
    from harness.campaign.answered import Command  # noqa: PLC0415
    from harness.report.continuation import continuation  # noqa: PLC0415

    begun = continuation(settings.results_to_read, machine_of(settings.root), settings.invocation)
    campaign = Command(
        command=settings.invocation.command("run"), why="starts a campaign, seen once its plan is printed"
    )
    return begun or campaign


def _follow(watched: Watched, look: Snapshot, scene: Scene, console: Console, command: Callable[..., str]) -> None:
    labels: dict[str, str] = {}
    stalls: dict[str, StallLines] = {}
    said: list[str] = []
    last_seen, shown = time.monotonic(), look
    logged = time.monotonic()

    def log(markup: str) -> None:
        nonlocal logged
        logged = time.monotonic()
        with view.printing():
            print_stamped(console, markup)

    with LiveScene(console, scene) as view:
        # Show a snapshot too that took long to read.
        while look.goes_on or look.finished or time.monotonic() - last_seen < QUIET_SECONDS:
            view.scene = scene
            for record in look.finished:
                for line in finished_lines(record, labels.get(record.intent.run_id, record.intent.cell), command):
                    log(line)
            for current in scene.currents:
                if current.intent is None:
                    continue
                run_id = current.intent.run_id
                if labels.setdefault(run_id, current.label) and run_id not in stalls:
                    stalls[run_id] = StallLines()
                    if not view.shown:
                        log(escape(f"{current.label}: continues as {run_id}"))
                if current.stall and stalls[run_id].worth(current.stall.seconds) and not view.shown:
                    log(escape(f"{current.label}: {current.stall.words}"))
            steps = [one.doing for one in look.steps]
            for step in steps if steps != said and not view.shown else ():
                log(escape(step))
            said = steps
            if scene.currents and not view.shown and time.monotonic() - logged >= STALL_SECONDS:
                log(escape(advances_in_words(scene.currents, time.time())))
            went_on = look.goes_on
            time.sleep(LOOK_SECONDS)
            look = watched.look()
            if went_on:
                last_seen = time.monotonic()
            # While the campaign writes its report at the end, keep showing its last state.
            shown = look if look.goes_on else replace(shown, running=())
            scene = watched.scene(shown, time.time())
