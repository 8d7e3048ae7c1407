"""Tests of which checkpoints a run can resume from, and how another run gets them."""

import hashlib
import os
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.files import storage
from harness.base.files.untrusted_tree import UntrustedTree
from harness.evidence.files import work_folder
from harness.evidence.files.work_folder import MOST_TRIED, hand_over, newest_checkpoints, steps_done
from harness.host import disk_use

ANY = {"bars_checkpoints": None, "bars_mlp_checkpoints": None, "other_checkpoints": None}


def write(output: Path, step: int, *, folder: str = "bars_checkpoints", content: bytes = b"weights") -> Path:
    file = output / folder / f"step-{step:09}.{hashlib.sha256(content).hexdigest()}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_the_newest_of_each_model_counts_wherever_it_is(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    write(one, 20)
    newest = write(one, 40)
    write(two, 30)
    other = write(two, 58, folder="bars_mlp_checkpoints")
    found = newest_checkpoints([one, two, tmp_path / "none"], ANY)
    assert found == (newest, other)
    assert steps_done(found) == 98
    assert newest_checkpoints([one, two], {"bars_mlp_checkpoints": None}) == (other,)


def test_none_is_past_the_steps_that_are_known_to_have_been_made(tmp_path: Path) -> None:
    kept = write(tmp_path, 20)
    write(tmp_path, 21, content=b"poison")
    assert newest_checkpoints([tmp_path], {"bars_checkpoints": 20}) == (kept,)
    assert newest_checkpoints([tmp_path], {"bars_checkpoints": 19}) == ()
    assert newest_checkpoints([tmp_path], {}) == ()


def test_of_more_than_an_app_keeps_only_the_last_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = UntrustedTree.hash

    def count(tree: UntrustedTree, name: str, most: int) -> str:
        hashed.append(name)
        return real(tree, name, most)

    monkeypatch.setattr(UntrustedTree, "hash", count)
    write(tmp_path, 1)
    for step in range(100, 200):
        os.truncate(write(tmp_path, step), 1 << 20)
    assert newest_checkpoints([tmp_path], ANY) == ()
    assert len(hashed) == MOST_TRIED
    monkeypatch.setattr(work_folder, "LONGEST_SEARCH_SECONDS", 0.0)
    assert newest_checkpoints([tmp_path], ANY) == ()
    assert len(hashed) == MOST_TRIED


@pytest.mark.parametrize("name", [".step-000000040.{}.pt.tmp", "step-40.{}.pt", "step-000000040.pt", "other.pt"])
def test_what_is_no_checkpoint_is_passed_over(name: str, tmp_path: Path) -> None:
    kept = write(tmp_path, 20)
    (kept.parent / name.format("0" * 64)).write_bytes(b"weights")
    assert newest_checkpoints([tmp_path], ANY) == (kept,)


def test_one_that_was_cut_or_has_too_many_holes_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = write(tmp_path, 20)
    write(tmp_path, 40).write_bytes(b"weigh")
    assert newest_checkpoints([tmp_path], ANY) == (kept,)
    # The name of this checkpoint is right, but with too many holes it could not be handed over.
    holes = write(tmp_path, 60, content=bytes(1 << 20))
    os.truncate(holes, 0)
    os.truncate(holes, 1 << 20)
    assert newest_checkpoints([tmp_path], ANY) == (holes,)
    monkeypatch.setattr(work_folder, "MOST_HOLE_BYTES", 1 << 19)
    assert newest_checkpoints([tmp_path], ANY) == (kept,)
    kept.unlink()
    assert newest_checkpoints([tmp_path], ANY) == ()


def test_it_is_handed_over_as_a_copy_that_whoever_writes_to_the_first_one_cannot_change(tmp_path: Path) -> None:
    file = write(tmp_path / "1", 20)
    for _ in range(2):
        hand_over([file], tmp_path / "2")
    (handed,) = newest_checkpoints([tmp_path / "2"], ANY)
    file.write_bytes(b"changed")
    assert Path(handed).read_bytes() == b"weights"


def test_one_that_is_not_what_its_name_says_is_not_handed_over(tmp_path: Path) -> None:
    file = write(tmp_path / "1", 20)
    file.write_bytes(b"changed")
    with pytest.raises(UserError, match="does not have the hash in its name"):
        hand_over([file], tmp_path / "2")
    assert list((tmp_path / "2" / file.parent.name).iterdir()) == []
    file.unlink()
    with pytest.raises(UserError, match=f"^{file}: is gone; the same command resumes") as gone:
        hand_over([file], tmp_path / "2")
    # A subclass would be taken for something that the run itself did to its folder.
    assert type(gone.value) is UserError


def test_links_are_no_checkpoints_and_lead_to_none(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", 40)
    kept = write(tmp_path / "1", 20)
    (kept.parent / elsewhere.name).symlink_to(elsewhere)
    (tmp_path / "1" / "other_checkpoints").symlink_to(elsewhere.parent)
    (tmp_path / "2").symlink_to(tmp_path / "elsewhere")
    assert newest_checkpoints([tmp_path / "1", tmp_path / "2"], ANY) == (kept,)


def test_none_is_handed_over_to_where_a_link_of_another_user_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "1", 20)
    for folder in ("2", "private"):
        (tmp_path / folder).mkdir()
    (tmp_path / "2" / file.parent.name).symlink_to(tmp_path / "private")
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    monkeypatch.setattr(storage, "ROOT", -2)
    with pytest.raises(UserError, match="is a link of another user's"):
        hand_over([file], tmp_path / "2")
    assert list((tmp_path / "private").iterdir()) == []


def test_what_was_cut_there_is_replaced_and_half_a_copy_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = write(tmp_path / "1", 20)
    place = tmp_path / "2" / file.parent.name / file.name
    place.parent.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left"):
            hand_over([file], tmp_path / "2")
    assert list(place.parent.iterdir()) == []
    place.write_bytes(b"wei")
    hand_over([file], tmp_path / "2")
    assert place.read_bytes() == b"weights"


def test_no_copy_is_begun_that_would_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "1", 20)
    monkeypatch.setattr(disk_use, "_free", lambda _: 8)
    with pytest.raises(UserError, match=f"^{tmp_path / '2'}: no room .* may be taken; free space"):
        hand_over([file], tmp_path / "2")
    assert not (tmp_path / "2").exists()
    monkeypatch.setattr(disk_use, "_free", lambda _: 100)
    hand_over([file], tmp_path / "2")
    assert newest_checkpoints([tmp_path / "2"], ANY)


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "2").write_text("in the way", encoding="utf-8")
    with pytest.raises(UserError, match=r"2/bars_checkpoints/step-000000020.*cannot be written"):
        hand_over([write(tmp_path / "1", 20)], tmp_path / "2")
