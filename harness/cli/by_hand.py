"""The commands that record what only a person can know: `matrix strike` and `matrix host-changed`."""

from contextlib import suppress

import click

from harness.cli.completion import LATEST, complete_runs
from harness.cli.explain import run_folder
from harness.cli.shared import Settings, as_json, pass_settings, print_json, worded
from harness.evidence.gpus.host_changes import changes_file, host_of, note_change
from harness.evidence.gpus.strikes import strike
from harness.evidence.index import Index
from harness.evidence.records import check_run_id
from harness.host.fingerprint import machine_of
from harness.screen.terminal import echo


@click.command("strike")
@click.argument("run", shell_complete=complete_runs)
@click.option("--reason", required=True, help="Reason, shown wherever the run is shown.")
@click.option("--undo", is_flag=True, help="Count a struck-out run again; --reason says why.")
@as_json
@pass_settings
def strike_command(settings: Settings, run: str, reason: str, undo: bool, as_json: bool) -> None:
    """Strike out RUN by hand: it no longer counts, and verdicts, tags and reports show the reason.

    RUN is an id, or `latest`: the newest run that did not complete. Its record is not changed. No other command leaves
    a run out, because whoever could leave out failures at will could choose the verdict.
    """
    check_run_id(run)
    results = settings.results
    if run == LATEST:
        # The output names the run that `latest` stands for.
        run = run_folder(results, run).path.name
    line = strike(results.folder_of(run), "undo" if undo else "strike", worded("--reason", reason))
    if record := results.record(run):
        # Another user's index, or that of another host, learns of the strike from this note.
        with suppress(OSError):
            results.note_changed(run)
        Index(results).add(record)
    if as_json:
        print_json({"run": run, **line.model_dump(mode="json", by_alias=True)})
    else:
        echo(f"{run} counts again: {line.reason}" if undo else f"{run} is struck out: {line.reason}")


@click.command("host-changed")
@click.argument("what")
@as_json
@pass_settings
def host_changed(settings: Settings, what: str, as_json: bool) -> None:
    """Say WHAT changed about this host, such as "new PSU": from now on it is another kind of host.

    Use it for a change that no system file shows. Runs from before and after the change are not counted together, and
    known-good tags that rest on earlier runs are refused on this host.
    """
    change = note_change(settings.results, machine_of(settings.root), worded("WHAT", what))
    kind = host_of(settings.results, settings.root).kind
    if as_json:
        print_json({**change.model_dump(mode="json", by_alias=True), "host_kind": kind})
    else:
        echo(f"{change.what}: from now on this host is of kind {kind}; its earlier runs belong to another kind")
        echo(f"To undo this, remove its line from {changes_file(settings.results, change.machine)}")
