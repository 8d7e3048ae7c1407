"""Tests of the view of another process's runs, from the files of a results folder alone."""

import fcntl
import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harness.base.paths import CHECKOUT
from harness.campaign.under_way import BEGINS, LeftOver, UnderWay, noted_under_way
from harness.cli import watch
from harness.cli.main import cli
from harness.cli.shared import Settings
from harness.evidence.files.run_files import Intent, Record, Scheduled
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.processes.processes import ProcessId, boot_id
from harness.host.processes.run_processes import RUN_MARK
from harness.matrix.cells import Matrix
from harness.matrix.programs import Program
from harness.screen import watched
from harness.screen.live import Current, Scene
from harness.screen.watched import Snapshot, Watched, describe, held_campaigns, locked_inodes
from harness.training.state import open_state_file
from tests.harness.screen.recorded import a_line

MakeIntent = Callable[..., Intent]
MakeRecord = Callable[..., Record]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def mine(host: HostFacts) -> dict[str, object]:
    """Return the fields of an intent that make this process its owner."""
    me = ProcessId.mine()
    here = host.model_copy(update={"boot_id": boot_id()})
    return {"owner_pid": me.pid, "owner_started": me.started, "host": here, "started": time.time() - 30}


def tell(results: Results, run_id: str, *ends: str) -> None:
    """Write three lines of progress for rank 0 and one for rank 1; a fourth line of rank 0 is not whole yet."""
    folder, now = results.run_folder(run_id) / "work", time.time()
    lines = [a_line(done=done, wall=now - 40 + 10 * at).model_dump_json() for at, done in enumerate((10, 20, 30))]
    (folder / "progress-0.jsonl").write_text("\n".join(lines) + "\n" + '{"schema": 2, "wal')
    (folder / "progress-1.jsonl").write_text(a_line(rank=1, done=30, wall=now - 20).model_dump_json() + "\n")


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(f): (f.stat().st_mtime_ns, f.stat().st_size) for f in [folder, *folder.rglob("*")]}


def test_what_the_index_lacks_is_not_entered(
    results: Results, matrix: Matrix, make_intent: MakeIntent, make_record: MakeRecord
) -> None:
    for name in ("old", "missed"):
        results.begin(make_intent(name))
        results.finish(make_record(name))
        if name == "old":
            Index(results).add(make_record("old"))
    before = files(results.folder)
    seen = Watched(results, matrix)
    seen.scene(seen.look(), time.time())
    assert files(results.folder) == before


def test_a_run_of_a_living_process_is_seen_and_nothing_is_written(
    results: Results, matrix: Matrix, make_intent: MakeIntent, make_record: MakeRecord, mine: dict[str, object]
) -> None:
    results.begin(make_intent("old", started=time.time() - 100))
    results.finish(make_record("old"))
    Index(results).add(make_record("old"))
    results.begin(make_intent("now", repeat=2, **mine))
    tell(results, "now")
    results.folder_of("now").note_stall("step", 30, 120)
    before = files(results.folder)
    seen = Watched(results, matrix)
    look = seen.look()
    scene = seen.scene(look, time.time())
    assert files(results.folder) == before
    assert [intent.run_id for intent in look.running] == ["now"]
    assert look.finished == ()
    [current] = scene.currents
    assert current.label == "cpu-plain (run 2), quick"
    assert {rank: line.done for rank, line in current.lines.items()} == {0: 30, 1: 30}
    assert current.stall is not None
    assert 19 < current.stall.seconds < 300
    assert current.stall.words.endswith("s in phase step (limit 120 s)")
    [square] = scene.squares
    assert (square.cell, square.passes, square.runs, square.tier) == ("cpu-plain", 1, 1, "seen")
    # The progress of a step beside the run is not taken for that of the run.
    beside = replace(scene, currents=(Current("a step", time.time()), *scene.currents))
    [run] = describe(look, beside, time.time())["runs"]
    assert (run["run"], run["done"]) == ("now", 30)
    # JSON has no NaN.
    odd = replace(scene, currents=(current.advanced(a_line(loss=math.nan, wall=time.time())),))
    assert json.dumps(describe(look, odd, time.time()), allow_nan=False)


def test_a_run_whose_harness_is_gone_does_not_go_on(
    results: Results, matrix: Matrix, make_intent: MakeIntent, mine: dict[str, object]
) -> None:
    results.begin(make_intent("dead", **{**mine, "owner_started": 1}))
    assert not Watched(results, matrix).look().goes_on
    (results.runs / ".half.1.tmp").mkdir()
    (results.runs / "damaged").mkdir()
    (results.runs / "damaged" / "intent.json").write_text("{")
    assert not Watched(results, matrix).look().goes_on


