"""Tests of verification: another process, of this host's own app, checks what the app of a run claims."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.contract import CONTRACT
from harness.base.errors import NoSpaceError
from harness.base.paths import CHECKOUT
from harness.environments.environment import Environment
from harness.environments.executors.job import Exit, Job
from harness.environments.executors.process import ProcessExecutor
from harness.environments.verifier import Verifier
from harness.evidence.files.app_files import InputFile, Training
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.index import Index
from harness.evidence.outcome.diagnoses import StoppedBy
from harness.evidence.records import Results
from harness.host.disk_use import DiskLimit
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.rehearsal import stand_in_app
from harness.run import verify
from harness.run.requested_run import Run
from harness.run.run_cell import run_cell
from harness.run.watch.limits import Limits
from harness.run.watch.watch import Watch

# The stand-in app, which notes each command and runs extra code before and after it.
SCRIPT = """#!{python}
import hashlib, json, os, pathlib, shutil, sys, time
sys.path.insert(0, {checkout!r})
from harness.rehearsal import stand_in_app as app
work, results, command = pathlib.Path.cwd(), pathlib.Path({results!r}), sys.argv[3]
with open({asked!r}, "a") as stream:
    stream.write(command + " ")
def change(**changes):
    told = json.loads((work / "result.json").read_text())
    (work / "result.json").write_text(json.dumps(told | changes))
    return told
def told():
    return json.loads((work / "result.json").read_text())
{before}
app.stand_in_main()
{after}
"""


@dataclass
class Place:
    """A results folder, an honest verifier, and a judged app that may do anything."""

    folder: Path
    run: Run

    @property
    def results(self) -> Results:
        return Results(self.folder / "results")

    def script(self, name: str, before: str = "", after: str = "") -> Path:
        file = self.folder / name
        asked = str(self.folder / f"{name}.asked")
        values = {"python": sys.executable, "checkout": str(CHECKOUT), "results": str(self.results.runs)}
        file.write_text(SCRIPT.format(**values, asked=asked, before=before, after=after), encoding="utf-8")
        file.chmod(0o755)
        return file

    def asked(self, name: str) -> str:
        file = self.folder / f"{name}.asked"
        return file.read_text().strip() if file.exists() else ""

    def make(self, before: str = "", after: str = "", run_id: str = "r1") -> Record:
        """Run the judged app with this code before and after the stand-in's own."""
        self.script("judged", before, after)
        record = run_cell(replace(self.run, run_id=run_id), self.results, ProcessExecutor())
        assert self.results.record(run_id) == record
        return record


@pytest.fixture
def place(tmp_path: Path, matrix: Matrix, host: HostFacts) -> Place:
    bars = tmp_path / "bars.csv"
    bars.write_text("a stand-in's data\n", encoding="utf-8")
    data = InputFile(path=str(bars), sha256=stand_in_app.sha256(bars))
    judged, own = (
        Environment(tmp_path / name, {"app": "a"}, {}, "cpu", contract=CONTRACT) for name in ("judged", "own")
    )
    workload = matrix.workloads["quick"].model_copy(update={"epochs": 8, "batch_size": 64, "time_limit": 60})
    run = Run("r1", matrix.cells["cpu-plain"], workload, data, judged, host, verifier=Verifier(own))
    made = Place(tmp_path, run)
    made.script("own")
    return made


def test_an_honest_run_is_verified_by_this_hosts_app_alone(place: Place) -> None:
    record = place.make()
    assert (record.outcome, record.detail) == ("completed", "8 epochs, 32 steps, verified"), record.detail
    assert (place.asked("judged"), place.asked("own")) == ("train", "verify")
    (row,) = Index(place.results).rows()
    assert row.verified
    left = sorted(file.name for file in place.results.run_folder("r1").iterdir())
    assert left == ["intent.json", "kept", "log.txt", "process.json", "record.json", "verification.txt", "work"]
    kept = sorted(file.name for file in (place.results.run_folder("r1") / "kept").iterdir())
    assert kept == ["model-1.pt", "result.json", "state-1.pt", "verification.json"]
    assert sorted(file.name for file in place.results.folder.iterdir()) == ["runs"]


