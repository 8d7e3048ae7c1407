"""Tests of how the place of a stall is found from stacks and positions as the app writes them."""

import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.diagnosis.lines import as_lines
from harness.diagnosis.stalled_at import classify, main_stacks, stuck_at
from harness.evidence.app_reports.python_stacks import ThreadStack, parse_stacks
from harness.evidence.files.run_folder import RunFolder

SITE = "/opt/venv/lib/python3.11/site-packages"
OUTER = ["vpoc/training/loop.py step", "vpoc/commands/train.py train", "/opt/venv/bin/vpoc <module>"]

FRAMES = {
    "hang-loader": ["threading.py wait", "queue.py get", f"{SITE}/torch/utils/data/dataloader.py _try_get_data"],
    "hang-backward": [f"{SITE}/torch/autograd/graph.py _engine_run_backward", f"{SITE}/torch/_tensor.py backward"],
    "hang-collective": [f"{SITE}/torch/distributed/distributed_c10d.py all_reduce"],
    "hang-rendezvous": [f"{SITE}/torch/distributed/distributed_c10d.py _new_process_group_helper"],
    "hang-compile": ["subprocess.py communicate", f"{SITE}/torch/_inductor/codecache.py compile"],
    "hang-copy": [f"{SITE}/torch/cuda/__init__.py synchronize"],
    "hang-disk": [f"{SITE}/torch/serialization.py save"],
    "hang-import": ["<frozen importlib._bootstrap_external> get_code", "<frozen importlib._bootstrap> _load_unlocked"],
    "hang-forward": [f"{SITE}/torch/nn/modules/linear.py forward", f"{SITE}/torch/nn/modules/module.py _call_impl"],
    "hang-update": [f"{SITE}/torch/optim/adam.py step"],
    "hang-data": ["vpoc/profile/histogram.py fill"],
}


def dump(*stacks: list[str]) -> str:
    """Return stacks as faulthandler writes them."""
    written = []
    for number, frames in enumerate(stacks):
        written.append(f"Thread 0x00007f00000000{number:02x} (most recent call first):")
        for frame in frames:
            path, _, function = frame.rpartition(" ")
            written.append(f'  File "{path}", line {number + 7} in {function}')
    return "".join(f"{line}\n" for line in written)


def leave(folder: Path, rank: int, step: int, stage: int, text: str) -> None:
    (folder / f"position-{rank}.bin").write_bytes(struct.pack("<qq", step, stage))
    (folder / f"stacks-{rank}.txt").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("expected", FRAMES)
def test_frames_tell_where_it_stands(expected: str) -> None:
    stacks = main_stacks(as_lines(dump([*FRAMES[expected], *OUTER]).split("\n"), "s"))
    hit = classify(stacks, ["stage update"] if expected != "hang-update" else [])
    assert hit is not None
    assert hit.signature.class_ == expected


@pytest.mark.parametrize(
    "frames",
    [
        # A step of a compiled model, in the words of torch 2.2, of 2.5 and of 2.9.
        [f"{SITE}/torch/_inductor/codecache.py {name}" for name in ("_run_from_cache", "__call__")],
        [f"{SITE}/torch/_inductor/codecache.py __call__", f"{SITE}/torch/_dynamo/eval_frame.py _fn"],
        [
            f"{SITE}/triton/backends/amd/driver.py __call__",
            f"{SITE}/torch/_inductor/runtime/triton_heuristics.py run",
            f"{SITE}/torch/_inductor/output_code.py __call__",
            f"{SITE}/torch/_inductor/compile_fx.py run",
        ],
        ["kernels.py flash", f"{SITE}/torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py forward"],
        ["kernels.py flash", f"{SITE}/torch/distributed/fsdp/fully_sharded_data_parallel.py forward"],
        # An operation on a sharded tensor, in torch 2.3 and in 2.9, and a main function with torch's `record`.
        [f"{SITE}/torch/distributed/_tensor/{name}" for name in ("dispatch.py dispatch", "api.py __torch_dispatch__")],
        [f"{SITE}/torch/distributed/tensor/{name}" for name in ("_dispatch.py dispatch", "_api.py __torch_dispatch__")],
        ["train.py main", f"{SITE}/torch/distributed/elastic/multiprocessing/errors/__init__.py wrapper"],
    ],
)
def test_what_wraps_each_step_tells_nothing_of_a_stall(frames: list[str]) -> None:
    inner = [*frames, *FRAMES["hang-forward"][1:], *OUTER]
    hit = classify(main_stacks(as_lines(dump(inner).split("\n"), "s")), [])
    assert hit is not None
    assert hit.signature.class_ == "hang-forward"


