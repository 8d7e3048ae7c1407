"""Tests of `--root`: every command sees the simulated host, and all that is written is marked as simulated."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.kill_tester import Place
from harness.base.errors import NoSpaceError, UserError
from harness.base.paths import CHECKOUT
from harness.campaign.reboot import GPUS_BEFORE, await_gpus
from harness.campaign.run_campaign import CampaignResult
from harness.cli.commands import COMMANDS
from harness.cli.main import cli
from harness.evidence.files.run_files import Intent
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.records import Results
from harness.host.fingerprint import read_host
from harness.host.simulated import dual_7900xt
from harness.run.gpu_recovery import Step
from harness.search.conclusion import Conclusion
from harness.search.schedule import EndReason

MATRIX = CHECKOUT / "matrix.yaml"
# Files that describe this machine's hardware and driver. Processes, control groups and locks are always its own.
HARDWARE = re.compile(
    r"/sys/(?!fs/cgroup)|/dev/(kfd|dri|kmsg|dxg)|/proc/(cpuinfo|meminfo|cmdline|mounts)|/(etc|proc/sys/kernel)/(os|yama)"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "host"
    dual_7900xt(folder)
    return folder


def matrix(root: Path, *words: str, file: Path = MATRIX, results: Path | None = None) -> Result:
    options = ["--matrix", str(file), "--results", str(results or root.parent / "results"), "--root", str(root)]
    return CliRunner().invoke(cli, [*options, *words])


@dataclass
class Opened:
    """The files of this machine's hardware that were opened or listed while `listens` is set."""

    files: list[str] = field(default_factory=list)
    listens: bool = False

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.listens and event in ("open", "os.listdir", "os.scandir") and HARDWARE.match(str(arguments[0])):
            self.files.append(str(arguments[0]))


@pytest.fixture(scope="session")
def hooked() -> Opened:
    """Install the audit hook on first use, because it slows down all later tests and cannot be removed."""
    made = Opened()
    sys.addaudithook(made.note)
    return made


@pytest.fixture
def opened(hooked: Opened) -> Iterator[Opened]:
    hooked.files.clear()
    hooked.listens = True
    yield hooked
    hooked.listens = False


# A cell that is refused only after the command has looked at the host.
EXCLUDED = "rocm6-tensorflow-plain"
# Arguments for each command. However it ends, the command looks at the host first, or not at all.
LINES: dict[str, tuple[str, ...]] = {
    "build": ("--dry-run", "rocm6.3-torch2.9.1-plain"),
    "clean": ("--yes",),
    "compare": ("cpu-plain", "cpu-no-sdma"),
    "demote": ("known-good-cpu", "--reason", "test"),
    "devcontainer": ("rocm6.3-torch2.9.1-plain",),
    "doctor": (),
    "env": ("rocm6.3-torch2.9.1-plain",),
    "exec": (EXCLUDED, "vpoc"),
    "explain": ("no-such-run",),
    "export": ("records.tar.gz",),
    "host-changed": ("new PSU",),
    "import": ("no-such-file",),
    "index": (),
    "inject": ("--list",),
    "isolate": ("rocm6-tensorflow-no-sdma", "--executor", "process"),
    "completion": ("bash",),
    "keys": (),
    "lint": (),
    "load": ("no-such-folder",),
    "lock": ("no-such-stack",),
    "minimise": ("rocm6-tensorflow-no-sdma", "--executor", "process"),
    "plan": ("--executor", "process"),
    "promote": ("--dry-run",),
    "pull": ("--registry", "localhost:1", "no-such-cell"),
    "push": ("--registry", "localhost:1", "no-such-cell"),
    "rehearse": ("no-such-stack",),
    "render": ("cpu-plain",),
    "report": (),
    "report-bug": ("no-such-run",),
    "run": (EXCLUDED, "--executor", "process"),
    "run-cell": (EXCLUDED, "--executor", "process"),
    "save": ("no-such-cell", "folder"),
    "show": (),
    "simulate": ("new",),
    "slurm-epilog": (),
    "slurm-node": (),
    "slurm-prolog": (),
    "status": (),
    "strike": ("no-such-run", "--reason", "test"),
    "tags": (),
    "train": ("--data", "no-such-file", "--output", "out"),
    "verify": ("no-such-image",),
    "watch": (),
}


