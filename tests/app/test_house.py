"""The house: rooms import only from rooms below them, and each public name has one meaning."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import vpoc

ROOT = Path(vpoc.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ROOMS = re.findall(r"^\| `(\w+)` \|", vpoc.__doc__, re.MULTILINE)
"""Top floor first."""
IN_TRAINING = ("training", "training.faults", "training.strategies")
"""Folders within the room `training`, below its own files."""


def module_of(path, root=ROOT):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree):
    """Modules of the package that are imported anywhere in a file, by their names within the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vpoc":
            base = node.module.removeprefix("vpoc").removeprefix(".")
            for alias in node.names:
                name = f"{base}.{alias.name}".removeprefix(".")
                yield name if (ROOT / name.replace(".", "/")).with_suffix(".py").exists() else base or name
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("vpoc.") for a in node.names if a.name.startswith("vpoc."))


@cache
def tree_of(path):
    return ast.parse(path.read_text())


@cache
def arrows():
    """Every import, as (module, module)."""
    return [(module_of(path), to) for path in FILES for to in imported(tree_of(path)) if to]


def upwards(found, rooms):
    """The arrows that do not lead downwards, between rooms named as a path or as its beginning."""

    def floor(module):
        names = [place for place, room in enumerate(rooms) if f"{module}.".startswith(f"{room}.")]
        return max(names, key=lambda place: len(rooms[place]), default=None)

    floors = [(one, other, floor(one), floor(other)) for one, other in found]
    return [(one, other) for one, other, a, b in floors if None not in (a, b) and a > b]


def test_every_room_is_listed():
    there = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert set(ROOMS) == there
    assert len(ROOMS) == len(there)


def test_rooms_import_only_from_rooms_below():
    found = [(one, other) for one, other in arrows() if other != "__version__"]
    assert len(found) > 400
    assert upwards(found, ROOMS) == []


def test_faults_and_strategies_know_nothing_of_the_training_around_them():
    found = arrows()
    assert [one for one, _ in found if one.startswith("training.strategies.")]
    assert upwards(found, IN_TRAINING) == []


def circle(found):
    """The files that import each other in a circle, or a path into one; empty when there is none."""
    below = defaultdict(set)
    for one, other in found:
        below[one].add(other)
    while free := [one for one in below if not below[one] & below.keys()]:
        for one in free:
            del below[one]
    return sorted(below)


def test_no_files_import_each_other_in_a_circle():
    assert circle(arrows()) == []


def test_an_arrow_upwards_is_seen():
    assert upwards([("data.load", "features.table"), ("features.table", "data.bars")], ROOMS) == [
        ("data.load", "features.table")
    ]
    assert circle([("a", "b"), ("b", "c"), ("c", "b"), ("d", "e")]) == ["a", "b", "c"]
    assert upwards([("training.faults.kinds", "training.loop")], IN_TRAINING) == [
        ("training.faults.kinds", "training.loop")
    ]


def public_names(tree):
    """Functions, classes and constants that a file defines for others."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (
            name.id
            for target in targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        )


def defined_twice(trees):
    """Public names -> the files that define them, where there are two."""
    where = defaultdict(list)
    for path, tree in trees.items():
        for name in set(public_names(tree)):
            if not name.startswith("_"):
                where[name].append(path)
    return {name: files for name, files in where.items() if len(files) > 1}


def test_no_public_name_means_two_things():
    assert defined_twice({str(path.relative_to(ROOT)): tree_of(path) for path in FILES}) == {}


def test_a_name_that_means_two_things_is_seen():
    one, other = ast.parse("Rows = 1\n_T = 2\nT: int = 3\n"), ast.parse("class Rows: ...\n_T = 2\ndef T(): ...\n")
    assert set(defined_twice({"a": one, "b": other})) == {"Rows", "T"}


def test_no_file_name_means_two_things():
    where = defaultdict(list)
    for path in FILES:
        where[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in where.items() if len(files) > 1 and name != "__init__"} == {}
