from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import NoSpaceError, UserError
from harness.base.files.hashes import file_hash
from harness.campaign.bench.plan import make_plan, why_unfit
from harness.campaign.planning import prepare
from harness.environments.capabilities import GB, Capabilities, capabilities_of, why_not
from harness.environments.docker import own_images
from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.host import disk_use
from harness.host.disk_use import DiskLimit, require_room
from harness.host.engine import Engine
from harness.matrix.cells import Cell, Matrix
from harness.matrix.workload_options import workload_hash
from harness.matrix.workloads import Workload
from harness.screen.tables import plan_lines

NO_GPU = Capabilities(gpus=(), executor="process", pythons=frozenset({"3.11"}), free_bytes=100 * GB)
TWO_GPUS = replace(NO_GPU, gpus=(0, 1), free_bytes=500 * GB)
DOCKER = replace(TWO_GPUS, executor="docker", place="/var/lib/docker")


def rocm_budgets(cells: list[Cell]) -> tuple[list[float], list[float]]:
    """Return the GB to download and the GB of disk that each ROCm stack needs."""
    stacks = {cell.stack.name: cell.stack for cell in cells if cell.stack.accelerator == "rocm"}
    budgets = [stack.budget for stack in stacks.values()]
    return [budget.download for budget in budgets], [budget.disk for budget in budgets]


def test_without_a_gpu_the_cpu_stack_runs(matrix: Matrix) -> None:
    plan = make_plan(matrix.select("default"), matrix.workloads["quick"], 1, NO_GPU, {})
    assert {run.cell.stack.name for run in plan.runs} == {"cpu"}
    assert len(plan.runs) >= 4
    assert {s.cell.stack.accelerator for s in plan.skipped} == {"rocm"}
    assert all("AMD GPU" in s.reason for s in plan.skipped)
    assert "every GPU" not in plan_lines(replace(plan, workload=matrix.workloads["production"]))[0]


def test_with_gpus_the_rocm_stacks_run_and_the_cpu_stack_only_when_named(matrix: Matrix) -> None:
    cells = matrix.select("default")
    plan = make_plan(cells, matrix.workloads["quick"], 1, TWO_GPUS, {})
    assert {run.cell.stack.accelerator for run in plan.runs} == {"rocm"}
    assert plan.disk_gb == pytest.approx(sum(rocm_budgets(cells)[1]))
    named = make_plan([matrix.cells["cpu-plain"]], matrix.workloads["quick"], 1, TWO_GPUS, {}, named=True)
    assert len(named.runs) == 1


def test_a_plan_names_the_mirror_without_its_password(matrix: Matrix) -> None:
    cell = matrix.cells["cpu-plain"]
    stack = cell.stack.model_copy(update={"mirror": "https://me:secret@mirror.example/{platform}"})
    plan = make_plan([replace(cell, stack=stack)], matrix.workloads["quick"], 1, NO_GPU, {})
    assert plan.indexes == {"cpu": "https://mirror.example/cpu"}
    assert "secret" not in "".join(plan_lines(plan))


def test_a_stack_without_kernels_for_the_gpus_is_left_out_unless_it_is_named(matrix: Matrix) -> None:
    cell = matrix.cells["rocm6.3-torch2.9.1-plain"]
    host = replace(TWO_GPUS, targets=frozenset({"gfx1201"}))
    assert "ROCm 6.3 have no kernels for gfx1201" in (why_not(cell, host) or "")
    assert why_not(cell, host, named=True) is None
    assert why_not(matrix.cells["rocm6.4-torch2.9.1-plain"], host) is None
    # The cell can run on the host's other GPU, or with a preset that runs the kernels of another GPU target.
    assert why_not(cell, replace(TWO_GPUS, targets=frozenset({"gfx1100", "gfx1201"}))) is None
    overridden = replace(cell, preset=cell.preset.model_copy(update={"variables": {"HSA_OVERRIDE_GFX_VERSION": "x"}}))
    assert why_not(overridden, host) is None


def test_an_excluded_cell_keeps_its_reason(matrix: Matrix) -> None:
    cell = matrix.cells["rocm6.3-torch2.9.1-expandable-segments"]
    assert why_not(cell, TWO_GPUS) == cell.excluded


