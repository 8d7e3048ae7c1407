from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import shared
from harness.cli.images import whose_and_used
from harness.cli.shared import TYPED, Settings, as_typed, executor_option, known, typed_words, warn
from harness.matrix.cells import Matrix
from harness.screen.terminal import SafeConsole


@pytest.mark.parametrize("name", ["rocm6.3-plain", "rocm7-plain", "rocm6-tensorflow-plane"])
def test_no_excluded_cell_is_suggested(name: str, matrix: Matrix) -> None:
    with pytest.raises(UserError, match="did you mean") as refused:
        known(name, matrix.cells, "cell")
    suggested = str(refused.value).removesuffix("?").rpartition(" ")[2]
    assert matrix.cells[suggested].excluded is None


def test_of_plain_names_the_nearest_is_suggested() -> None:
    with pytest.raises(UserError, match="did you mean quick"):
        known("quik", ["quick", "standard"], "workload")
    with pytest.raises(UserError, match=r"did you mean cpu-plain\?"):
        known("cpuu", ["cpu-plain", "cpu-notes-stable", "rocm6.3-plain"], "cell")
    assert known("quick", ["quick"], "workload") == "quick"


def test_a_command_that_is_already_as_it_was_typed_gets_no_options_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of an unfinished training, where `matrix` is found on the PATH."""
    monkeypatch.setattr(shared, "_program", lambda: "matrix")
    settings = Settings(Path("matrix.yaml"), tmp_path, None, given=("--results", "elsewhere"))
    with click.Context(click.Command("status"), obj=settings):
        text = as_typed("`matrix train` and `matrix --root / train`")
    assert text == "`matrix --results elsewhere train` and `matrix --root / train`"


@pytest.mark.parametrize("typed", ["rocm6.3", "6.3"])
def test_of_a_rocm_version_the_cells_that_set_nothing_are_suggested(typed: str, matrix: Matrix) -> None:
    with pytest.raises(UserError, match=r"did you mean rocm6.3-torch2.7.1-plain, rocm6.3-torch2.8.0-plain, rocm6.3-"):
        known(typed, matrix.cells, "cell")


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["--", "python"], "run --executor process -- python"),
        (["--executor", "docker"], "run --executor docker"),
    ],
)
def test_a_command_is_named_with_what_a_variable_gave(words: list[str], again: str) -> None:
    """Another terminal, or the one after a reboot, may lack the variable."""

    @click.command()
    @executor_option("")
    @click.argument("rest", nargs=-1)
    @click.pass_context
    def run(context: click.Context, /, **_: object) -> None:
        context.meta[TYPED] = ("run", *words)
        click.echo(" ".join(typed_words()))

    done = CliRunner().invoke(run, words, env={"MATRIX_EXECUTOR": "process"})
    assert done.stdout.strip() == again


def test_what_is_said_of_a_pulled_image_names_the_command_as_it_is_typed_here() -> None:
    assert whose_and_used((), current=True) == "not signed; `.venv/bin/matrix run` uses it"
    # A pulled image is not used if an equal one was built here.
    assert "; `.venv/bin/matrix run` uses another: one was built here, or the" in whose_and_used((), current=False)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_warning_is_folded_at_words_on_a_terminal_and_one_line_elsewhere(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shared, "err", SafeConsole(width=40, force_terminal=terminal, stderr=True))
    warn(["this host may go to sleep before the morning; `sudo make it so` keeps it awake"])
    lines = capsys.readouterr().err.splitlines()
    assert " ".join(lines).endswith("morning; `sudo make it so` keeps it awake")
    assert len(lines) == (3 if terminal else 1), lines
    assert max(map(len, lines)) <= 40 or not terminal
