"""The page of figures on watching."""

from typing import Any

from benchmarks.watching_figures import NOT_MEASURED, figures, page

ORIGIN = {"when": "2026-01-01 00:00", "machine": "a machine", "command": "make soak"}


def hang(**changed: Any) -> dict[str, Any]:
    kind = {"made": 2, "right": 2, "named": 2, "hang": True, "seconds": [3.0, 4.0], "objections": []}
    return {"kinds": {"hang-forward": {**kind, **changed}}, "skipped": {}}


def test_a_part_whose_kinds_were_all_skipped_was_not_measured() -> None:
    part = {**ORIGIN, "kinds": {}, "skipped": {"paused": "only as a process"}}
    injected = [row for row in figures({"faults-docker": part}) if row[0].startswith("injected faults in containers")]
    assert [(measured, word) for _, _, measured, word in injected] == [(NOT_MEASURED, "-")] * 3
    assert "| paused | skipped | - | only as a process |" in page({"faults-docker": part})


def test_a_hang_that_was_never_found_is_no_met_goal() -> None:
    what = "hang found, steady step, at most"

    def found(**changed: Any) -> tuple[str, str]:
        part = {**ORIGIN, **hang(**changed)}
        return next(row[2:] for row in figures({"faults-process": part}) if row[0].endswith(what))

    assert found()[1] == "met"
    assert found(seconds=[3.0, 31.0])[1] == "**not met**"
    assert found(seconds=[3.0]) == ("3.0 s (median 3.0 s), 1 of 2 hangs of 1 kinds", "**not met**")
    assert found(seconds=[]) == ("0 of 2 hangs of 1 kinds", "**not met**")


def test_what_watching_costs_alone_can_miss_the_goal_but_not_meet_it() -> None:
    def told(*shares: float) -> tuple[str, str]:
        part = {**ORIGIN, "harness_percent": shares, "seconds": 60.0}
        rows = [row for row in figures({"cost": part}) if row[1] == "under 1 % with that"]
        assert len(rows) == 1
        return rows[0][2:]

    assert told(0.4, 0.5, 1.5) == ("median 0.50 % (0.40 to 1.50) of 3 runs of 60 s", "-")
    assert told(0.4, 1.0, 1.5)[1] == "**not met**"


def test_hangs_in_steady_steps_are_met_only_where_all_are_found_in_time_with_their_rank() -> None:
    def told(**changed: Any) -> str:
        kind = {"runs": 200, "found": 200, "named": 200, "seconds": [30.5] * 200, "stopped": False, **changed}
        stopped = {"runs": 1, "found": 1, "named": 1, "seconds": [61.0], "stopped": True}
        part = {**ORIGIN, "hangs": {"waits": kind, "is stopped": stopped}}
        assert "| is stopped | 1 | 1 | 1 | 61.0 | 61.0 |" in page({"hangs": part})
        return next(row[3] for row in figures({"hangs": part}) if row[0].startswith("hangs in steady steps"))

    assert told() == "met"
    assert told(named=199) == told(found=199) == told(seconds=[30.5] * 199 + [36.0]) == "**not met**"
    assert told(runs=100, found=100, named=100, seconds=[30.5] * 100).startswith("so far")


def test_one_alarm_in_runs_of_many_shapes_is_no_met_goal() -> None:
    def told(alarms: int) -> str:
        shapes = {f"shape {n}": {"runs": 9, "alarms": 0, "what": []} for n in range(12)}
        shapes["shape 1"] = {"runs": 9, "alarms": alarms, "what": ["watchdog: rank 0"] * alarms}
        part = {**ORIGIN, "shapes": shapes}
        return next(row[3] for row in figures({"shapes": part}) if row[0].endswith("many shapes"))

    assert told(0) == "met"
    assert told(1) == "**not met**"
