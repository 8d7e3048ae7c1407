import ast
import errno
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.base.errors import UserError
from harness.evidence.files.app_files import Result
from harness.evidence.files.kept_copies import keep_models, keep_verification
from harness.evidence.files.run_files import Intent
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder, regex_of

SOURCE = Path(harness.__file__).parent
OWNERS = {
    *(SOURCE / "evidence" / "files" / name for name in ("run_folder.py", "work_folder.py")),
    # This module stands in for the app, so it has the names of the app's files.
    SOURCE / "rehearsal" / "stand_in_app.py",
}


def names_of(owner: type) -> set[str]:
    """Return every name of a file or folder that a class defines."""
    constants = [value for name, value in vars(owner).items() if name.isupper()]
    return {name for value in constants for name in ((value,) if isinstance(value, str) else value.values())}


FILES = {name for name in names_of(RunFolder) | names_of(WorkFolder) if re.search(r"[.*-]", name)}
FOLDERS = {WorkFolder.OUTPUT, WorkFolder.SCRATCH, RunFolder.FAILURE}
# Only modules that match this are parsed, because parsing takes long and few modules contain such a name.
MAY_HAVE = re.compile("|".join(re.escape(name.partition("{")[0].removeprefix("*")) for name in FILES | FOLDERS))


def string_literals(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the string literals of a module, except docstrings and texts of several lines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    begins = (node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body)
    docs = {id(first.value) for first in begins if isinstance(first, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from [node] if "\n" not in node.value.strip() else []


def joined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the literals right of a `/`: names that are joined to a folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            yield str(node.right.value)


def is_in(name: str, text: str) -> bool:
    """Return whether a text contains a name or, for a name with a placeholder, ends with the part before it."""
    before, placeholder, _ = name.partition("{")
    return text.endswith(before) if placeholder else name.removeprefix("*") in text


def names_in(source: str) -> set[str]:
    if not MAY_HAVE.search(source):
        return set()
    tree = ast.parse(source)
    found = {name for text in string_literals(tree) for name in FILES if is_in(name, str(text.value))}
    return found | {name for text in joined_names(tree) for name in FOLDERS if text.split("/")[0] == name}


def test_the_names_are_all_known() -> None:
    assert {"intent.json", "record.json", "log.txt", "process.json", "probe-gpu{gpu}{number}.txt"} <= FILES
    assert {"result.json", "progress-{rank}.jsonl", "features.parquet", "*_checkpoints"} <= FILES
    assert {"failure/index.json", "failure/health.json", "failure/py-spy.txt"} <= FILES


@pytest.mark.parametrize(
    "source",
    [
        'x = folder / "log.txt"',
        'x = f"{folder}/progress-{rank}.jsonl"',
        'def f(n="record.json"): ...',
        'x = f"{name}_checkpoints"',
        'x = "container-" + log',
        'x = folder / "output"',
        'x = folder / "failure/new.txt"',
    ],
)
def test_a_name_is_found_wherever_it_stands(source: str) -> None:
    assert names_in(source)


def test_no_name_is_seen_where_none_is() -> None:
    assert not names_in('"""Writes log.txt."""\nx = {"output": failure / 2}\n')


def test_no_other_module_has_a_name_of_a_file_in_a_run_folder() -> None:
    modules = {file: names_in(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py") if file not in OWNERS}
    assert {str(file.relative_to(SOURCE)): sorted(names) for file, names in modules.items() if names} == {}


def test_the_app_has_no_name_of_the_harness() -> None:
    assert not names_of(RunFolder) & names_of(WorkFolder)


def test_files_of_ranks_are_found_in_their_order_and_nothing_else(tmp_path: Path) -> None:
    for name in ("progress-0.jsonl", "progress-10.jsonl", "progress-2.jsonl", "progress-x.jsonl", "progress-1.txt"):
        (tmp_path / name).touch()
    assert list(WorkFolder(tmp_path).progress()) == [0, 2, 10]
    assert WorkFolder(tmp_path).progress()[2] == "progress-2.jsonl"
    assert WorkFolder(tmp_path / "none").stacks() == {}


def test_a_name_with_placeholders_matches_what_it_may_stand_for() -> None:
    assert re.fullmatch(regex_of(RunFolder.PROBE_LOG), "probe-gpu1-2.txt")
    assert re.fullmatch(regex_of(RunFolder.CONTAINER), "container-check-model-3.json")
    assert not re.fullmatch(regex_of(WorkFolder.STACKS), "stacks-../0.txt")


def test_a_new_probe_gets_a_log_of_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    names = []
    for _ in range(3):
        log = folder.new_probe_log(1)
        log.touch()
        names.append(log.name)
    assert names == ["probe-gpu1.txt", "probe-gpu1-2.txt", "probe-gpu1-3.txt"]


def test_a_model_is_looked_for_in_the_output_folder_alone(tmp_path: Path, result_values: dict[str, Any]) -> None:
    folder, model = RunFolder(tmp_path), {**result_values["model"], "file": "../passwd"}
    result = Result.model_validate({**result_values, "model": model})
    (tmp_path / "passwd").write_text("secret")
    (tmp_path / "output").mkdir()
    assert keep_models(folder, result) == ([None], "")
    (tmp_path / "output" / "passwd").write_text("a model")
    assert keep_models(folder, result) == ([hashlib.sha256(b"a model").hexdigest()], "")
    assert folder.kept_model(1).read_text() == "a model"


def test_nothing_is_removed_behind_a_link_in_the_place_of_a_run_folder(tmp_path: Path) -> None:
    kept = [tmp_path / "other" / name for name in ("verifying", "work/scratch", "work/output/a_checkpoints")]
    for place in kept:
        place.mkdir(parents=True)
    (tmp_path / "run").symlink_to("other")
    left = RunFolder(tmp_path / "run").remove_places(all_of_it=True)
    assert all(place.is_dir() for place in kept)
    assert "verifying run is a link, not a folder" in left
    assert RunFolder(tmp_path / "other").remove_places(all_of_it=True) == ()
    assert not any(place.exists() for place in kept)


def test_what_is_missing_is_none_and_what_is_damaged_is_reported(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_intent() is None
    assert folder.read_record() is None
    assert keep_verification(folder) == (None, "there is no verification.json")
    folder.intent.write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        folder.read_intent()


def test_what_may_be_the_live_run_of_another_user_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but its owner may enter the folder of a run while it lasts."""

    def refused(file: Path, *_: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr("harness.evidence.files.run_folder.read_regular", refused)
    with pytest.raises(UserError, match=r"intent\.json: cannot be read: .*; another user's run may be under way there"):
        RunFolder(tmp_path).read_intent()


def test_what_was_written_is_read_again(tmp_path: Path, make_intent: Callable[..., Intent]) -> None:
    intent = make_intent("r1")
    folder = RunFolder(tmp_path)
    folder.write(RunFolder.INTENT, intent)
    assert folder.read_intent() == intent