LIES = {
    "first losses are invented": (
        "change(first_steps=[dict(step, loss=.5) for step in told()['first_steps']])",
        "wrong-result",
        "step 1: loss 0.5, gradient norm 0.5, the CPU reference has step 1: loss 0.69",
    ),
    "the model is no model": (
        "(work / 'output' / 'model.pt').write_bytes(b'no model, honestly....')\n"
        "change(model=dict(told()['model'], sha256=hashlib.sha256(b'no model, honestly....').hexdigest()))",
        "model-does-not-load",
        'the model does not load: "not the stand-in',
    ),
    "all losses of its states are invented": (
        "change(states=[dict(state, loss=.3) for state in told()['states']])",
        "wrong-result",
        "made again from its state it has loss 0.",
    ),
    "all states are of another training": (
        "states = told()['states']\n"
        "for one in states:\n"
        "    (work / 'states' / one['file']).write_bytes(b'of another')\n"
        "change(states=[dict(one, sha256=hashlib.sha256(b'of another').hexdigest()) for one in states])",
        "wrong-result",
        "cannot be made again: 'not a state of that step'",
    ),
    "there are no states": ("change(states=[])", "wrong-result", "its states are not of the steps drawn for the run"),
    "the states are gone": (
        "shutil.rmtree(work / 'states')",
        "wrong-result",
        "cannot be made again: 'there is no state'",
    ),
}


@pytest.mark.parametrize(("after", "diagnosis", "detail"), LIES.values(), ids=LIES)
def test_a_lie_is_found_whatever_the_app_says_of_it(after: str, diagnosis: str, detail: str, place: Place) -> None:
    # The app reports success for every other command, so it would also pass a check or a reference if it ran them.
    record = place.make("if command != 'train': sys.exit(0)", after)
    assert (record.outcome, record.diagnosis) == ("failed", diagnosis), record.detail
    assert detail in record.detail
    assert place.asked("judged") == "train"


@pytest.mark.slow
def test_a_flattering_validation_loss_is_found_though_progress_has_it_too(place: Place) -> None:
    flattered = (
        "app.tell = lambda *words, tell=app.tell: tell(*words[:4], *(dict(one, validation=.3) for one in words[4:]))"
    )
    record = place.make(flattered, "change(epoch_losses=[dict(one, validation=.3) for one in told()['epoch_losses']])")
    assert (record.outcome, record.diagnosis) == ("failed", "wrong-result"), record.detail
    assert "the saved model has validation loss 0.6, not 0.3" in record.detail


@pytest.mark.slow
def test_what_an_earlier_run_left_is_of_other_steps_also_with_the_nonce_put_in(place: Place) -> None:
    assert place.make().outcome == "completed"
    # An image can bring along the files of an earlier run, also those that are removed when a run has completed.
    earlier = place.folder / "earlier"
    honest = place.make(after=f"shutil.copytree(work, {str(earlier)!r})", run_id="r2")
    assert honest.outcome == "completed"
    laid_out = f"""
earlier, nonce = pathlib.Path({str(earlier)!r}), os.environ["VPOC_NONCE"]
for name in ("progress-0.jsonl", "result.json"):
    text = (earlier / name).read_text()
    (earlier / name).write_text(text.replace({honest.intent.nonce!r}, nonce))
# Not before: the watch would see the other nonce.
shutil.copytree(earlier, work, dirs_exist_ok=True)
sys.exit(0)
"""
    record = place.make(laid_out, run_id="r3")
    assert (record.outcome, record.diagnosis) == ("failed", "wrong-result")
    assert "its states are not of the steps drawn for the run" in record.detail


@pytest.mark.slow
def test_a_run_that_lies_leaves_nothing_that_others_are_compared_with(place: Place) -> None:
    assert place.make(after=LIES["first losses are invented"][0]).outcome == "failed"
    assert place.make(run_id="r2").outcome == "completed"


OF_VERIFIERS = {
    "fails": ("sys.exit('no room')", "the process that verifies it ended with exit 1"),
    "leaves nothing": ("sys.exit()", "there is no verification.json"),
    "leaves no JSON": ("open(sys.argv[sys.argv.index('--output') + 1], 'w').write('{'); sys.exit()", "cannot be read"),
    "leaves a FIFO": ("os.mkfifo(sys.argv[sys.argv.index('--output') + 1]); sys.exit()", "is a FIFO"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "why"), OF_VERIFIERS.values(), ids=OF_VERIFIERS)
def test_a_verification_that_does_not_succeed_is_no_success(code: str, why: str, place: Place) -> None:
    place.script("own", code)
    record = place.make()
    assert (record.outcome, record.diagnosis) == ("failed", "verification-failed")
    assert why in record.detail


def unverified(place: Place, record: Record, why: str) -> bool:
    """Return whether a run completed without having been verified, and qualifies for nothing."""
    (row,) = Index(place.results).rows()
    assert record.outcome == "completed", record.detail
    assert record.not_verified is not None
    assert record.not_verified.startswith(why)
    assert f"not verified independently, so it qualifies for nothing: {why}" in record.detail
    return not (row.verified or row.qualifies_for_promotion)


