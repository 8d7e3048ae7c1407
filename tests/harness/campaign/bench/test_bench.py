"""Tests of what a bench makes of a planned run; no run is made."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.base.contract import CONTRACT
from harness.base.errors import NoAnswerError, UserError
from harness.campaign.bench import bench as bench_module
from harness.campaign.bench import open_bench as open_bench_module
from harness.campaign.bench.bench import Bench, StackUnavailableError
from harness.campaign.bench.display import Display
from harness.campaign.bench.gpu_locks import Holder, gpu_lock_file
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.bench.plan import PlannedRun, placements
from harness.environments.docker.base_image import NoBaseImageError
from harness.environments.docker.images import CONTRACT_LABEL, Image
from harness.environments.docker.node_images import NodeImages
from harness.environments.environment import Environment, image_environment
from harness.environments.executors.process import ProcessExecutor
from harness.environments.python.pins import UnreachableError
from harness.environments.verifier import Verifier
from harness.evidence.files.app_files import InputFile
from harness.evidence.records import Results
from harness.host.facts import GpuFacts, HostFacts
from harness.host.processes.processes import ProcessId
from harness.matrix.cells import Cell, Matrix
from harness.matrix.workloads import Workload
from harness.run import workload_data
from harness.run.spec import resolve_run

if TYPE_CHECKING:
    from harness.campaign.bench.dispatch import Dispatcher
    from harness.host.engine import Engine


class Shown(Display):
    """A display that keeps the short steps that it is shown."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def short_step(self, text: str) -> None:
        """Keep the text."""
        self.steps.append(text)