@pytest.mark.parametrize(
    ("cell", "asked", "gpus", "of_host"),
    [
        ("rocm6.3-torch2.9.1-plain", {}, (), True),
        ("rocm6.3-torch2.9.1-plain", {"strategy": "ddp"}, (0,), True),
        ("rocm6.3-torch2.9.1-notes-device-0", {"strategy": "ddp"}, (0, 1), False),
        ("rocm6.3-torch2.9.1-expandable-segments", {}, (), False),
        ("cpu-plain", {"target": "next_up"}, (), False),
        ("host-plain", {}, (), False),
    ],
    ids=["the host", "one GPU", "the preset", "the matrix", "the app", "the command"],
)
def test_the_doctor_is_named_only_where_the_host_is_what_refuses(
    cell: str, asked: dict[str, str], gpus: tuple[int, ...], of_host: bool, matrix: Matrix
) -> None:
    workload = matrix.workloads["quick"].model_copy(update=asked)
    with pytest.raises(UserError) as refused:
        make_plan([matrix.cells[cell]], workload, 1, replace(NO_GPU, gpus=gpus), {}, named=True).check_feasible()
    assert ("matrix doctor" in str(refused.value), "on this host" in str(refused.value)) == (of_host, of_host)


def test_a_stack_takes_any_python_that_its_torch_has_wheels_for(matrix: Matrix) -> None:
    host = replace(TWO_GPUS, pythons=frozenset({"3.13"}))
    for cell in ("cpu-plain", "rocm6.3-torch2.9.1-plain"):
        plan = make_plan([matrix.cells[cell]], matrix.workloads["quick"], 1, host, {}, named=True)
        assert plan.runs
        assert plan.pythons_to_fetch == ()
        assert "Python" not in "\n".join(plan_lines(plan))


def test_a_missing_python_is_fetched_and_the_plan_says_from_where(matrix: Matrix) -> None:
    host = replace(TWO_GPUS, pythons=frozenset({"3.13"}))
    cells = [matrix.cells[f"{stack}-plain"] for stack in ("rocm6.2-torch2.5.1", "rocm6.3-torch2.9.1", "host")]
    plan = make_plan(cells, matrix.workloads["quick"], 1, replace(host, interpreter="/usr/bin/python3"), {})
    assert plan.pythons_to_fetch == ("3.11",)
    [line] = [line for line in plan_lines(plan) if "Python" in line]
    assert line.startswith("  Python 3.11: not installed, to be fetched from https://")
    # Each image has a Python of its own.
    assert make_plan(cells, matrix.workloads["quick"], 1, replace(host, executor="docker"), {}).pythons_to_fetch == ()


def test_a_preset_for_two_gpus_is_left_out_on_one(matrix: Matrix) -> None:
    cell = matrix.cells["rocm6.3-torch2.9.1-notes-dockerfile"]
    assert why_not(cell, TWO_GPUS) is None
    assert "GPUs 0, 1" in (why_not(cell, replace(TWO_GPUS, gpus=(0,))) or "")


def test_the_host_stack_needs_an_interpreter(matrix: Matrix) -> None:
    cell = matrix.cells["host-plain"]
    assert "--python" in (why_not(cell, NO_GPU) or "")
    assert why_not(cell, replace(NO_GPU, interpreter="/usr/bin/python3")) is None


def test_what_is_installed_costs_nothing_more(matrix: Matrix) -> None:
    cells = [matrix.cells["cpu-plain"]]
    assert make_plan(cells, matrix.workloads["quick"], 1, NO_GPU, {}).disk_gb > 1
    made = replace(NO_GPU, made=frozenset({"cpu"}), free_bytes=0)
    plan = make_plan(cells, matrix.workloads["quick"], 1, made, {})
    assert plan.disk_gb == 0
    assert plan.fits
    assert not make_plan(cells, matrix.workloads["quick"], 1, replace(made, made=frozenset()), {}).fits


