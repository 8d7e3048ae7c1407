"""Tests of the lines of a campaign's log."""

from collections.abc import Callable

import pytest

from harness.diagnosis.judge import OF_OUTCOMES, OF_PRODUCTS
from harness.evidence.files.run_files import Explanation, Record
from harness.screen.log_lines import finished_lines


def test_a_run_that_ended_before_it_said_what_it_ran_on_has_no_device_in_its_line(
    make_record: Callable[..., Record],
) -> None:
    record = make_record("r", "failed", "crash", "the train process ended with SIGABRT")
    (line, *_) = finished_lines(record.model_copy(update={"ran_on": "unknown"}), "it")
    assert line.endswith(" s: the train process ended with SIGABRT")
    (line, *_) = finished_lines(record.model_copy(update={"ran_on": "cuda x1"}), "it")
    assert line.endswith(" s, cuda x1: the train process ended with SIGABRT")


def test_an_interruption_that_counts_is_said_at_that_moment(make_record: Callable[..., Record]) -> None:
    def told(device: str) -> list[str]:
        record = make_record("r", "interrupted", None, "stopped by SIGTERM", device=device)
        return finished_lines(record.model_copy(update={"interrupted_by": "term"}), "it")

    assert len(told("cpu")) == 1
    assert told("cuda")[1] == (
        "  it counts as failed: TERM ended it, and the host was not shutting down; "
        "`.venv/bin/matrix strike r --reason TEXT` takes it out"
    )


@pytest.mark.parametrize("remedy", [OF_OUTCOMES, OF_PRODUCTS])
def test_where_the_outcome_says_it_all_no_command_says_more(make_record: Callable[..., Record], remedy: str) -> None:
    found = Explanation(rule=None, class_="no-result", cause="c", remedy=remedy, link=None, presets=(), lines=())
    record = make_record("r1", "failed", "no-result", "c").model_copy(update={"explanation": found})
    assert finished_lines(record, "it")[1:] == [f"  {remedy}"]
