import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.environments.executors.container import Container, DeviceNode
from harness.evidence.files.run_files import Intent
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.matrix.cells import Matrix
from harness.registry.share.anonymise import shared_intent
from harness.registry.share.scrub import Scrubber
from harness.report.of_runs import by_hand as module
from harness.report.of_runs.by_hand import again, commands_by_hand
from harness.run.workload_data import synthetic_place
from harness.training.options import YEARS

MakeIntent = Callable[..., Intent]


def test_a_process_is_started_with_its_variables_in_a_folder_of_its_own(
    make_intent: MakeIntent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "by hand"
    monkeypatch.setattr(module, "FOLDER", folder)
    monkeypatch.setattr(module, "WORK_FOLDER", WorkFolder(folder))
    monkeypatch.setattr(module, "TEMPORARY", RunFolder(folder).temporary)
    monkeypatch.setenv("LEAKED", "1")
    program = (
        "import os, sys, json; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['HOME'] + '/said', 'w'))"
    )
    run = "/results/runs/r1"
    intent = make_intent(
        commands={"train": (sys.executable, "-c", program, "--run-dir", run, "--output", f"{run}/output", "$(false)")},
        variables={"train": {"HOME": run, "WITH_SPACE": "a b; c", "TMPDIR": str(tmp_path / "matrix-1")}},
    )
    for line in commands_by_hand(intent):
        subprocess.run(line, shell=True, check=True)
    said, variables = json.loads((tmp_path / "by hand" / "said").read_text())
    assert said == ["--run-dir", str(tmp_path / "by hand"), "--output", str(tmp_path / "by hand/output"), "$(false)"]
    assert variables["WITH_SPACE"] == "a b; c"
    assert Path(variables["TMPDIR"]).is_dir()
    assert "LEAKED" not in variables
    Path(variables["TMPDIR"]).rmdir()


def test_a_container_is_the_recorded_one_with_another_folder(make_intent: MakeIntent) -> None:
    device = DeviceNode("/dev/kfd", "/dev/kfd", 105)
    recorded = Container("sha256:1", 7, 8, "/results/runs/r1", ("/data/x.csv",), (device,), memory_bytes=10)
    intent = make_intent(
        executor="docker",
        container=recorded.plain,
        commands={"train": ("/opt/venv/bin/python", "-m", "vpoc", "train", "--run-dir", "/work")},
        variables={"train": {"HOME": "/work/scratch"}},
    )
    expected = replace(recorded, work=str(module.FOLDER))
    assert commands_by_hand(intent)[1:] == (
        expected.command_line({"HOME": "/work/scratch"}, ("train", "--run-dir", "/work")),
    )


def test_every_phase_has_its_command(make_intent: MakeIntent) -> None:
    commands = {"features": ("python", "-m", "vpoc", "features"), "train": ("python", "-m", "vpoc", "train")}
    assert [shlex.split(line)[-1] for line in commands_by_hand(make_intent(commands=commands))[1:]] == [
        "features",
        "train",
    ]


def command(intent: Intent, matrix: Matrix) -> str:
    found = again(intent, matrix)
    return found.command if found else ""


def test_the_same_run_through_the_tool_names_data_of_the_users_own(make_intent: MakeIntent, matrix: Matrix) -> None:
    own = make_intent(options={"lookback": 25})
    assert command(own, matrix) == (
        ".venv/bin/matrix run-cell cpu-plain --workload quick --executor process --lookback 25 --data merged.csv"
    )
    synthetic = make_intent(data={"path": "/x/synthetic-100-7-abcdef012345.csv", "sha256": "a" * 64})
    assert "--data" not in command(synthetic, matrix)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "own-data"},
        {"workload": "of an older matrix file"},
        {"cell": "cpu-plain~fresh-allocator"},
        {"cell": "rocm5.1-torch1.12-plain"},
        {"options": {"strategy": "ddp"}},
    ],
)
def test_what_no_option_of_the_tool_asks_for_is_repeated_by_hand(
    changes: dict[str, Any], make_intent: MakeIntent, matrix: Matrix
) -> None:
    intent = make_intent(**changes)
    assert command(intent, matrix) == "\n".join(commands_by_hand(intent))


