"""Tests of the copy that is taken of a user's program."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from harness.base.errors import UserError
from harness.base.files.storage import create
from harness.environments.python import programs
from harness.environments.python.packages import _without
from harness.environments.python.programs import changed_source, take_program
from harness.matrix.programs import Program, ProgramCopy


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path / "programs")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("import package\n", encoding="utf-8")
    (folder / "package/__init__.py").touch()
    (folder / ".git").mkdir()
    (folder / ".git/config").touch()
    return folder


def take(source: Path, **values: Any) -> ProgramCopy:
    program = Program.model_validate({"command": "x", "source": str(source), **values})
    taken = take_program(program, "--app").taken
    assert taken is not None
    return taken


def test_a_copy_has_the_files_of_the_source_without_what_tools_make(source: Path) -> None:
    folder = Path(take(source).folder)
    assert sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*")) == [
        "package",
        "package/__init__.py",
        "train.py",
    ]
    assert (folder / "train.py").stat().st_mode & 0o222 == 0


def test_a_script_may_be_named_by_any_path_in_the_source(source: Path) -> None:
    for script in ("train.py", "./package/../train.py", "package//__init__.py"):
        take(source, command=["python", script])
    with pytest.raises(UserError, match=r"code/package/train.py: no such file; did you mean "):
        take(source, command=["python", "package/train.py"])


def test_braces_beside_the_checkpoint_are_the_programs_own(source: Path) -> None:
    resume = ["--resume", "{checkpoint}", "--filename", "{epoch}"]
    take(source, command=["python", "train.py"], resume=resume, checkpoint="out/*.pt")


def test_what_is_edited_has_another_version_and_copy(source: Path, tmp_path: Path) -> None:
    first = take(source)
    assert take(source) == first
    (source / "train.py").write_text("pass\n", encoding="utf-8")
    second = take(source)
    assert (second.version, second.folder) != (first.version, first.folder)
    (tmp_path / "bars.csv").write_text("1", encoding="utf-8")
    with_data = take(source, data=[str(tmp_path / "bars.csv")])
    assert with_data.folder == second.folder
    assert with_data.version != second.version


def test_a_copy_that_was_changed_is_reported_and_made_again(source: Path) -> None:
    program = take_program(Program.model_validate({"command": "x", "source": str(source)}), "--app")
    assert program.taken is not None
    assert changed_source(program) == ()
    file = Path(program.taken.folder) / "train.py"
    file.chmod(0o644)
    file.write_text("other\n", encoding="utf-8")
    file.parent.chmod(0o755)
    # Opening the fifo would block for ever, and reading the sparse file of a terabyte would never end.
    os.mkfifo(file.with_name("fifo"))
    file.with_name("hole").touch()
    os.truncate(file.with_name("hole"), 1 << 40)
    assert changed_source(program) == ("fifo", "hole", "train.py")
    assert take(source) == program.taken
    assert changed_source(program) == ()
    folder = file.parent
    folder.parent.chmod(0o755)
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")
    assert changed_source(program) == ("package/__init__.py", "train.py")
    assert take(source) == program.taken
    assert not folder.is_symlink()
    assert changed_source(program) == ()


def test_the_folder_of_copies_may_be_a_link_to_another_disk(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "linked").symlink_to("disk")
    monkeypatch.setattr("harness.environments.python.programs.PROGRAMS", tmp_path / "linked")
    first = take(source)
    (Path(first.folder) / "train.py").chmod(0o644)
    (Path(first.folder) / "train.py").write_text("other\n", encoding="utf-8")
    assert take(source) == first


def test_a_copy_in_which_folders_were_nested_is_reported_and_made_again(source: Path) -> None:
    program = take_program(Program.model_validate({"command": "x", "source": str(source)}), "--app")
    assert program.taken is not None
    folder = Path(program.taken.folder)
    folder.chmod(0o755)
    folder.joinpath(*["d"] * 400).mkdir(parents=True)
    (folder / "train.py").chmod(0o644)
    (folder / "train.py").write_text("other\n", encoding="utf-8")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        # Before Python 3.12 what comes after the nested folders is not seen, and counts as changed, too.
        assert "train.py" in changed_source(program)
        assert take(source) == program.taken
    finally:
        sys.setrecursionlimit(before)
    assert changed_source(program) == ()


def test_what_became_a_program_has_another_version_and_copy(source: Path) -> None:
    first = take(source)
    (source / "train.py").chmod(0o755)
    second = take(source)
    assert (second.version, second.folder) != (first.version, first.folder)
    assert (Path(second.folder) / "train.py").stat().st_mode & 0o777 == 0o555
    assert take(source) == second


def test_what_is_edited_while_it_is_copied_is_not_taken(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edited(copy: Path) -> BinaryIO:
        (source / copy.name).write_text("edited\n", encoding="utf-8")
        return create(copy)

    monkeypatch.setattr(programs, "create", edited)
    with pytest.raises(UserError, match="was changed while it was copied"):
        take(source)
    assert list(programs.PROGRAMS.iterdir()) == []
    monkeypatch.undo()
    assert take(source).version


def test_data_behind_a_link_is_part_of_the_version(source: Path, tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir()
    elsewhere.mkdir()
    (data / "more").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(data)
    (data / "again").symlink_to(data)
    (elsewhere / "bars.csv").write_text("1", encoding="utf-8")
    first = take(source, data=[str(data)])
    assert take(source, data=[str(data)]) == first
    (elsewhere / "bars.csv").write_text("2", encoding="utf-8")
    assert take(source, data=[str(data)]).version != first.version


def test_what_cannot_be_taken_is_said_in_a_line(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(place: Path = source, **values: Any) -> str:
        with pytest.raises(UserError) as error:
            take(place, **values)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert refusal(tmp_path / "none") == f"--app: {tmp_path}/none: no such folder"
    assert refusal(source / "train.py") == f"--app: {source}/train.py: is not a folder; give {source}, in which it is"
    assert "no such file or folder" in refusal(data=[str(tmp_path / "none")])
    for level in range(8):
        (tmp_path / f"{level}").mkdir()
        for link in ("a", "b"):
            (tmp_path / f"{level}" / link).symlink_to(tmp_path / f"{level + 1}")
    (tmp_path / "8").mkdir()
    with monkeypatch.context() as few:
        few.setattr(programs, "MOST_NAMES", 5)
        assert "has more than 5 names by links" in refusal(data=[str(tmp_path / "0")])
    told = f"--app: --requirements, or `requirements:`: {tmp_path}/none.txt: cannot be read: No such file or directory"
    assert refusal(requirements=str(tmp_path / "none.txt")) == told
    assert "/dev/null: cannot be read: is not a regular file" in refusal(requirements="/dev/null")
    with (tmp_path / "large.txt").open("wb") as large:
        large.truncate(2 << 20)
    assert "large.txt: cannot be read: is larger than 1048576 bytes" in refusal(requirements=large.name)
    (source / "link").symlink_to(tmp_path, target_is_directory=True)
    assert "link: is a link to a folder; name that folder under `data:` instead" in refusal()
    (source / "link").unlink()
    (tmp_path / "secret").touch()
    (source / "link").symlink_to("../secret")
    assert "link: is a link out of it; name what it leads to under `data:` instead" in refusal()
    (source / "link").unlink()
    with monkeypatch.context() as patch:
        resolved = os.path.realpath
        patch.setattr(os.path, "realpath", lambda name, **how: resolved("/" if "train" in str(name) else name, **how))
        assert "is a link out of it; name what it leads to under `data:` instead" in refusal()
    (source / "link").symlink_to(".git/config")
    assert "link: is a link out of it; name what it leads to under `data:` instead" in refusal()
    (source / "link").unlink()
    (source / "link").symlink_to("link")
    assert "link: is not a regular file; a source has no others" in refusal()
    (source / "link").unlink()
    (source / "link").symlink_to("train.py")
    take(source)
    with monkeypatch.context() as patch:
        patch.setattr(programs, "json_hash", lambda _: (source / "link").replace(source / "train.py") and "new")
        assert refusal() == f"{source}/train.py: is a link"
        (source / "train.py").unlink()
    (source / "train.py").touch()
    monkeypatch.setattr(programs, "MOST_FILES", 1)
    assert "name it under `data:`" in refusal()


def test_a_lock_is_left_without_what_the_stack_has_and_what_only_that_needs() -> None:
    lock = (
        "accelerate==1.0 \\\n    --hash=sha256:a\n    # via -r wanted.in\n"
        "nvidia-x==1 \\\n    --hash=sha256:b\n    # via torch\n"
        "psutil==6.0 \\\n    --hash=sha256:c\n    # via accelerate\n"
        "pyyaml==6.0 \\\n    --hash=sha256:d\n    # via\n    #   accelerate\n    #   torch\n"
        "torch==2.13.0 \\\n    --hash=sha256:e\n    # via accelerate\n"
    )
    left = _without(lock, {"torch", "numpy"})
    assert [line.partition("==")[0] for line in left.splitlines() if "==" in line] == ["accelerate", "psutil", "pyyaml"]


@pytest.mark.parametrize("progress", [r"(?<=at )(?P<step>\d+)", r"(?P<step>\d)\1"])
def test_a_pattern_that_may_take_for_ever_is_refused(source: Path, progress: str) -> None:
    with pytest.raises(UserError, match=r"--app: progress: .* looks around"):
        take(source, progress=progress)


def test_a_source_that_is_nested_too_deeply_is_refused_in_a_short_line(source: Path) -> None:
    folder = os.open(source, os.O_RDONLY)
    try:
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=folder)
            inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
    finally:
        os.close(folder)
    with pytest.raises(UserError, match="its folders are nested too deeply to be copied, at /") as refused:
        take(source)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("of_data", [False, True])
def test_folders_that_are_nested_beyond_what_python_follows_are_no_traceback(
    source: Path, tmp_path: Path, of_data: bool
) -> None:
    data = tmp_path / "bars"
    (data if of_data else source).joinpath(*["d"] * 400).mkdir(parents=True)
    # Since Python 3.12 the walk through the source does not recurse.
    walks = not of_data and sys.version_info >= (3, 12)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        with nullcontext() if walks else pytest.raises(UserError, match="folders are nested too deeply"):
            take(source, data=[str(data)] if of_data else [])
    finally:
        sys.setrecursionlimit(before)
