"""The workload and the options that repeat what a failed run did."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.wording import many
from harness.cli.shared import Settings
from harness.cli.workload_choice import DEFAULT_SELECTION, chosen_workload
from harness.evidence.files.run_files import Intent
from harness.matrix.stages import CHANGEABLE
from harness.matrix.workload_options import OWN_DATA, TRAIN_OPTIONS
from harness.matrix.workloads import Workload
from harness.report.invocation import changed_options, has_data_elsewhere, has_own_data


def as_it_failed(settings: Settings, failed: Intent, options: dict[str, Any]) -> tuple[Workload, dict[str, Any]]:
    """Return the workload of a run that failed, and the options; what was not given is as it was in that run.

    Of a training on the user's own data only the number of epochs is that of a short workload.

    Raises:
        UserError: when the data of that run are gone, or its options make no workload.
    """
    matrix, own_data = settings.matrix, failed.workload == OWN_DATA
    recorded = _recorded_options(failed)
    lookback, strategy = recorded.get("lookback"), recorded.get("strategy", "single")
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
        kept = {**recorded, "lookback": workload.lookback, "epochs": workload.epochs, "time_limit": failed.time_limit}
        # Under the name of a workload they would tell how long that takes.
        kept["name"] = OWN_DATA
    else:
        # What a stage changed besides.
        kept = {name: recorded[name] for name in changed_options(failed, matrix) if name in CHANGEABLE}
    return workload.model_copy(update=kept), options


def _recorded_options(failed: Intent) -> dict[str, Any]:
    """Return the options of the app that a run had; another user may have written its record.

    Raises:
        UserError: when this version accepts no such options.
    """
    options = {name: value for name, value in failed.options.items() if name in TRAIN_OPTIONS}
    as_tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    needed = {"description": f"that of {failed.run_id}", "synthetic": {"sessions": 1}, "epochs": 1, "time_limit": 1}
    try:
        workload = Workload.model_validate({**needed, **as_tuples})
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"{failed.run_id}: this version does not accept its option {place}; name a --workload"
        ) from None
    return {name: getattr(workload, name) for name in options}


def work_repeated(workload: Workload, failed: Intent | None) -> str:
    """Return what is run: a named workload, or what `as_it_failed` repeats."""
    by = "" if workload.strategy == "single" else f" by strategy {workload.strategy}"
    if failed and failed.workload == OWN_DATA:
        return f"the training of {failed.run_id}{by}, which failed, with {many(workload.epochs, 'epoch')}"
    return f"workload {workload.name}{by}{f', as in {failed.run_id}, which failed' if failed else ''}"
