"""`matrix explain`: says why a run failed."""

import io
import os
import sys
from collections.abc import Collection
from contextlib import ExitStack, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from packaging.version import InvalidVersion, Version

from harness.base.errors import UnknownNameError, UserError
from harness.cli.completion import LATEST, complete_runs
from harness.cli.shared import Settings, as_json, as_typed, err, out, pass_settings, print_json
from harness.diagnosis.explain import explain_record
from harness.diagnosis.explain_log import explain_files
from harness.diagnosis.judge import STOPPED, UNKNOWN
from harness.evidence.files.run_files import Explanation, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results
from harness.matrix.workload_options import OWN_DATA
from harness.report.invocation import changed_options, has_other_strategy, work_words
from harness.screen.fitted import print_folded

if TYPE_CHECKING:
    from harness.matrix.cells import Matrix, Preset

BY_CTRL_C = "stopped by SIGINT"
WHO_GOT_IT = ", which the harness got (it ends a run by SIGTERM)"
# Width of the column before the text of an explanation, in characters.
INDENTATION = 10
# Classes that name no cause; `matrix explain` then exits with status 1.
UNEXPLAINED = (UNKNOWN, STOPPED)
STANDARD_INPUT = ("-", "<stdin>")
# Most files of stacks that are named: a run of one rank can leave hundreds.
MOST_STACKS = 16
# Compressed formats that logs are kept in: first bytes, name, and the program that reads it.
PACKED = {
    b"\x1f\x8b": ("gzip", "zcat"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat"),
    b"\xfd7zXZ": ("xz", "xzcat"),
    b"BZh": ("bzip2", "bzcat"),
    b"PK\x03\x04": ("zip", "unzip -p"),
}
BINARY = (b"\x7fELF", b"\x80\x02", b"\x80\x04", b"\x89PNG", b"SQLite format")
# Logs larger than this get a progress bar, in bytes; smaller ones are read at once.
LARGE_BYTES = 50_000_000


def _version(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    try:
        return value if value is None else str(Version(value)) and value
    except InvalidVersion:
        raise UserError(f"--{option.name}: {value!r} is not a version; give one such as 6.3 or 2.9.1") from None


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--log", type=click.File("rb"), help="Explain this log instead of a run; - is standard input.")
@click.option("--kernel-log", type=click.File("rb"), help="The kernel's log of that time (`journalctl -k`, `dmesg`).")
@click.option(
    "--rocm",
    metavar="VERSION",
    callback=_version,
    help="ROCm version of the log, such as 6.3; what a message means can depend on it.",
)
@click.option("--torch", metavar="VERSION", callback=_version, help="torch version of the log, such as 2.9.1.")
@as_json
@pass_settings
def explain(
    settings: Settings,
    run: str | None,
    log: BinaryIO | None,
    kernel_log: BinaryIO | None,
    rocm: str | None,
    torch: str | None,
    as_json: bool,
) -> None:
    """Say why a run failed: class, cause, the lines that show it, and what helps.

    RUN is the id of a run or its beginning, the path of a run folder, or a cell or `latest`: the newest run of the
    cell, or of all, that did not complete. With --log it explains any log, also one of another program: `matrix explain
    --log train.log`.

    Exit status: 0 when the failure is explained (or the run completed), 1 when the cause is unknown.
    """
    found: Explanation | None
    told: dict[str, Any]
    if log or kernel_log:
        if run:
            raise UserError("give either RUN or --log and --kernel-log")
        with ExitStack() as open_files:
            found = explain_files(_named(log, open_files), _named(kernel_log, open_files), rocm, torch)
        told = {"explanation": found.model_dump(mode="json", by_alias=True)}
        lines = explanation_lines(found, _variables(settings, found), "")
    elif run and not (rocm or torch):
        folder = run_folder(settings.results_to_read, run)
        record = read_record(folder)
        found, told, lines = _explained(settings, folder, record)
        # Imported here because it takes time, and a mere log has no runs around it.
        from harness.cli.explain_run import around_run  # noqa: PLC0415

        around, more = around_run(settings, record, found)
        told |= around
        lines += more
        if found is None and not around["counts_as_failed"]:
            lines.append("There is nothing to explain.")
    else:
        raise UserError("say what to explain: RUN (id, `latest`, cell, folder), or --log FILE with --rocm and --torch")
    if as_json:
        print_json(told)
    else:
        for line in lines:
            print_folded(out, line, INDENTATION, command="try ")
    sys.exit(1 if found and found.class_ in UNEXPLAINED else 0)


def explanation_lines(found: Explanation, tries: list[str], folder: str) -> list[str]:
    """Return the printed lines of an explanation. `tries`: what may help, as commands or variables to type."""
    lines = [
        f"class     {found.class_}{f' (rule {found.rule})' if found.rule else ''}",
        f"cause     {found.cause}",
        *(f"evidence  {os.path.join(folder, one.file)}:{one.line}: {one.text}" for one in found.lines),  # noqa: PTH118
        as_typed(f"remedy    {found.remedy}"),
        *(f"try       {one}" for one in tries),
    ]
    return [*lines, f"see       {found.link}"] if found.link else lines


def _explained(
    settings: Settings, folder: RunFolder, record: Record
) -> tuple[Explanation | None, dict[str, Any], list[str]]:
    """Return the explanation of a run (None if it completed), its JSON object, and its lines for people."""
    run = f"run       {record.intent.run_id}"
    told: dict[str, Any] = {"run": record.intent.run_id, "outcome": record.outcome}
    told |= {"diagnosis": record.diagnosis, "detail": record.detail}
    quoted = folder.for_display(record)
    if record.outcome == "completed":
        return None, told | {"explanation": None}, [run, f"outcome   {quoted.ended}: {quoted.detail}"]
    stack = record.intent.stack
    found = explain_record(folder, record, _presets(settings.matrix, stack))
    # Imported here because it takes time, and a mere log has no runs around it.
    from harness.cli.explain_run import tried_with  # noqa: PLC0415

    tried, helped = tried_with(settings.results, record, found)
    found = found.model_copy(update={"presets": tuple(name for name in found.presets if name not in tried)})
    stacks = sorted(map(str, folder.stacks))
    told |= {"explanation": found.model_dump(mode="json", by_alias=True), "stacks": stacks}
    told["try"] = [f"{stack}-{preset}" for preset in found.presets]
    told["tried"] = [f"{stack}-{preset}" for preset in tried]
    told["completed_with"] = [f"{stack}-{preset}" for preset in helped]
    intent, matrix = quoted.intent, settings.matrix
    stage = _stage_on_all(intent, matrix)
    if stage and set(told["try"]) <= set(matrix.cells):
        work = ["--stage", stage, *work_words(intent, matrix, "")]
        tries = [settings.invocation.command("run", cell, *work) for cell in told["try"]]
    elif intent.program or has_other_strategy(intent, matrix):
        # `matrix run-cell` has no option for the strategy, and the same preset on one device would show nothing; nor
        # would it with our app instead of the user's program.
        tries = _variables(settings, found)
    else:
        # Build the cells from the record's own stack: a record from another host may use another name for its stack.
        work = [*work_words(intent, matrix)]
        tries = [settings.invocation.command("run-cell", cell, *work) for cell in told["try"]]
    detail = "" if quoted.detail in found.cause else f": {quoted.detail}"
    lines = [run, f"outcome   {quoted.ended}{detail}", *explanation_lines(found, tries, str(folder.path))]
    if record.detail.startswith(BY_CTRL_C):
        # Not in a line of a log, which is quoted as it is.
        lines[:4] = [line.replace(BY_CTRL_C, f"{BY_CTRL_C}{WHO_GOT_IT}") for line in lines[:4]]
    lines += [f"tried     {cell}: the same failure" for cell in told["tried"]]
    lines += [f"tried     {stack}-{preset}: {how_often}" for preset, how_often in helped.items()]
    log = [] if found.lines or not folder.log.is_file() else [f"log       {folder.log}"]
    more = [f"stacks    and {len(stacks) - MOST_STACKS} more there"] if len(stacks) > MOST_STACKS else []
    return found, told, [*lines, *log, *(f"stacks    {path}" for path in stacks[:MOST_STACKS]), *more]


def _stage_on_all(intent: Intent, matrix: "Matrix") -> str | None:
    """Return the stage of the matrix file that trains on all GPUs as a run did; None if there is none.

    A training of the user's own data has no workload: any with its strategy shows whether a preset helps.
    """
    if intent.program or not has_other_strategy(intent, matrix) or len(changed_options(intent, matrix)) > 1:
        return None
    on_all = (one for one in matrix.stages.values() if one.devices == "all")
    mine = (one for one in on_all if one.strategy == intent.options["strategy"])
    return next((one.name for one in mine if intent.workload in (one.workload, OWN_DATA)), None)


def _variables(settings: Settings, found: Explanation) -> list[str]:
    """Return what the suggested presets set: the owner of another program's log has no cells to run."""
    presets = [settings.matrix.presets[name] for name in found.presets if name in settings.matrix.presets]
    sets = [(one.name, {**one.variables, **one.features, **one.train}) for one in presets]
    return [
        f"{' '.join(f'{key}={value}' for key, value in each.items())} (preset {name})" for name, each in sets if each
    ]


def _presets(matrix: "Matrix", stack: str) -> "list[Preset]":
    """Return the presets that can be run with a stack."""
    cells = (matrix.cells.get(f"{stack}-{preset}") for preset in matrix.presets)
    return [cell.preset for cell in cells if cell and cell.excluded is None]


def _named(stream: BinaryIO | None, open_files: ExitStack) -> tuple[BinaryIO, str] | None:
    """Return a stream with its name; a long one gets a progress bar on a terminal."""
    if stream is None:
        return None
    name = getattr(stream, "name", "-")
    if isinstance(stream, io.BufferedReader):
        _refuse_what_is_no_text(stream.peek(8), str(name))
    try:
        size = os.fstat(stream.fileno()).st_size
    except OSError:
        size = 0
    if size > LARGE_BYTES and err.is_terminal:
        from rich.progress import wrap_file  # noqa: PLC0415

        watched = wrap_file(stream, size, description=f"Reading {name}", console=err, transient=True)
        return open_files.enter_context(watched), str(name)
    return stream, "standard input" if name in STANDARD_INPUT else str(name)


def _refuse_what_is_no_text(head: bytes, name: str) -> None:
    for begins, (what, reader) in PACKED.items():
        if head.startswith(begins):
            file = "FILE" if name in STANDARD_INPUT else name
            raise UserError(f"{name} is not text: {what}; `{reader} {file} | matrix explain --log -` reads it")
    if head.startswith(BINARY):
        raise UserError(f"{name} is not text but a program or a file of data; give the log that was printed")


def run_folder(results: Results, run: str) -> RunFolder:
    """Return the folder of the run that `run` names: an id, the beginning of an id, a folder, a cell, or `latest`.

    Raises:
        UserError: when there is no such run, or several ids begin like this.
    """
    if RunFolder(Path(run)).record.is_file():
        return RunFolder(Path(run))
    finished = results.finished()
    if run == LATEST:
        if not finished:
            from harness.campaign.under_way import under_way  # noqa: PLC0415 - as below

            does = "watch` shows what is under way" if under_way(results) else "run` makes some"
            raise UnknownNameError(f"{results.runs}: no run has a record yet; `matrix {does}")
        return _latest(results, finished)
    matching = [name for name in finished if name == run] or [name for name in finished if name.startswith(run)]
    if len(matching) == 1:
        return results.folder_of(matching[0])
    if matching:
        raise UserError(f"{len(matching)} runs begin with {run!r}, the first {matching[0]}; give more of its id")
    # Only here: ids and logs, which are explained most often, need no index.
    from harness.evidence.index import Index  # noqa: PLC0415

    cells = {row.run_id: row.cell for row in Index(results).rows()}
    if run in cells.values():
        return _latest(results, [name for name in finished if cells.get(name) == run])
    if Path(run).is_file():
        raise UserError(f"{run} is a file: did you mean `matrix explain --log {run}`?")
    if (log := results.folder_of(run).log).is_file():
        raise UserError(f"{run} has no record yet; `matrix explain --log {log}` reads its log")
    if Path(run).is_dir():
        raise UserError(
            f"{run} is no folder of a run; the runs of a training, too, are in {results.runs}; "
            f"`matrix explain {LATEST}` explains the last one"
        )
    near = get_close_matches(run, [LATEST, *cells.values(), *finished], n=1)
    hint = f"did you mean {near[0]}?" if near else "`matrix status` lists the cells that were run"
    raise UnknownNameError(f"{results.runs}: no run {run!r} with a record; {hint}")


def _latest(results: Results, among: Collection[str]) -> RunFolder:
    """Return the newest of these runs that did not complete; the newest of all if every run completed.

    Imported runs count only if there are no others. Records that cannot be read are passed over: in a shared folder
    anybody may have put them there.
    """
    made_here = [name for name in among if not results.imported(name)]
    folders = [results.folder_of(name) for name in made_here or among]
    newest_first = sorted(folders, key=lambda folder: folder.record.stat().st_mtime_ns, reverse=True)
    completed = []
    for folder in newest_first:
        with suppress(UserError):
            if read_record(folder).outcome != "completed":
                return folder
            completed.append(folder)
    return (completed or newest_first)[0]


def read_record(folder: RunFolder) -> Record:
    """Return the record in a folder that was just seen to have one.

    Raises:
        UserError: when the record is gone.
    """
    record = folder.read_record()
    if record is None:
        raise UserError(f"{folder.record}: is gone; `matrix status` lists the runs")
    return record
