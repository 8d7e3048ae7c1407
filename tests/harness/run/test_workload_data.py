import os
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import NoSuchFileError, UserError
from harness.environments.docker import own_images
from harness.environments.docker.images import Image
from harness.environments.environment import Environment
from harness.environments.executors.job import Job, JobLost
from harness.environments.executors.process import ProcessExecutor, ProcessHandle
from harness.evidence.files.app_files import SYNTHETIC
from harness.evidence.files.temporary_folder import remove_place
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import (
    FEATURE_OPTIONS,
    REFERENCE_OPTIONS,
    TRAIN_OPTIONS,
    arguments,
    device_count,
    family_of,
    options_of,
    train_options,
    workload_hash,
)
from harness.matrix.workloads import SyntheticData, Workload
from harness.run import workload_data


def workload(**changes: Any) -> Workload:
    values = {"description": "d", "synthetic": SyntheticData(sessions=30), "epochs": 1, "time_limit": 60, **changes}
    return Workload.model_validate(values)


def test_what_is_left_to_the_app_is_neither_an_argument_nor_an_option_that_is_compared() -> None:
    left = {"backend", "micro_batch_size", "chunk_rows", "mixed_precision_dtype", "devices"}
    assert not left & set(options_of(workload()))
    words = arguments(options_of(workload()))
    assert not {"--" + name.replace("_", "-") for name in left} & set(words)
    assert "None" not in words


def test_every_option_that_is_set_becomes_an_argument() -> None:
    chosen = workload(
        model=["mlp", "attention"],
        micro_batch_size="auto",
        use_mixed_precision=True,
        mixed_precision_dtype="bfloat16",
        sdpa="math",
        activation_checkpointing=True,
        chunk_rows=4096,
        loop="resident",
        strategy="fsdp",
        backend="gloo",
    )
    line = " ".join(arguments(train_options(chosen, 2)))
    for words in (
        "--model mlp --model attention",
        "--hidden-layers 32,16",
        "--micro-batch-size auto",
        "--use-mixed-precision",
        "--mixed-precision-dtype bfloat16",
        "--sdpa math",
        "--activation-checkpointing",
        "--chunk-rows 4096",
        "--loop resident",
        "--strategy fsdp",
        "--backend gloo",
        "--devices 2",
    ):
        assert f" {words} " in f" {line} "


def test_rules_of_data_are_accepted_wherever_the_data_is_read() -> None:
    for names in (FEATURE_OPTIONS, TRAIN_OPTIONS, REFERENCE_OPTIONS):
        chosen = arguments(options_of(workload(accepted=["vix-range", "bad_print"]), names))
        assert "--accept vix_range --accept bad_print" in " ".join(chosen)
        assert "--accept" not in arguments(options_of(workload(), names))


def test_what_is_accepted_of_data_is_no_other_family() -> None:
    plain, accepting = (options_of(workload(accepted=accepted)) for accepted in (None, ["vix_range"]))
    assert family_of(plain) == family_of(accepting)


def test_the_reference_is_one_process_on_the_cpu_whatever_the_strategy() -> None:
    for strategy in ("ddp", "fsdp", "dp", "single"):
        options = options_of(workload(strategy=strategy, sdpa="efficient", loop="resident"), REFERENCE_OPTIONS)
        assert options == options_of(workload(), REFERENCE_OPTIONS)
        assert not {"strategy", "backend", "devices", "loop", "sdpa"} & set(options)
    assert options_of(workload(chunk_rows=64), REFERENCE_OPTIONS)["chunk_rows"] == 64


@pytest.mark.parametrize("strategy", ["dp", "ddp", "averaging", "fsdp", "model-parallel"])
def test_a_strategy_of_several_devices_is_given_their_number(strategy: str) -> None:
    chosen = workload(strategy=strategy)
    assert device_count(chosen, "cuda", (0, 1, 3)) == 3
    assert device_count(chosen, "cpu", ()) == 2
    # A user's own interpreter may see GPUs that are not AMD's, which the harness does not list.
    assert device_count(chosen, "cuda", ()) == 1
    assert train_options(chosen, 3)["devices"] == 3


