import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from packaging.version import Version

from harness.base.errors import UserError
from harness.evidence.files.work_folder import LARGEST
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix
from harness.matrix.stacks import Stack
from harness.matrix.strategies import ModelKind
from harness.matrix.wheels import has_kernels
from harness.matrix.workloads import MOST_EPOCHS

WriteMatrix = Callable[[str], Path]


def refusal(file: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_matrix(file)
    return str(caught.value)


def test_the_small_file_the_tests_start_from_is_valid(write_matrix: WriteMatrix) -> None:
    assert list(load_matrix(write_matrix("verdicts: {good: 0.85}")).cells) == ["cpu-plain"]


def test_versions_of_rocm_are_named_as_numbers_are_ordered(matrix: Matrix) -> None:
    cpu, *versions = matrix.rocm_versions
    assert cpu == "cpu"
    assert versions == sorted(versions, key=Version) != sorted(versions)


STACKS = 'stacks:\n  cpu: {accelerator: cpu, torch: "2.13.0"}\n  '
WORKLOAD = "workloads:\n  quick: {description: small, synthetic: {sessions: 30}, epochs: 1, time_limit: 60, "
REFUSED = {
    "a base image that is a line more of a Dockerfile": (
        STACKS + 'cpu-b: {accelerator: cpu, torch: "2.6.0", base: "debian\\nRUN true"}',
        "cpu-b:",
        ["cpu-b.base: should match"],
    ),
    "a version that is words of a shell": (
        STACKS + 'cpu-b: {accelerator: cpu, torch: "2.6.0", torch_from_base: true, python: "3.13; true"}',
        "cpu-b:",
        ["cpu-b.python: '3.13; true' is not a version such as 2.9.1"],
    ),
    "a version that is none": (
        STACKS + 'rocm6-torch2.9: {accelerator: rocm, rocm: "6..3", torch: "2.9", torch_from_base: true}',
        "rocm6-torch2.9:",
        ["rocm6-torch2.9.rocm: '6..3' is not a version such as 2.9.1"],
    ),
    "a torch that ROCm never had": (
        STACKS + 'rocm6.2-torch2.4.1: {accelerator: rocm, rocm: "6.2", torch: "2.4.1"}',
        "rocm6.2-torch2.4.1:",
        ["2.4.1 has no wheel for ROCm 6.2", "it exists for ROCm 6.0 and 6.1", "ROCm 6.2 has torch 2.5.0 and 2.5.1"],
    ),
    "another one": (
        STACKS + 'rocm6.3-torch2.5.1: {accelerator: rocm, rocm: "6.3", torch: "2.5.1"}',
        "rocm6.3-torch2.5.1:",
        ["ROCm 6.1 and 6.2", "ROCm 6.3 has torch 2.7.0, 2.7.1, 2.8.0, 2.9.0 and 2.9.1"],
    ),
    "a Python without a wheel": (
        STACKS + 'rocm5.7-torch2.2.2: {accelerator: rocm, rocm: "5.7", torch: "2.2.2", python: "3.13"}',
        "rocm5.7-torch2.2.2:",
        ["no wheel for Python 3.13", "3.8, 3.9, 3.10, 3.11 and 3.12"],
    ),
    "a torch nobody released": (
        STACKS + 'cpu-old: {accelerator: cpu, torch: "2.13.7"}',
        "cpu-old:",
        ["not a known release"],
    ),
    "a name that belies its contents": (
        STACKS + 'rocm6.3-torch2.8.0: {accelerator: rocm, rocm: "6.3", torch: "2.9.1"}',
        "rocm6.3-torch2.8.0:",
        ["should start with", "rocm6.3-torch2.9.1"],
    ),
    "an unknown key of a stack": (
        STACKS + 'b: {accelerator: cpu, torch: "2.13.0", pyton: "3.11"}',
        "pyton",
        ["did you mean python?"],
    ),
    "a misspelt accelerator": (STACKS + 'b: {accelerator: rocmm, torch: "2.13.0"}', "rocmm", ["did you mean rocm?"]),
    "a stack without torch": (STACKS + "b: {accelerator: cpu}", "b:", ["needs `torch:`"]),
    "a stack that runs as a process alone though it need not": (
        STACKS + 'cpu-b: {accelerator: cpu, torch: "2.13.0", executors: [process]}',
        "cpu-b:",
        ["its executors follow from it: process, docker; leave `executors:` out"],
    ),
    "an interpreter of the user's own in an image": (
        STACKS + "b: {accelerator: any, executors: [process, docker]}",
        "b:",
        ["its executors follow from it: process; leave"],
    ),
    "executors that are no list": (
        STACKS + "b: {accelerator: any, executors: 5}",
        "b:",
        ["its executors follow from it: process; leave"],
    ),
    "a version that is a number": (
        STACKS + "b: {accelerator: cpu, torch: 2.13}",
        "b:",
        ["should be a text in quotes, not 2.13"],
    ),
    "an unknown section": ("preset:\n  plain: {}", "preset:", ["unknown key", "did you mean presets?"]),
    "a visibility variable": (
        "presets:\n  plain: {description: p}\n  two: {description: t, variables: {HIP_VISIBLE_DEVICES: '0'}}",
        "two:",
        ["HIP_VISIBLE_DEVICES", "devices:"],
    ),
    "a visibility variable of one phase": (
        "presets:\n  plain: {description: p}\n  two: {description: t, train: {ROCR_VISIBLE_DEVICES: '0'}}",
        "two:",
        ["ROCR_VISIBLE_DEVICES"],
    ),
    "a variable that is none": (
        "presets:\n  plain: {description: p}\n  two: {description: t, variables: {A=B: '0'}}",
        "two:",
        ["not a name of a variable"],
    ),
    "a value that no variable can have": (
        'presets:\n  plain: {description: p}\n  two: {description: t, variables: {A: "x\\0"}}',
        "two:",
        ["A holds a null character"],
    ),
    "a value that no image can have": (
        'presets:\n  plain: {description: p}\n  two: {description: t, variables: {A: "x\\nRUN true"}}',
        "two:",
        ["A holds the end of a line"],
    ),
    "more cells than anybody has": (
        "presets:\n  plain: {description: p}\n" + "".join(f"  p{i}: {{description: p}}\n" for i in range(10_000)),
        "presets:",
        ["stacks and presets make 10001 cells, more than 10000"],
    ),
    "more exclusions than anybody has": (
        "exclude:\n" + "  - {preset: plain, reason: it never trained}\n" * 301,
        "exclude:",
        ["entries are too many; 300 at most are allowed"],
    ),
    "more versions than there are": (
        f"exclude:\n  - {{torch: '{','.join(f'!=2.{i}' for i in range(20))}', reason: it never trained}}",
        "{torch:",
        ["should have at most 100 characters"],
    ),
    "values that no process can be started with": (
        f"presets:\n  plain: {{description: p}}\n  two: {{description: t, variables: {{A: &a {'é' * 32_767}, B: *a}}}}",
        "two:",
        ["they have more than 131072 bytes together"],
    ),
    **{
        f"{what} beyond what can be counted": (text, line, ["or less, not "])
        for what, text, line in (
            ("epochs", WORKLOAD.replace("epochs: 1,", "epochs: 5001,") + "}", "quick:"),
            ("sessions", WORKLOAD.replace("sessions: 30", "sessions: 11001") + "}", "quick:"),
            ("a rate", "verdicts: {known_good: 0.9999999}", "verdicts:"),
            ("hours", "verdicts: {mtbf_hours: {known_good: 1.0e+308}}", "verdicts:"),
        )
    },
    "a variable of the harness's own": (
        "presets:\n  plain: {description: p}\n  two: {description: t, variables: {OMP_NUM_THREADS: '2'}}",
        "two:",
        ["set by the harness"],
    ),
    **{
        f"devices {devices}": (
            f"presets:\n  plain: {{description: p}}\n  two: {{description: t, devices: {devices}}}",
            "two:",
            ["names different GPUs"],
        )
        for devices in ("[0, 0]", "[-1]", "[]")
    },
    "a misspelt preset": (
        "selections:\n  default:\n    description: d\n    stacks: [cpu]\n    presets:\n      - plain\n      - plian",
        "plian",
        ["unknown name 'plian'", "did you mean plain?"],
    ),
    "a preset for one GPU in a stage for all": (
        "presets:\n  plain: {description: p}\n  one: {description: o, devices: [0]}\n"
        "stages:\n  a: {description: d, workload: quick, enters: selection, devices: all, strategy: ddp,\n"
        "    otherwise: [{preset: one}]}",
        "otherwise:",
        ["one uses one GPU by its `devices:`, but the stage uses all"],
    ),
    "a stack twice in a selection": (
        "selections:\n  default: {description: d, stacks: [cpu, cpu], presets: all}",
        "[cpu, cpu]",
        ["stacks.1", "'cpu' is listed twice"],
    ),
    "a misspelt workload": (
        "selections:\n  default: {description: d, stacks: all, presets: all, workload: quik}",
        "quik",
        ["unknown workload 'quik'", "did you mean quick?"],
    ),
    "a misspelt strategy": (WORKLOAD + "strategy: dpp}", "strategy", ["'dpp' is not known", "did you mean dp?"]),
    "a micro-batch that is none": (WORKLOAD + "micro_batch_size: many}", "micro", ["'many' is not a number", "auto"]),
    "no model": (WORKLOAD + "model: []}", "model", ["`model:` names no model"]),
    "a misspelt model": (WORKLOAD + "model: [mpl]}", "model", ["'mpl' is not known", "did you mean mlp?"]),
    "a backend that is not used": (WORKLOAD + "backend: nccl}", "backend", ["strategy single uses no backend"]),
    "a type that is not used": (
        WORKLOAD + "mixed_precision_dtype: float16}",
        "float16",
        ["needs `use_mixed_precision: true`"],
    ),
    "a reason for a stack that is not in it": (
        "selections:\n  s: {description: d, stacks: [cpu], presets: all, reasons: {host: another interpreter}}",
        "reasons: {host",
        ["'host' is not among its `stacks:`"],
    ),
    "a mirror of a source there is not": (
        "mirrors: {amd-8: https://mirror.example/}",
        "mirrors",
        ["there is no source 'amd-8'", "known are pytorch, "],
    ),
    "a mirror that is no URL": ("mirrors: {pytorch: /mnt/wheels}", "mirrors", ["is not a URL with https://"]),
    "an exclusion without a reason": ("exclude:\n  - {preset: plain}", "- {preset", ["`reason` is missing"]),
    "an exclusion of a preset there is not": (
        "exclude:\n  - {preset: plane, reason: some long reason}",
        "plane",
        ["unknown name 'plane'", "did you mean plain?"],
    ),
    "an exclusion of everything": (
        "exclude:\n  - {reason: some long reason}",
        "- {reason",
        ["would exclude everything"],
    ),
    "a version range that is none": ("exclude:\n  - {torch: new, reason: some long reason}", "- {torch", ["new"]),
    "thresholds that do not rise": ("verdicts: {candidate: 0.9, good: 0.8}", "verdicts", ["must rise"]),
    "a name inside": ("presets:\n  plain: {name: plain, description: p}", "plain:", ["the key above is the name"]),
    "a key given twice": ("presets:\n  plain: {description: p}\n  plain: {description: q}", "q}", ["duplicate key"]),
    "a name of a preset that no id of a run has room for": (
        f"presets:\n  plain: {{description: p}}\n  {'x' * 76}: {{description: q}}",
        "xxx:",
        ["presets.xxx", "makes the id of a cell 80 characters long, more than 79; shorten it"],
    ),
    "a name of a stack that no id of a run has room for": (
        STACKS + f'{"y" * 90}: {{accelerator: cpu, torch: "2.13.0"}}',
        "yyy:",
        ["stacks.yyy", "makes the id of a cell 96 characters long, more than 79"],
    ),
    "no YAML": ("presets: }", "presets: }", ["not valid YAML"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_file_and_line(name: str, write_matrix: WriteMatrix) -> None:
    text, at_fault, told = REFUSED[name]
    file = write_matrix(text)
    line = next(n for n, words in enumerate(file.read_text().splitlines(), start=1) if at_fault in words)
    message = refusal(file)
    assert message.startswith(f"{file}:{line}: ")
    for words in told:
        assert words in message


def test_two_cells_of_one_name_are_refused(write_matrix: WriteMatrix) -> None:
    file = write_matrix(STACKS + 'cpu-a: {accelerator: cpu, torch: "2.13.0"}\n')
    plain = "  plain: {description: nothing set}\n"
    file.write_text(file.read_text().replace(plain, plain + "  a-plain: {description: p}\n"))
    assert "same id" in refusal(file)


def test_every_mistake_is_reported_at_once(write_matrix: WriteMatrix) -> None:
    message = refusal(write_matrix(STACKS + "b: {accelerator: cpu}\n  c: {accelerator: nothing}"))
    assert [line.split(": ")[1] for line in message.splitlines()] == ["stacks.b", "stacks.c.accelerator"]


def test_a_section_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("schema: 2\nbase: x\nstacks: {}\n", encoding="utf-8")
    assert refusal(file).splitlines()[0] == f"{file}:1: the key `presets` is missing"


def test_a_file_of_mistakes_alone_is_refused_with_the_first_of_them(write_matrix: WriteMatrix) -> None:
    presets = "".join(f"  p{i}: {{}}\n" for i in range(9_000))
    lines = refusal(write_matrix(f"presets:\n  plain: {{description: p}}\n{presets}")).splitlines()
    assert len(lines) == 51
    assert lines[0].endswith("presets.p0: the key `description` is missing")
    assert lines[-1].endswith("matrix.yaml: there are more mistakes; correct these first")


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    assert "--matrix FILE" in refusal(tmp_path / "none.yaml")


def test_a_file_that_is_no_mapping(tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text("- a list\n")
    assert "mapping" in refusal(file)


class TestTheProjectsOwnFile:
    def test_has_every_stack_of_the_design(self, matrix: Matrix) -> None:
        pairs = {(s.rocm, s.torch) for s in matrix.stacks.values() if s.accelerator == "rocm" and s.torch}
        assert pairs >= {
            ("6.2", "2.5.1"), ("6.3", "2.7.1"), ("6.3", "2.8.0"), ("6.3", "2.9.1"), ("7.0", "2.10.0"),
            ("6.1", "2.5.1"), ("6.2.4", "2.7.1"), ("6.4", "2.9.1"), ("7.1", "2.10.0"),
            ("5.7", "2.2.2"), ("5.7", "2.3.1"), ("6.0", "2.4.1"), ("6.1", "2.4.1"), ("6.2.4", "2.6.0"),
            ("6.4", "2.8.0"), ("7.2", "2.11.0"), ("7.2", "2.13.0"), ("7.2", "2.14.0"), ("7.14.0", "2.12.0"),
            ("7.14", "2.14.0"), ("10.0.0", "2.13.0"),
        }  # fmt: skip
        assert {"cpu", "host"} <= set(matrix.stacks)

    def test_no_two_stacks_are_the_same_but_for_their_names(self, matrix: Matrix) -> None:
        contents = [stack.model_copy(update={"name": ""}) for stack in matrix.stacks.values()]
        assert [stack for i, stack in enumerate(contents) if stack in contents[:i]] == []

    def test_a_stack_has_the_python_of_its_base_which_is_the_same_debian_for_all(self, matrix: Matrix) -> None:
        of_python = [stack for stack in matrix.stacks.values() if stack.base.startswith("python:")]
        assert of_python
        assert [stack.name for stack in of_python if stack.base != f"python:{stack.python}-slim-bookworm"] == []

    def test_tensorflow_is_excluded_with_a_reason(self, matrix: Matrix) -> None:
        others = [cell for cell in matrix.cells.values() if cell.stack.framework == "tensorflow"]
        assert others
        assert all(cell.excluded and len(cell.excluded) > 40 for cell in others)

    def test_jax_runs_on_the_rocm_and_beside_the_torch_of_another_stack(self, matrix: Matrix) -> None:
        compared = [cell.stack for cell in matrix.select("frameworks")]
        on_jax = [stack for stack in compared if stack.jax]
        assert {stack.name for stack in matrix.stacks.values() if stack.jax} == {stack.name for stack in on_jax}

        def but_jax(stack: Stack) -> Stack:
            return stack.model_copy(update={"name": "", "framework": "torch", "jax": None})

        torchs = [but_jax(stack) for stack in compared if not stack.jax]
        assert len(on_jax) == len(torchs) == 2
        assert all(but_jax(stack) in torchs for stack in on_jax)

    def test_jax_is_in_no_other_selection_that_is_not_of_everything(self, matrix: Matrix) -> None:
        of_jax = {name for name in matrix.selections if any(cell.stack.jax for cell in matrix.select(name))}
        assert of_jax == {"frameworks", "all"}

    def test_neighbours_change_one_axis_only(self, matrix: Matrix) -> None:
        stacks = [cell.stack for cell in matrix.select("neighbours")]
        pairs = list(zip(stacks[::2], stacks[1::2], strict=True))
        assert all(a.torch == b.torch and a.rocm != b.rocm and a.python == b.python for a, b in pairs)
        assert {pair[0].torch for pair in pairs} == {"2.5.1", "2.7.1", "2.9.1", "2.10.0", "2.11.0", "2.13.0", "2.14.0"}
        # One pair changes from ROCm inside torch to ROCm as packages.
        assert any({a.origin.rocm, b.origin.rocm} == {"inside", "packages"} for a, b in pairs)

    def test_nothing_is_described_as_another_is(self, matrix: Matrix) -> None:
        for named in (matrix.presets, matrix.workloads, matrix.selections, matrix.stages):
            told = [one.description for one in named.values()]
            assert [text for text in told if told.count(text) > 1] == []

    def test_plain_sets_nothing_and_is_in_every_selection(self, matrix: Matrix) -> None:
        assert not matrix.presets["plain"].variables
        assert all("plain" in {cell.preset.name for cell in matrix.select(name)} for name in matrix.selections)

    def test_notes_holds_every_preset_that_names_the_notes(self, matrix: Matrix) -> None:
        from_notes = {p.name for p in matrix.presets.values() if p.source and p.source.startswith("notes")}
        assert from_notes == {cell.preset.name for cell in matrix.select("notes")} - {"plain"}
        assert len(from_notes) == 11

    def test_notes_is_run_on_the_stacks_of_the_default_selection(self, matrix: Matrix) -> None:
        assert matrix.selections["notes"].stacks == matrix.selections["default"].stacks

    def test_the_default_selection_is_an_evening_with_a_reason_for_each_stack(self, matrix: Matrix) -> None:
        """Only this test lists the stacks of the default selection; the other tests read them from the matrix file."""
        default = matrix.selections["default"]
        asked_for = {"6.2-torch2.5.1", "6.3-torch2.7.1", "6.3-torch2.8.0", "6.3-torch2.9.1", "7.0-torch2.10.0"}
        today = {"7.2-torch2.14.0", "7.14-torch2.14.0", "7.14.0-torch2.12.0", "10.0.0-torch2.13.0"}
        assert set(default.stacks) == {f"rocm{version}" for version in asked_for | today} | {"cpu"}
        assert default.stacks[:2] == ("rocm10.0.0-torch2.13.0", "rocm7.14.0-torch2.12.0"), "the small ones"
        assert default.stacks[-2:] == ("rocm6.2-torch2.5.1", "cpu"), (
            "by their reasons the last of the GPU's, and of all"
        )
        assert default.reasons.keys() == set(default.stacks)
        assert len(set(default.reasons.values())) == len(default.stacks), "a reason is copied from another stack"
        stacks = [matrix.stacks[name] for name in default.stacks]
        assert [s.name for s in stacks if s.excluded or set(s.executors) != {"process", "docker"}] == [], (
            "not run by all"
        )
        assert all(has_kernels(s.rocm, "gfx1100") for s in stacks if s.rocm), "it is for an RX 7900 XT"
        assert default.presets == ("plain", "no-hipblaslt", "no-sdma", "notes-stable", "notes-aggressive")
        assert default.workload == "quick"

    def test_there_are_four_presets_to_run_on_a_host_without_a_gpu(self, matrix: Matrix) -> None:
        cpu = [cell for cell in matrix.select("default") if cell.stack.name == "cpu" and not cell.excluded]
        assert len(cpu) >= 4


def test_a_file_of_schema_1_is_read_with_its_former_keys(write_matrix: WriteMatrix) -> None:
    file = write_matrix(
        "workloads:\n  quick: {description: d, synthetic: {sessions: 30}, epochs: 1, time_limit: 60, warm_up: 25}\n"
    )
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("schema: 2", "schema: 1"), encoding="utf-8")
    assert load_matrix(file).workloads["quick"].lookback == 25
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="warm_up: unknown key"):
        load_matrix(file)


@pytest.mark.parametrize("torch", ["2.8.0a0+git-abc", "2.8.0-1", "2.9.1"])
def test_a_base_may_have_any_version_of_torch(write_matrix: WriteMatrix, torch: str) -> None:
    stack = f'cpu-b: {{accelerator: cpu, torch: "{torch}", torch_from_base: true}}'
    assert list(load_matrix(write_matrix(STACKS + stack)).stacks.values())[-1].torch == torch


def test_executors_that_follow_from_a_stack_may_be_given(write_matrix: WriteMatrix) -> None:
    given = {
        "b: {accelerator: any, executors: [process]}": ("process",),
        'cpu-b: {accelerator: cpu, torch: "2.13.0", executors: [docker, process]}': ("process", "docker"),
        'cpu-b: {accelerator: cpu, torch: "2.6.0", torch_from_base: true, executors: [docker]}': ("docker",),
    }
    for stack, executors in given.items():
        matrix = load_matrix(write_matrix(STACKS + stack))
        assert list(matrix.stacks.values())[-1].executors == executors


def test_the_losses_of_the_most_epochs_of_every_model_fit_into_a_result() -> None:
    loss = 1.2345678901234567e-05
    losses = [{"epoch": MOST_EPOCHS, "train": loss, "validation": loss, "inner": loss}] * MOST_EPOCHS
    # As the app writes it.
    result = json.dumps({"models": [{"epoch_losses": losses} for _ in get_args(ModelKind)]}, indent=2)
    assert len(result) < LARGEST["result"]