def test_images_that_others_built_cost_nothing_but_of_the_stack_that_runs_are_verified_in(
    matrix: Matrix, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: dict[str, Any] = {
        "Id": "sha256:1",
        "Config": {"Labels": {"vpoc.matrix.inputs": "0" * 64}},
        "RootFS": {"Layers": []},
        "Size": 1,
        "Created": 1,
    }
    api = SimpleNamespace(
        images=lambda filters: [told] * ("vpoc.matrix.kind=stack" in filters["label"]),
        inspect_image=lambda _: told,
    )
    engine = Engine("unix://", SimpleNamespace(api=api, info=dict))
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own-images.txt")
    host, cell, stack = make_record().intent.host, matrix.cells["cpu-debian13-torch2.6.0-plain"], matrix.stacks["cpu"]

    def download() -> float:
        able = capabilities_of(host, engine, [cell], None, stack)
        return make_plan([cell], matrix.workloads["quick"], 1, able, {}).download_gb

    assert download() == stack.budget.download
    own_images.OWN_IMAGES.write_text(told["Id"])
    assert download() == 0


def test_time_is_expected_only_where_it_was_measured(matrix: Matrix) -> None:
    cells = [matrix.cells["cpu-plain"], matrix.cells["cpu-no-sdma"]]
    workload = matrix.workloads["quick"]
    assert make_plan(cells, workload, 3, NO_GPU, {}).seconds_expected is None
    plan = make_plan(cells, workload, 3, NO_GPU, {"cpu-plain": [4.0, 6.0, 5.0]})
    assert plan.seconds_expected == 6 * 5.0
    assert plan.seconds_at_most == 6 * workload.time_limit


def test_many_cells_are_counted_and_named_on_request(matrix: Matrix) -> None:
    cells = [cell for cell in matrix.select("default") if cell.stack.accelerator == "rocm"]
    plan = make_plan(cells, matrix.workloads["quick"], 1, TWO_GPUS, {})
    stacks = list(dict.fromkeys(cell.stack.name for cell in cells))
    assert f"  cells: {len(cells)} of {len(stacks)} stacks (`matrix plan --wide` lists them)" in plan_lines(plan)
    wide = plan_lines(plan, wide=True)
    named = [line.strip().split(": ") for line in wide[wide.index("  cells:") + 1 :][: len(stacks)]]
    assert [f"{stack}-{one}" for stack, presets in named for one in presets.split(", ")] == [c.id for c in cells]


def test_runs_side_by_side_take_the_time_once(matrix: Matrix) -> None:
    cells, workload = [matrix.cells["rocm6.3-torch2.9.1-plain"]], matrix.workloads["quick"]
    past = {cells[0].id: [5.0]}
    apart = make_plan(cells, workload, 3, TWO_GPUS, past)
    beside = make_plan(cells, workload, 3, TWO_GPUS, past, side_by_side=True)
    assert (apart.seconds_expected, beside.seconds_expected) == (30.0, 15.0)
    assert (apart.side_by_side, beside.side_by_side) == (False, True)
    two = [*cells, matrix.cells["rocm6.3-torch2.9.1-no-sdma"]]
    in_turn = [(one.cell.id, one.gpus) for one in make_plan(two, workload, 1, TWO_GPUS, {}, side_by_side=True).runs]
    assert in_turn == [(cell.id, (gpu,)) for cell in two for gpu in (0, 1)]
    # A run that uses both GPUs cannot run beside another one.
    ddp = matrix.workloads["production"]
    assert not make_plan(cells, ddp, 3, TWO_GPUS, {}, side_by_side=True).side_by_side


def test_repeats_go_round_the_cells(matrix: Matrix) -> None:
    cells = [matrix.cells["cpu-plain"], matrix.cells["cpu-no-sdma"]]
    plan = make_plan(cells, matrix.workloads["quick"], 2, NO_GPU, {})
    order = [(run.cell.preset.name, run.repeat) for run in plan.runs]
    assert order == [("plain", 1), ("no-sdma", 1), ("plain", 2), ("no-sdma", 2)]


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (NO_GPU, "Found no AMD GPU, no Docker engine is used: the cpu stack runs, as processes"),
        (DOCKER, "Found 2 AMD GPUs and a Docker engine: the ROCm stacks run, in containers."),
        (
            replace(DOCKER, gpus=(1,), unused=1),
            "Found 2 AMD GPUs (1 with a screen, which no run uses) and a Docker engine: the ROCm stacks run",
        ),
    ],
)
def test_one_sentence_says_what_was_found_and_what_is_done(host: Capabilities, words: str) -> None:
    assert host.sentence.startswith(words)