def test_one_device_needs_no_telling() -> None:
    assert device_count(workload(), "cuda", (0, 1)) == 1
    assert "devices" not in train_options(workload(), 1)


CHANGES: dict[str, Any] = {
    "rows": "session",
    "as_of": "open",
    "target": "next_up",
    "lookback": 61,
    "model": ["attention"],
    "epochs": 2,
    "batch_size": 8,
    "micro_batch_size": 4,
    "spare": 0.3,
    "learning_rate": 0.1,
    "hidden_layers": [8],
    "use_mixed_precision": True,
    "sdpa": "math",
    "activation_checkpointing": True,
    "data_fraction": 0.5,
    "chunk_size": 7,
    "chunk_rows": 64,
    "placement": "close",
    "value_area": "one_row",
    "rth_close": "16:15",
    "rolls": "none",
    "accepted": ["vix_range"],
    "vpoc_path": "naive",
    "loop": "resident",
    "loader_workers": 0,
    "strategy": "ddp",
    "seed": 8,
    "threads": 2,
    "max_device_memory": 10**9,
    "weight_decay": 0.1,
    "clip_norm": 2.0,
    "schedule": "cosine",
    "keep": "best",
    "patience": 2,
}
LABELS: dict[str, Any] = {"name": "other", "description": "other", "time_limit": 61, "smoke_test": True}


def test_the_hash_of_a_workload_changes_with_everything_but_its_labels() -> None:
    hashes = {workload_hash(workload(**{name: value}), "a") for name, value in CHANGES.items()}
    hashes |= {workload_hash(workload(), data) for data in ("a", "b")}
    hashes |= {workload_hash(workload(strategy="ddp", backend=backend), "a") for backend in ("gloo", "nccl")}
    hashes |= {workload_hash(workload(use_mixed_precision=True, mixed_precision_dtype="float16"), "a")}
    hashes |= {workload_hash(workload(), "a", resumed=True)}
    assert len(hashes) == len(CHANGES) + 6
    assert {workload_hash(workload(**{name: value}), "a") for name, value in LABELS.items()} == {
        workload_hash(workload(), "a")
    }
    # `program` replaces all these options and is tested in tests/harness/matrix/test_programs.py.
    others = {"synthetic", "backend", "mixed_precision_dtype", "program"}
    assert set(Workload.model_fields) == set(CHANGES) | set(LABELS) | others


@pytest.mark.parametrize(
    ("changes", "qualifies"),
    [
        ({"vpoc_path": "naive"}, True),
        ({"vpoc_path": "pooled", "strategy": "ddp", "model": ["attention"]}, True),
        ({}, False),
        ({"vpoc_path": "naive", "loop": "resident"}, False),
        ({"vpoc_path": "naive", "chunk_rows": 4096}, False),
        ({"vpoc_path": "naive", "keep": "best"}, False),
        ({"vpoc_path": "naive", "patience": 2}, False),
    ],
)
def test_only_what_exercises_what_failed_qualifies_for_promotion(changes: dict[str, Any], qualifies: bool) -> None:
    assert workload(**changes).qualifies_for_promotion is qualifies


def test_the_workload_that_qualifies_for_promotion_is_what_the_user_had(matrix: Matrix) -> None:
    standard = matrix.workloads["standard"]
    assert standard.qualifies_for_promotion
    assert standard.model == ("mlp", "attention")
    assert (standard.rows, standard.batch_size, standard.loop) == ("bar", 8, "plain")
    assert standard.use_mixed_precision
    assert standard.loader_workers > 0


