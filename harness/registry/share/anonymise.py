"""Anonymises records for other hosts: removes what identifies a person or a machine. Pure."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.environments.executors.container import WORK, inside
from harness.evidence.files.app_files import InputFile, Result, Training
from harness.evidence.files.run_files import HealthStep, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.matrix.wheels import index_url, load_wheels
from harness.registry.share.scrub import Scrubber
from harness.registry.share.shared_ids import hashed, shared_id

RUN, DATA, TEMPORARY = "<run>", "<data>", "<temporary>"
# The default name of a run's files; in a user's training the files may be named after the data.
OWN_NAME = "model"


def scrubber_of_run(intent: Intent, folder: Path, scrubber: Scrubber) -> Scrubber:
    """Return a scrubber that also replaces the paths that a run was given."""
    variables = [of_phase for of_phase in intent.variables.values() if "HOME" in of_phase]
    # The folder may have been moved since the run: its path at that time is the parent of HOME.
    homes = [Path(of_phase["HOME"]).parent for of_phase in variables]
    # The app works in a folder inside that of the run; in runs of earlier harnesses it was the run's folder itself.
    places = {str(home.parent if home.name == RunFolder.WORK else home): RUN for home in homes}
    places |= {of_phase["TMPDIR"]: TEMPORARY for of_phase in variables if "TMPDIR" in of_phase}
    places |= {str(folder.absolute()): RUN, intent.data.path: DATA}
    if intent.container:
        places |= {str(WORK): RUN, str(inside(Path(intent.data.path))): DATA}
    places = {place: instead for place, instead in places.items() if place.startswith("/") and place != "/"}
    names = {Path(intent.data.path).name, *_names_of_outputs(intent)}
    return scrubber.of_run(places, dict.fromkeys(names, DATA))


def _names_of_outputs(intent: Intent) -> set[str]:
    """Return the names of a training's files, which may contain the name of the data; our own names are left out."""
    found = set()
    for words in intent.commands.values():
        ours = {OWN_NAME, *(word.lstrip("-") for word in words if word.startswith("--"))}
        found |= {name for option, name in pairwise(words) if option == "--name" and name not in ours}
    return found


@cache
def _public_places() -> frozenset[str]:
    """Return the public URLs of the sources of wheels, for every platform."""
    releases = load_wheels().releases
    found = {index_url("rocm", rocm, one.source) for one in releases for rocm in one.rocm}
    return frozenset({*found, index_url("cpu", None)})


def shared_intent(intent: Intent, scrubber: Scrubber) -> Intent:
    """Return an intent for other hosts. Fingerprint and kind of the host stay: evidence refers to these hashes."""
    machine = intent.host.machine
    facts: dict[str, Any] = {"machine": hashed(machine), "boot_id": hashed(intent.host.boot_id)}
    host = intent.host.model_copy(update={**facts, "changes": tuple(map(scrubber.text, intent.host.changes))})
    values: dict[str, Any] = {
        "run_id": shared_id(machine, intent.run_id),
        "campaign": shared_id(machine, intent.campaign) if intent.campaign else None,
        "host": host,
        "beside": tuple(shared_id(machine, one) for one in intent.beside),
        "container": scrubber.value(intent.container),
        "data": intent.data.model_copy(update={"path": _shared_path(intent.data)}),
        "commands": {phase: tuple(scrubber.value(words)) for phase, words in intent.commands.items()},
        "variables": {phase: scrubber.value(variables) for phase, variables in intent.variables.items()},
        # Keep only public URLs, because a mirror may be named after its owner.
        "index": intent.index if intent.index in _public_places() else None,
        "owner_pid": 0,
        "owner_started": 0,
        "since_boot": None,
    }
    return intent.model_copy(update=values)


def _shared_path(data: InputFile) -> str:
    """Return the path of data for other hosts: synthetic bars keep their name, which shows that they are synthetic."""
    return Path(data.path).name if data.is_synthetic else DATA


def shared_record(record: Record, scrubber: Scrubber, intent: Intent | None) -> Record:
    """Return a record for other hosts; `intent` is the record's intent for other hosts, if it exists already."""
    found = record.explanation
    explanation = found and found.model_copy(
        update={
            "cause": scrubber.text(found.cause),
            "remedy": scrubber.text(found.remedy),
            "lines": tuple(line.model_copy(update={"text": scrubber.text(line.text)}) for line in found.lines),
        }
    )
    values: dict[str, Any] = {
        "intent": intent or shared_intent(record.intent, scrubber),
        "detail": scrubber.text(record.detail),
        "exit": scrubber.value(record.exit),
        "host_problems": tuple(map(scrubber.text, record.host_problems)),
        "explanation": explanation,
        "result": record.result and shared_result(record.result, scrubber),
    }
    return record.model_copy(update=values)


def shared_result(result: Result, scrubber: Scrubber) -> Result:
    """Return a result for other hosts."""
    values: dict[str, Any] = {
        **_files(result, scrubber),
        "options": scrubber.value(result.options),
        "data": result.data.model_copy(update={"path": _shared_path(result.data)}),
        "earlier": tuple(one.model_copy(update=_files(one, scrubber)) for one in result.earlier),
    }
    if result.memory and result.memory.owners:
        # The names of other users' programs are private.
        owners = tuple(owner.model_copy(update={"name": None}) for owner in result.memory.owners)
        values["memory"] = result.memory.model_copy(update={"owners": owners})
    return result.model_copy(update=values)


def _files(training: Training, scrubber: Scrubber) -> dict[str, Any]:
    model = training.model.model_copy(update={"file": scrubber.text(training.model.file)})
    return {"model": model, "metadata_file": scrubber.text(training.metadata_file)}


def shared_step(step: HealthStep, scrubber: Scrubber) -> HealthStep:
    """Return a step of a GPU's health log for other hosts."""
    values = {
        "machine": hashed(step.machine),
        "boot_id": hashed(step.boot_id),
        "run_id": shared_id(step.machine, step.run_id),
        "detail": scrubber.text(step.detail),
    }
    return step.model_copy(update=values)