def test_a_program_of_the_users_own_is_seen_to_advance(
    results: Results, matrix: Matrix, make_intent: MakeIntent, mine: dict[str, object]
) -> None:
    program = Program(
        command=("python", "x.py"), source="code", progress=r"it (?P<step>\d+)/(?P<total>\d+) (?P<loss>\S+)"
    )
    results.begin(make_intent("own", program=program, **mine))
    log = results.folder_of("own").log
    log.write_text("loading\nit 1/9 2.5\nit 2/9 2.25\n", encoding="utf-8")
    watched = Watched(results, matrix)
    for done, loss in ((2, 2.25), (3, 2.0)):
        look, now = watched.look(), time.time() + 5
        (run,) = describe(look, watched.scene(look, now), now)["runs"]
        assert (run["phase"], run["done"], run["total"], run["loss"]) == ("step", done, 9, loss)
        assert 4 < run["seconds_without_progress"] < 9
        with log.open("a", encoding="utf-8") as more:
            more.write("it 3/9 2.0\n")


def test_what_finishes_between_two_looks_is_reported_once(
    results: Results, matrix: Matrix, make_intent: MakeIntent, make_record: MakeRecord, mine: dict[str, object]
) -> None:
    seen = Watched(results, matrix)
    assert seen.look() == Snapshot()
    results.begin(make_intent("quick", **mine))
    results.finish(make_record("quick", **mine))
    results.begin(make_intent("elsewhere"))
    results.finish(make_record("elsewhere"))
    assert [record.intent.run_id for record in seen.look().finished] == ["quick"]
    assert seen.look() == Snapshot()


def test_what_ends_on_other_nodes_is_reported_but_not_what_was_imported(
    results: Results, matrix: Matrix, make_intent: MakeIntent, make_record: MakeRecord
) -> None:
    seen = Watched(results, matrix)
    seen.look()
    there = Scheduled(scheduler="slurm", job="7", node="n2")
    for name in ("there", "imported"):
        results.begin(make_intent(name, scheduled=there))
        results.finish(make_record(name, scheduled=there))
    results.folder_of("imported").imported.write_text("{}")
    assert [record.intent.run_id for record in seen.look().finished] == ["there"]


def test_a_run_that_is_being_checked_is_not_stalled(
    results: Results, matrix: Matrix, make_intent: MakeIntent, mine: dict[str, object]
) -> None:
    results.begin(make_intent("now", **mine))
    seen = Watched(results, matrix)
    tell(results, "now")
    assert seen.scene(seen.look(), time.time()).currents[0].doing == ""
    (results.run_folder("now") / "work" / "result.json").write_text("{}")
    [current] = seen.scene(seen.look(), time.time()).currents
    assert (current.doing, current.stall) == ("checking the trained model", None)


def campaign(results: Results, **more: object) -> Path:
    file = results.folder / "campaigns" / "c1.json"
    file.parent.mkdir(parents=True)
    runs = [{"cell": cell, "repeat": repeat} for repeat in (1, 2) for cell in ("cpu-plain", "cpu-no-sdma")]
    file.write_text(json.dumps({"schema": 2, "key": "k", "started": time.time() - 60, "runs": runs, **more}))
    return file


def test_a_campaign_is_seen_while_a_process_holds_it_and_its_lock_is_left_alone(
    results: Results, matrix: Matrix, make_intent: MakeIntent, make_record: MakeRecord, mine: dict[str, object]
) -> None:
    file = campaign(results)
    assert list(held_campaigns(results, locked_inodes())) == []
    for run_id, outcome in (("c1-a", "interrupted"), ("c1-a-again2", "completed")):
        results.begin(make_intent(run_id, campaign="c1", **mine))
        results.finish(record := make_record(run_id, outcome, campaign="c1", **mine))
        Index(results).add(record)
    seen = Watched(results, matrix)
    with file.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        look = seen.look()
        assert look.goes_on
        scene = seen.scene(look, time.time())
        described = describe(look, scene, time.time())
    assert [square.cell for square in scene.squares] == ["cpu-plain", "cpu-no-sdma"]
    assert (scene.done, scene.total) == (1, 4)
    assert scene.ends is not None
    assert json.loads(json.dumps(described))["campaigns"][0]["runs"] == 4
    assert not seen.look().goes_on
    # The runs of a campaign may be hundreds of repeats of every cell.
    file.write_text(json.dumps({"started": 0, "runs": [{"cell": "cpu-plain", "repeat": n} for n in range(22_000)]}))
    assert [one.runs for one in held_campaigns(results, {file.stat().st_ino})] == [22_000]


