import re
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from packaging.version import Version
from pydantic import ValidationError

from harness.base.paths import CHECKOUT
from harness.matrix.cells import Cell, Matrix, Preset
from harness.matrix.lint import CATALOGUE, LintFinding, lint, lint_cell, load_catalogue
from harness.matrix.load import load_matrix
from harness.matrix.stacks import Stack
from harness.matrix.variable_names import VISIBILITY_VARIABLES

MATRIX = load_matrix(CHECKOUT / "matrix.yaml")
CPU = ("cpu", "cpu-debian13-torch2.6.0")
FINDINGS = lint(MATRIX)
EVERY_ROCM = tuple(
    name for name, stack in MATRIX.stacks.items() if stack.accelerator == "rocm" and stack.framework == "torch"
)
# For each torch, a ROCm version for which it was released.
ROCM = {
    "2.2.2": "5.7",
    "2.4.1": "6.1",
    "2.6.0": "6.2.4",
    "2.7.1": "6.3",
    "2.8.0": "6.4",
    "2.9.1": "6.4",
    "2.11.0": "7.2",
    "2.12.0": "7.2",
}


def real(preset: str, variable: str, kind: str, key: str | None = None) -> list[LintFinding]:
    """Return the findings on matrix.yaml itself, without those that only concern CPU stacks."""
    return [
        f
        for f in FINDINGS
        if (f.preset, f.variable, f.kind, f.key) == (preset, variable, kind, key) and not set(f.stacks) <= set(CPU)
    ]


def synthetic(variables: dict[str, str], torch: str = "2.9.1", rocm: str | None = None, **preset: Any) -> Cell:
    stack = Stack(name="synthetic", accelerator="rocm", rocm=rocm or ROCM[torch], torch=torch)
    return Cell(stack, Preset(name="p", description="synthetic", variables=variables, **preset))


def findings_of(
    variable: str, value: str, torch: str = "2.9.1", rocm: str | None = None
) -> list[tuple[str | None, str]]:
    return [(f.key, f.kind) for f in lint_cell(synthetic({variable: value}, torch, rocm))]


WORK = {"description": "d", "synthetic": {"sessions": 30}, "epochs": 1, "time_limit": 60}


def matrix_of(
    stacks: dict[str, Any],
    presets: dict[str, Any],
    exclude: tuple[Any, ...] = (),
    workloads: dict[str, Any] | None = None,
    **sections: dict[str, Any],
) -> Matrix:
    return Matrix.model_validate(
        {
            "schema": 2,
            "selections": {},
            "stacks": {name: {**stack, "name": name} for name, stack in stacks.items()},
            "presets": {name: {"description": "d", **preset, "name": name} for name, preset in presets.items()},
            "workloads": {name: {**WORK, **one, "name": name} for name, one in (workloads or {}).items()},
            "exclude": exclude,
            **{key: {n: {**one, "name": n} for n, one in named.items()} for key, named in sections.items()},
        }
    )


# The presets of the user's notes, on matrix.yaml as it is.


def test_hidden_kernel_flags_are_read_by_nobody() -> None:
    (finding,) = real("notes-dockerfile", "ROCM_ALLOW_HIDDEN_KERNEL_FLAGS", "unknown")
    assert "read by nobody" in finding.text
    assert finding.stacks == EVERY_ROCM


@pytest.mark.parametrize("preset", ["notes-dockerfile", "notes-aggressive", "notes-env-only"])
def test_xnack_has_no_effect_on_rdna3(preset: str) -> None:
    (finding,) = real(preset, "HSA_XNACK", "no-effect")
    assert "RDNA3" in finding.text
    assert finding.source == "https://github.com/ROCm/ROCm/issues/2686"
    assert finding.stacks == EVERY_ROCM


def test_overriding_a_true_gfx1100_has_no_effect_and_harms_beside_an_integrated_gpu() -> None:
    (finding,) = real("notes-dockerfile", "HSA_OVERRIDE_GFX_VERSION", "no-effect")
    assert "harmful" in finding.text
    assert "integrated GPU" in finding.text
    assert findings_of("HSA_OVERRIDE_GFX_VERSION", "10.3.0") == []