def a_gpu(index: int) -> GpuFacts:
    node = f"/dev/dri/renderD{128 + index}"
    return GpuFacts(index=index, gfx="gfx1100", name="g", memory_bytes=1, render_node=node, kfd_id=index + 1)


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench on a host with two GPUs, with an engine that holds every image."""
    parts = {f"vpoc.matrix.{part}": part for part in ("base", "lock", "app", "recipe")}
    image = Image("sha256:1", {**parts, CONTRACT_LABEL: str(CONTRACT)}, (), 1)
    monkeypatch.setattr(bench_module, "ensure_cell_image", lambda *_: image)
    monkeypatch.setattr(Bench, "data_of", lambda *_: InputFile(path="/bars.csv", sha256="a" * 64))
    for node in ("dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129"):
        (tmp_path / "root" / node).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / node).touch()
    results = Results(tmp_path / "results")
    two = host.model_copy(update={"gpus": (a_gpu(0), a_gpu(1))})
    engine = cast("Engine", SimpleNamespace(answers=lambda: True))
    return Bench(results, ProcessExecutor(), two, (0, 1), engine=engine, root=tmp_path / "root")


def test_a_base_that_cannot_be_had_is_noted_and_processes_are_named(
    bench: Bench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Image:
        raise NoBaseImageError("base image x cannot be pulled: no such host")

    monkeypatch.setattr(bench_module, "ensure_cell_image", refuse)
    with pytest.raises(StackUnavailableError, match="run cells with --executor process"):
        bench.make_ready(matrix.cells["cpu-plain"], matrix.workloads["quick"], Display())
    assert bench.lacks_base == "base image x cannot be pulled: no such host"


def test_a_reason_that_several_stacks_have_is_given_once(
    bench: Bench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = {"rocm6.3-torch2.9.1": "the index does not answer", "rocm6.3-torch2.8.0": "the index does not answer"}

    def refuse(_engine: object, cell: Cell, _notify: object) -> Image:
        raise UserError(f"stack {cell.stack.name}: {reasons.get(cell.stack.name, 'its wheel is gone')}")

    monkeypatch.setattr(bench_module, "ensure_cell_image", refuse)

    def left_out(stack: str) -> str:
        with pytest.raises(StackUnavailableError) as caught:
            bench.make_ready(matrix.cells[f"{stack}-plain"], matrix.workloads["quick"], Display())
        return caught.value.left_out

    first = "stack rocm6.3-torch2.9.1 is left out: the index does not answer"
    assert left_out("rocm6.3-torch2.9.1") == first
    assert (
        left_out("rocm6.3-torch2.8.0")
        == "stack rocm6.3-torch2.8.0 is left out, for the same reason as rocm6.3-torch2.9.1"
    )
    assert left_out("rocm6.2-torch2.5.1") == "stack rocm6.2-torch2.5.1 is left out: its wheel is gone"
    # When the first stack is tried again, its message must not refer to another stack.
    assert left_out("rocm6.3-torch2.9.1") == first


def test_a_stack_whose_index_does_not_answer_may_have_another_turn(
    bench: Bench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Image:
        raise UnreachableError("stack cpu: https://there/ does not answer")

    monkeypatch.setattr(bench_module, "ensure_cell_image", refuse)
    with pytest.raises(StackUnavailableError, match="does not answer") as raised:
        bench.make_ready(matrix.cells["cpu-plain"], matrix.workloads["quick"], Display())
    # One failed try decides for all stacks, so without another turn a short network outage would end a campaign.
    assert raised.value.passes


def test_what_an_engine_that_went_away_kept_from_being_made_is_made_once_it_is_back(
    bench: Bench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = iter([True, True, False])
    monkeypatch.setattr("harness.host.engine.AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(bench, "engine", SimpleNamespace(answers=lambda: not next(away)))
    made: list[str] = []

    def cut_short(*_: object) -> Image:
        made.append("image")
        if len(made) == 1:
            raise UserError("the build was cut short")
        return Image("sha256:1", {"vpoc.matrix.base": "b", CONTRACT_LABEL: str(CONTRACT)}, (), 1)

    monkeypatch.setattr(bench_module, "ensure_cell_image", cut_short)
    made_of = bench._environment_made(matrix.cells["cpu-plain"], Display())
    assert (made_of.image, len(made)) == ("sha256:1", 2)


@pytest.mark.parametrize(("error", "passes"), [(NoAnswerError("it is away"), True), (UserError("not there"), False)])
def test_a_source_of_images_that_does_not_answer_may_do_so_later(
    error: UserError, passes: bool, bench: Bench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> NodeImages:
        raise error

    monkeypatch.setattr(bench_module, "images_in_source", look)
    bench.dispatcher = cast("Dispatcher", SimpleNamespace(images="registry.example/me"))
    with pytest.raises(StackUnavailableError) as raised:
        bench.make_ready(matrix.cells["cpu-plain"], matrix.workloads["quick"], Display())
    assert raised.value.passes is passes
    assert not bench.is_ready(matrix.cells["cpu-plain"], matrix.workloads["quick"])


def test_containers_on_nodes_without_a_source_of_images_are_refused(
    bench: Bench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_bench_module, "choose_engine", lambda *_: bench.engine)
    nodes = cast("Dispatcher", SimpleNamespace(images=None, host=bench.host))
    options = BenchOptions(bench.results, executor="docker", dispatcher=nodes)
    with pytest.raises(UserError, match="name a registry or a folder as `images:` under hosts: in the matrix file"):
        open_bench(options, [matrix.cells["cpu-plain"]])


def test_the_users_data_are_checked_before_the_stack_of_a_cell_is_made(
    bench: Bench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def refuse(*_: object) -> InputFile:
        raise UserError("--data: line 3 is no bar")

    verifying = image_environment("sha256:1", {}, CONTRACT, matrix.stacks["cpu"])
    monkeypatch.setattr(Bench, "verifier", lambda *_: Verifier(verifying))
    monkeypatch.setattr(Bench, "environment", lambda _, cell, __: made.append(cell.id))
    monkeypatch.setattr(Bench, "data_of", refuse)
    with pytest.raises(UserError, match="line 3"):
        replace(bench, data=Path("bars.csv")).make_ready(
            matrix.cells["rocm6.3-torch2.9.1-plain"], matrix.workloads["quick"], Display()
        )
    assert made == []


def test_no_cell_trains_on_the_bars_that_somebody_elses_image_made_for_another(
    host: HostFacts, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload_data, "DATA", tmp_path)
    bench = Bench(Results(tmp_path / "results"), ProcessExecutor(), host, ())
    workload, stack = matrix.workloads["quick"], matrix.stacks["cpu"]

    def make(wanted: Workload, by: Environment, _: object) -> Path:
        place = workload_data.synthetic_place(wanted, by.image)
        place.write_text(f"bars of {by.image}", encoding="utf-8")
        return place

    monkeypatch.setattr(bench_module, "synthetic_file", make)
    pulled = [image_environment(f"sha256:{number}", {}, CONTRACT, stack) for number in (1, 2, 1)]
    first, second, again = (bench.data_of(workload, one).path for one in pulled)
    assert first == again != second
    bench.use_verifier(Verifier(image_environment("sha256:own", {}, CONTRACT, stack)))
    assert len({bench.data_of(workload, one).path for one in pulled}) == 1


def test_what_somebody_elses_image_says_of_the_users_data_ends_no_campaign(
    host: HostFacts, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("--data: line 3 is no bar")

    bars = tmp_path / "bars.csv"
    bars.write_text("bars")
    bench = Bench(Results(tmp_path / "results"), ProcessExecutor(), host, (), data=bars)
    workload, stack = matrix.workloads["quick"], matrix.stacks["cpu"]
    monkeypatch.setattr(bench_module, "check_data", refuse)
    monkeypatch.setattr(bench_module, "is_own", "sha256:own".__eq__)
    pulled, own = (image_environment(f"sha256:{name}", {}, CONTRACT, stack) for name in ("pulled", "own"))
    assert bench.data_of(workload, pulled).path == str(bars)
    # A file of gigabytes is read once, not for each run.
    with monkeypatch.context() as once:
        once.setattr(bench_module, "read_data", refuse)
        assert bench.data_of(workload, pulled).sha256 == hashlib.sha256(b"bars").hexdigest()
    with pytest.raises(UserError, match="line 3"):
        bench.data_of(workload, own)
    # Where this host can verify runs, it checks the data in its own environment.
    bench.use_verifier(Verifier(own))
    with pytest.raises(UserError, match="line 3"):
        bench.data_of(workload, pulled)


def test_data_that_are_changed_after_they_were_read_end_the_command(
    host: HostFacts, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further run would train on something else than what it is asked for."""
    monkeypatch.setattr(bench_module, "check_data", lambda *_: None)
    bars = tmp_path / "bars.csv"
    bars.write_text("bars\n")
    bench = Bench(Results(tmp_path / "results"), ProcessExecutor(), host, (), data=bars)
    workload, environment = matrix.workloads["quick"], Environment(tmp_path, {}, {}, "cpu")
    known = bench.data_of(workload, environment)
    # The same bars written once more are the same data.
    bars.write_text("bars\n")
    assert bench.data_of(workload, environment) == known
    bars.write_text("bars\nmore\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"bars\.csv: was changed since it was read; put back what it held"):
            bench.data_of(workload, environment)
    bars.write_text("bars\n")
    assert bench.data_of(workload, environment) == known


def test_what_is_done_with_the_data_is_shown_and_once(
    bench: Bench, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, workload, shown = matrix.cells["cpu-plain"], matrix.workloads["quick"], Shown()
    monkeypatch.setattr(workload_data, "DATA", tmp_path)
    for data in (None, Path("bars.csv")):
        fresh = replace(bench, data=data, _data={})
        fresh.make_ready(cell, workload, shown)
        fresh.use_data(workload, InputFile(path="/bars.csv", sha256="a" * 64))
        fresh.make_ready(cell, workload, shown)
    assert shown.steps == ["making synthetic bars of 100 sessions", "checking bars.csv"]


def intent_of(bench: Bench, planned: PlannedRun, matrix: Matrix) -> dict[str, Any]:
    run = bench.requested_run(planned, "mine", matrix.workloads["quick"])
    return resolve_run(run, bench.results.folder_of("mine")).intent.model_dump()


def test_a_container_gets_the_nodes_of_its_gpu_and_no_visibility_variable(bench: Bench, matrix: Matrix) -> None:
    for gpu, planned in enumerate(
        placements(matrix.cells["rocm6.3-torch2.9.1-plain"], matrix.workloads["quick"], 1, bench.gpus)
    ):
        intent = intent_of(bench, planned, matrix)
        nodes = [device["inside"] for device in intent["container"]["devices"]]
        assert nodes == ["/dev/kfd", f"/dev/dri/renderD{128 + gpu}"]
        assert (intent["gpus"], intent["device"], intent["executor"]) == ((gpu,), "cuda", "docker")
        assert not any("VISIBLE" in name for name in intent["variables"]["train"])
        assert intent["environment"] == {"base": "base", "lock": "lock", "app": "app", "recipe": "recipe"}


def test_a_preset_that_names_devices_gets_them(bench: Bench, matrix: Matrix) -> None:
    (planned,) = placements(
        matrix.cells["rocm6.3-torch2.9.1-notes-dockerfile"], matrix.workloads["quick"], 1, bench.gpus
    )
    devices = intent_of(bench, planned, matrix)["container"]["devices"]
    assert [device["inside"] for device in devices] == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]


def test_a_cell_of_the_cpu_gets_none(bench: Bench, matrix: Matrix) -> None:
    (planned,) = placements(matrix.cells["cpu-plain"], matrix.workloads["quick"], 1, bench.gpus)
    assert intent_of(bench, planned, matrix)["container"]["devices"] == ()


def test_a_missing_node_stops_before_anything_is_run(bench: Bench, matrix: Matrix) -> None:
    (bench.root / "dev/kfd").unlink()
    with pytest.raises(UserError, match="dev/kfd: no such device"):
        bench.requested_run(
            placements(matrix.cells["rocm6.3-torch2.9.1-plain"], matrix.workloads["quick"], 1, bench.gpus)[0],
            "r",
            matrix.workloads["quick"],
        )
    assert not bench.results.runs.exists()


def several(matrix: Matrix, **changes: Any) -> Workload:
    values = {"strategy": "ddp", "model": ("mlp", "attention"), "sdpa": "math", **changes}
    return matrix.workloads["quick"].model_copy(update=values)


def test_a_strategy_of_several_gpus_gets_all_of_them_and_is_held_to_that(bench: Bench, matrix: Matrix) -> None:
    workload = several(matrix, max_device_memory=10**9)
    (planned,) = placements(matrix.cells["rocm6.3-torch2.9.1-plain"], workload, 1, bench.gpus)
    run = bench.requested_run(planned, "mine", workload)
    run = replace(run, verifier=Verifier(run.environment))
    spec = resolve_run(run, bench.results.folder_of("mine"))
    intent = spec.intent
    line = " ".join(intent.commands["train"])
    assert "--model mlp --model attention" in line
    assert "--strategy ddp --devices 2" in line
    assert (spec.request.devices, spec.request.ranks, spec.request.gpus) == (2, 2, 2)
    assert spec.request.max_device_memory == 10**9
    assert intent.options == spec.request.options
    assert intent.options["devices"] == 2
    assert spec.verification is not None
    words = spec.verification.arguments
    assert "--model mlp --model attention" in " ".join(words)
    assert not {"--strategy", "--devices", "--sdpa", "--loop", "--backend"} & set(words)


@pytest.mark.parametrize(("strategy", "ranks"), [("averaging", 2), ("model-parallel", 1)])
def test_on_a_cpu_a_strategy_of_several_devices_has_two(
    strategy: str, ranks: int, bench: Bench, matrix: Matrix
) -> None:
    workload = several(matrix, strategy=strategy)
    (planned,) = placements(matrix.cells["cpu-plain"], workload, 1, bench.gpus)
    request = resolve_run(bench.requested_run(planned, "mine", workload), bench.results.folder_of("mine")).request
    assert (request.devices, request.ranks, request.gpus, request.options["devices"]) == (2, ranks, 0, 2)


def test_a_container_of_a_dead_harness_is_asked_for_though_this_bench_runs_processes(
    bench: Bench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = bench.root / "run/lock"
    place.mkdir(parents=True)
    place.chmod(0o1777)
    me = ProcessId.mine()
    theirs = Holder(folder="/theirs", user="somebody", pid=me.pid, started=me.started, boot=me.boot)
    gpu_lock_file(a_gpu(0), bench.root).write_text(theirs.model_dump_json(), encoding="utf-8")
    asked = []

    def containers(filters: object) -> list[object]:
        asked.append(filters)
        return [{}]

    engine = SimpleNamespace(client=SimpleNamespace(api=SimpleNamespace(containers=containers)))
    monkeypatch.setattr(bench_module, "find_engine", lambda: engine)
    bench.engine = None
    planned = placements(matrix.cells["rocm6.3-torch2.9.1-plain"], matrix.workloads["quick"], 1, bench.gpus)[0]
    with pytest.raises(UserError, match="its container still runs"), bench.gpus_for([(planned, "r")], refuse):
        pass
    assert asked == [{"label": "vpoc.matrix.run=/theirs"}]


def refuse(text: str) -> None:
    raise UserError(text)