def test_a_training_under_supervision_goes_on_between_its_attempts(
    results: Results, matrix: Matrix, host: HostFacts, tmp_path: Path
) -> None:
    seen = Watched(results, matrix)
    with open_state_file(results, host, tmp_path, "model"):
        assert seen.look() == Snapshot(trains=True)
        assert seen.look().goes_on
    assert not seen.look().goes_on


def test_the_grid_shows_runs_of_the_same_work_on_the_same_data(
    results: Results, matrix: Matrix, make_intent: MakeIntent, make_record: MakeRecord, mine: dict[str, object]
) -> None:
    def ran(run_id: str, **changes: object) -> None:
        results.begin((record := make_record(run_id, **{**mine, **changes})).intent)
        results.finish(record)
        Index(results).add(record)

    other = {"data": {"path": "/x/other.csv", "sha256": "a" * 64}}
    ran("before", family="f", **other)
    ran("other-work", family="g")
    seen, file = Watched(results, matrix), campaign(results)
    with file.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        # The campaign is still being prepared, so no run of it is under way.
        assert [one.tier for one in seen.scene(seen.look(), time.time()).squares] == ["untested", "untested"]
        results.begin(make_intent("now", family="f", campaign="c1", **mine))
        assert [one.tier for one in seen.scene(seen.look(), time.time()).squares] == ["untested", "untested"]
        results.finish(record := make_record("now", family="f", campaign="c1", **mine))
        Index(results).add(record)
        assert [one.runs for one in seen.scene(seen.look(), time.time()).squares] == [1, 0]
        # A stage may try a preset that was not planned.
        stable = make_record("tried", cell="cpu-notes-stable", family="f", campaign="c1", **mine)
        ran_before = make_record("by-hand", cell="cpu-notes-device-0", family="f", **mine)
        for record in (stable, ran_before):
            results.begin(record.intent)
            results.finish(record)
            Index(results).add(record)
        cells = ["cpu-plain", "cpu-no-sdma", "cpu-notes-stable"]
        assert [one.cell for one in seen.scene(seen.look(), time.time()).squares] == cells
        # The next stage has another workload: what the last one showed stays until something newer is known.
        results.begin(make_intent("next", family="h", campaign="c1", cell="cpu-no-sdma", **mine))
        assert [one.runs for one in seen.scene(seen.look(), time.time()).squares] == [1, 0, 1]


def test_how_many_runs_a_goal_takes_is_not_known(results: Results, matrix: Matrix) -> None:
    file = campaign(results, goal={"kind": "until"})
    seen = Watched(results, matrix)
    with file.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        scene = seen.scene(seen.look(), time.time())
    assert (scene.done, scene.total, scene.ends) == (0, None, None)