@pytest.mark.parametrize("preset", ["notes-dockerfile", "notes-aggressive"])
def test_rocm_arch_is_read_at_build_time(preset: str) -> None:
    (finding,) = real(preset, "PYTORCH_ROCM_ARCH", "no-effect")
    assert "compiled" in finding.text


def test_expandable_segments_are_compiled_out_before_2_12() -> None:
    (finding,) = real("notes-dockerfile", "PYTORCH_HIP_ALLOC_CONF", "no-effect", "expandable_segments")
    older = {name for name in EVERY_ROCM if Version(MATRIX.stacks[name].torch or "0") < Version("2.12")}
    assert set(finding.stacks) == older
    assert finding.source == "https://github.com/pytorch/pytorch/pull/177974"
    assert ("expandable_segments", "no-effect") in findings_of(
        "PYTORCH_ALLOC_CONF", "expandable_segments:True", "2.11.0"
    )
    assert findings_of("PYTORCH_ALLOC_CONF", "expandable_segments:True", "2.12.0") == []


@pytest.mark.parametrize("preset", ["notes-single-gpu", "notes-aggressive", "notes-env-only"])
def test_garbage_collection_needs_a_memory_fraction_and_works_the_other_way_round(preset: str) -> None:
    (finding,) = real(preset, "PYTORCH_HIP_ALLOC_CONF", "no-effect", "garbage_collection_threshold")
    assert "set_per_process_memory_fraction" in finding.text
    assert "higher value reclaims later" in finding.text


def test_no_caching_contradicts_allocator_settings_of_the_same_process() -> None:
    (finding,) = real("notes-single-gpu", "PYTORCH_NO_HIP_MEMORY_CACHING", "contradiction")
    assert "PYTORCH_HIP_ALLOC_CONF" in finding.text
    assert finding.phase is None
    assert real("no-caching", "PYTORCH_NO_HIP_MEMORY_CACHING", "contradiction") == []


def test_no_caching_contradicts_in_both_phases_because_0_may_disable_caching_too() -> None:
    features, train = real("notes-aggressive", "PYTORCH_NO_HIP_MEMORY_CACHING", "contradiction")
    assert (features.phase, train.phase) == ("features", "train")
    assert "0 turns caching off as well" not in features.text
    assert "0 turns caching off as well" in train.text
    (unsafe,) = real("notes-aggressive", "PYTORCH_NO_HIP_MEMORY_CACHING", "invalid")
    assert unsafe.phase == "train"


def test_four_hardware_queues_are_the_default() -> None:
    older, newer = real("notes-stable", "GPU_MAX_HW_QUEUES", "default")
    assert set(older.stacks) | set(newer.stacks) == set(EVERY_ROCM)
    assert "newer sources were not read" in newer.text
    assert "rocm6.2.4-torch2.6.0" in older.stacks
    assert "rocm6.3-torch2.7.1" in newer.stacks
    assert real("one-queue", "GPU_MAX_HW_QUEUES", "default") == []


def test_kernel_arguments_in_device_memory_are_the_default_since_6_1() -> None:
    (finding,) = real("notes-single-gpu", "HIP_FORCE_DEV_KERNARG", "default")
    assert set(EVERY_ROCM) - set(finding.stacks) == {
        "rocm5.7-torch2.2.2",
        "rocm5.7-torch2.3.1",
        "rocm6.0-torch2.4.1",
    }
    assert findings_of("HIP_FORCE_DEV_KERNARG", "0", "2.2.2") == [(None, "default")]
    assert findings_of("HIP_FORCE_DEV_KERNARG", "0") == []


def test_launch_blocking_is_ignored_before_6_1() -> None:
    (before,) = lint_cell(MATRIX.cell("rocm6.0-torch2.4.1", "notes-launch-blocking"))
    (since,) = lint_cell(MATRIX.cell("rocm6.1-torch2.4.1", "notes-launch-blocking"))
    assert (before.kind, since.kind) == ("no-effect", "debug-only")
    assert "before ROCm 6.1" in before.text


