"""Tests of the structure of harness/ and app/vpoc/: rooms on floors, imports that only go down, unambiguous names."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from harness import ROOMS
from harness.base.paths import CHECKOUT

LONE_FILES = {"__init__", "__main__"}
APP = CHECKOUT / "app" / "vpoc"
ROOMS_OF_THE_APP = re.findall(r"^\| `(\w+)` \|", (APP / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
"""The rooms of the app, top floor first, as in the harness's list."""
IN_TRAINING = ("training", "training.faults", "training.strategies")
"""Rooms inside the app's room `training`, below the files of that room."""


@dataclass(frozen=True)
class Module:
    """A file of a package, with its dotted name (such as `harness.run.watch.limits`) and its syntax tree."""

    name: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.name.split(".")[1]

    def imports(self, modules: Mapping[str, "Module"]) -> Iterator[str]:
        """Yield the modules of the package that this one imports, also inside functions."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in modules)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield from (
                        name for name in (inner, node.module)[: 1 if inner in modules else 2] if name in modules
                    )

    @property
    def public(self) -> Iterator[str]:
        """Yield the classes, functions and constants defined here; not commands, whose names users type."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not any(map(_makes_command, node.decorator_list)):
                yield node.name
            elif isinstance(node, ast.Assign):
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def _makes_command(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called) in ("click.command", "click.group")


def read(folder: Path) -> dict[str, Module]:
    found = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, ast.parse(file.read_text(encoding="utf-8")))
    return found


def in_rooms(modules: Mapping[str, Module]) -> dict[str, Module]:
    lone = {"harness", "harness.__main__", "vpoc"}
    return {name: module for name, module in modules.items() if name not in lone}


def upward(modules: Mapping[str, Module], rooms: Sequence[str] = ROOMS) -> list[str]:
    """Return the imports from a room on a higher floor; a room may lie inside another one."""

    def floor(name: str) -> int | None:
        inner = f"{name.partition('.')[2]}."
        return max(
            (n for n, room in enumerate(rooms) if inner.startswith(f"{room}.")),
            key=lambda n: len(rooms[n]),
            default=None,
        )

    inside = in_rooms(modules)
    arrows = [(name, other) for name, module in inside.items() for other in module.imports(modules) if other in inside]
    floors = [(one, other, floor(one), floor(other)) for one, other in arrows]
    return [f"{one} imports {other}" for one, other, a, b in floors if a is not None and b is not None and b < a]


def circle(modules: Mapping[str, Module]) -> list[str]:
    """Return files that import each other in a ring, in the order of their imports; an empty list without a ring."""
    inside = in_rooms(modules)
    graph = {name: set(module.imports(inside)) - {name} for name, module in inside.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def doubles(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return the public names that more than one module defines, with those modules.

    A constant that no other module imports belongs to its module alone, so its name may be used again.
    """
    inside = in_rooms(modules)
    taken = {
        (node.module, alias.name)
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    places: dict[str, list[str]] = defaultdict(list)
    for module in inside.values():
        for name in dict.fromkeys(module.public):
            own = name.isupper() and (module.name, name) not in taken
            if not (name.startswith("_") or len(name) == 1 or own):
                places[name].append(module.name)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read(CHECKOUT / "harness")


@pytest.fixture(scope="module")
def of_app() -> dict[str, Module]:
    return read(APP)


def test_every_room_has_its_floor_and_nothing_lies_beside_the_rooms(
    modules: dict[str, Module], of_app: dict[str, Module]
) -> None:
    folder = CHECKOUT / "harness"
    assert {file.stem for file in folder.glob("*.py")} == LONE_FILES
    assert sorted(ROOMS) == sorted({module.room for module in in_rooms(modules).values()})
    assert sorted(ROOMS_OF_THE_APP) == sorted({module.room for module in in_rooms(of_app).values()})


def test_imports_only_go_down(modules: dict[str, Module], of_app: dict[str, Module]) -> None:
    assert upward(modules) == []
    assert upward(of_app, ROOMS_OF_THE_APP) == []
    # Faults and strategies import nothing of the training that uses them.
    assert upward(of_app, IN_TRAINING) == []


def test_no_files_import_each_other_in_a_ring(modules: dict[str, Module], of_app: dict[str, Module]) -> None:
    assert circle(modules) == circle(of_app) == []


def test_no_public_name_means_two_things(modules: dict[str, Module], of_app: dict[str, Module]) -> None:
    assert doubles(modules) == doubles(of_app) == {}


def test_no_file_of_the_app_is_called_as_another() -> None:
    names = [file.stem for file in APP.rglob("*.py") if file.stem != "__init__"]
    assert sorted(names) == sorted(set(names))


def house(tmp_path: Path, **files: str) -> dict[str, Module]:
    for name, text in files.items():
        file = tmp_path / "harness" / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return read(tmp_path / "harness")


def test_an_import_from_above_is_seen(tmp_path: Path) -> None:
    made = house(
        tmp_path,
        base__low="def f():\n    from harness.cli import high",
        cli__high="import harness.base.low",
        cli__other="from harness.cli.high import x",
    )
    assert upward(made) == ["harness.base.low imports harness.cli.high"]
    assert sorted(set(circle(made))) == ["harness.base.low", "harness.cli.high"]


def test_a_name_in_two_modules_is_seen_but_not_a_command_or_a_constant_of_its_own(tmp_path: Path) -> None:
    made = house(
        tmp_path,
        base__one="class Look: ...\ndef run(): ...\nOWN = 1\nSHARED = 1\nT = 2\n_hidden = 3",
        cli__two="import click\nLook = int\n@click.command('run')\ndef run(): ...\nOWN = 2\nSHARED: int = 2\nT = 3",
        cli__three="from harness.base.one import SHARED\nfrom harness.cli.two import SHARED as S\n_hidden = 3",
    )
    assert doubles(made) == {
        "Look": ["harness.base.one", "harness.cli.two"],
        "SHARED": ["harness.base.one", "harness.cli.two"],
    }
