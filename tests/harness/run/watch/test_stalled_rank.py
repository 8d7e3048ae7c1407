from dataclasses import replace

from harness.evidence.app_reports.step_position import Position
from harness.host.processes.run_processes import RunProcess
from harness.run.watch.python_stacks import ProcessStacks, StackSample
from harness.run.watch.stalled_rank import describe_hang, stuck_ranks
from harness.run.watch.watchdog import RankStall

SITE = "/opt/venv/lib/python3.11/site-packages"
FAULT, COLLECTIVE, ENGINE, STEP = (
    f"{SITE}/vpoc/training/faults/effects.py:hang",
    f"{SITE}/torch/distributed/distributed_c10d.py:all_reduce",
    f"{SITE}/torch/autograd/graph.py:_engine_run_backward",
    f"{SITE}/vpoc/training/loop.py:_step",
)


def process(rank: int, state: str = "S") -> RunProcess:
    return RunProcess(100 + rank, 2 + rank, rank, rank, state, "-", 0, 0, 1, "python", "python", catches=True)


def stacks(rank: int, *frames: str) -> ProcessStacks:
    lines = "".join(f'  File "{frame.partition(":")[0]}", line 7 in {frame.partition(":")[2]}\n' for frame in frames)
    return ProcessStacks(100 + rank, rank, f"Thread 0x00007f (most recent call first):\n{lines}")


def describe(
    positions: dict[int, Position], frames: dict[int, str], states: str = "SS", told: tuple[int, ...] = (0, 1)
) -> str:
    processes = tuple(process(rank, state) for rank, state in enumerate(states))
    seen = tuple(stacks(rank, frame, STEP) for rank, frame in frames.items())
    sample = StackSample(0, 0, processes, seen, positions)
    return describe_hang([RankStall(rank, "step", 50, 17 - rank, 15) for rank in told], told, sample)


def test_the_rank_that_is_behind_is_named_and_the_others_wait() -> None:
    told = describe({0: Position(50, 4), 1: Position(50, 3)}, {0: COLLECTIVE, 1: FAULT})
    assert told == (
        "rank 1 made no progress for 16 s in phase step at step 50, in backward (effects.py:7 hang); "
        "rank 0 waits, in the exchange with other ranks (distributed_c10d.py:7 all_reduce)"
    )


def test_a_rank_that_is_through_with_its_step_is_before_one_that_is_in_it() -> None:
    assert describe({0: Position(50, 0), 1: Position(50, 4)}, {}).startswith("rank 1 ")
    assert describe({0: Position(50, 0), 1: Position(51, 1)}, {}).startswith("rank 0 ")


def test_at_the_same_position_the_one_that_does_not_wait_for_others_is_stuck() -> None:
    same = {0: Position(50, 4), 1: Position(50, 4)}
    assert describe(same, {0: COLLECTIVE, 1: FAULT}).startswith("rank 1 ")
    assert describe(same, {0: FAULT, 1: COLLECTIVE}).startswith("rank 0 ")


def test_in_backward_one_that_may_be_exchanging_gradients_is_not_the_stuck_one_if_another_is_elsewhere() -> None:
    same = {0: Position(50, 3), 1: Position(50, 3)}
    assert describe(same, {0: ENGINE, 1: FAULT}).startswith("rank 1 ")


def test_without_positions_stacks_decide() -> None:
    assert describe({}, {0: COLLECTIVE, 1: FAULT}).startswith("rank 1 made no progress for 16 s in phase step at 50 (")


def test_a_stopped_rank_is_stuck() -> None:
    told = describe({0: Position(50, 3), 1: Position(50, 3)}, {0: ENGINE}, states="SD")
    assert told.startswith(
        "rank 1 made no progress for 16 s in phase step at step 50, in backward, process 101 is in an"
    )


def test_of_ranks_at_the_same_place_the_stopped_one_is_stuck() -> None:
    same = {0: Position(50, 2), 1: Position(50, 2)}
    assert describe(same, {0: STEP}, states="ST").startswith("rank 1 ")
    assert describe(same, {1: STEP}, states="TS").startswith("rank 0 ")


def test_where_nothing_tells_them_apart_that_is_said() -> None:
    told = describe({0: Position(50, 3), 1: Position(50, 3)}, {0: ENGINE, 1: ENGINE})
    assert told == (
        "rank 0 made no progress for 17 s in phase step at step 50, in backward (graph.py:7 _engine_run_backward); "
        "rank 1 made no progress for 16 s in phase step at step 50, in backward (graph.py:7 _engine_run_backward): "
        "they are at the same place; which of ranks 0 and 1 is stuck cannot be determined"
    )
    assert "same place" not in describe({0: Position(50, 3), 1: Position(50, 3)}, {0: FAULT, 1: STEP})


def test_a_rank_that_never_wrote_progress_is_stuck_and_its_place_is_shown() -> None:
    told = describe({0: Position(0, 0)}, {0: COLLECTIVE, 1: STEP}, told=(0,))
    assert told.startswith("rank 1 never reported any progress (loop.py:7 _step); rank 0 waits (distributed_c10d.py:7 ")


def test_a_single_rank_is_named_as_stopped_and_its_waiting_loader_workers_do_not_stand_for_it() -> None:
    own, worker = (replace(process(number, state), rank=None) for number, state in ((0, "T"), (1, "S")))
    waiting = ProcessStacks(worker.pid, 0, stacks(0, f"{SITE}/torch/utils/data/_utils/worker.py:_worker_loop").text)
    sample = StackSample(0, 0, (own, worker), (waiting,), {0: Position(25, 5)})
    told = describe_hang([RankStall(0, "step", 25, 30, 25)], (0,), sample)
    assert told == (
        "rank 0 made no progress for 30 s in phase step at step 25, in the update, process 100 is stopped (state T)"
    )


def test_of_no_ranks_none_is_stuck() -> None:
    assert stuck_ranks([]) == ()


def test_a_rank_that_there_is_none_of_is_not_named() -> None:
    """A process may say that it is of any rank, and so may a file of positions."""
    own, other = process(0, "S"), replace(process(1, "S"), rank=99_999)
    sample = StackSample(0, 0, (own, other), (), {0: Position(25, 5), 7: Position(3, 5)})
    told = describe_hang([RankStall(0, "step", 25, 30, 25)], (0,), sample, 2)
    assert told == "rank 0 made no progress for 30 s in phase step at step 25, in the update"