def test_miopen_log_level_4_is_the_default() -> None:
    (finding,) = real("notes-miopen-more", "MIOPEN_LOG_LEVEL", "default")
    assert "release builds" in finding.text


@pytest.mark.parametrize(
    ("preset", "variable"),
    [
        ("notes-miopen-more", "MIOPEN_DISABLE_CACHE"),
        ("notes-miopen-more", "MIOPEN_ENABLE_LOGGING"),
        ("notes-single-gpu", "AMD_SERIALIZE_KERNEL"),
        ("debug-serialize", "AMD_SERIALIZE_COPY"),
        ("no-interrupt", "HSA_ENABLE_INTERRUPT"),
        ("debug-no-fragments", "HSA_DISABLE_FRAGMENT_ALLOCATOR"),
    ],
)
def test_debug_aids_are_called_so(preset: str, variable: str) -> None:
    (finding,) = real(preset, variable, "debug-only")
    assert finding.stacks == EVERY_ROCM


def test_the_allocator_variable_was_renamed_in_2_9() -> None:
    (finding,) = real("max-split-512", "PYTORCH_HIP_ALLOC_CONF", "deprecated")
    newer = {name for name in EVERY_ROCM if Version(MATRIX.stacks[name].torch or "0") >= Version("2.9")}
    assert set(finding.stacks) == newer
    assert findings_of("PYTORCH_ALLOC_CONF", "max_split_size_mb:512", "2.8.0") == [(None, "no-effect")]
    assert findings_of("PYTORCH_ALLOC_CONF", "max_split_size_mb:512", "2.9.1") == []


def test_preferring_hipblas_does_what_torch_does_anyway_except_on_2_4() -> None:
    (nothing,) = real("notes-prefer-hipblas", "TORCH_BLAS_PREFER_HIPBLASLT", "no-effect")
    (default,) = real("notes-prefer-hipblas", "TORCH_BLAS_PREFER_HIPBLASLT", "default")
    assert {MATRIX.stacks[name].torch for name in nothing.stacks} == {"2.5.1", "2.6.0"}
    newer = {MATRIX.stacks[name].torch for name in EVERY_ROCM} - {"2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0"}
    assert {MATRIX.stacks[name].torch for name in default.stacks} == newer
    assert findings_of("TORCH_BLAS_PREFER_HIPBLASLT", "0", "2.4.1") == []


def test_preferring_hipblaslt_means_something_only_with_wheels_of_6_3() -> None:
    assert findings_of("TORCH_BLAS_PREFER_HIPBLASLT", "1", "2.4.1") == [(None, "default")]
    assert findings_of("TORCH_BLAS_PREFER_HIPBLASLT", "1", "2.6.0") == [(None, "no-effect")]
    assert findings_of("TORCH_BLAS_PREFER_HIPBLASLT", "1", "2.7.1", "6.2.4") == [(None, "no-effect")]
    assert findings_of("TORCH_BLAS_PREFER_HIPBLASLT", "1", "2.7.1", "6.3") == []


@pytest.mark.parametrize(
    ("preset", "variable"),
    [
        ("no-p2p", "NCCL_P2P_DISABLE"),
        ("debug-collectives", "NCCL_DEBUG"),
        ("fine-grain-pcie", "HSA_FORCE_FINE_GRAIN_PCIE"),
        ("notes-stable", "HSA_FORCE_FINE_GRAIN_PCIE"),
        ("no-peer-sdma", "HSA_ENABLE_PEER_SDMA"),
    ],
)
def test_what_matters_between_gpus_does_nothing_with_one(preset: str, variable: str) -> None:
    (finding,) = real(preset, variable, "no-effect")
    assert finding.text.startswith("with one GPU")
    alone = [name for name, workload in MATRIX.workloads.items() if workload.strategy == "single"]
    assert finding.workloads == tuple(alone)
    assert len(alone) < len(MATRIX.workloads)
    assert finding.summary.endswith(f"; in workloads {', '.join(alone)}")
    assert lint_cell(MATRIX.cell("rocm6.3-torch2.9.1", "no-p2p"), "ddp") == []