@pytest.mark.parametrize("lacking", ["sys", "proc", "dev"])
def test_a_folder_that_is_no_host_is_refused(lacking: str, tmp_path: Path) -> None:
    for name in {"sys", "proc", "dev"} - {lacking}:
        (tmp_path / name).mkdir()
    told = matrix(tmp_path, "status").exception
    assert isinstance(told, UserError)
    assert f"has no {lacking}; `.venv/bin/matrix simulate FOLDER`" in str(told)


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_command_reads_the_hardware_of_this_machine(
    command: str, root: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.doctor.ask.measure_write_speed", lambda _: None)
    monkeypatch.setattr("harness.doctor.ask.ask_bases", lambda *_: ())
    monkeypatch.chdir(root.parent)
    done = matrix(root, command, *LINES[command])
    assert opened.files == []
    assert "simulated host" in done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit | UserError | LookupError), done.exception


def test_the_same_look_sees_this_machine_without_a_root(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.doctor.ask", lambda machine, _: machine)
    done = CliRunner().invoke(cli, ["--matrix", str(MATRIX), "doctor"])
    assert "simulated" not in done.output
    assert "/proc/cpuinfo" in opened.files


def test_the_plan_is_that_of_two_gpus(root: Path) -> None:
    words = ("plan", "--executor", "process", "rocm6.3-torch2.9.1-plain")
    plan = json.loads(matrix(root, *words, "--json").stdout)
    assert plan["simulated"] is True
    assert plan["host"].startswith("On a simulated host, found 2 AMD GPUs")
    text = " ".join(matrix(root, *words, "--use-screen-gpu").stdout.split())
    assert "each on GPU 0 and on GPU 1" in text
    assert "a screen is connected to GPU 0 (DP-1): a hang may freeze it" in text


def test_a_cell_that_is_named_does_not_run_on_a_gpu_with_a_screen_unless_that_is_allowed(root: Path) -> None:
    words = ("plan", "--executor", "process", "rocm6.3-torch2.9.1-plain")
    assert [run["gpus"] for run in json.loads(matrix(root, *words, "--json").stdout)["runs"]] == [[1]]
    text = " ".join(matrix(root, *words).stdout.split())
    assert "a screen is connected to GPU 0: no run uses it, so what trains on both GPUs stays unknown" in text
    assert "--use-screen-gpu, with make ARGS=--use-screen-gpu" in text
    several = json.loads(matrix(root, *words, "--json", "--stage", "two-gpus").stdout)
    assert several["runs"] == []
    assert "this host has one that runs may use; --use-screen-gpu lets them" in several["left_out"][0]["reason"]


def test_a_gpu_that_failed_its_last_probe_is_named_by_the_doctor_and_by_each_plan(
    root: Path, make_intent: Callable[..., Intent]
) -> None:
    intent = make_intent("r1", host=read_host(root))
    failed = Step("probe", 1, good=False, detail="device failed", seconds=1.0)
    append_steps(Results(root.parent / "results"), [failed.line("after-failure", intent, "e" * 64)])
    assert "GPU 1 (gfx1100, 0000:43:00.0) takes no runs: it failed its last probe (device failed)" in " ".join(
        matrix(root, "doctor").stdout.split()
    )
    for words in ([], ["rocm6.3-torch2.9.1-plain"]):
        planned = " ".join(matrix(root, "plan", "--executor", "process", *words).stdout.split())
        assert "GPU 1 takes no runs until it passes a probe, which is made first; its last one failed" in planned


def test_the_doctor_says_where_no_run_begins_because_the_disk_is_full(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(place: Path) -> None:
        raise NoSpaceError(f"{place}: no run begins with less than 1.1 GB free, and 0.1 GB are")

    monkeypatch.setattr("harness.cli.doctor.require_room", refuse)
    told = json.loads((done := matrix(root, "doctor", "--json")).stdout)
    assert done.exit_code == 1
    (found,) = [one for one in told["findings"] if one["check"] == "results-space"]
    assert found["what"].startswith(f"{root.parent / 'results' / 'runs'}: no run begins with less")


def test_doctor_says_what_is_wrong_with_it(root: Path) -> None:
    (root / "dev/kfd").unlink()
    done = matrix(root, "doctor", "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 1
    assert told["simulated"] is True
    assert {"kfd"} <= {one["check"] for one in told["findings"] if one["level"] == "problem"}


def test_nothing_is_promoted_and_nothing_rebooted(root: Path) -> None:
    with pytest.raises(UserError, match="nothing is promoted"):
        raise matrix(root, "promote").exception or AssertionError
    with pytest.raises(UserError, match="leave it out"):
        raise matrix(root, "run", "--reboot-when-unhealthy").exception or AssertionError


def test_after_a_reboot_the_command_waits_for_the_gpus_before_it_plans(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would run cells on the CPU and end, because the driver has not found the GPUs yet."""
    monkeypatch.setenv(GPUS_BEFORE, "2")
    monkeypatch.setattr("harness.cli.run._check_reboot", lambda *_: None)
    monkeypatch.setattr("harness.cli.run.await_gpus", partial(await_gpus, seconds=0.0))
    for node in (root / "sys/class/kfd/kfd/topology/nodes").iterdir():
        shutil.rmtree(node)
    with pytest.raises(UserError, match="of the 2 GPUs from before the reboot the driver shows none"):
        raise matrix(root, "run", "--reboot-when-unhealthy", "no-such-cell").exception or AssertionError


@pytest.mark.parametrize(("why", "unhealthy"), [("exhausted", True), ("exhausted", False), ("good", True)])
def test_the_host_is_rebooted_only_for_an_unhealthy_gpu_that_keeps_a_campaign_from_its_end(
    why: EndReason, unhealthy: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = CampaignResult("c1", 1, None, False, False, Conclusion(why, False, "said", True, {}))
    rebooted: list[tuple[Any, ...]] = []
    stand_ins: dict[str, Callable[..., Any]] = {
        "_check_reboot": lambda *_: None,
        "run_campaign": lambda *_: ended,
        "_tell": lambda *_, **__: None,
        "unhealthy_gpus": lambda *_: {1: "it hangs"} if unhealthy else {},
        "reboot_and_resume": lambda *words: rebooted.append(words),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"harness.cli.run.{name}", stand_in)
    done = matrix(root, "run", "--reboot-when-unhealthy", "--executor", "process")
    assert done.exit_code == 1, done.output
    told = [words[-3:] for words in rebooted]
    assert told == ([("process", "c1", 2)] if why == "exhausted" and unhealthy else [])


@pytest.mark.slow
def test_what_ran_on_it_says_so_wherever_it_is_reported(tmp_path: Path, root: Path) -> None:
    """Make a whole run of a stand-in for the app on both simulated GPUs; check its record, status and report."""
    place = Place(tmp_path / "place")
    place.folder.mkdir()
    place.make()
    known = {"file": place.folder / "matrix.yaml", "results": place.results.folder}
    where = ("--executor", "process", "--python", str(place.folder / "python"))
    done = matrix(root, "run", "host-plain", *where, "--data", str(place.folder / "bars.csv"), **known)
    assert done.exit_code == 0, done.output
    assert "On a simulated host, found 2 AMD GPUs" in done.stderr
    (record,) = Results(place.results.folder).records()
    assert record.intent.host.simulated
    assert [gpu.gfx for gpu in record.intent.host.gpus] == ["gfx1100", "gfx1100"]
    (verdict,) = json.loads(matrix(root, "status", "--json", **known).stdout)["verdicts"]
    assert verdict["simulated"] is True
    assert verdict["scope"].startswith("simulated-")
    assert verdict["qualifies_for_promotion"] is False
    assert f"{verdict['scope']}, process" in matrix(root, "status", **known).stdout
    (run,) = json.loads(matrix(root, "status", "host-plain", "--json", **known).stdout)["runs"]
    assert run["simulated"] is True
    assert f"{record.intent.run_id} (simulated)" in matrix(root, "status", "host-plain", **known).stdout
    for name in ("report.md", "report.html"):
        assert "made on a simulated host" in (place.results.folder / name).read_text(encoding="utf-8")
    report = json.loads((place.results.folder / "report.json").read_bytes())
    assert [group["scope"].split("-")[0] for group in report["groups"]] == ["simulated"]
    assert [host["simulated"] for host in report["hosts"]] == [True]
    assert report["answer"]["sentence"].startswith("On a simulated host: ")
    assert "On a simulated host: " in done.stdout
    assert report["groups"][0]["host"].startswith("simulated gfx1100, gfx1100")


def test_a_simulated_host_is_written_for_people(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    told = CliRunner().invoke(cli, ["simulate", str(folder)])
    assert f"matrix --root {folder} doctor" in told.stdout
    again = CliRunner().invoke(cli, ["simulate", str(folder)])
    assert isinstance(again.exception, UserError)
    assert (folder / "dev/kfd").is_char_device()


def test_a_host_written_to_a_relative_folder_has_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(cli, ["--matrix", str(MATRIX), "simulate", "HOST"])
    assert len(read_host(tmp_path / "HOST").gpus) == 2