def test_the_users_own_criteria_are_workloads(matrix: Matrix) -> None:
    immediate, full, production = (matrix.workloads[name] for name in ("immediate", "full", "production"))
    assert (immediate.epochs, immediate.data_fraction, immediate.time_limit) == (1, 0.1, 3600)
    assert full.epochs > 1
    assert full.data_fraction == 1
    assert production.max_device_memory == 18 * 10**9
    assert production.strategy != "single"
    assert {name for name, one in matrix.workloads.items() if not one.qualifies_for_promotion} == {
        "quick",
        "frameworks",
    }


@pytest.mark.parametrize(
    ("app", "refused", "said"),
    [
        ("echo 'vpoc: line 2: no number' >&2; exit 2", True, "--data: line 2: no number$"),
        (
            "echo 'vpoc: no column vix; `vpoc merge` makes one' >&2; exit 2",
            True,
            "no column vix; `.venv/bin/matrix exec cpu-plain vpoc merge --bars BARS.csv --vix VIX.csv --output "
            "merged.csv`",
        ),
        (
            "echo 'vpoc: line 2; `vpoc check a.csv --fix COPY` leaves it out' >&2; exit 2",
            True,
            "line 2; `.venv/bin/matrix exec cpu-plain vpoc check a.csv --fix COPY` leaves it out",
        ),
        ("echo 'vpoc: line 2; say --accept x' >&2; exit 2", True, r"line 2; put `accepted: \[x\]` under `:` in"),
        ("kill -KILL $$", False, "could not be checked: vpoc check ended with SIGKILL"),
    ],
)
def test_data_are_refused_by_the_app_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: str, refused: bool, said: str
) -> None:
    monkeypatch.setattr(workload_data, "DATA", tmp_path / "data")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{app}\n", encoding="utf-8")
    python.chmod(0o755)
    environment = Environment(python, {}, {}, "cpu")
    with pytest.raises(UserError, match=said) as error:
        workload_data.check_data(tmp_path / "bars.csv", workload(), environment, ProcessExecutor())
    assert isinstance(error.value, workload_data.DataRefusedError) == refused


def test_bars_that_somebody_elses_image_makes_are_used_by_no_other_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own")
    images = [Image(name, {}, (), 1) for name in ("sha256:own", "sha256:a", "sha256:b")]
    own_images.remember(images[0])
    own, *others = (workload_data.synthetic_place(workload(), image.id) for image in images)
    assert own == workload_data.synthetic_place(workload())
    assert len({own, *others}) == 3
    assert all(SYNTHETIC.fullmatch(place.name) for place in others)


def test_the_container_that_checks_data_may_not_take_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload_data, "DATA", tmp_path / "data")
    given: list[Job] = []

    class Refusing(ProcessExecutor):
        def start(self, job: Job) -> ProcessHandle:
            given.append(job)
            raise JobLost("refused")

    environment = Environment(tmp_path / "python", {}, {}, "cpu", image="sha256:1")
    with pytest.raises(UserError, match="vpoc check could not be run: refused"):
        workload_data.check_data(tmp_path / "bars.csv", workload(), environment, Refusing())
    assert given[0].container
    assert 0 < (given[0].container.memory_bytes or 0) < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_words_of_somebody_elses_image_are_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_data, "DATA", tmp_path / "data")
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own")

    class Outside(ProcessExecutor):
        def start(self, job: Job) -> ProcessHandle:
            return super().start(replace(job, arguments=("sh", "-c", "echo vpoc: type this >&2; exit 2")))

    environment = Environment(tmp_path / "python", {}, {}, "cpu", image="sha256:1")
    with pytest.raises(workload_data.DataRefusedError, match=r"^--data: 'type this'$"):
        workload_data.check_data(tmp_path / "bars.csv", workload(), environment, Outside())


def test_an_app_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_data, "DATA", tmp_path / "data")
    monkeypatch.setattr(workload_data, "LIMIT_SECONDS", 0.1)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    python.chmod(0o755)
    environment = Environment(python, {}, {}, "cpu")
    with pytest.raises(UserError, match="vpoc check could not be run: still running after 0 s"):
        workload_data.check_data(tmp_path / "bars.csv", workload(), environment, ProcessExecutor())


