"""The catalogue of environment variables, and a linter that finds variables of presets that do nothing, and where.

Pure, except that it reads `variables.yaml`. That file says who reads a variable, and where setting it is a mistake.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal, Self

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.base.files.yaml_lines import read_yaml
from harness.base.versions import Specifier
from harness.matrix.cells import Cell, Matrix, Preset
from harness.matrix.strategies import Strategy

CATALOGUE = Path(__file__).with_name("variables.yaml")

RuleKind = Literal["no-effect", "default", "contradiction", "deprecated", "debug-only", "invalid", "unknown"]
FindingKind = RuleKind | Literal["moved", "duplicate", "misplaced"]
PresetPhase = Literal["features", "train"]

# A comma inside brackets belongs to the value of one key: roundup_power2_divisions:[256:1,512:2].
_BETWEEN_KEYS = re.compile(r",(?![^\[]*\])")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Rule(_Strict):
    """A statement about a variable that applies if all given conditions hold.

    `value` and the values of `with` are regular expressions for the whole value. A version condition does not hold if
    the version is unknown.
    """

    kind: RuleKind
    accelerator: Literal["rocm", "cpu"] = "rocm"
    rocm: Specifier | None = None
    torch: Specifier | None = None
    strategies: tuple[Strategy, ...] | None = None
    value: re.Pattern[str] | None = None
    beside: dict[str, re.Pattern[str]] = Field({}, alias="with")
    text: str = Field(min_length=1)
    source: str = Field(min_length=1)

    def holds(self, cell: Cell, value: str, variables: dict[str, str], strategy: Strategy) -> bool:
        """Return whether the rule holds for a value, in a process of the cell that is started with `variables`.

        `strategy` is how the workload uses its devices.
        """
        versions = ((self.rocm, cell.stack.rocm), (self.torch, cell.stack.torch))
        return (
            self.accelerator == cell.stack.accelerator
            and (self.strategies is None or strategy in self.strategies)
            and all(wanted is None or (have is not None and Version(have) in wanted) for wanted, have in versions)
            and (self.value is None or self.value.fullmatch(value) is not None)
            and all(name in variables and wanted.fullmatch(variables[name]) for name, wanted in self.beside.items())
        )


class VariableKey(_Strict):
    """One key of a variable that is a comma list of `key:value`. `values`: those that its reader understands."""

    meaning: str
    values: re.Pattern[str] | None = None
    rules: tuple[Rule, ...] = ()


class Variable(_Strict):
    """A variable that a preset may set. `values` matches the values that its reader understands."""

    reader: str
    meaning: str
    values: re.Pattern[str] | None = None
    keys: dict[str, VariableKey] = {}
    rules: tuple[Rule, ...] = ()


class Catalogue(_Strict):
    """Everything that variables.yaml says. The rules of `every_variable` apply besides a variable's own."""

    version: Literal[1] = Field(alias="schema")
    every_variable: tuple[Rule, ...] = ()
    variables: dict[str, Variable]

    @model_validator(mode="after")
    def _refers_to_itself(self) -> Self:
        for name, variable in self.variables.items():
            for rule in (*variable.rules, *(rule for key in variable.keys.values() for rule in key.rules)):
                missing = sorted(rule.beside.keys() - self.variables.keys())
                if missing:
                    raise ValueError(f"{name}: `with` names variables that are not listed: {', '.join(missing)}")
        return self


