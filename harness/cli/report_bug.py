"""`matrix report-bug`: describes a failed run for those who can fix the cause."""

from dataclasses import asdict
from pathlib import Path

import click

from harness.base.errors import UserError
from harness.base.files.storage import write_durably
from harness.base.text import printable
from harness.cli.completion import complete_runs
from harness.cli.explain import read_record, run_folder
from harness.cli.shared import Settings, as_json, pass_settings, print_json
from harness.diagnosis.explain import explain_record
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.index import Index
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.counting import counts_of
from harness.registry.share.names import read_scrubber
from harness.report.upstream.bug_report import Upstream, to_issue, upstream_of
from harness.report.upstream.facts import bug_facts, require_reportable
from harness.report.upstream.public import taken_out
from harness.report.upstream.reproducers import reproducer
from harness.screen.terminal import echo


@click.command("report-bug")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--upstream", type=click.Choice(["rocm", "pytorch"]), help="Whose template to fill in (default: by the class)."
)
@click.option(
    "--post", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write it into this file, to post it."
)
@click.option("--hide", multiple=True, metavar="NAME", help="Also remove this name, such as that of another host.")
@as_json
@pass_settings
def report_bug(
    settings: Settings, run: str, upstream: Upstream | None, file: Path | None, hide: tuple[str, ...], as_json: bool
) -> None:
    """Write an issue for ROCm or PyTorch about a failed RUN, with nothing private in it; nothing is sent.

    RUN is as for `matrix explain`. The issue says what was seen and how often, on which versions and firmware. It has
    the lines that explain the failure, similar known issues, and a script that needs only torch if one can show it.
    Read it before you post it.
    """
    results = settings.results_to_read
    record = read_record(folder := run_folder(results, run))
    run_id = record.intent.run_id
    if results.folder_of(run_id).path.resolve() != folder.path.resolve():
        raise UserError(f"{folder.path}: is in another results folder; give that as --results")
    rows = Index(results).rows()
    counts = counts_of(results, rows)
    require_reportable(record, counts[run_id])
    host = host_of(results, settings.root)
    if record.intent.host.machine != host.machine and not (results.imported(run_id) or hide):
        raise UserError(f"{run_id}: ran on another host; write the issue there, or name that host with --hide")
    verdicts = of_results.verdicts_on(rows, settings.matrix, counts, host)
    counted = next((one for one in verdicts if run_id in one.failed_ids), None)
    found = None if record.outcome == "completed" else explain_record(folder, record)
    scrubber = read_scrubber(results.folder, hide)
    facts = bug_facts(results, record, found, counted, settings.matrix.verdicts.confidence, scrubber)
    script = reproducer(facts.class_)
    chosen = upstream or upstream_of(facts)
    text = printable(to_issue(facts, script, chosen))
    if file:
        write_durably(file, text.encode())
    if as_json:
        told = {"run": run_id, "upstream": chosen, "class": facts.class_, "file": str(file) if file else None}
        print_json({**told, "taken_out": taken_out(text), "facts": asdict(facts), "script": script, "markdown": text})
    elif file:
        echo(f"Wrote {file}, for {chosen}; read it before you post it: nothing was sent")
    else:
        echo(text, nl=False)