@pytest.mark.parametrize(
    ("stage", "expected"), list(enumerate(["hang-loader", "hang-forward", "hang-backward", "hang-collective"], 1))
)
def test_the_stage_tells_where_frames_say_nothing(tmp_path: Path, stage: int, expected: str) -> None:
    leave(tmp_path, 0, 51, stage, dump(["vpoc/training/faults.py hang", *OUTER]))
    hit = stuck_at(RunFolder(tmp_path), "step")
    assert hit is not None
    assert (hit.signature.class_, hit.line.file, hit.line.number) == (expected, "stacks-0.txt", 2)


def test_the_rank_furthest_behind_is_shown(tmp_path: Path) -> None:
    leave(tmp_path, 0, 51, 4, dump([*FRAMES["hang-collective"], *OUTER]))
    leave(tmp_path, 1, 51, 3, dump([*FRAMES["hang-backward"], *OUTER]))
    hit = stuck_at(RunFolder(tmp_path), "step")
    assert hit is not None
    assert (hit.signature.class_, hit.line.file) == ("hang-backward", "stacks-1.txt")


def test_without_positions_a_rank_that_waits_for_others_is_passed_over(tmp_path: Path) -> None:
    both = dump([*FRAMES["hang-collective"], *OUTER]) + "\n" + dump([*FRAMES["hang-loader"], *OUTER])
    (tmp_path / "failure").mkdir()
    (tmp_path / "failure/stacks-2.txt").write_text(both, encoding="utf-8")
    hit = stuck_at(RunFolder(tmp_path), None)
    assert hit is not None
    assert (hit.signature.class_, hit.line.file) == ("hang-loader", "failure/stacks-2.txt")


def test_where_all_wait_for_each_other_the_exchange_hangs(tmp_path: Path) -> None:
    (tmp_path / "stacks-0.txt").write_text(dump([*FRAMES["hang-collective"], *OUTER]), encoding="utf-8")
    (tmp_path / "stacks-1.txt").write_text(dump([*FRAMES["hang-collective"], *OUTER]), encoding="utf-8")
    hit = stuck_at(RunFolder(tmp_path), "step")
    assert hit is not None
    assert hit.signature.class_ == "hang-collective"


def test_a_rank_that_waits_tells_nothing_of_one_that_cannot_be_read() -> None:
    waiting, other = [*FRAMES["hang-collective"], *OUTER], ["mine.py f", *OUTER]
    hit = classify(main_stacks(as_lines(dump(waiting, other).split("\n"), "s")), ["phase step"])
    assert hit is not None
    assert hit.signature.class_ == "hang"


def test_the_last_dump_counts_and_workers_of_the_loader_do_not(tmp_path: Path) -> None:
    worker = ["queue.py get", f"{SITE}/torch/utils/data/_utils/worker.py _worker_loop", *OUTER]
    text = dump([*FRAMES["hang-loader"], *OUTER]) + "Timeout (0:01:00)!\n" + dump(["pin.py run"], worker)
    leave(tmp_path, 0, 9, 3, text + dump([*FRAMES["hang-backward"], *OUTER], worker))
    hit = stuck_at(RunFolder(tmp_path), "step")
    assert hit is not None
    assert hit.signature.class_ == "hang-backward"