def test_without_an_index_or_a_table_of_locks_runs_are_seen_all_the_same(
    results: Results,
    matrix: Matrix,
    make_intent: MakeIntent,
    mine: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results.begin(make_intent("now", **mine))
    (results.folder / "records.db").write_text("no database")
    campaign(results)
    monkeypatch.setattr(watched, "LOCKS", results.folder / "none")
    seen = Watched(results, matrix)
    look = seen.look()
    scene = seen.scene(look, time.time())
    assert [one.tier for one in scene.squares] == ["untested"]
    assert scene.currents[0].last is None
    assert not look.campaigns


def test_what_is_done_before_the_first_run_is_shown_in_a_campaigns_first_seconds(
    results: Results,
    matrix: Matrix,
    make_intent: MakeIntent,
    mine: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, settings = Watched(results, matrix), Settings(CHECKOUT / "matrix.yaml", results.folder, None)
    with noted_under_way(results, "machine", "matrix run") as note:
        look = seen.look()
        assert look.goes_on
        assert [one.label for one in seen.scene(look, time.time()).currents] == [BEGINS]
        note.doing("making the environment of stack cpu")
        look, now = seen.look(), time.time()
        assert [one.label for one in seen.scene(look, now).currents] == ["making the environment of stack cpu"]
        assert describe(look, seen.scene(look, now), now)["doing"] == ["making the environment of stack cpu"]
        looks = iter([look, look, Snapshot()])
        monkeypatch.setattr(Watched, "look", lambda _self: next(looks, Snapshot()))
        monkeypatch.setattr(watch, "QUIET_SECONDS", 0.0)
        monkeypatch.setattr(watch, "LOOK_SECONDS", 0.0)
        piped = CliRunner().invoke(watch.watch, [], obj=settings).output
        assert piped.count("Z making the environment of stack cpu\n") == 1
        monkeypatch.undo()
        results.begin(make_intent("now", **mine))
        look = seen.look()
        assert [one.cell for one in seen.scene(look, time.time()).currents] == ["cpu-plain"]
    assert not Snapshot(under_way=()).goes_on


def test_nothing_to_watch_is_said_plainly(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(CHECKOUT / "matrix.yaml", results.folder, None)
    done = CliRunner().invoke(watch.watch, [], obj=settings)
    assert done.exit_code == 0
    assert done.output.startswith(f"Nothing runs with {results.folder} on this host")
    assert "seen once its plan is printed" in done.output
    with (
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={RUN_MARK: str(results.runs / "lost")}),
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={RUN_MARK: str(results.runs / "x\n  All is well")}),
    ):
        orphan = CliRunner().invoke(watch.watch, [], obj=settings).output
        as_json = CliRunner().invoke(watch.watch, ["--json"], obj=settings).output
    assert json.loads(as_json)["without_harness"] == ["lost"]
    assert orphan.startswith("Processes of lost run on, though their harness is gone; the next `")
    told = json.loads(CliRunner().invoke(watch.watch, ["--json"], obj=settings).output)
    nothing: dict[str, list[str]] = {key: [] for key in ("campaigns", "doing", "runs", "cells", "without_harness")}
    assert told == {"schema": 2, "trains": False, "runs_done": 0, **nothing}
    assert not results.folder.exists()
    left = LeftOver(".venv/bin/matrix train --data merged.csv --output OUT", rebooted=False, what="training")
    for place in ("harness.report.continuation", "harness.campaign.under_way"):
        monkeypatch.setattr(f"{place}.left_under_way", lambda *_: [left])
    (results.folder / "campaigns").mkdir(parents=True)
    (results.folder / "campaigns" / "one.under-way").touch()
    with (
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={RUN_MARK: str(results.runs / "lost")}),
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={RUN_MARK: str(results.runs / "x\n  All is well")}),
    ):
        orphan = CliRunner().invoke(watch.watch, [], obj=settings).output
    assert f"; the next `{left.command}` ends them." in orphan
    told = CliRunner().invoke(cli, ["--results", str(results.folder), "watch"]).output
    continues = f"`{left.command}` continues the training that was under way"
    assert told == f"matrix: {left.in_words}\nNothing runs with {results.folder} on this host; {continues}.\n"


def test_where_the_output_of_the_last_command_without_a_terminal_is_gets_named(results: Results) -> None:
    folder = results.folder / "campaigns"
    folder.mkdir(parents=True)
    logs = [folder / f"detached-2026112{day}T000000Z-0a1b2c.log" for day in (5, 6, 7)]
    for log in (*logs, folder / "detached-by somebody else.log"):
        log.touch()

    def told() -> str:
        command = CliRunner().invoke(watch.watch, [], obj=Settings(CHECKOUT / "matrix.yaml", results.folder, None))
        return command.output.partition("What ran last without a terminal wrote its output to ")[2]

    assert told() == f"{logs[2]}.\n"
    if os.geteuid() == 0:
        os.chown(logs[2], 12345, -1)
        assert told() == f"{logs[1]}.\n"
    for log in logs:
        os.utime(log, (0, 0))
    assert told() == ""


def test_ctrl_c_says_what_goes_on_and_how_to_end_it(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
    settings = Settings(CHECKOUT / "matrix.yaml", results.folder, None)
    with noted_under_way(results, "here", "matrix run"):
        done = CliRunner().invoke(watch.watch, [], obj=settings)
    assert done.exit_code == 130
    assert done.output.endswith(f"`matrix run` goes on; `kill -INT {os.getpid()}` ends it\n")


def test_looks_that_take_longer_than_the_quiet_do_not_end_it(
    results: Results, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([Snapshot(trains=True), Snapshot(trains=True), Snapshot(finished=(make_record("done"),)), Snapshot()])
    monkeypatch.setattr(Watched, "look", lambda _self: next(looks))
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.0)
    settings = Settings(CHECKOUT / "matrix.yaml", results.folder, None)
    done = CliRunner().invoke(watch.watch, [], obj=settings)
    assert done.exit_code == 0, done.output
    assert "cpu-plain: completed" in done.output
    assert done.output.endswith("It has ended; `.venv/bin/matrix status` sums up.\n")
    assert next(looks, None) is None


def test_a_campaign_whose_process_was_killed_meanwhile_is_not_said_to_have_ended(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([Snapshot(trains=True)])
    monkeypatch.setattr(Watched, "look", lambda _self: next(looks, Snapshot()))
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.0)
    older, left = (LeftOver(f"make {target}", rebooted=False, what="campaign") for target in ("train", "matrix-test"))
    found = iter([[older]])
    monkeypatch.setattr("harness.report.continuation.left_under_way", lambda *_: [left])
    monkeypatch.setattr("harness.cli.watch.left_under_way", lambda *_: next(found, [older, left]))
    settings = Settings(CHECKOUT / "matrix.yaml", results.folder, None)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={RUN_MARK: str(results.runs / "lost")}):
        told = " ".join(CliRunner().invoke(watch.watch, [], obj=settings).output.split())
    killed = "Its process was killed while a campaign was under way; this continues it: `make matrix-test`."
    gone = "Processes of lost run on, though their harness is gone; the next `make matrix-test` ends them."
    assert told == f"{killed} {gone}"


