"""Prints what `matrix train` is about to do, what came of it, and the next command."""

from pathlib import Path

from rich.markup import escape

from harness.campaign.planning.forecast import outside_window
from harness.cli.by_make import with_make
from harness.cli.shared import Settings, as_typed, err, print_json, warn
from harness.matrix.cells import Cell
from harness.matrix.workload_options import arguments, options_of
from harness.matrix.workloads import Workload
from harness.run.launch import NOT_CHECKED
from harness.screen.fitted import print_folded
from harness.screen.tables import disk_in_words
from harness.screen.terminal import echo
from harness.training.attempts import ATTEMPTS_FILE
from harness.training.expect import USUAL_HOURS
from harness.training.losses import WORSE
from harness.training.own_program import RESUMES, STARTS_OVER
from harness.training.prepare import PreparedTraining, TrainingRequest
from harness.training.publish import PREDICTIONS, place_to_keep
from harness.training.train import TrainingResult


def print_beginning(prepared: PreparedTraining, request: TrainingRequest, expect_hours: float | None) -> None:
    """Print what is about to be trained, where, and what it takes."""
    warn(list(filter(None, [prepared.kept])))
    driver = outside_window(prepared.bench.host.driver, [prepared.job.cell.stack])
    length = prepared.length and f"Length: {prepared.length}"
    disk = f"Disk: {disk_in_words(prepared.plan)}" if prepared.plan.download_gb else None
    for line in filter(None, [prepared.summary, driver, disk, length]):
        print_folded(err, as_typed(line))
    program, there = request.workload.program, request.output / f"{request.name}.pt"
    if there.is_file() and not (program or request.resume or prepared.state.begins):
        kept = f"kept as {place_to_keep(there).name} once another model replaces it"
        more = "only the latest checkpoints are kept; on the same bars, --resume with more --epochs continues it"
        print_folded(err, with_make(f"{there} exists: it is trained again, and {kept}; {more}"))
    if program:
        then = RESUMES if program.resumes else STARTS_OVER
        walls = "" if prepared.bench.engine else "; as a process it can write wherever you can"
        print_folded(err, f"{NOT_CHECKED}; {then}; {program.hangs_when}{walls}")
    if expect_hours is not None or prepared.state.evidence:
        expected = prepared.expectation(expect_hours or USUAL_HOURS)
        print_folded(err, as_typed(f"Expect: {expected}"))


def print_end(
    settings: Settings, prepared: PreparedTraining, ended: TrainingResult, request: TrainingRequest, *, as_json: bool
) -> None:
    """Print whether there is a model, how good it is, and the next command."""
    if as_json:
        model = str(ended.model) if ended.model else None
        replaced = [str(file) for file in ended.replaced]
        print_json({"model": model, "losses": ended.losses, "replaced": replaced, "attempts": ended.attempts})
        return
    for losses in ended.losses:
        print_folded(err, losses)
    workload, data, output = request.workload, request.data, request.output
    echo(with_make(_sentence(ended, output, own=workload.program is not None)))
    if ended.model and data and (cell_of_cpu := cell_to_predict_in(prepared)):
        print_following(settings, cell_of_cpu, workload, ended, data, output)
    elif not ended.model and ended.attempts:
        # Imported here because they are needed only at the end.
        from harness.campaign.answered import Command  # noqa: PLC0415
        from harness.screen.answer import print_next  # noqa: PLC0415

        explain = settings.invocation.command("explain", ended.attempts[-1]["run"])
        print_next(err, Command(command=explain, why="says why the last attempt failed, and what helps"))


def print_following(
    settings: Settings, cell: Cell, workload: Workload, ended: TrainingResult, data: Path, output: Path
) -> None:
    """Print the next command: one that applies the model, or, if it is worse than none, one that tests for any edge."""
    # Imported here because it is needed only when there is a model.
    from harness.campaign.answered import Command  # noqa: PLC0415
    from harness.screen.answer import print_next  # noqa: PLC0415

    evaluate = settings.invocation.command("exec", cell.id, *words_to_evaluate(workload, data, output))
    if ended.model and not any(WORSE in losses for losses in ended.losses):
        words = words_to_predict(workload, ended.model, data, output)
        predict = settings.invocation.command("exec", cell.id, *words)
        forecasts = workload.rows == "session" and workload.as_of != "open"
        shows = "where only the last row is a forecast" if forecasts else "which is neither forecast nor test"
        why = (
            f"applies the model to the bars that it was trained on, {shows}: give a longer file, and it scores what "
            "came after them"
        )
        print_next(err, Command(command=predict, why=why))
        err.print(escape(f"Skill or luck? Whether anything on these bars beats chance: {evaluate}"), soft_wrap=True)
    else:
        print_next(err, Command(command=evaluate, why="says whether anything on these bars beats chance"))


def words_to_evaluate(workload: Workload, data: Path, output: Path) -> tuple[str, ...]:
    """Return the command that tests whether the data has an edge, on the rows that the model was trained on."""
    places = ("--data", str(data), "--output", str(output / f"{data.stem}_evaluation"))
    return ("vpoc", "evaluate", *places, *arguments(options_of(workload, ("rows", "as_of", "lookback", "accepted"))))


def words_to_predict(workload: Workload, model: Path, data: Path, output: Path) -> tuple[str, ...]:
    """Return the command that applies a model to the data it was trained on.

    It has the rules that the user accepted, because one of them may otherwise refuse the data.
    """
    places = ("--model", str(model), "--data", str(data), "--output", str(output / f"{model.stem}{PREDICTIONS}"))
    return ("vpoc", "predict", *places, *arguments(options_of(workload, ("accepted",))))


def cell_to_predict_in(prepared: PreparedTraining) -> Cell | None:
    """Return the cell in which a model is applied: the one it was trained in, where that is one of a CPU."""
    trained_in = prepared.job.cell
    return trained_in if trained_in.stack.device == "cpu" else prepared.job.cpu_cell


def _sentence(ended: TrainingResult, output: Path, *, own: bool) -> str:
    count = len(ended.attempts)
    tries = "one attempt" if count == 1 else f"{count} attempts, listed in {output / ATTEMPTS_FILE}"
    if ended.model:
        replaced = " and ".join(map(str, ended.replaced))
        if own:
            tries += "; numbers not checked"
        return f"wrote {ended.model} in {tries}{f'; what it replaced is kept as {replaced}' if replaced else ''}"
    lacks = "not trained to its end" if own else "no model"
    return f"{lacks}: {ended.exhausted}; {output / ATTEMPTS_FILE} lists each; the same command tries once more"