ONE, TWO = ({"strategy": "single"}, {"strategy": "ddp"})


@pytest.mark.parametrize(
    ("devices", "workloads", "expected"),
    [
        (None, {"one": ONE, "two": TWO}, [("one",)]),
        ((0, 1), {"one": ONE, "two": TWO}, [("one",)]),
        ((0,), {"one": ONE, "two": TWO}, [()]),
        (None, {"one": ONE}, [()]),
        ((0, 1), {"two": TWO}, []),
        (None, {}, [()]),
    ],
    ids=["any devices", "for two GPUs", "for one GPU", "workloads of one", "workloads of two", "no workload"],
)
def test_what_a_preset_does_depends_on_how_workloads_use_gpus(
    devices: tuple[int, ...] | None, workloads: dict[str, Any], expected: list[tuple[str, ...]]
) -> None:
    stacks = {"a": {"accelerator": "rocm", "rocm": "6.4", "torch": "2.9.1"}}
    matrix = matrix_of(stacks, {"x": {"variables": {"NCCL_P2P_DISABLE": "1"}, "devices": devices}}, workloads=workloads)
    assert [finding.workloads for finding in lint(matrix)] == expected


@pytest.mark.parametrize("preset", ["notes-miopen", "notes-miopen-more"])
def test_a_fixed_miopen_folder_is_shared_and_outside_the_run(preset: str) -> None:
    (finding,) = real(preset, "MIOPEN_USER_DB_PATH", "contradiction")
    assert "outside the run folder" in finding.text
    assert "shared between ROCm versions" in finding.text


@pytest.mark.parametrize(
    ("preset", "devices"), [("notes-dockerfile", "0,1"), ("notes-aggressive", "0,1"), ("notes-device-0", "0")]
)
def test_devices_of_the_notes_were_moved(preset: str, devices: str) -> None:
    (finding,) = real(preset, "HIP_VISIBLE_DEVICES", "moved")
    assert f"HIP_VISIBLE_DEVICES={devices} became the run's device list" in finding.text
    assert finding.source == MATRIX.presets[preset].source


@pytest.mark.parametrize("source", [None, "a blog"])
def test_devices_from_elsewhere_were_not_moved(source: str | None) -> None:
    assert lint_cell(synthetic({}, devices=(0,), source=source)) == []


def test_presets_that_set_the_same_name_each_other() -> None:
    duplicates = {(f.preset, f.text.split()[-2]) for f in FINDINGS if f.kind == "duplicate"}
    assert duplicates == {("no-sdma", "notes-no-sdma"), ("notes-no-sdma", "no-sdma")}


NOTES = {name for name, preset in MATRIX.presets.items() if name.startswith("notes-")}


def test_the_presets_of_the_notes_are_those_that_say_so() -> None:
    assert {name for name, preset in MATRIX.presets.items() if "notes" in (preset.source or "").lower()} == NOTES


def test_a_preset_of_the_projects_own_has_no_mistake() -> None:
    """Presets from the notes stay as they were written; in others, no value is refused or contradicts another."""
    kinds = ("invalid", "contradiction", "unknown", "misplaced")
    mistakes = [f for f in FINDINGS if f.preset not in NOTES and f.kind in kinds]
    assert [f for f in mistakes if not set(f.stacks) <= set(CPU)] == []


def idle(cell: Cell) -> set[str | None]:
    """Return the variables of a cell that have no effect there."""
    # Variables for the traffic between GPUs only have an effect with a workload for two.
    strategy: Literal["single", "ddp"] = "single" if len(cell.preset.devices or ()) == 1 else "ddp"
    return {f.variable for f in lint_cell(cell, strategy) if f.kind in ("no-effect", "default")}


