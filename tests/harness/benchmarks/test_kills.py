"""When the counting of kills is good."""

from collections.abc import Sequence

import pytest

from benchmarks import kills
from benchmarks.kill_tester import GOAL_SECONDS, Figures, Kill


@pytest.mark.parametrize(
    ("figures", "good"),
    [
        (Figures(), True),
        (Figures(ready=[GOAL_SECONDS]), True),
        (Figures(ready=[1.0, GOAL_SECONDS + 0.1]), False),
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
    def kill_often(_plan: Sequence[Kill], told: Figures, engine: object = None) -> None:
        told.kills["random"] += 1
        if (engine is not None) == contained:
            told.wrong, told.ready = figures.wrong, figures.ready

    output = tmp_path_factory.mktemp("kills") / "figures"
    monkeypatch.setattr(kills, "kill_often", kill_often)
    monkeypatch.setattr(kills, "find_engine", object)
    monkeypatch.setattr("sys.argv", ["kills.py", "1", "--containers", "1", "--output", str(output)])
    with pytest.raises(SystemExit) as ended:
        kills.main()
    assert (not ended.value.code) == good
