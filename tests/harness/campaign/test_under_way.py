import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.campaign.under_way import BEGINS, LARGEST_NOTE, left_under_way, noted_under_way, under_way
from harness.evidence.records import Results
from harness.host.processes.processes import ProcessId, boot_id

COMMAND = "matrix run cpu-plain --data 'my bars.csv'"
KILLED = """
import os, signal, sys
from pathlib import Path
from harness.campaign.under_way import noted_under_way
from harness.evidence.records import Results
with noted_under_way(Results(Path(sys.argv[1])), "mine", sys.argv[2], *sys.argv[3:]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_is_under_way_or_ended_in_order_is_not_left(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert left_under_way(results, "mine") == []
    with suppress(KeyboardInterrupt), noted_under_way(results, "mine", COMMAND):
        assert left_under_way(results, "mine") == []
        raise KeyboardInterrupt
    assert left_under_way(results, "mine") == []
    assert list((tmp_path / "campaigns").iterdir()) == []


def test_a_note_that_cannot_be_removed_hides_no_error(tmp_path: Path) -> None:
    def becomes_unremovable() -> None:
        (file,) = tmp_path.glob("campaigns/*.under-way")
        file.unlink()
        file.mkdir()
        raise UserError("the record cannot be written")

    with pytest.raises(UserError, match="the record"), noted_under_way(Results(tmp_path), "mine", COMMAND):
        becomes_unremovable()


def test_what_else_is_under_way_is_reported_when_it_begins(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED.replace("SIGKILL", "SIGSTOP"), str(tmp_path), COMMAND], cwd=CHECKOUT
    ) as other:
        try:
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
            with noted_under_way(Results(tmp_path), "mine", "matrix run") as mine:
                assert mine.others == (f"also under way here: `{COMMAND}` (process {other.pid}); both share this host",)
        finally:
            other.kill()
    with noted_under_way(Results(tmp_path), "mine", "matrix run") as mine:
        assert mine.others == ()


def test_what_a_command_does_is_known_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path)
    with noted_under_way(results, "mine", COMMAND) as mine:
        (seen,) = under_way(results)
        assert (seen.process.pid, seen.command, seen.doing) == (os.getpid(), COMMAND, BEGINS)
        mine.doing("fetching torch\n2.13.0")
        (seen,) = under_way(results)
        assert seen.in_words("my/matrix watch") == (
            f"under way here: `{COMMAND}` (process {os.getpid()}): fetching torch\\n2.13.0; `my/matrix watch` shows it"
        )
        monkeypatch.setattr("harness.campaign.under_way.write_json", _full)
        mine.doing("no room for this")
        monkeypatch.undo()
        assert under_way(results)[0].doing == seen.doing
    assert under_way(results) == []


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_process_that_was_killed_is_reported_with_the_command_that_continues_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), COMMAND], cwd=CHECKOUT, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = left_under_way(Results(tmp_path), "mine")
    assert left.in_words == f"its process was killed while a campaign was under way; this continues it: `{COMMAND}`"
    assert left_under_way(Results(tmp_path), "another machine") == []


@pytest.mark.slow
def test_a_training_that_was_killed_is_reported_beside_a_campaign(tmp_path: Path) -> None:
    for training in ([], ["one"], ["another"]):
        words = [sys.executable, "-c", KILLED, str(tmp_path), COMMAND, *training]
        subprocess.run(words, cwd=CHECKOUT, check=False)
    told = sorted(left.what for left in left_under_way(Results(tmp_path), "mine"))
    assert told == ["campaign", "training", "training"]


@pytest.mark.slow
def test_two_campaigns_at_once_are_reported_each_by_itself(tmp_path: Path) -> None:
    results, other = Results(tmp_path), "matrix run --selection notes"
    with noted_under_way(results, "mine", COMMAND):
        for command in (other, "matrix run --all"):
            subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), command], cwd=CHECKOUT, check=False)
        assert [left.command for left in left_under_way(results, "mine")] == ["matrix run --all"]
        assert len(list((tmp_path / "campaigns").iterdir())) == 2
    assert [left.command for left in left_under_way(results, "mine")] == ["matrix run --all"]
    with noted_under_way(results, "mine", other):
        assert left_under_way(results, "mine") == []


def test_after_a_boot_it_was_the_host(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), COMMAND], cwd=CHECKOUT, check=False)
    (file,) = (tmp_path / "campaigns").iterdir()
    told = json.loads(file.read_text())
    # The same number may belong to another process by now.
    told["process"] |= {"boot": "an earlier one", "pid": os.getpid()}
    file.write_text(json.dumps(told))
    (left,) = left_under_way(Results(tmp_path), "mine")
    assert left.in_words.startswith("this host went down while a campaign was under way")


def note(**changed: object) -> str:
    process: dict[str, object] = {"pid": 1 << 30, "started": 1, "boot": boot_id()}
    process |= {name: changed.pop(name) for name in process.keys() & changed}
    return json.dumps({"process": process, "command": COMMAND} | changed)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"process": {}}',
        "[" * 200_000,
        note(pid="a\0b"),
        note(pid="\ud800"),
        note(pid=-1),
        note(pid=True),
        # The start time of a process that does not exist is read as None, which must not match a null here.
        note(started=None),
        note(boot=None),
        note(command=["matrix"]),
        note(what="\x1b[2J"),
        note(what=[]),
        note(since="never"),
        note(since=[]),
        note(since=10**400),
        note(since=float("nan")),
        f'{note()[:-1]}, "more": [{"0, " * (1 << 16)}0]}}',
        f"{note()}{' ' * LARGEST_NOTE}",
    ],
)
def test_a_damaged_note_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "mine.under-way").write_text(content)
    assert left_under_way(Results(tmp_path), "mine") == []
    with noted_under_way(Results(tmp_path), "mine", COMMAND, "one") as mine:
        assert mine.others == ()


def test_a_note_adds_no_line_to_what_is_said_and_nobody_elses_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "mine.under-way").write_text(note(command="matrix\nmatrix: run `rm -rf`"))
    (left,) = left_under_way(Results(tmp_path), "mine")
    assert left.in_words.endswith(r"`matrix\nmatrix: run `rm -rf``")
    me = asdict(ProcessId.mine())
    (tmp_path / "campaigns" / "mine.under-way").write_text(note(**me, command="matrix` is broken: `rm"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert left_under_way(Results(tmp_path), "mine") == []
    (one,) = under_way(Results(tmp_path))
    assert one.command == "\"matrix' is broken: 'rm\""