def test_each_variable_of_a_preset_of_the_projects_own_does_something_somewhere() -> None:
    own = [preset for name, preset in MATRIX.presets.items() if name not in NOTES]
    for preset, phase in [(one, phase) for one in own for phase in one.phases]:
        everywhere = set.intersection(*(idle(MATRIX.cell(stack, preset.name)) for stack in EVERY_ROCM))
        assert preset.variables_of(phase).keys() & everywhere == set(), preset.name


def test_a_preset_that_a_stage_tries_does_something_on_a_stack_of_the_default_selection() -> None:
    """A stage tries presets on these stacks only, so a preset that is excluded on all of them is never tried."""
    stacks = [stack for stack in MATRIX.selections["default"].stacks if stack in EVERY_ROCM]
    for name in {one.preset for stage in MATRIX.stages.values() for one in stage.otherwise if one.preset}:
        cells = [cell for cell in (MATRIX.cell(stack, name) for stack in stacks) if not cell.excluded]
        assert any(MATRIX.presets[name].variables.keys() - idle(cell) for cell in cells), name


def test_a_value_of_a_preset_of_the_projects_own_is_one_that_can_be_wrong() -> None:
    """If a variable has no `values:`, or they match everything, a misspelt value makes no finding."""
    presets = [preset for name, preset in MATRIX.presets.items() if name not in NOTES]
    for variable in {name for one in presets for phase in one.phases for name in one.variables_of(phase)}:
        kinds = {finding.kind for finding in lint_cell(synthetic({variable: "no value"}, "2.12.0"), "ddp")}
        assert kinds & {"invalid", "unknown"}, f"{variable}: its `values:` in variables.yaml"


def test_several_devices_of_a_preset_are_numbered_from_0() -> None:
    several = {name: preset.devices for name, preset in MATRIX.presets.items() if len(preset.devices or ()) > 1}
    assert several
    assert set(several.values()) == {(0, 1)}, "a host with two GPUs has no others"


ON_EACH = {"description": "d", "workload": "one", "devices": "each", "otherwise": [{"preset": "x"}]}
ON_ALL = {**ON_EACH, "devices": "all", "strategy": "ddp"}
ELSEWHERE = {**ON_ALL, "otherwise": [{"sdpa": "math"}]}
P2P, SDMA = {"NCCL_P2P_DISABLE": "1"}, {"HSA_ENABLE_SDMA": "0"}


@pytest.mark.parametrize(
    ("preset", "stages", "selected", "expected"),
    [
        ({"variables": P2P}, {"both": ON_ALL}, {}, []),
        ({"variables": P2P}, {"both": ELSEWHERE}, {}, ["no stage tries it on several GPUs"]),
        ({"train": P2P}, {"both": ELSEWHERE}, {}, ["no stage tries it on several GPUs"]),
        ({"variables": P2P}, {}, {}, []),
        ({"variables": P2P}, {"both": ON_ALL}, {"presets": ["x"]}, ["does nothing with one GPU, as in selection s"]),
        ({"variables": P2P}, {"both": ON_ALL}, {"presets": ["x"], "workload": "two"}, []),
        ({"variables": P2P}, {"both": ON_ALL}, {"presets": "all"}, []),
        ({"variables": P2P}, {"one": ON_EACH, "both": ON_ALL}, {}, ["does nothing with one GPU, as in stage one"]),
        ({"variables": {**P2P, **SDMA}}, {"both": ELSEWHERE}, {"presets": ["x"]}, []),
        ({"variables": {**P2P, "NCCL_DEBUG": "INFO"}}, {"both": ELSEWHERE}, {}, []),
        ({"variables": SDMA}, {"both": ELSEWHERE}, {"presets": ["x"]}, []),
        ({"variables": SDMA, "devices": [0, 1]}, {"both": ELSEWHERE}, {}, ["no stage tries it on several GPUs"]),
        ({"variables": SDMA, "devices": [0]}, {"both": ELSEWHERE}, {}, []),
        ({"variables": SDMA, "devices": [0, 1], "source": "notes 001"}, {"both": ELSEWHERE}, {}, []),
    ],
)
def test_a_preset_for_several_gpus_is_tried_on_several(
    preset: dict[str, Any], stages: dict[str, Any], selected: dict[str, Any], expected: list[str]
) -> None:
    stacks = {"a": {"accelerator": "rocm", "rocm": "6.4", "torch": "2.9.1"}}
    selections = {"s": {"description": "d", "stacks": "all", "presets": [], "workload": "one", **selected}}
    workloads = {"one": ONE, "two": TWO}
    matrix = matrix_of(stacks, {"x": preset}, workloads=workloads, stages=stages, selections=selections)
    found = [finding.text for finding in lint(matrix) if finding.kind == "misplaced"]
    assert [text[: len(wanted)] for text, wanted in zip(found, expected, strict=True)] == expected


