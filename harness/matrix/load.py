"""Reads matrix.yaml, and reports every mistake in it with file, line and the nearest valid choice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from harness.base.errors import NoSuchFileError, UserError
from harness.base.files.yaml_lines import read_yaml
from harness.base.schema1 import upgraded_values
from harness.base.validation_errors import in_plain_words
from harness.base.wording import some_of
from harness.matrix.cells import Matrix, Preset, Selection
from harness.matrix.stacks import Stack
from harness.matrix.stages import CampaignStage, endurance, exploring
from harness.matrix.wheels import PYPI, PYTORCH, wheel_sources
from harness.matrix.workload_options import family

Path_ = tuple[str | int, ...]
# Most choices listed in a message; a longer list is cut.
LISTED = 12
# Most mistakes of a file that are reported. Finding the line, and the nearest choice, takes a millisecond for each.
MOST_MISTAKES = 50
# Most cells of a file. Some commands take a millisecond and ten kilobytes for each.
MOST_CELLS = 10_000
# Longest id of a cell, in characters. A run is named after it, its campaign, its number and its attempt, and an id of a
# run has 120 characters at most.
LONGEST_CELL = 79
# The target of the 7900 XT, for hosts without a GPU, which can lock and build, too.
DEFAULT_TARGETS = ("gfx1100",)
NAMED_SECTIONS = ("stacks", "presets", "workloads", "selections", "stages", "hosts")


@dataclass(frozen=True)
class Problem:
    """One mistake, at a place in the file given by keys and list positions from its top."""

    where: Path_
    text: str


@dataclass(frozen=True)
class Given:
    """Values of the caller that replace those of the file, and values that the host decides.

    Attributes:
        base: the image of every stack that names none.
        mirrors: the URL for each source of wheels.
        targets: the GPUs to install device code for, if that comes in packages of its own and the stack names none.
    """

    base: str | None = None
    mirrors: Mapping[str, str] = field(default_factory=dict)
    targets: tuple[str, ...] = DEFAULT_TARGETS


AS_WRITTEN = Given()


def load_matrix(file: Path, given: Given = AS_WRITTEN) -> Matrix:
    """Read and check a matrix file.

    Raises:
        UserError: with one line per mistake, `file:line: where: what`.
    """
    try:
        document = read_yaml(file)
    except FileNotFoundError:
        raise NoSuchFileError(f"{file}: no such file; run from the project's folder or give --matrix FILE") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; give --matrix FILE") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: is not UTF-8 text, at byte {error.start}; save it as UTF-8") from None
    if not isinstance(document.data, dict):
        raise UserError(f"{file}: should be a mapping with the keys {', '.join(_keys(Matrix))}")
    old = document.data.get("schema") == 1
    values = upgraded_values(document.data) if old else document.data
    found = _checked(_with_places(values, file.absolute().parent), given)
    if isinstance(found, Matrix):
        return found
    reported = found[:MOST_MISTAKES]
    lines = [
        ": ".join(filter(None, (f"{file}:{document.line(p.where)}", ".".join(map(str, p.where)), p.text)))
        for p in reported
    ]
    if len(found) > MOST_MISTAKES:
        lines.append(f"{file}: there are more mistakes; correct these first")
    raise UserError("\n".join(lines))


def _with_places(tree: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return the tree with the paths of programs made absolute; the file gives them relative to its own folder."""
    workloads = dict(_mapping(tree.get("workloads")))
    for name, workload in workloads.items():
        program = dict(_mapping(_mapping(workload).get("program")))
        for key in ("source", "requirements"):
            if isinstance(program.get(key), str):
                program[key] = str(folder / program[key])
        if isinstance(program.get("data"), list):
            program["data"] = [str(folder / place) if isinstance(place, str) else place for place in program["data"]]
        if program:
            workloads[name] = {**workload, "program": program}
    return {**tree, "workloads": workloads} if "workloads" in tree else tree


def _checked(tree: Mapping[str, Any], given: Given) -> Matrix | list[Problem]:
    """Return the matrix, or its mistakes: the first ones, if there are more than MOST_MISTAKES."""
    if problems := list(_own_names(tree)):
        return problems
    try:
        matrix = Matrix.model_validate(_completed(tree, given))
    except ValidationError as error:
        return [_explain(details) for details in error.errors()[: MOST_MISTAKES + 1]]
    return list(islice(_cross_check(matrix), MOST_MISTAKES + 1)) or matrix