def test_what_has_ended_is_shown_as_it_was_last(
    results: Results, matrix: Matrix, make_record: MakeRecord, mine: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    results.begin((record := make_record("r1", campaign="c1", **mine)).intent)
    results.finish(record)
    Index(results).add(record)
    running = Snapshot((watched.HeldCampaign("c1", ("cpu-plain",), time.time() - 60, 1),))
    looks, scenes = iter([running, Snapshot(), *[Snapshot()] * 5]), []

    def look(self: Watched) -> Snapshot:
        self._finished = frozenset(["r1"])
        return next(looks)

    monkeypatch.setattr(Watched, "look", look)
    scene_of = Watched.scene

    def scene(self: Watched, look: Snapshot, now: float) -> Scene:
        scenes.append(scene_of(self, look, now))
        return scenes[-1]

    monkeypatch.setattr(Watched, "scene", scene)
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.0)
    done = CliRunner().invoke(watch.watch, [], obj=Settings(CHECKOUT / "matrix.yaml", results.folder, None))
    assert done.exit_code == 0, done.output
    assert len(scenes) > 1
    assert {(one.done, one.total, one.began, one.ends) for one in scenes} == {
        (1, 1, running.campaigns[0].started, None)
    }


@pytest.mark.parametrize("runs", [True, False])
def test_a_log_has_a_line_a_minute_of_how_far_a_run_or_a_long_step_is(
    results: Results,
    make_intent: MakeIntent,
    mine: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    *,
    runs: bool,
) -> None:
    results.begin(intent := make_intent("now", **mine))
    step = UnderWay(ProcessId.mine(), "matrix run", "campaign", "making an environment", time.time() - 30)
    look = Snapshot(running=(intent,)) if runs else Snapshot(under_way=(step,))
    looks, clock = iter([*[look] * 5, Snapshot()]), [0.0]
    monkeypatch.setattr(Watched, "look", lambda _self: next(looks, Snapshot()))
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 25.0)
    # Time passes only while it sleeps.
    passing = {"monotonic": lambda: sum(clock), "sleep": clock.append}
    monkeypatch.setattr(watch, "time", SimpleNamespace(**(vars(time) | passing)))
    said = CliRunner().invoke(watch.watch, [], obj=Settings(CHECKOUT / "matrix.yaml", results.folder, None)).output
    doing = f"cpu-plain, {intent.workload}: starting," if runs else "making an environment:"
    (line,) = said.splitlines()[1:-1]
    assert re.fullmatch(rf"{re.escape(doing)} 3\d s so far", line[21:])


def test_a_quiet_moment_between_looks_that_take_long_does_not_end_it(
    results: Results, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([Snapshot(trains=True), Snapshot(), Snapshot(finished=(make_record("done"),)), *[Snapshot()] * 5])

    def look(_self: Watched) -> Snapshot:
        time.sleep(0.6)
        return next(looks)

    monkeypatch.setattr(Watched, "look", look)
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.0)
    done = CliRunner().invoke(watch.watch, [], obj=Settings(CHECKOUT / "matrix.yaml", results.folder, None))
    assert "cpu-plain: completed" in done.output


def test_one_moment_as_json(results: Results, matrix: Matrix, make_intent: MakeIntent, mine: dict[str, object]) -> None:
    results.begin(make_intent("now", **mine))
    tell(results, "now")
    seen = Watched(results, matrix)
    look, now = seen.look(), time.time()
    [run] = describe(look, seen.scene(look, now), now)["runs"]
    assert (run["run"], run["phase"], run["done"], run["total"], run["loss"]) == ("now", "step", 30, 120, 0.69314)
    assert 19 < run["seconds_without_progress"] < 300
    assert run["stall_limit"] is None
    assert describe(Snapshot(), Scene(now), now)["runs"] == []