def test_phases_and_devices_make_presets_differ() -> None:
    same = {"A": "1"}
    presets = {"one": {"variables": same}, "two": {"train": same}, "three": {"variables": same, "devices": [0]}}
    found = lint(matrix_of({"cpu": {"accelerator": "cpu", "torch": "2.9.1"}}, presets))
    assert "duplicate" not in {f.kind for f in found}


# The catalogue as a whole.


def test_every_variable_of_the_matrix_is_in_the_catalogue() -> None:
    known = load_catalogue().variables
    used = {v for p in MATRIX.presets.values() for v in (*p.variables, *p.features, *p.train)}
    assert used <= known.keys()
    assert {f.variable for f in FINDINGS if f.kind == "unknown"} == {"ROCM_ALLOW_HIDDEN_KERNEL_FLAGS"}


@pytest.mark.parametrize(
    ("names", "reader"),
    [
        ("HIP|AMD|CUDA", "HIP runtime"),
        ("HSA|ROCR", "ROCr|libhsakmt"),
        ("MIOPEN", "MIOpen"),
        ("NCCL|RCCL", "RCCL"),
        ("PYTORCH|TORCH", "torch"),
    ],
)
def test_a_variable_is_read_by_whom_its_name_is_of(names: str, reader: str) -> None:
    of_names = {name: one.reader for name, one in load_catalogue().variables.items() if re.match(f"({names})_", name)}
    assert {name: read_by for name, read_by in of_names.items() if not re.match(reader, read_by)} == {}


def test_no_variable_has_an_effect_in_a_cpu_build() -> None:
    for variable in load_catalogue().variables.keys() - VISIBILITY_VARIABLES:
        cell = Cell(MATRIX.stacks["cpu"], Preset(name="p", description="d", variables={variable: "1"}))
        found = [(f.kind, f.text) for f in lint_cell(cell)]
        assert found == [("no-effect", "no ROCm in a CPU build of torch")], variable


def test_no_variable_of_collectives_has_an_effect_with_one_gpu() -> None:
    names = [name for name in load_catalogue().variables if name.startswith(("NCCL_", "RCCL_", "TORCH_NCCL_"))]
    assert names
    assert [name for name in names if (None, "no-effect") not in findings_of(name, "1")] == []


@pytest.mark.parametrize(
    ("variable", "understood", "other", "key"),
    [
        ("NCCL_P2P_DISABLE", "1", "true", None),
        ("NCCL_PROTO", "^LL128,Simple", "quiet", None),
        ("NCCL_PROTO", "simple", "quiet", None),
        ("NCCL_DEBUG", "info", "quiet", None),
        ("HIP_FORCE_DEV_KERNARG", "true", "on", None),
        ("HSA_ENABLE_SDMA", "0", "off", None),
        ("AMD_SERIALIZE_KERNEL", "0", "", None),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "expandable_segments:true", "expandable_segments"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:512", "max_split_size_mb:512MB", "max_split_size_mb"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:512", "max_split_size_mb", "max_split_size_mb"),
    ],
)
def test_a_value_that_is_not_understood_is_invalid(variable: str, understood: str, other: str, key: str | None) -> None:
    def found(value: str) -> list[str | None]:
        cell = synthetic({variable: value}, "2.12.0")
        return [f.key for f in lint_cell(cell, "ddp") if f.kind == "invalid" and "understands" in f.text]

    assert (found(understood), found(other)) == ([], [key])