def nearest(word: object, choices: Sequence[str]) -> str:
    """Return `did you mean X?` if a choice is near, otherwise the list of choices."""
    if same := [choice for choice in choices if choice.casefold() == str(word).casefold()]:
        return f"did you mean {same[0]}?"
    longer = [one for one in choices if len(str(word)) > 1 and (f"{word}-" in one or one.startswith(str(word)))]
    # A ROCm or torch version has many cells, so name only the plain cell of each stack.
    if longer := [choice for choice in longer if choice.endswith("-plain")] or longer[:1]:
        return f"did you mean {some_of(longer, LISTED)}?"
    match = get_close_matches(str(word), choices, n=1, cutoff=0.6)
    if match:
        return f"did you mean {match[0]}?"
    # A mistake at the beginning of a long name is a small part of the whole, so compare the beginnings, too.
    beginnings = {choice.split("-")[0]: choice for choice in reversed(choices)}
    if match := get_close_matches(str(word).split("-")[0], beginnings, n=1, cutoff=0.75):
        return f"did you mean {beginnings[match[0]]}?"
    plain = [choice for choice in choices if choice.endswith("-plain")]
    return f"choose from {some_of(plain or choices, LISTED)}"


def _own_names(tree: Mapping[str, Any]) -> Iterator[Problem]:
    for section in NAMED_SECTIONS:
        for name, value in _mapping(tree.get(section)).items():
            if isinstance(value, Mapping) and "name" in value:
                yield Problem((section, name, "name"), "the key above is the name; remove `name:`")


def _completed(tree: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Return the tree completed: names from the keys, other values from the top of the file or from the caller."""
    plain = dict(tree)
    if given.base:
        plain["base"] = given.base
    if given.mirrors:
        plain["mirrors"] = {**_mapping(tree.get("mirrors")), **given.mirrors}
    for section in NAMED_SECTIONS:
        if isinstance(tree.get(section), Mapping):
            plain[section] = {
                str(name): {**value, "name": str(name)} if isinstance(value, Mapping) else value
                for name, value in tree[section].items()
            }
    stacks = plain.get("stacks")
    if isinstance(stacks, dict):
        plain["stacks"] = {
            name: {**_shared(plain, stack, given), **stack} if isinstance(stack, Mapping) else stack
            for name, stack in stacks.items()
        }
    return plain


def _shared(plain: Mapping[str, Any], stack: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Return the values that a stack gets unless it gives them itself."""
    source = str(stack.get("source", PYTORCH))
    mirrors = _mapping(plain.get("mirrors"))
    shared = {"base": plain.get("base"), "mirror": mirrors.get(source), "pypi": mirrors.get(PYPI)}
    if (known := wheel_sources().get(source)) and known.rocm == "packages":
        shared["targets"] = given.targets
    return {key: value for key, value in shared.items() if value is not None}


def _explain(details: Any) -> Problem:
    # Steps that pydantic adds for alternatives of a union and for keys are no places in the file.
    where = tuple(step for step in details["loc"] if not (isinstance(step, str) and step[:1] in "[(lt" and "[" in step))
    if details["type"] == "extra_forbidden":
        return Problem(where, f"unknown key; {nearest(where[-1], _keys(_model_at(where[:-1])))}")
    if details["type"] == "too_long":
        most, listed = details["ctx"]["max_length"], details["ctx"]["actual_length"]
        return Problem(where, f"{listed} entries are too many; {most} at most are allowed")
    if details["type"] == "missing":
        return Problem(where[:-1], f"the key `{where[-1]}` is missing")
    if details["type"] == "literal_error":
        expected = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return Problem(where, f"{details['input']!r} is not known; {nearest(details['input'], expected)}")
    return Problem(where, in_plain_words(details))


def _model_at(where: Path_) -> type[BaseModel]:
    model: type[BaseModel] = Matrix
    for step in where:
        field = model.model_fields.get(str(step))
        inner = [field.annotation, *get_args(field.annotation)] if field else []
        model = next((t for t in inner if isinstance(t, type) and issubclass(t, BaseModel)), model)
    return model


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or key for key, field in model.model_fields.items() if key != "name"]