def test_with_two_gpus_each_cell_runs_on_each_alone_first(matrix: Matrix) -> None:
    cells = [matrix.cells[f"rocm6.3-torch2.9.1-{preset}"] for preset in ("plain", "no-sdma", "notes-aggressive")]
    plan = make_plan(cells, matrix.workloads["quick"], 1, TWO_GPUS, {})
    assert [(run.cell.preset.name, run.gpus, run.placement) for run in plan.runs] == [
        ("plain", (0,), "-gpu0"),
        ("no-sdma", (0,), "-gpu0"),
        ("plain", (1,), "-gpu1"),
        ("no-sdma", (1,), "-gpu1"),
        # This preset names its devices.
        ("notes-aggressive", (0, 1), ""),
    ]
    assert [
        run.gpus for run in make_plan(cells[:1], matrix.workloads["quick"], 1, replace(TWO_GPUS, gpus=(1,)), {}).runs
    ] == [(1,)]
    # With a screen on GPU 0, which runs may not use.
    (left_out,) = make_plan(cells, matrix.workloads["quick"], 1, replace(TWO_GPUS, gpus=(1,), unused=1), {}).skipped
    assert left_out.reason == (
        "its preset needs GPUs 0, 1, of which runs may not use the one with a screen; --use-screen-gpu lets them"
    )


def test_the_peak_counts_the_builders_copy_and_the_wheelhouse_beside_it(matrix: Matrix) -> None:
    cells = matrix.select("default")
    quick = matrix.workloads["quick"]
    apart = make_plan(cells, quick, 1, DOCKER, {})
    downloads, disks = rocm_budgets(cells)
    assert {20, 6.5} < set(disks)
    assert apart.download_gb == pytest.approx(sum(downloads))
    assert apart.disk_gb == pytest.approx(sum(disks) + 6)
    beside = make_plan(cells, quick, 1, replace(DOCKER, wheels_beside=True), {})
    assert beside.disk_gb == pytest.approx(sum(disks) + 6 + sum(downloads))
    assert make_plan(cells, quick, 1, replace(DOCKER, free_bytes=None), {}).fits


def test_a_stack_runs_only_with_its_executors(matrix: Matrix) -> None:
    contained = matrix.cells["cpu-debian13-torch2.6.0-plain"]
    assert "it needs a Docker engine" in (why_not(contained, NO_GPU) or "")
    assert why_not(contained, replace(NO_GPU, executor="docker")) is None
    assert "--executor process" in (why_not(matrix.cells["host-plain"], DOCKER) or "")
    # An image has its own Python, so the host's interpreters do not matter in a container.
    assert why_not(matrix.cells["cpu-plain"], replace(NO_GPU, executor="docker", pythons=frozenset())) is None


def test_where_nothing_is_downloaded_it_is_said_why(matrix: Matrix) -> None:
    host = replace(DOCKER, made=frozenset({"cpu"}))
    plan = make_plan([matrix.cells["cpu-plain"]], matrix.workloads["quick"], 1, host, {}, named=True)
    said = "disk: nothing more on /var/lib/docker, 500 GB free; to download: nothing (all of it is on this machine)"
    assert said in "\n".join(plan_lines(plan))


def test_a_disk_that_is_too_small_is_reported_as_exactly_as_what_is_needed(matrix: Matrix) -> None:
    host = replace(DOCKER, free_bytes=629_000_000)
    plan = make_plan([matrix.cells["cpu-plain"]], matrix.workloads["quick"], 1, host, {}, named=True)
    assert " on /var/lib/docker, 629 MB free: not enough; " in "\n".join(plan_lines(plan))
    with pytest.raises(NoSpaceError, match=r": the plan needs 1\.\d GB, 629 MB are free; free some"):
        plan.check_feasible()


