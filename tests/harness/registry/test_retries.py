import pytest

from harness.base.errors import NoAnswerError, UserError
from harness.registry import retries
from harness.registry.retries import with_retries


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of the pauses that would have been made, in seconds."""
    waited: list[float] = []
    monkeypatch.setattr("harness.registry.retries.time.sleep", waited.append)
    return waited


class ScriptedConnection:
    """A connection whose attempts are scripted: `come` is what has come through by each, and all but the last fail."""

    def __init__(self, *come: int, problem: UserError | None = None) -> None:
        self.come, self.attempts, self.problem = come, 0, problem or NoAnswerError("registry x does not answer: EOF")

    def attempt(self) -> str:
        self.attempts += 1
        if self.attempts == len(self.come):
            return "done"
        raise self.problem

    def come_through(self) -> int:
        return self.come[self.attempts - 1]


def test_what_is_cut_is_tried_again_after_longer_and_longer_pauses(waited: list[float]) -> None:
    connection, said = ScriptedConnection(1, 1, 1, 2, 2, 2), list[str]()
    assert with_retries(connection.attempt, connection.come_through, said.append) == "done"
    # The fourth attempt brought something, so the pauses begin again.
    assert waited == [1, 2, 4, 1, 2]
    assert said[0] == "registry x does not answer: EOF; trying again in 1 s"


def test_in_the_end_it_is_one_line_that_says_what_to_do(waited: list[float]) -> None:
    connection = ScriptedConnection(*[1] * 50)
    with pytest.raises(NoAnswerError, match=r"^registry x .*: EOF; it failed 6 times in a row.* again once it"):
        with_retries(connection.attempt, connection.come_through, lambda _: None)
    assert waited == list(retries.PAUSES)


def test_nobody_waits_where_nothing_ever_came_or_somebody_refuses(waited: list[float]) -> None:
    for connection in (ScriptedConnection(0, 0, 0), ScriptedConnection(5, 5, problem=UserError("denied"))):
        with pytest.raises(UserError):
            with_retries(connection.attempt, connection.come_through, lambda _: None)
        assert (connection.attempts, waited) == (1, [])
