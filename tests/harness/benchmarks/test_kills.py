"""When the counting of kills is good."""

from collections.abc import Sequence

import pytest

from benchmarks import kills
from benchmarks.kill_tester import GOAL_SECONDS, Figures, Kill


@pytest.mark.parametrize(
    ("figures", "good"),
    [
        (Figures(), True),
        (Figures(restart_seconds=[GOAL_SECONDS]), True),
        (Figures(restart_seconds=[1.0, GOAL_SECONDS + 0.1]), False),
        (Figures(wrong=["a record is damaged"]), False),
    ],
)
@pytest.mark.parametrize("contained", [False, True])
def test_processes_and_containers_are_held_to_the_same(
    figures: Figures,
    good: bool,
    contained: bool,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill_often(_plan: Sequence[Kill], counts: Figures, engine: object = None) -> None:
        counts.kills["random"] += 1
        if (engine is not None) == contained:
            counts.wrong, counts.restart_seconds = figures.wrong, figures.restart_seconds

    output = tmp_path_factory.mktemp("kills") / "figures"
    monkeypatch.setattr(kills, "kill_often", kill_often)
    monkeypatch.setattr(kills, "find_engine", object)
    monkeypatch.setattr("sys.argv", ["kills.py", "1", "--containers", "1", "--output", str(output)])
    with pytest.raises(SystemExit) as ended:
        kills.main()
    assert (not ended.value.code) == good
