"""Tests that runs of an image that lies are verified in an image that this checkout has built, whatever its labels."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.paths import CHECKOUT
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.run_one import first_run
from harness.environments.docker.build import ensure_stack_image
from harness.environments.docker.images import Image, find, inputs_of
from harness.environments.docker.own_images import find_runtime_image
from harness.environments.environment import FORMER_OPTIONS
from harness.environments.verifier import verifying_stack
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.engine import Engine
from harness.matrix.cells import Cell, Matrix
from harness.matrix.load import Given, load_matrix
from harness.matrix.workloads import SyntheticData, Workload
from tests.images.small_base import STAND_IN

TINY = Workload(
    name="tiny", description="seconds", synthetic=SyntheticData(sessions=26), lookback=20, epochs=2, time_limit=120
)
# A lying image would confirm its own lies, so it must not be asked to verify: it exits then.
EXITS_IF_ASKED_TO_VERIFY = (
    '    _, model = options["trained"]',
    '    raise SystemExit("the judged image was asked")',
)
INVENTED = (
    'sha256(file), "step": step, **numbers_of(step)}',
    'sha256(file), "step": step, **numbers_of(step), "loss": 0.1}',
)
UNTRAINED = ('"train": 0.6, "validation": 0.6}', '"train": 0.6, "validation": 0.3}')
# An app of another version gets options by the names that they had in that version.
FORMER = ("= word[2:]", f'= word[2:].replace("{FORMER_OPTIONS["--lookback"][2:]}", "lookback")')
Derive = Callable[..., Image]


@pytest.fixture
def derive(engine: Engine, small_base: str, small_images: dict[str, Image]) -> Iterator[Derive]:
    """Return a function that makes an image from `cpu-plain`'s, with texts of the stand-in replaced, and own labels."""
    made: list[str] = []

    def build(*changes: tuple[str, str], **labels: str) -> Image:
        name = f"vpoc-test:{time.time_ns()}"
        lines = [f"FROM {small_base}:cpu-plain", "USER root"]
        for old, new in changes:
            code = f"import pathlib; p = pathlib.Path('/opt/{STAND_IN.name}'); t = p.read_text(); assert {old!r} in t"
            program = f"{code}; p.write_text(t.replace({old!r}, {new!r}))"
            lines.append(f"RUN {json.dumps(['/usr/bin/python3', '-c', program])}")
        options = [word for key, value in labels.items() for word in ("--label", f"vpoc.matrix.{key}={value}")]
        builder = engine.builder
        command = [builder.program, *builder.build, *options, "--tag", name, "-"]
        subprocess.run(command, input="\n".join(lines), text=True, check=True, env=builder.variables)
        made.append(name)
        image = find(engine, name)
        assert image is not None
        return image

    yield build
    for name in made:
        engine.client.images.remove(name, force=True)


@pytest.fixture
def matrix(small_base: str, small_images: dict[str, Image]) -> Matrix:
    return load_matrix(CHECKOUT / "matrix.yaml", Given(small_base))


@pytest.fixture
def bench(matrix: Matrix, tmp_path: Path) -> Bench:
    data = tmp_path / "bars.csv"
    data.write_text(STAND_IN_BARS)
    options = BenchOptions(Results(tmp_path / "results"), data, executor="docker", verifying=verifying_stack(matrix))
    return open_bench(options, [matrix.cells["cpu-plain"]])


def run(bench: Bench, cell: Cell, image: Image) -> Record:
    bench.use_environment(cell, image.environment(cell.stack))
    bench.make_ready(cell, TINY, Display())
    return bench.run_cell(bench.requested_run(first_run(bench, cell, TINY), f"run-{time.time_ns()}", TINY))


@pytest.mark.parametrize(
    ("lie", "said"),
    [(INVENTED, "made again from its state it has loss"), (UNTRAINED, "the saved model has validation loss")],
    ids=["losses are invented", "the model is another"],
)
def test_a_lie_of_the_image_is_found_by_this_hosts_own(
    lie: tuple[str, str], said: str, bench: Bench, matrix: Matrix, derive: Derive, engine: Engine
) -> None:
    cell = matrix.cells["cpu-plain"]
    image = derive(lie, EXITS_IF_ASKED_TO_VERIFY, cell="test")
    record = run(bench, cell, image)
    assert (record.outcome, record.diagnosis) == ("failed", "wrong-result"), record.detail
    assert said in record.detail
    own = ensure_stack_image(engine, cell.stack, own=True)
    assert (record.intent.image, record.intent.verifier_image) == (image.id, own.id)
    folder = bench.results.run_folder(record.intent.run_id)
    told = json.loads((folder / "container-verification.json").read_text(encoding="utf-8"))
    assert told["Image"] == own.id
    assert (told["HostConfig"]["NetworkMode"], told["HostConfig"]["ReadonlyRootfs"]) == ("none", True)
    assert not told["HostConfig"]["Devices"]
    mounts = {mount["Destination"]: (mount["Source"], mount["RW"]) for mount in told["Mounts"]}
    assert mounts["/work"] == (str(folder / "verifying"), True)
    assert mounts["/data/kept"] == (str(folder / "kept"), False)
    assert [place for place, (_, writable) in mounts.items() if writable] == ["/work"]


def test_an_honest_run_completes_in_an_image_of_others_that_has_the_same_app(
    bench: Bench, matrix: Matrix, derive: Derive
) -> None:
    record = run(bench, matrix.cells["cpu-plain"], derive(cell="test"))
    assert (record.outcome, record.intent.verified) == ("completed", True), record.detail
    assert ", verified; its image was not built here; `matrix verify" in record.detail


def test_an_image_of_another_app_is_not_verified(bench: Bench, matrix: Matrix, derive: Derive) -> None:
    record = run(bench, matrix.cells["cpu-plain"], derive(FORMER, cell="test", app="0" * 64))
    assert (record.outcome, record.intent.verified) == ("completed", False), record.detail
    assert "its app is another version than this host's; its image was not built here" in record.detail


def test_an_image_that_says_it_is_of_the_stack_is_not_taken_for_one_built_here(
    engine: Engine, matrix: Matrix, derive: Derive
) -> None:
    stack = matrix.stacks["cpu"]
    labels = {name.removeprefix("vpoc.matrix."): value for name, value in inputs_of(engine, stack).wanted.items()}
    forged = derive(
        EXITS_IF_ASKED_TO_VERIFY, **{name: value for name, value in labels.items() if "." not in name}, kind="stack"
    )
    own = ensure_stack_image(engine, stack, own=True)
    assert own.id != forged.id
    assert own.labels["vpoc.matrix.kind"] == "stack"
    # No image may be built on another checkout's image either, because it would then count as built here.
    runtime = find_runtime_image(engine, inputs_of(engine, stack))
    assert runtime is not None
    assert (
        derive(EXITS_IF_ASKED_TO_VERIFY, kind="runtime", **{n: v for n, v in labels.items() if "." not in n}).id
        != runtime.id
    )
    assert find_runtime_image(engine, inputs_of(engine, stack)) == runtime
