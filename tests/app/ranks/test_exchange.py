import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks.exchange_rank import ROUNDS

from vpoc.ranks.exchange import MOST_NUMBERS, SharedGradients

RANK = Path(__file__).with_name("exchange_rank.py")


def results_of_ranks(scenario: str, folder: Path, world: int, starting: int | None = None) -> list[dict[str, Any]]:
    """Return the result of each rank, {} for a killed one; only the first `starting` ranks are started."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), scenario, str(folder), str(rank), str(world)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(starting or world)
    ]
    found = [rank.communicate(timeout=60)[0] for rank in ranks]
    return [json.loads(text) if text else {} for text in found]


def returned(scenario: str, folder: Path, world: int) -> list[Any]:
    found = results_of_ranks(scenario, folder, world)
    assert all("returned" in each for each in found), found
    return [each["returned"] for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_sums_have_the_bits_of_adding_in_the_order_of_the_ranks(tmp_path, world):
    assert returned("sums", tmp_path, world) == [ROUNDS // 10] * world


@pytest.mark.slow
def test_a_thousand_rounds_with_ranks_now_ahead_now_behind(tmp_path):
    assert returned("with_delays", tmp_path, 3) == [ROUNDS] * 3


@pytest.mark.slow
def test_numbers_are_added_in_the_order_of_the_ranks(tmp_path):
    expected = [((0.1 + 0.1 * 3) + 0.1 * 9).hex(), (0.0).hex()]
    assert returned("numbers", tmp_path, 3) == [expected] * 3


@pytest.mark.slow
def test_a_rank_that_was_killed_is_missed_at_once_though_its_worker_lives(tmp_path):
    first, _, third = results_of_ranks("killed", tmp_path, 3)
    os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)
    for each in (first, third):
        assert each["lost"] == [1]
        assert each["text"].startswith("rank 1 has ended")


def test_a_rank_that_left_is_missed_at_once(tmp_path):
    first, _ = results_of_ranks("left", tmp_path, 2)
    assert first["lost"] == [1]


@pytest.mark.slow
def test_a_rank_that_ended_after_its_part_is_not_missed(tmp_path):
    assert returned("done_and_gone", tmp_path, 2) == [[2.0], [2.0]]


@pytest.mark.slow
def test_ranks_that_do_not_come_in_time_are_named(tmp_path):
    found = results_of_ranks("asleep", tmp_path, 4)
    for each in found[:2]:
        assert each["lost"] == [2, 3]
        assert each["text"].startswith("rank 2 and rank 3 did not come within 3 s")


def test_a_rank_that_never_came_is_named_and_nothing_is_left(tmp_path):
    [first] = results_of_ranks("never_came", tmp_path, 2, starting=1)
    assert first["lost"] == [1]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "rank"), [("flipped", 1), ("flipped_number", 0)])
def test_a_flipped_bit_is_noticed_by_all(tmp_path, scenario, rank):
    for each in results_of_ranks(scenario, tmp_path, 3):
        assert each["corrupted"] == rank
        assert "bits have changed" in each["text"]


@pytest.mark.slow
def test_ranks_at_different_steps_are_noticed(tmp_path):
    found = results_of_ranks("out_of_step", tmp_path, 2)
    assert [each["corrupted"] for each in found] == [1, 0]


def test_nothing_is_left_even_while_it_is_used(tmp_path):
    assert returned("no_name_left", tmp_path, 2) == [[], []]


def test_no_room_is_an_error_and_no_crash(tmp_path):
    first, second = results_of_ranks("no_room", tmp_path, 2)
    assert first["error"] == "UserError"
    assert "no room for" in first["text"]
    assert second["lost"] == [0]
    assert not list(tmp_path.iterdir())


def test_room_is_taken_before_it_is_used(tmp_path):
    with SharedGradients(tmp_path, 0, 1, 1_000_000, timeout_s=1) as exchange:
        assert os.fstat(exchange._descriptor).st_blocks * 512 >= 8_000_000


def test_one_exchange_after_another_in_the_same_folder(tmp_path):
    assert returned("one_after_another", tmp_path, 2) == [[2 * n + 0.5 for n in range(20)]] * 2


def test_other_shapes_are_refused(tmp_path):
    with SharedGradients(tmp_path, 0, 1, 5, timeout_s=1) as exchange:
        for wrong in (np.zeros(4, np.float32), np.zeros(5), np.zeros((1, 5), np.float32)):
            with pytest.raises(ValueError, match="instead of float32"):
                exchange.sum(wrong)
        for wrong_numbers in (np.zeros(MOST_NUMBERS + 1), np.zeros(1, np.float32), np.zeros((1, 1))):
            with pytest.raises(ValueError, match="instead of float64"):
                exchange.gather(wrong_numbers)
        assert exchange.gather(np.ones(MOST_NUMBERS)).shape == (1, MOST_NUMBERS)