def test_what_the_image_nests_without_end_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_data, "DATA", tmp_path / "data")
    python = tmp_path / "python"
    nest = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    python.write_text(f"#!{sys.executable}\n{nest}\n", encoding="utf-8")
    python.chmod(0o755)
    environment = Environment(python, {}, {}, "cpu")
    try:
        with pytest.raises(UserError, match="its folders are more than 100 levels deep"):
            workload_data.check_data(tmp_path / "bars.csv", workload(), environment, ProcessExecutor())
        assert list((tmp_path / "data").iterdir()) == []
    finally:
        # Otherwise pytest could not remove it either.
        remove_place(tmp_path / "data")


def bars_of(place: Path, days: int, header: str = "ts,open,high,low,close,volume,vix") -> Path:
    # Each week has a Sunday too, because in UTC the trading of a week begins on Sunday.
    dates = [
        date(2024, 1, 1) + timedelta(day // 6 * 7 + (day % 6 if day % 6 < 5 else 6)) for day in range(days * 6 // 5)
    ]
    stamps = [f"{day}T{hour}:30:00Z" for day in dates for hour in (14, 20)]
    place.write_text(f"{header}\n" + "".join(f"{stamp},1,1,1,1,1,1\n" for stamp in stamps), encoding="utf-8")
    return place


def test_a_file_of_too_few_days_is_refused_with_how_many_are_needed(tmp_path: Path) -> None:
    asked = workload(lookback=20)
    with pytest.raises(UserError) as error:
        workload_data.require_sessions(bars_of(tmp_path / "bars.csv", 22), asked)
    assert str(error.value) == (
        f"--data {tmp_path}/bars.csv: has bars of 22 weekdays, so no more sessions, and 23 are needed "
        "(20 for lookback, 3 to use); give more data, such as the months before, in one file "
        "(`tail -n +2 newer.csv >> older.csv`)"
    )
    workload_data.require_sessions(bars_of(tmp_path / "bars.csv", 23), asked)
    with pytest.raises(
        UserError,
        match=r"older.csv`\), or a shorter --lookback \(`matrix exec best vpoc check .*` prints the longest\)$",
    ):
        workload_data.require_sessions(tmp_path / "bars.csv", workload(lookback=21))


def test_days_of_a_file_of_which_nothing_is_known_are_left_to_the_app(tmp_path: Path) -> None:
    bars = bars_of(tmp_path / "bars.csv", 1, header="stamp,open")
    (parquet := tmp_path / "bars.parquet").write_bytes(b"PAR1\0\xff\n")
    for file in (bars, parquet):
        workload_data.require_sessions(file, workload())
        assert workload_data._days(file, 99) is None


def test_of_a_row_without_an_end_the_days_are_left_to_the_app(tmp_path: Path) -> None:
    bars = bars_of(tmp_path / "bars.csv", 1)
    os.truncate(bars, 1 << 28)
    tracemalloc.start()
    try:
        assert workload_data._days(bars, 99) is None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda place: place.symlink_to("/dev/zero")])
def test_data_that_have_no_end_are_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "merged.csv")
    with pytest.raises(UserError, match="is not a file; give --data"):
        workload_data.read_data(tmp_path / "merged.csv")


def test_data_of_nothing_but_a_terabyte_of_holes_are_not_hashed(tmp_path: Path) -> None:
    with (tmp_path / "merged.csv").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(UserError, match=r"has 1,?000 GB, more than bars can have; give --data"):
        workload_data.read_data(tmp_path / "merged.csv")


def test_data_that_may_not_even_be_looked_at_are_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    for file in (tmp_path / "loop.csv", tmp_path / f"{'x' * 300}.csv"):
        with pytest.raises(UserError, match=r"\.csv: cannot be read: .*; give --data"):
            workload_data.read_data(file)
    with pytest.raises(NoSuchFileError, match=r"none\.csv: no such file; give --data"):
        workload_data.read_data(tmp_path / "none.csv")