@pytest.mark.slow
def test_a_verification_that_hangs_is_ended_and_no_success(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "STALL_LIMITS", dict.fromkeys(verify.STALL_LIMITS, 0.5))
    place.script("own", "signal = __import__('signal'); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)")
    began = time.monotonic()
    record = place.make()
    assert time.monotonic() - began < 60
    assert unverified(place, record, "watchdog: ")


@pytest.mark.slow
def test_a_verification_takes_no_more_than_its_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "LIMIT_SECONDS", 0.5)
    place.script("own", "time.sleep(300)")
    record = place.make()
    assert unverified(place, record, "time-limit: still running")


@pytest.mark.slow
def test_a_verification_that_was_killed_for_its_memory_says_nothing_of_the_run(place: Place) -> None:
    place.script("own", "os.kill(os.getpid(), 9)")
    assert unverified(place, place.make(), "out-of-memory: the process that verifies it ended with SIGKILL")


def test_data_that_were_changed_during_the_run_say_nothing_of_it(place: Place) -> None:
    bars = place.folder / "bars.csv"
    place.script("own", f"open({str(bars)!r}, 'a').write('one more bar')")
    record = place.make()
    assert unverified(place, record, "its data were changed during the run")
    # What was found on the right data counts.
    place.script("own", "sys.exit(3)")
    bars.write_text("a stand-in's data\n", encoding="utf-8")
    assert place.make(run_id="r2").diagnosis == "verification-failed"