def test_the_printed_plan_says_on_which_gpus_and_on_which_disk(matrix: Matrix) -> None:
    cells = [matrix.cells[f"rocm6.3-torch2.9.1-{preset}"] for preset in ("plain", "notes-aggressive")]
    cells.append(matrix.cells["rocm7.0-torch2.10.0-plain"])
    plan = make_plan(cells, matrix.workloads["quick"], 1, DOCKER, {})
    text = "\n".join(plan_lines(plan))
    # The preset `notes-aggressive` names both devices, so its cell is run once and not on each GPU.
    assert "Plan: 3 cells, 5 runs" in text
    assert "each on GPU 0 and on GPU 1" in text
    assert "disk: 46.0 GB at most on /var/lib/docker, 500 GB free; to download: 12.0 GB\n" in text
    pytorch = "https://download.pytorch.org/whl"
    assert f"wheels: {pytorch}/rocm6.3, {pytorch}/rocm7.0" in text
    assert "at most 1.2 h by the workload's limit" in text
    assert "each run: at most 50 GB and 100,000 files in its folder, 1,024 processes and threads" in text


def test_the_plan_says_how_many_processes_containers_may_have_and_of_processes_nothing(matrix: Matrix) -> None:
    cells, ddp = [matrix.cells["cpu-plain"]], matrix.workloads["quick"].model_copy(update={"strategy": "ddp"})
    large = replace(NO_GPU, cores=96)
    assert make_plan(cells, ddp, 1, replace(large, executor="docker"), {}).pids == 2 * 64 * 96
    plan = make_plan(cells, ddp, 1, replace(large, run_bytes=36 * 10**9), {})
    assert plan.pids is None
    assert plan_lines(plan)[-1].endswith("each run: at most 36 GB and 100,000 files in its folder")


@pytest.mark.parametrize(("free", "begins"), [((1 << 30) - 10**7, False), ((1 << 30) + 10**7, True)])
def test_a_plan_without_room_for_any_run_says_so(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, begins: bool
) -> None:
    monkeypatch.setattr(disk_use, "_free", lambda _: free)
    able = replace(NO_GPU, executor="docker", run_bytes=DiskLimit.of(tmp_path).bytes)
    text = "\n".join(plan_lines(make_plan([matrix.cells["cpu-plain"]], matrix.workloads["quick"], 1, able, {})))
    assert ("each run: at most " in text) == begins
    assert ("each run: none begins with less than 1.1 GB free on the disk of its folder" in text) != begins
    with nullcontext() if begins else pytest.raises(NoSpaceError):
        require_room(tmp_path)


def test_the_plan_of_a_program_of_the_users_own_says_when_it_hangs_and_that_only_a_container_has_walls(
    matrix: Matrix,
) -> None:
    mine = {"description": "mine", "time_limit": 60, "program": {"command": "x", "source": "."}}
    docker = replace(NO_GPU, executor="docker")
    for host, told in ((docker, ""), (NO_GPU, "; as a process it can write wherever you can")):
        plan = make_plan([matrix.cells["cpu-plain"]], Workload.model_validate(mine), 1, host, {})
        hangs = "hung after 10 min without a line of output (--stall-limit, or stall_limit: of its workload)"
        fails = ", and as failed if it prints nothing at all (unless --produces)"
        assert plan_lines(plan)[-1] == f"  your program: its numbers are not checked; it counts as {hangs}{fails}{told}"


@pytest.mark.parametrize(
    "asked",
    [
        {"model": ("attention",)},
        {"strategy": "ddp"},
        {"loop": "resident"},
        {"use_mixed_precision": True},
        {"micro_batch_size": 4},
        {"activation_checkpointing": True},
        {"vpoc_path": "naive"},
    ],
    ids=str,
)
def test_jax_is_left_out_of_what_it_does_not_do(asked: dict[str, Any], matrix: Matrix) -> None:
    cell, workload = matrix.cells["rocm7.14.0-jax0.10.0-plain"], matrix.workloads["frameworks"]
    host = replace(TWO_GPUS, executor="process")
    assert why_unfit(cell, workload, (0, 1)) is None
    plan = make_plan([cell], workload.model_copy(update=asked), 1, host, {})
    assert ["--workload frameworks" in skipped.reason for skipped in plan.skipped] == [True]


def test_jax_and_torch_are_planned_side_by_side(matrix: Matrix) -> None:
    host = replace(TWO_GPUS, executor="process")
    plan = make_plan(matrix.select("frameworks"), matrix.workloads["frameworks"], 1, host, {}, named=True)
    assert {run.cell.stack.framework for run in plan.runs} == {"torch", "jax"}
    assert not plan.skipped