@dataclass(frozen=True)
class LintFinding:
    """A finding about a preset on some stacks.

    Attributes:
        phase: the phase that the finding is about; None if it is about every process of the preset.
        variable: the variable that it is about; None if it is about the preset as a whole.
        key: the key in a variable that is a comma list.
        stacks: the names of the stacks that it is about.
        workloads: the names of the workloads that it is about; empty if it is about all that can run with the preset.
    """

    preset: str
    phase: PresetPhase | None
    variable: str | None
    key: str | None
    kind: FindingKind
    text: str
    source: str
    stacks: tuple[str, ...]
    workloads: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The text, with the workloads that it is about unless these are all."""
        return f"{self.text}; in workloads {', '.join(self.workloads)}" if self.workloads else self.text


@cache
def load_catalogue(file: Path = CATALOGUE) -> Catalogue:
    """Read a catalogue of variables, once.

    Raises:
        pydantic.ValidationError: when it has an unknown key or kind, or an invalid condition.
    """
    return Catalogue.model_validate(read_yaml(file).data)


def lint(matrix: Matrix) -> list[LintFinding]:
    """Return the findings of every preset, each once with the stacks that it is about, in the order of the file.

    Only cells that are run count: no excluded cells, no other frameworks, and not the user's own interpreter, whose
    versions are unknown.
    """
    found: list[LintFinding] = []
    for name, preset in matrix.presets.items():
        cells = [cell for cell in (matrix.cell(stack, name) for stack in matrix.stacks) if _is_known(cell)]
        strategies = _strategies(matrix, preset)
        stacks: dict[LintFinding, tuple[str, ...]] = {}
        for cell in cells:
            for finding in _with_workloads(cell, strategies):
                group = replace(finding, stacks=())
                stacks[group] = (*stacks.get(group, ()), *finding.stacks)
        if cells:
            everywhere = tuple(cell.stack.name for cell in cells)
            for finding in (*_duplicates(matrix, preset), *_misplaced(matrix, preset, cells)):
                stacks[finding] = everywhere
        order = [*preset.variables, *preset.features, *preset.train, "HIP_VISIBLE_DEVICES", None]
        grouped = [replace(finding, stacks=names) for finding, names in stacks.items()]
        found += sorted(grouped, key=lambda finding: order.index(finding.variable))
    return found


def _strategies(matrix: Matrix, preset: Preset) -> dict[Strategy, tuple[str, ...]]:
    """Return the strategies of the workloads that can run with a preset, each with the names of its workloads."""
    found: dict[Strategy, tuple[str, ...]] = {}
    for workload in matrix.workloads.values():
        # A preset that names one device leaves no second device to a strategy of several.
        if workload.strategy == "single" or len(preset.devices or ()) != 1:
            found[workload.strategy] = (*found.get(workload.strategy, ()), workload.name)
    return found or {"single": ()}


def _with_workloads(cell: Cell, strategies: Mapping[Strategy, tuple[str, ...]]) -> Iterator[LintFinding]:
    """Yield the findings of one cell, each with the workloads that it is about, or with none if it is about all."""
    true_of: dict[LintFinding, list[Strategy]] = {}
    for strategy in strategies:
        for finding in lint_cell(cell, strategy):
            true_of.setdefault(finding, []).append(strategy)
    for finding, those in true_of.items():
        names = [name for strategy in those for name in strategies[strategy]]
        yield finding if len(those) == len(strategies) else replace(finding, workloads=tuple(names))


def beyond_cpu(findings: Iterable[LintFinding], matrix: Matrix) -> list[LintFinding]:
    """Return the findings about more than a CPU build of torch, where every ROCm variable does nothing."""
    cpu = {stack.name for stack in matrix.stacks.values() if stack.accelerator == "cpu"}
    return [finding for finding in findings if not cpu.issuperset(finding.stacks)]


def lint_cell(cell: Cell, strategy: Strategy = "single") -> list[LintFinding]:
    """Return the findings of one cell with a workload of a strategy, even if the cell is excluded."""
    # The features are computed on one device, whatever the strategy of the training.
    strategies: Mapping[PresetPhase, Strategy] = {"features": "single", "train": strategy}
    by_phase = {phase: list(_process(cell, phase, strategies[phase])) for phase in cell.preset.phases}
    # A dict, because it keeps the order and holds findings about every phase only once.
    found: dict[LintFinding, None] = {}
    for phase, findings in by_phase.items():
        for finding in findings:
            of_all = all(finding in others for others in by_phase.values())
            found[finding if of_all else replace(finding, phase=phase)] = None
    return [*found, *_moved(cell)]


def mistakes(cells: Iterable[Cell]) -> list[LintFinding]:
    """Return the names and values in presets of cells that nothing is known to understand, each once.

    Presets of the notes are left out: they are tried as they are.
    """
    own = {cell.id: cell for cell in cells if not _is_of_notes(cell.preset)}
    found = (replace(finding, stacks=()) for cell in own.values() for finding in lint_cell(cell))
    return list(dict.fromkeys(finding for finding in found if finding.kind in ("unknown", "invalid")))


def _is_known(cell: Cell) -> bool:
    return cell.excluded is None and cell.stack.framework == "torch" and cell.stack.accelerator != "any"


def _process(cell: Cell, phase: PresetPhase, strategy: Strategy) -> Iterator[LintFinding]:
    catalogue = load_catalogue()
    variables = cell.preset.variables_of(phase)

    def finding(name: str, key: str | None, kind: FindingKind, text: str, source: str) -> LintFinding:
        return LintFinding(cell.preset.name, None, name, key, kind, text, source, (cell.stack.name,))

    for name, value in variables.items():
        variable = catalogue.variables.get(name)
        if variable is None:
            known = [other for other, about in catalogue.variables.items() if about.reader != "nobody"]
            yield finding(name, None, "unknown", _not_listed(name, known), CATALOGUE.name)
            continue
        rules = [r for r in (*catalogue.every_variable, *variable.rules) if r.holds(cell, value, variables, strategy)]
        for rule in rules:
            yield finding(name, None, rule.kind, rule.text, rule.source)
        # A value that nothing reads cannot be invalid.
        if any(rule.kind == "no-effect" for rule in rules):
            continue
        if not _understood(value, variable.values):
            yield finding(name, None, "invalid", _not_understood(value, variable.reader), CATALOGUE.name)
        if variable.keys:
            for part in filter(str.strip, _BETWEEN_KEYS.split(value)):
                key, _, key_value = (text.strip() for text in part.partition(":"))
                if key not in variable.keys:
                    yield finding(name, key, "unknown", _not_listed(key, list(variable.keys)), CATALOGUE.name)
                    continue
                if not _understood(key_value, variable.keys[key].values):
                    yield finding(name, key, "invalid", _not_understood(key_value, variable.reader), CATALOGUE.name)
                for rule in variable.keys[key].rules:
                    if rule.holds(cell, key_value, variables, strategy):
                        yield finding(name, key, rule.kind, rule.text, rule.source)


def _understood(value: str, values: re.Pattern[str] | None) -> bool:
    return values is None or values.fullmatch(value) is not None


def _not_understood(value: str, reader: str) -> str:
    return f"{value!r} is not a value that its reader ({reader}) understands"


def _not_listed(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1, cutoff=0.8)
    return "not in the catalogue of variables" + (f"; did you mean {near[0]}?" if near else "")


def _moved(cell: Cell) -> Iterator[LintFinding]:
    preset, source = cell.preset, cell.preset.source or ""
    if preset.devices is not None and _is_of_notes(preset):
        chosen = ",".join(map(str, preset.devices))
        text = (
            f"the notes' HIP_VISIBLE_DEVICES={chosen} became the run's device list, "
            "because only the executor sets visibility"
        )
        yield LintFinding(preset.name, None, "HIP_VISIBLE_DEVICES", None, "moved", text, source, (cell.stack.name,))


def _duplicates(matrix: Matrix, preset: Preset) -> Iterator[LintFinding]:
    for other in matrix.presets.values():
        if other.name != preset.name and _settings(other) == _settings(preset):
            text = f"sets exactly what the preset {other.name} sets"
            yield LintFinding(preset.name, None, None, None, "duplicate", text, "matrix.yaml", ())


def _misplaced(matrix: Matrix, preset: Preset, cells: Sequence[Cell]) -> Iterator[LintFinding]:
    """Yield findings about presets for several GPUs that are run on one GPU, or that no stage tries on several."""
    between = _acts_between_gpus(preset, cells)
    several = len(preset.devices or ()) > 1 and not _is_of_notes(preset)
    stages = [stage for stage in matrix.stages.values() if any(one.preset == preset.name for one in stage.otherwise)]
    on_one = [f"stage {stage.name}" for stage in stages if stage.devices != "all"]
    for selection in matrix.selections.values():
        named = selection.presets != "all" and preset.name in selection.presets
        if named and matrix.workloads[selection.workload].strategy == "single":
            on_one.append(f"selection {selection.name} (workload {selection.workload})")
    if between and on_one:
        yield _of_preset(preset, f"does nothing with one GPU, as in {' and '.join(on_one)}: leave it out there")
    on_all = [stage.name for stage in matrix.stages.values() if stage.devices == "all"]
    if (between or several) and on_all and not any(stage.devices == "all" for stage in stages):
        text = f"no stage tries it on several GPUs: name it under `otherwise:` of stage {' or '.join(on_all)}"
        yield _of_preset(preset, text)


def _acts_between_gpus(preset: Preset, cells: Sequence[Cell]) -> bool:
    """Return whether the preset's variables only act with several GPUs; never true of a preset for debugging."""
    names = {name for phase in preset.phases for name in preset.variables_of(phase)}

    def act(cell: Cell, strategy: Strategy) -> bool:
        return bool(names - {f.variable for f in lint_cell(cell, strategy) if f.kind in ("no-effect", "default")})

    with_several = [cell for cell in cells if act(cell, "ddp")]
    finds_faults = any(f.kind == "debug-only" for cell in with_several for f in lint_cell(cell, "ddp"))
    return bool(with_several) and not finds_faults and not any(act(cell, "single") for cell in with_several)


def _of_preset(preset: Preset, text: str) -> LintFinding:
    return LintFinding(preset.name, None, None, None, "misplaced", text, "matrix.yaml", ())


def _is_of_notes(preset: Preset) -> bool:
    return re.match(r"notes \d", preset.source or "") is not None


def _settings(preset: Preset) -> tuple[dict[str, dict[str, str]], tuple[int, ...] | None]:
    return {phase: preset.variables_of(phase) for phase in preset.phases}, preset.devices