def test_the_control_has_no_findings() -> None:
    assert [f for f in FINDINGS if f.preset == "plain"] == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("meaning: 3 tunes", "meaning: 3 tunes\n    colour: red", "Extra inputs"),
        ("kind: deprecated", "kind: outdated", "kind"),
        ('torch: ">=2.9"', 'torch: "2.9 or so"', "is not a range of versions such as <2.12"),
        ('value: "(?!0$).*"', 'value: "("', "regular expression"),
        ('with: {PYTORCH_ALLOC_CONF: ".*"}', 'with: {PYTORCH_ALOC_CONF: ".*"}', "PYTORCH_ALOC_CONF"),
        ("schema: 1", "schema: 2", "schema"),
    ],
)
def test_a_catalogue_with_a_mistake_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = CATALOGUE.read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "variables.yaml"
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValidationError, match=message):
        load_catalogue(file)


# Conditions, on synthetic cells.


@pytest.mark.parametrize(
    ("size", "torch", "kinds"),
    [
        ("20", "2.8.0", ["invalid"]),
        ("21", "2.8.0", []),
        ("19", "2.12.0", ["invalid"]),
        ("20", "2.12.0", []),
        ("200", "2.8.0", []),
    ],
)
def test_the_smallest_split_size_depends_on_torch(size: str, torch: str, kinds: list[str]) -> None:
    found = lint_cell(synthetic({"PYTORCH_CUDA_ALLOC_CONF": f"max_split_size_mb:{size}"}, torch))
    assert [f.kind for f in found] == kinds


@pytest.mark.parametrize(
    ("share", "kind"),
    [("0", "invalid"), ("1", "invalid"), ("1.5", "invalid"), ("0.0", "invalid"), (".8", "no-effect")],
)
def test_the_garbage_collection_threshold_is_a_share(share: str, kind: str) -> None:
    assert findings_of("PYTORCH_ALLOC_CONF", f"garbage_collection_threshold:{share}") == [
        ("garbage_collection_threshold", kind)
    ]


def test_a_value_decides_only_as_a_whole() -> None:
    assert findings_of("AMD_SERIALIZE_KERNEL", "3") == [(None, "debug-only")]
    assert findings_of("AMD_SERIALIZE_KERNEL", "0") == []
    assert findings_of("GPU_MAX_HW_QUEUES", "44") == []


def test_brackets_keep_a_list_inside_one_key() -> None:
    value = "roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:True"
    assert findings_of("PYTORCH_ALLOC_CONF", value) == [("expandable_segments", "no-effect")]


def test_every_spelling_of_no_caching_contradicts_every_spelling_of_the_settings() -> None:
    caching = ("PYTORCH_NO_HIP_MEMORY_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING")
    settings = ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    for off, value, conf in product(caching, ("0", "1", ""), settings):
        found = lint_cell(synthetic({off: value, conf: "max_split_size_mb:512"}))
        assert [f.variable for f in found if f.kind == "contradiction"] == [off], (off, value, conf)


def test_settings_that_are_not_read_contradict_nothing() -> None:
    variables = {"PYTORCH_NO_HIP_MEMORY_CACHING": "1", "PYTORCH_ALLOC_CONF": "max_split_size_mb:1"}
    kinds = [f.kind for f in lint_cell(synthetic(variables, "2.8.0"))]
    assert kinds == ["debug-only", "no-effect"]


def test_the_features_are_computed_on_one_gpu() -> None:
    assert [f.kind for f in lint_cell(synthetic({}, features=P2P), "ddp")] == ["no-effect"]
    assert lint_cell(synthetic({}, train=P2P), "ddp") == []


@pytest.mark.parametrize("name", [name for name in load_catalogue().variables if name.endswith("_DISABLE")])
def test_disabling_by_0_is_the_default(name: str) -> None:
    assert [f.kind for f in lint_cell(synthetic({name: "0"}), "ddp")] == ["default"]


