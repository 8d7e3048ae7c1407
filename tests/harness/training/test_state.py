"""Tests of the file from which a training continues."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.campaign.under_way import noted_under_way
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.training.state import new_state, open_state_file, unfinished_trainings


def test_nobody_else_trains_the_same_model_meanwhile(tmp_path: Path, host: HostFacts) -> None:
    results, output, link = Results(tmp_path / "results"), tmp_path / "TRAINING", tmp_path / "link"
    output.mkdir()
    link.symlink_to(output)
    with open_state_file(results, host, output, "bars"), open_state_file(results, host, output, "others"):
        for same in (output, link, tmp_path / "link/../TRAINING"):
            with pytest.raises(UserError, match="is being trained by another process"):
                open_state_file(results, host, same, "bars").__enter__()


def test_a_training_is_found_again_by_folder_and_name_and_question(tmp_path: Path, host: HostFacts) -> None:
    results, link = Results(tmp_path), tmp_path / "link"
    link.symlink_to(tmp_path)
    with open_state_file(results, host, tmp_path, "bars") as file:
        file.write(new_state("key", "cpu-plain", None))
        assert file.read("key")
        assert file.read("another question") is None
    with open_state_file(results, host, link, "bars") as file:
        assert file.read("key")
    with open_state_file(results, host, tmp_path, "others") as file:
        assert file.read("key") is None


def test_an_unfinished_training_waits_while_one_with_other_options_is_made_in_its_place(
    tmp_path: Path, host: HostFacts
) -> None:
    mine, other = (new_state(key, "cpu-plain", None).model_copy(update={"begins": ("first",)}) for key in "ab")
    with open_state_file(Results(tmp_path), host, tmp_path, "bars") as file:
        file.write(mine)
        assert file.unfinished_other("b") == mine
        file.write(other)
        assert (file.read("a"), file.read("b")) == (mine, other)
        # Of several, the one that was begun last.
        assert file.unfinished_other("c") == other
        file.remove(other)
        assert (file.read("a"), file.read("b")) == (mine, None)
        # A training also counts as unfinished while it is set aside.
        assert file.unfinished_other("b") == mine
        # A training of which no attempt was begun is not set aside.
        file.write(new_state("c", "cpu-plain", None))
        file.write(mine)
        assert file.read("c") is None
        file.remove(mine)
        assert file.read("a") is None
        assert file.unfinished_other("b") is None
        # A file that cannot be read must not pass for that of a training that may begin again.
        file.file.mkdir()
        with pytest.raises(OSError, match="not a regular file"):
            file.read("a")
        assert unfinished_trainings(Results(tmp_path), host.machine) == []
        file.file.rmdir()
        file.file.write_text(mine.model_dump_json(by_alias=True).replace('"first"', '"in a way of tomorrow"'))
        for use in (file.read, file.unfinished_other, lambda _: file.write(mine)):
            with pytest.raises(UserError, match=f"is damaged, or .* of a later version; .*`rm {file.file}` gives up"):
                use("a")
        assert unfinished_trainings(Results(tmp_path), host.machine) == []


def test_a_training_without_a_model_is_named_with_what_continues_it(
    tmp_path: Path, host: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, output = Results(tmp_path / "results"), tmp_path / "TRAINING"
    output.mkdir()
    about = {"begins": ("first", "same-again"), "machine": "mine", "output": str(output), "command": "matrix\ntrain"}
    mine, other = (new_state(key, "cpu-plain", None).model_copy(update=about) for key in "ab")
    with open_state_file(results, host, output, "bars") as file:
        file.write(mine)
        file.write(other.model_copy(update={"begins": ("first",)}))
    told = sorted(one.in_words for one in unfinished_trainings(results, "mine"))
    ways_out = [one.split("`")[1] for one in told]
    assert [re.sub(r"begun [-0-9]{10} [0-9:]{5}", "begun", one) for one in told] == [
        f"{output}: a training is not finished (begun, {count}; `{way_out}` gives it up); "
        "this continues it: `matrix\\ntrain`"
        for count, way_out in zip(("1 attempt", "2 attempts"), ways_out, strict=True)
    ]
    assert unfinished_trainings(results, "another") == []
    with noted_under_way(results, "mine", "matrix train", file.file.stem):
        assert [one.state.id for one in unfinished_trainings(results, "mine")] == [mine.id]
    subprocess.run(ways_out[0], shell=True, check=True)
    assert [one.state.id for one in unfinished_trainings(results, "mine")] == [mine.id]
    with monkeypatch.context() as patched:
        # Another user who shares the folder could make this user type any command.
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert unfinished_trainings(results, "mine") == []
        assert file.unfinished_other("c") is None
        # Nor may another user choose the image and the checkpoints of this user's training.
        assert file.read("a") is None
    assert file.unfinished_other("c") == mine
    output.rmdir()
    assert unfinished_trainings(results, "mine") == []