def test_a_program_of_the_users_own_is_repeated_by_the_tool_or_not_at_all(
    make_intent: MakeIntent, matrix: Matrix
) -> None:
    program = {"command": ["python", "train.py"], "source": "/code", "data": ["/b.csv"], "stall_limit": 60}
    more = {"progress": r"iter (?P<step>\d+)", "produces": [{"file": "model.pt"}]}
    ran = {"program": program | more, "workload": "app-code", "commands": {"train": ("python", "train.py", "--resume")}}
    intent = make_intent(**ran, time_limit=7200)
    assert command(intent, matrix) == (
        ".venv/bin/matrix run-cell cpu-plain --executor process --app /code --data /b.csv --progress "
        r"'iter (?P<step>\d+)' --time-limit 7200s --stall-limit 60s --produces model.pt -- python train.py"
    )
    # A fallback of a training has set a variable of its own.
    attempt = make_intent(**ran | {"cell": "cpu-plain~fresh-allocator", "time_limit": YEARS})
    assert command(attempt, matrix) == (
        ".venv/bin/matrix run-cell cpu-plain --executor process --app /code --data /b.csv --progress "
        r"'iter (?P<step>\d+)' --time-limit 86400000s --stall-limit 60s --produces model.pt "
        "-- env MALLOC_ARENA_MAX=2 python train.py"
    )
    # `matrix train` sets none: the limit is then that of ten years, which no option accepts.
    assert "--time-limit 86400000s" in command(make_intent(**ran, time_limit=YEARS), matrix)
    assert commands_by_hand(intent) == ()
    other: tuple[dict[str, Any], ...] = ({"cell": "cpu-plain~x"}, {"workload": "of an older file"}, {"commands": {}})
    # It is not recorded which interpreter the stack `host` used.
    other += ({"stack": "host", "cell": "host-plain"},)
    assert [again(make_intent(**ran | changes), matrix) for changes in other] == [None] * 4


def test_what_trained_on_data_that_stayed_elsewhere_is_not_repeated(make_intent: MakeIntent, matrix: Matrix) -> None:
    assert again(make_intent(data={"path": "<data>", "sha256": "a" * 64}), matrix) is None


@pytest.mark.parametrize(
    ("changes", "repeated"),
    [({}, True), ({"options": {"strategy": "ddp"}}, False), ({"stack": "host", "cell": "host-plain"}, False)],
)
def test_what_trained_elsewhere_on_synthetic_bars_is_repeated_where_the_tool_can(
    changes: dict[str, Any], repeated: bool, make_intent: MakeIntent, matrix: Matrix
) -> None:
    data = {"path": str(synthetic_place(matrix.workloads["quick"])), "sha256": "a" * 64}
    shared = shared_intent(make_intent(data=data, **changes), Scrubber({}, {}))
    intent = shared.model_copy(update={"commands": {}})
    expected = ".venv/bin/matrix run-cell cpu-plain --workload quick --executor process" if repeated else ""
    assert command(intent, matrix) == expected
    # Whoever made the archive may have written any path for others to type.
    forged = intent.model_copy(update={"data": intent.data.model_copy(update={"path": "/etc/shadow"})})
    assert command(forged, matrix) == expected
    assert commands_by_hand(forged) == ()


def test_a_run_with_an_injected_fault_is_repeated_with_it_or_not_at_all(
    make_intent: MakeIntent, matrix: Matrix
) -> None:
    words = ("python", "-m", "vpoc", "train", "--inject-fault", "hang@7")
    of_app = make_intent(injected_fault="hang@7", commands={"train": words})
    assert command(of_app, matrix) == "\n".join(commands_by_hand(of_app))
    assert again(make_intent(injected_fault="engine-lost"), matrix) is None