def test_only_variables_of_the_same_process_contradict() -> None:
    cell = synthetic(
        {}, features={"PYTORCH_NO_HIP_MEMORY_CACHING": "1"}, train={"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}
    )
    assert [(f.phase, f.kind) for f in lint_cell(cell)] == [("features", "debug-only")]


def test_what_is_true_of_both_phases_is_said_once() -> None:
    cell = synthetic({"HSA_XNACK": "1"}, features={"AMD_LOG_LEVEL": "1"})
    assert [(f.variable, f.phase) for f in lint_cell(cell)] == [("HSA_XNACK", None), ("AMD_LOG_LEVEL", "features")]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("HSA_ENABLE_SMDA", "did you mean HSA_ENABLE_SDMA?"),
        ("MIOPEN_LOGLEVEL", "did you mean MIOPEN_LOG_LEVEL?"),
        ("ROCM_ALLOW_HIDDEN_KERNEL_FLAG", "not in the catalogue of variables"),
        ("LANG", "not in the catalogue of variables"),
    ],
)
def test_an_unknown_variable_gets_the_nearest_name(name: str, suggestion: str) -> None:
    (finding,) = lint_cell(synthetic({name: "1"}))
    assert finding.kind == "unknown"
    assert finding.text.endswith(suggestion)


def test_an_unknown_key_gets_the_nearest_name() -> None:
    (finding,) = lint_cell(synthetic({"PYTORCH_ALLOC_CONF": "max_split_size:512,"}))
    assert (finding.key, finding.kind) == ("max_split_size", "unknown")
    assert finding.text.endswith("did you mean max_split_size_mb?")


def test_of_an_interpreter_of_unknown_make_only_unknown_names_are_reported() -> None:
    preset = Preset(name="p", description="d", variables={"HSA_XNACK": "1", "HSA_XNAK": "1"})
    assert [f.variable for f in lint_cell(Cell(MATRIX.stacks["host"], preset))] == ["HSA_XNAK"]


# Grouping over stacks.


def test_equal_findings_are_one_over_the_stacks_that_are_run() -> None:
    matrix = matrix_of(
        {
            "a": {"accelerator": "rocm", "rocm": "6.4", "torch": "2.8.0"},
            "b": {"accelerator": "rocm", "rocm": "6.4", "torch": "2.9.1"},
            "left-out": {"accelerator": "rocm", "rocm": "7.0", "torch": "2.10.0"},
            "not-run": {"accelerator": "rocm", "rocm": "7.1", "torch": "2.10.0", "excluded": "not run at all"},
            "jax": {"accelerator": "rocm", "rocm": "7.1", "framework": "jax", "excluded": "another framework"},
            "own": {"accelerator": "any"},
        },
        {"x": {"variables": {"HSA_XNACK": "1", "PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:512"}}},
        ({"stack": "left-out", "preset": "x", "reason": "left out for the test"},),
    )
    found = [(f.variable, f.kind, f.stacks) for f in lint(matrix)]
    assert found == [
        ("HSA_XNACK", "no-effect", ("a", "b")),
        ("PYTORCH_HIP_ALLOC_CONF", "deprecated", ("b",)),
    ]


def test_no_finding_names_an_excluded_stack_or_none() -> None:
    runnable = {*EVERY_ROCM, *CPU}
    assert all(f.stacks and set(f.stacks) <= runnable for f in FINDINGS)
    assert len(set(FINDINGS)) == len(FINDINGS)


def test_findings_follow_the_order_of_the_file() -> None:
    order = list(MATRIX.presets)
    assert [f.preset for f in FINDINGS] == sorted((f.preset for f in FINDINGS), key=order.index)
    variables = [f.variable for f in FINDINGS if f.preset == "notes-stable"]
    wanted = list(MATRIX.presets["notes-stable"].variables)
    assert variables == sorted(variables, key=lambda v: wanted.index(v or ""))