def _cross_check(matrix: Matrix) -> Iterator[Problem]:
    if (count := len(matrix.stacks) * len(matrix.presets)) > MOST_CELLS:
        yield Problem(("presets",), f"stacks and presets make {count} cells, more than {MOST_CELLS}; split the file")
        return
    for stack in matrix.stacks.values():
        expected = stack_prefix(stack)
        if expected and not stack.name.startswith(expected):
            yield Problem(("stacks", stack.name), f"its contents are {expected}: the name should start with that")
    for selection in matrix.selections.values():
        yield from _check_selection(matrix, selection)
    yield from _check_stages(matrix)
    for i, exclusion in enumerate(matrix.exclude):
        for key, known in (("stack", matrix.stacks), ("preset", matrix.presets)):
            name = getattr(exclusion, key)
            if name is not None and name not in known:
                yield Problem(("exclude", i, key), f"unknown name {name!r}; {nearest(name, list(known))}")
    longest = max(map(len, matrix.cells), default=0)
    if longest > LONGEST_CELL:
        of_stack, of_preset = max(matrix.stacks, key=len), max(matrix.presets, key=len)
        where = ("stacks", of_stack) if len(of_stack) > len(of_preset) else ("presets", of_preset)
        yield Problem(where, f"makes the id of a cell {longest} characters long, more than {LONGEST_CELL}; shorten it")
    if len(matrix.cells) != len(matrix.stacks) * len(matrix.presets):
        yield Problem(("stacks",), "two cells have the same id; rename a stack or a preset")


def _check_selection(matrix: Matrix, selection: Selection) -> Iterator[Problem]:
    at = ("selections", selection.name)
    for key, known in (("stacks", matrix.stacks), ("presets", matrix.presets)):
        listed = getattr(selection, key)
        for i, name in enumerate(() if listed == "all" else listed):
            if name not in known:
                yield Problem((*at, key, i), f"unknown name {name!r}; {nearest(name, list(known))}")
            elif listed.index(name) < i:
                yield Problem((*at, key, i), f"{name!r} is listed twice")
    for name in selection.reasons:
        if selection.stacks == "all" or name not in selection.stacks:
            yield Problem((*at, "reasons", name), f"{name!r} is not among its `stacks:`")
    if selection.workload not in matrix.workloads:
        hint = nearest(selection.workload, list(matrix.workloads))
        yield Problem((*at, "workload"), f"unknown workload {selection.workload!r}; {hint}")


def _check_stages(matrix: Matrix) -> Iterator[Problem]:
    explored = False
    for stage in matrix.stages.values():
        at = ("stages", stage.name)
        if stage.workload is not None and stage.workload not in matrix.workloads:
            hint = nearest(stage.workload, list(matrix.workloads))
            yield Problem((*at, "workload"), f"unknown workload {stage.workload!r}; {hint}")
        elif stage.workload is not None and stage.enters != "winner" and matrix.workloads[stage.workload].program:
            why = "cells are chosen by checked numbers, and those of a program are not checked; give `enters: winner`"
            yield Problem((*at, "workload"), f"{stage.workload} runs a program of your own: {why}")
        for i, other in enumerate(stage.otherwise):
            if other.preset is not None and other.preset not in matrix.presets:
                hint = nearest(other.preset, list(matrix.presets))
                yield Problem((*at, "otherwise", i, "preset"), f"unknown name {other.preset!r}; {hint}")
            elif other.preset is not None and stage.devices == "all" and _is_for_one(matrix.presets[other.preset]):
                why = "uses one GPU by its `devices:`, but the stage uses all"
                yield Problem((*at, "otherwise", i, "preset"), f"{other.preset} {why}")
        if stage.workload and stage.enters != "selection" and not explored:
            yield Problem((*at, "enters"), "no stage comes before the first one; give `enters: selection`")
        explored = explored or stage.enters == "selection"
    yield from _check_endurance(matrix)


def _is_for_one(preset: Preset) -> bool:
    return preset.devices is not None and len(preset.devices) == 1


def _check_endurance(matrix: Matrix) -> Iterator[Problem]:
    """Yield a problem if hours of the endurance stage would not count for cells, because its family differs."""
    last, lasting = exploring(matrix.stages), endurance(matrix.stages)
    if not (lasting and last):
        return
    families = {_family(matrix, stage) for stage in (last[-1], lasting) if stage.workload in matrix.workloads}
    if len(families) > 1:
        text = f"its workload differs from that of {last[-1].name} in more than epochs, sessions and data"
        yield Problem(("stages", lasting.name, "workload"), text)


def _family(matrix: Matrix, stage: CampaignStage) -> str:
    workload = matrix.workloads[stage.workload or ""]
    same = workload.model_copy(update={"strategy": "single", "backend": None})
    return family(same, 1)


def stack_prefix(stack: Stack) -> str | None:
    """Return how the name of a stack must begin, if its contents decide that; otherwise None."""
    if stack.accelerator == "any" or stack.torch is None:
        return None
    if stack.jax:
        return f"{f'rocm{stack.rocm}' if stack.rocm else 'cpu'}-jax{stack.jax}"
    return f"rocm{stack.rocm}-torch{stack.torch}" if stack.rocm else "cpu"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