@pytest.mark.parametrize("by", ["disk-limit", "engine"])
def test_a_verification_that_this_host_ended_says_nothing_of_the_run(
    by: StoppedBy, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(Watch):
        def execute(self, job: Job, limit: float, phase_limits: Limits | None = None) -> Exit | None:
            self.stopped_by, self.stop_detail = by, "ended"
            return None

    monkeypatch.setattr(verify, "Watch", Ended)
    assert unverified(place, place.make(), f"{by}: ended")


@pytest.mark.slow
def test_what_was_found_before_counts_though_the_verification_takes_too_long(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "LIMIT_SECONDS", 0.5)
    place.script("own", "time.sleep(300)")
    record = place.make(after=LIES["there are no states"][0])
    assert (record.outcome, record.diagnosis) == ("failed", "wrong-result")


def test_where_the_verifier_cannot_be_started_nothing_speaks_against_the_run(place: Place) -> None:
    (place.folder / "own").unlink()
    record = place.make()
    assert record.outcome == "interrupted"
    assert "could not be started" in record.detail


WITHOUT: dict[str, tuple[Callable[[Run], Verifier], str]] = {
    "none": (lambda _: Verifier(missing="no network"), "no network"),
    "another app": (
        lambda run: Verifier(replace(run.environment, identity={"app": "b"})),
        "its app is another version than this host's",
    ),
}


@pytest.mark.parametrize(("verifier_of", "why"), WITHOUT.values(), ids=WITHOUT)
def test_without_a_verifier_a_run_completes_and_qualifies_for_nothing(
    verifier_of: Callable[[Run], Verifier], why: str, place: Place
) -> None:
    place.run = replace(place.run, verifier=verifier_of(place.run))
    record = place.make()
    assert record.outcome == "completed"
    assert record.detail.endswith(f"32 steps; not verified independently, so it qualifies for nothing: {why}")
    (row,) = Index(place.results).rows()
    assert (row.verified, row.qualifies_for_promotion) == (False, False)
    assert place.asked("own") == ""


def test_no_more_models_are_copied_than_were_asked_for(place: Place) -> None:
    keys = list(Training.model_fields)
    record = place.make(after=f"change(earlier=[{{k: told()[k] for k in {keys!r} if k in told()}}] * 50)")
    assert (record.outcome, record.diagnosis) == ("failed", "incomplete-result"), record.detail
    kept = place.results.run_folder("r1") / "kept"
    assert [file.name for file in kept.iterdir()] == ["result.json"]


def test_models_of_nothing_but_holes_are_not_copied(place: Place) -> None:
    """A copy would take minutes and gigabytes, although the app needed neither to make the file."""
    after = "model = work / 'output' / 'model.pt'; os.truncate(model, 300 << 20)"
    record = place.make(after=after)
    assert (record.outcome, record.diagnosis) == ("failed", "work-folder"), record
    assert record.detail.endswith("are holes"), record
    assert not (place.results.run_folder("r1") / "kept" / "model-1.pt").exists()


def test_a_folder_that_nobody_may_change_is_no_end_of_a_campaign(place: Place, tmp_path: Path) -> None:
    if not shutil.which("chattr") or subprocess.run(["chattr", "+i", tmp_path], check=False).returncode != 0:
        pytest.skip("such flags may not be set here")
    subprocess.run(["chattr", "-i", tmp_path], check=True)
    run = "import subprocess; subprocess.run(['chattr', '+i', {}], check=True)"
    for run_id, places in {"r1": "work.parent, work.parent / 'intent.json'", "r2": "work.parent.parent"}.items():
        record = place.make(after=run.format(places), run_id=run_id)
        assert (record.outcome, record.diagnosis) == ("failed", "work-folder")
        assert "made unchangeable (chattr), which was undone" in record.detail


def _full(*_: object) -> None:
    raise NoSpaceError("the disk is full")


@pytest.mark.parametrize("disk_is_full", [False, True])
def test_models_are_not_copied_where_they_are_too_large(
    disk_is_full: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is the host's problem: the run does not count, and no other run begins in that results folder."""
    if disk_is_full:
        monkeypatch.setattr("harness.run.verify.DiskLimit", SimpleNamespace(of=lambda _: DiskLimit(10)))
        free = r"/r1: no room for copies of its models and states of [\d.]+ kB, 0 kB may be taken; free space there"
        with pytest.raises(NoSpaceError, match=free):
            place.make()
        record = place.results.record("r1")
        assert record
        assert (record.outcome, record.diagnosis) == ("interrupted", None), record.detail
        monkeypatch.setattr("harness.host.disk_use._free", lambda _: 10**9)
        with pytest.raises(
            NoSpaceError, match=r"/results/runs: no run .* less than .* 1 GB are; free .* another --results$"
        ):
            place.make(run_id="r2")
        assert not place.results.run_folder("r2").exists()
        monkeypatch.undo()
        monkeypatch.setattr("harness.run.verify.DiskLimit", SimpleNamespace(of=lambda _: DiskLimit(1 << 20)))
        monkeypatch.setattr("harness.host.disk_use.LEAVES_ROOM_BYTES", 3 << 20)
        # A run that failed by itself or took the room counts as failed even then, and holes take no disk space.
        for number, lies in enumerate(
            (
                "os.truncate(model, 0); os.truncate(model, 300 << 20)",
                "model.write_bytes(bytes(2 << 20)); sys.exit(3)",
                "model.write_bytes(bytes(4 << 20))",
            )
        ):
            record = place.make(after=f"model = work / 'output' / 'model.pt'; {lies}", run_id=f"f{number}")
            assert record.outcome == "failed", record.detail
        for number, what in enumerate(("write_durably", "copy_out")):
            monkeypatch.setattr(f"harness.evidence.files.kept_copies.{what}", _full)
            record = place.make(after="sys.exit(3)", run_id=f"g{number}")
            assert (record.outcome, "disk is full" in record.detail) == ("failed", True), record.detail
            monkeypatch.undo()
    else:
        monkeypatch.setattr("harness.run.verify.MOST_KEPT_BYTES", 10)
        record = place.make()
        assert (record.outcome, record.diagnosis) == ("failed", "work-folder"), record.detail
        assert re.match(r"its models and states have [\d.]+ kB, ", record.detail)
    kept = place.results.run_folder("r1") / "kept"
    assert [file.name for file in kept.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("code", "problem", "unchecked"),
    [
        ("import time; time.sleep(60)", "does not load within 0.2 seconds", ""),
        ("import os; os.abort()", "does not load: ", ""),
        ("import os; os.kill(os.getpid(), 9)", "", "ended with SIGKILL"),
    ],
    ids=["hangs", "crashes", "is killed"],
)
def test_a_file_of_weights_that_ends_its_reader_does_not_load(
    code: str, problem: str, unchecked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a large file may be slow to load, and only a process that is killed may lack memory."""
    folder = RunFolder(tmp_path / "run")
    (weights := tmp_path / "m.pt").write_bytes(b"small")
    monkeypatch.setattr(verify, "LOAD_SECONDS", 0.2 if "sleep" in code else 60)

    def job(_file: Path) -> Job:
        return Job((sys.executable, "-c", code), {}, folder.path, folder.verification_log, work=tmp_path)

    spec: Any = SimpleNamespace(folder=folder, loader=job)
    loads = verify.loader_of(spec, ProcessExecutor(), Path("/"))
    assert loads is not None
    found = loads(weights)
    folder.remove_places(all_of_it=False)
    assert (found[0][: len(problem) or None], found[1]) == (problem, unchecked)