def test_workers_of_the_loader_do_not_stand_for_a_rank_that_wrote_no_stack(tmp_path: Path) -> None:
    worker = ["queue.py get", f"{SITE}/torch/utils/data/_utils/worker.py _worker_loop", *OUTER]
    leave(tmp_path, 0, 9, 5, dump(["queues.py _feed"], worker))
    hit = stuck_at(RunFolder(tmp_path), "step")
    assert hit is not None
    assert hit.signature.class_ == "hang-update"
    (tmp_path / "failure").mkdir()
    (tmp_path / RunFolder.PY_SPY).write_text(dump([*FRAMES["hang-copy"], *OUTER]), encoding="utf-8")
    hit = stuck_at(RunFolder(tmp_path), "step")
    assert hit is not None
    assert hit.signature.class_ == "hang-copy"


def test_without_stacks_the_phase_tells(tmp_path: Path) -> None:
    for phase, expected in (("import", "hang-import"), ("checkpoint", "hang-disk"), ("features", "hang-data")):
        hit = stuck_at(RunFolder(tmp_path), phase)
        assert hit is not None
        assert hit.signature.class_ == expected
    nothing = stuck_at(RunFolder(tmp_path), None)
    assert nothing is not None
    assert nothing.signature.class_ == "hang"


def test_torn_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "position-0.bin").write_bytes(b"\x01\x02")
    (tmp_path / "position-x.bin").write_bytes(struct.pack("<qq", 1, 1))
    (tmp_path / "position-1.bin").write_bytes(struct.pack("<qq", 1, 99))
    (tmp_path / "stacks-0.txt").write_bytes(b"\xff\x00 rubbish")
    hit = stuck_at(RunFolder(tmp_path), "data")
    assert hit is not None
    assert hit.signature.class_ == "hang-data"


def test_what_py_spy_prints_is_read() -> None:
    text = (
        "Process 41: /opt/venv/bin/python /opt/venv/bin/vpoc train\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
        'Thread 41 (idle): "MainThread"\n    _engine_run_backward (torch/autograd/graph.py:824)\n'
        "    step (vpoc/training/loop.py:140)\n    <module> (vpoc:8)\n"
    )
    hit = classify(main_stacks(as_lines(text.split("\n"), "py-spy.txt")), [])
    assert hit is not None
    assert (hit.signature.class_, hit.line.number) == ("hang-backward", 5)


def test_what_faulthandler_really_writes_is_read(tmp_path: Path) -> None:
    script = tmp_path / "torch/autograd/graph.py"
    script.parent.mkdir(parents=True)
    code = "import faulthandler, sys\ndef stand():\n    faulthandler.dump_traceback(sys.stdout)\nstand()\n"
    script.write_text(code, encoding="utf-8")
    written = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    stacks = main_stacks(as_lines(written.split("\n"), "stacks-0.txt"))
    assert [frame.text.rpartition(" ")[2] for frame in stacks[-1]] == ["stand", "<module>"]
    hit = classify(stacks, [])
    assert hit is not None
    assert hit.signature.class_ == "hang-backward"


def test_a_line_that_is_no_frame_takes_no_longer_than_it_is() -> None:
    """The app writes its stacks itself; if the time grew with the square of a line, these would take hours."""
    assert parse_stacks([" " * 3_000_000, f" a{' (' * 1_000_000}"]) == []


def test_many_large_files_of_stacks_are_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app that leaves files for hundreds of ranks would have its hang explained for half an hour."""
    parsed = 0

    def parse(lines: Iterable[str]) -> list[ThreadStack]:
        nonlocal parsed
        taken = list(lines)
        parsed += sum(map(len, taken))
        return parse_stacks(taken)

    monkeypatch.setattr("harness.diagnosis.stalled_at.parse_stacks", parse)
    text = dump([*FRAMES["hang-backward"], *OUTER]) + "\n"
    for rank in range(256):
        (tmp_path / f"stacks-{rank}.txt").write_text(text * (16_384 // len(text)), encoding="utf-8")
    hit = stuck_at(RunFolder(tmp_path), "step")
    assert hit is not None
    assert hit.signature.class_ == "hang-backward"
    assert 1 << 20 < parsed <= 1 << 21