def test_a_strategy_of_several_gpus_runs_once_on_all_of_them(matrix: Matrix) -> None:
    ddp = matrix.workloads["quick"].model_copy(update={"strategy": "ddp"})
    cells = [matrix.cells[f"rocm6.3-torch2.9.1-{preset}"] for preset in ("plain", "notes-dockerfile", "notes-device-0")]
    plan = make_plan(cells, ddp, 1, TWO_GPUS, {})
    assert [(run.cell.preset.name, run.gpus, run.placement) for run in plan.runs] == [
        ("plain", (0, 1), ""),
        ("notes-dockerfile", (0, 1), ""),
    ]
    assert plan_lines(plan)[0].endswith("), on GPU 0 and 1 by strategy ddp")
    assert [s.reason for s in plan.skipped] == ["strategy ddp needs two GPUs; its preset gives it one"]
    alone = make_plan(cells[:1], ddp, 1, replace(TWO_GPUS, gpus=(0,)), {})
    assert [s.reason for s in alone.skipped] == ["strategy ddp needs two GPUs; this host has one"]
    # On a CPU the devices are processes, and two of those are always possible.
    assert len(make_plan([matrix.cells["cpu-plain"]], ddp, 1, NO_GPU, {}).runs) == 1


def test_what_uses_several_gpus_comes_after_every_repeat_of_the_rest(matrix: Matrix) -> None:
    cells = [matrix.cells[f"rocm6.3-torch2.9.1-{preset}"] for preset in ("notes-aggressive", "plain")]
    plan = make_plan(cells, matrix.workloads["quick"], 2, TWO_GPUS, {})
    assert [(run.gpus, run.repeat) for run in plan.runs] == [
        *[((0,), 1), ((1,), 1), ((0,), 2), ((1,), 2)],
        *[((0, 1), 1), ((0, 1), 2)],
    ]


def test_a_gpu_without_a_screen_comes_first(matrix: Matrix) -> None:
    headless_first = replace(TWO_GPUS, gpus=(1, 0))
    cells = [matrix.cells["rocm6.3-torch2.9.1-plain"]]
    plan = make_plan(cells, matrix.workloads["quick"], 1, headless_first, {})
    assert [run.gpus for run in plan.runs] == [(1,), (0,)]
    # The order of several GPUs does not depend on which of them has a screen.
    ddp = matrix.workloads["quick"].model_copy(update={"strategy": "ddp"})
    assert [run.gpus for run in make_plan(cells, ddp, 1, headless_first, {}).runs] == [(0, 1)]


def test_controls_are_planned_where_gpus_are_used_repeatedly(matrix: Matrix) -> None:
    cells, workload = matrix.select("default"), matrix.workloads["quick"]
    plan = make_plan(cells, workload, 2, TWO_GPUS, {}, controls=True)
    assert plan.controls == 40
    assert any(line.startswith("  controls: at most 40 more runs") for line in plan_lines(plan))
    without = [
        make_plan(cells, workload, 1, TWO_GPUS, {}, controls=True),
        make_plan(cells, workload, 2, TWO_GPUS, {}),
        make_plan(cells, workload, 2, NO_GPU, {}, controls=True),
        make_plan([matrix.cells["cpu-plain"]], workload, 2, TWO_GPUS, {}, named=True, controls=True),
    ]
    assert [one.controls for one in without] == [0, 0, 0, 0]
    assert not any("controls" in line for one in without for line in plan_lines(one))


def test_what_runs_took_is_expected_of_runs_of_the_same_executor(
    matrix: Matrix, make_record: Callable[..., Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data := tmp_path / "bars.csv").write_text("ts", encoding="utf-8")
    workload = matrix.workloads["quick"]
    same = {"workload_hash": workload_hash(workload, file_hash(data))}
    rows = [Row.of(make_record(name, executor=name, **same)) for name in ("process", "docker")]
    monkeypatch.setattr(prepare, "Index", lambda _: SimpleNamespace(rows=lambda: rows))
    host = make_record().intent.host
    bench: Any = SimpleNamespace(data=data, host=host, results=None, executor_name="process")
    assert prepare._past_seconds(bench, workload) == {"cpu-plain": [rows[0].seconds]}
