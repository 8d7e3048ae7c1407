"""The workload and the options that repeat what a failed run did."""

from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.wording import many
from harness.cli.shared import Settings
from harness.cli.workload_choice import DEFAULT_SELECTION, chosen_workload
from harness.evidence.files.run_files import Intent
from harness.matrix.stages import CHANGEABLE
from harness.matrix.workload_options import OWN_DATA
from harness.matrix.workloads import Workload
from harness.report.invocation import changed_options, has_data_elsewhere, has_own_data


def as_it_failed(settings: Settings, failed: Intent, options: dict[str, Any]) -> tuple[Workload, dict[str, Any]]:
    """Return the workload of a run that failed, and the options; what was not given is as it was in that run.

    Of a training on the user's own data only the number of epochs is that of a short workload.

    Raises:
        UserError: when the data of that run are gone.
    """
    matrix, own_data = settings.matrix, failed.workload == OWN_DATA
    lookback, strategy = failed.options.get("lookback"), failed.options.get("strategy", "single")
    # A training of the user's own data has no workload.
    name = matrix.selections[DEFAULT_SELECTION].workload if own_data else failed.workload
    had = {
        "workload": name,
        "executor": failed.executor,
        "lookback": None if lookback == matrix.workloads[name].lookback else lookback,
        "data": Path(failed.data.path) if has_own_data(failed) else None,
    }
    gone = "are on another host" if has_data_elsewhere(failed) else ""
    if had["data"] and not Path(failed.data.path).is_file():
        gone = f"are no longer at {failed.data.path}"
    if gone and not options["data"]:
        raise UserError(
            f"the data of {failed.run_id} {gone}; give them with --data, or name a --workload, which has synthetic bars"
        )
    options |= {option: value for option, value in had.items() if options[option] is None}
    workload = chosen_workload(settings, DEFAULT_SELECTION, options)
    if workload.program is None and strategy != workload.strategy:
        workload = workload.model_copy(update={"strategy": strategy, "backend": None})
    if own_data:
        kept = {name: value for name, value in failed.options.items() if name in Workload.model_fields}
        kept |= {"lookback": workload.lookback, "epochs": workload.epochs, "time_limit": failed.time_limit}
    else:
        # What a stage changed besides.
        kept = {name: value for name, value in changed_options(failed, matrix).items() if name in CHANGEABLE}
    as_tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return workload.model_copy(update=as_tuples), options


def work_repeated(workload: Workload, failed: Intent | None) -> str:
    """Return what is run: a named workload, or what `as_it_failed` repeats."""
    by = "" if workload.strategy == "single" else f" by strategy {workload.strategy}"
    if failed and failed.workload == OWN_DATA:
        return f"the training of {failed.run_id}, which failed{by}, with {many(workload.epochs, 'epoch')}"
    return f"workload {workload.name}{by}{f', as in {failed.run_id}, which failed' if failed else ''}"
