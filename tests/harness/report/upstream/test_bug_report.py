"""Tests of `matrix report-bug`: what an issue contains, and what it never does."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.cli.report_bug import report_bug
from harness.cli.shared import Settings
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.registry.share.names import USER
from harness.registry.share.scrub import HOST, Scrubber
from harness.report.upstream.reproducers import reproducer
from tests.harness.report.upstream.conftest import ILLEGAL, PRIVATE

Keep = Callable[..., Record]
Command = Callable[..., Result]
SCRUBBER = Scrubber(
    {"/home/alice": "<home>"}, {PRIVATE["user"]: USER, PRIVATE["host"]: HOST, PRIVATE["own address"]: HOST}
)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dual_host: HostFacts) -> Command:
    """Return a function that runs the command on the tests' host; it raises errors that the user can fix."""
    monkeypatch.setattr("harness.cli.report_bug.host_of", lambda *_: dual_host)
    monkeypatch.setattr("harness.cli.report_bug.read_scrubber", lambda *_: SCRUBBER)

    def run(*arguments: str) -> Result:
        settings = Settings(CHECKOUT / "matrix.yaml", tmp_path / "results", None)
        done = CliRunner().invoke(report_bug, arguments, obj=settings)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return run


def headings(text: str) -> list[str]:
    return [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]


def test_nothing_private_is_in_it_and_the_kinds_are_counted(command: Command, keep_failure: Keep) -> None:
    keep_failure()
    for upstream in ("rocm", "pytorch"):
        text = command("r1", "--upstream", upstream).stdout
        found = [what for what, written in PRIVATE.items() if written in text]
        assert not found
        for telling in ("hunter2", "203.0.113.7", "/home", "/tmp", "m" * 16, "b5e1-4d1e"):
            assert telling not in text
        taken = text.partition("### What was taken out\n")[2]
        for kind in ("names and addresses of hosts: ", "names of users: ", "names and paths of data: "):
            assert kind in taken
        for kind in ("other addresses in networks: 3", "mail addresses: 1", "serial numbers of GPUs: 1"):
            assert kind in taken


def test_it_has_the_fields_of_rocms_template_in_their_order(command: Command, keep_failure: Keep) -> None:
    keep_failure()
    text = command("latest").stdout
    assert text.startswith("# [Issue]: Training: a GPU kernel touched memory that is not its own (torch 2.9.1 (decl")
    assert headings(text) == [
        "Problem Description",
        "Operating System",
        "CPU",
        "GPU",
        "ROCm Version",
        "ROCm Component",
        "Steps to Reproduce",
        "(Optional for Linux users) Output of /opt/rocm/bin/rocminfo --support",
        "Additional Information",
        "What was taken out",
    ]
    assert "ended as `failed` (app-error): see \\<data> on \\<host>, @&#8203;bob, \\&#&#8203;64;bob, ROCm" in text
    assert (
        "ROCm/ROCm#&#8203;1, gh&#8203;-2, https:&#8203;//github.com/ROCm/ROCm/issues/3, www&#8203;.github.com" in text
    )
    assert "1 of 1 runs with this stack and these variables failed on this kind of host (more than 4 % fail" in text
    assert "RX 7900 XT (gfx1100), 20 GiB; VBIOS 022.001.002.037; firmware mec 0x00000083" in text
    assert ILLEGAL in text
    assert "kernel: amdgpu 0000:03:00.0: [gfxhub] page fault" in text
    assert 'File "<data>/a.py", line 9 in f' in text
    assert "export HSA_ENABLE_SDMA=0\n```" in text
    assert "- https://github.com/ROCm/TheRock/issues/1795" in text
    assert (script := reproducer("kernel-fault"))
    assert f"```python\n{script}```" in text


def test_a_run_that_passed_in_the_same_environment_tells_the_versions(
    command: Command, keep_failure: Keep, tmp_path: Path, make_record: Keep
) -> None:
    intent = keep_failure().intent
    told = make_record("r0").result
    assert told
    same = intent.model_copy(update={"run_id": "r0"})
    ran = told.model_copy(update={"torch": told.torch.model_copy(update={"version": "2.9.1+rocm6.3", "hip": "6.3.4"})})
    ran = ran.model_copy(update={"python": "3.11.2, closed as fixed"})
    passed = make_record("r0").model_copy(update={"intent": same, "result": ran})
    results = Results(tmp_path / "results")
    results.begin(same)
    results.finish(passed)
    text = command("r1").stdout
    assert "6.3.4, in the wheel of torch 2.9.1+rocm6.3" in text
    assert "- Python: '3.11.2, closed as fixed'" in text
    assert "1 of 2 runs with this stack" in text


def test_the_class_decides_whose_template_it_is(command: Command, keep_failure: Keep) -> None:
    keep_failure(log="torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.")
    told = json.loads(command("r1", "--json").stdout)
    assert (told["upstream"], told["class"]) == ("pytorch", "oom-gpu")
    assert headings(told["markdown"]) == ["🐛 Describe the bug", "Versions", "What was taken out"]
    assert json.loads(command("r1", "--json", "--upstream", "rocm").stdout)["upstream"] == "rocm"


def test_where_no_script_shows_it_that_is_said(command: Command, keep_failure: Keep) -> None:
    keep_failure(log="OSError: [Errno 28] No space left on device")
    text = command("r1").stdout
    assert "No script shows `disk-full` without our app" in text
    assert "`disk-full` is most often the host's fault" in text


def test_a_log_cannot_end_its_block(command: Command, keep_failure: Keep) -> None:
    keep_failure(log=f"```\n### Versions\n\x1b[2J{ILLEGAL}")
    text = command("r1").stdout
    assert "````\nhost <host> host" in text
    assert "\x1b" not in text


def test_post_only_writes_a_file(command: Command, keep_failure: Keep, tmp_path: Path) -> None:
    keep_failure()
    told = command("r1", "--post", str(tmp_path / "bug.md")).stdout
    assert told == f"Wrote {tmp_path / 'bug.md'}, for rocm; read it before you post it: nothing was sent\n"
    assert (tmp_path / "bug.md").read_text(encoding="utf-8") == command("r1").stdout


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"injected_fault": "sigkill"}, "was injected on purpose; that is no bug of upstream"),
        ({"rehearsal": True}, "is a rehearsal"),
        ({"simulated": True}, "ran on a simulated host"),
        ({"machine": "o" * 16}, "ran on another host; write the issue there"),
    ],
)
def test_what_shows_no_bug_is_refused(
    changes: dict[str, object], why: str, command: Command, keep_failure: Keep, dual_host: HostFacts
) -> None:
    of_host = {key: value for key, value in changes.items() if key in HostFacts.model_fields}
    host = {"host": dual_host.model_copy(update=of_host)} if of_host else {}
    keep_failure(**host, **{key: value for key, value in changes.items() if key not in of_host})
    with pytest.raises(UserError, match=why):
        command("r1")


def test_the_variables_are_no_commands(command: Command, keep_failure: Keep) -> None:
    keep_failure(variables={"train": {"HSA_ENABLE_SDMA": "0; touch here", "HIP_LAUNCH_BLOCKING": "$(touch there)"}})
    text = command("r1").stdout
    assert "export HSA_ENABLE_SDMA='0; touch here'\n" in text
    assert "export HIP_LAUNCH_BLOCKING='$(touch there)'\n" in text
