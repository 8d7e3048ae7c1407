import json
import os

import pytest

from vpoc.cli import run
from vpoc.data.own_output import note_of, require_replaceable, write_own
from vpoc.errors import UserError
from vpoc.features.store import require_no_other_file


def test_what_something_else_wrote_is_never_replaced_unless_forced(tmp_path):
    output = tmp_path / "merged.csv"
    output.write_text("my years of bars\n")
    with pytest.raises(UserError, match=r"merged.csv: is there, and is not what this command wrote; .* --force"):
        require_replaceable(output, "merge", force=False)
    require_replaceable(output, "merge", force=True)
    # As `mktemp` makes one.
    output.write_bytes(b"")
    require_replaceable(output, "merge", force=False)


def test_what_was_written_is_replaced_until_somebody_changes_it(tmp_path):
    output = tmp_path / "merged.csv"
    require_replaceable(output, "merge", force=False)
    for content in (b"one\n", b"two\n"):
        write_own(output, "merge", content)
        require_replaceable(output, "merge", force=False)
    output.write_bytes(b"two, corrected by hand\n")
    with pytest.raises(UserError):
        require_replaceable(output, "merge", force=False)


def test_what_another_command_wrote_is_not_replaced(tmp_path):
    output = tmp_path / "merged.csv"
    write_own(output, "merge", b"one\n")
    with pytest.raises(UserError):
        require_replaceable(output, "synth", force=False)
    # As an earlier version wrote it.
    note = json.loads(note_of(output).read_bytes())
    del note["command"]
    note_of(output).write_text(json.dumps(note))
    require_replaceable(output, "synth", force=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_note_of_another_user_counts_only_beside_a_file_of_theirs(tmp_path):
    """Anybody can write a note in a folder that all may write to, as /tmp is."""
    output = tmp_path / "merged.csv"
    write_own(output, "merge", b"my years of bars\n")
    os.chown(note_of(output), 65534, 65534)
    with pytest.raises(UserError, match="is there, and is not what this command wrote"):
        require_replaceable(output, "merge", force=False)
    os.chown(output, 65534, 65534)
    require_replaceable(output, "merge", force=False)


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"schema": 2}'])
def test_a_damaged_note_forbids_it(tmp_path, note):
    output = tmp_path / "merged.csv"
    write_own(output, "merge", b"one\n")
    note_of(output).write_bytes(note)
    with pytest.raises(UserError):
        require_replaceable(output, "merge", force=False)


def test_other_commands_leave_it_too(tmp_path, capsys):
    mine, bars = tmp_path / "evaluation.png", tmp_path / "bars.csv"
    mine.write_text("my picture\n")
    assert run(["synth", "--sessions", "1", "--output", str(bars)]) == 0
    for words, give in (
        (["plot", "--data", bars, "--output", mine], "--force"),
        (["predict", "--model", bars, "--data", bars, "--output", mine], "--force"),
        (["features", "--data", bars, "--output", mine], "or remove it"),
        (["evaluate", "--data", bars, "--output", mine.parent], "or remove it"),
        (["check", bars, "--fix", tmp_path / "copy.csv", "--changes", mine], "another --changes"),
    ):
        assert run([str(word) for word in words]) == 2
        assert f"{mine}: is there, and is not what this command wrote; give another" in (err := capsys.readouterr().err)
        assert (give in err, mine.read_text()) == (True, "my picture\n")
    empty = tmp_path / "made-by-mktemp"
    empty.touch()
    require_no_other_file(empty)


def test_synth_and_merge_leave_the_users_file_as_it_is(tmp_path, capsys):
    output, vix = tmp_path / "merged.csv", tmp_path / "vix.csv"
    output.write_text("my years of bars\n")
    vix.write_text("DATE,OPEN,HIGH,LOW,CLOSE\n2018-01-02,10,10,10,10\n")
    bars = tmp_path / "bars.csv"
    assert run(["synth", "--sessions", "1", "--output", str(bars)]) == 0
    for words in (["synth", "--sessions", "1"], ["merge", "--bars", str(bars), "--vix", str(vix)]):
        assert run([*words, "--output", str(output)]) == 2
        assert "--force to replace it" in capsys.readouterr().err
        assert output.read_text() == "my years of bars\n"
    assert run(["synth", "--sessions", "1", "--output", str(output), "--force"]) == 0
    assert output.read_bytes() == bars.read_bytes()
    # This time without --force: the file now is an output of the command, which may be replaced.
    assert run(["synth", "--sessions", "2", "--output", str(output)]) == 0
