import re

import pytest

from harness.base.paths import CHECKOUT
from harness.cli.by_make import BY_MAKE, VARIABLES, with_make
from harness.cli.main import main
from tests.harness.test_makefile import make


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("the file has 25; give more data or a --lookback of 20 to 22", "--lookback is LOOKBACK="),
        ("it needs a GPU; `matrix doctor` says more; --allow-cpu trains on the CPU", "--allow-cpu goes into ARGS="),
        (
            "it is not there; give --executor process, or --base IMAGE",
            "--executor goes into ARGS=, --base is MATRIX_BASE=",
        ),
        # An option to leave out has a variable, too.
        ("stage endurance has a workload of its own; leave --workload out", "--workload goes into ARGS="),
        # An option that is wrong is not a suggestion, and a whole command is typed without make.
        ("--data bars.csv: no such file", ""),
        ("it has no column vix; `matrix exec cpu-plain vpoc merge --bars bars.csv` adds one", ""),
    ],
)
def test_options_that_a_message_suggests_have_their_variables_of_make(
    monkeypatch: pytest.MonkeyPatch, text: str, added: str
) -> None:
    monkeypatch.setenv(BY_MAKE, "1")
    assert with_make(text) == (f"{text} (with make: {added})" if added else text)
    monkeypatch.delenv(BY_MAKE)
    assert with_make(text) == text


def test_an_error_names_them_where_make_runs_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(BY_MAKE, "1")
    with pytest.raises(SystemExit):
        main(["--matrix", str(CHECKOUT / "matrix.yaml"), "run", "cpu-plain", "--workload", "quick", "--lookback", "99"])
    assert "give fewer sessions, or --data (with make: --data is DATA=)" in capsys.readouterr().err


def test_an_option_before_the_command_has_its_variable_of_make(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(BY_MAKE, "1")
    with pytest.raises(SystemExit):
        main(["doctor", "--root", "HOST"])
    assert "--root goes before the command, which ARGS= cannot do; give MATRIX_ROOT= to make" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "variable"), [(k, v) for k, v in VARIABLES.items() if not v.startswith("MATRIX_")])
def test_the_makefile_gives_each_variable_as_that_option(option: str, variable: str) -> None:
    made = [make(target, f"{variable}=x") for target in ("matrix-test", "train", "build")]
    # A target that does not take the variable refuses it.
    assert any(run.returncode == 0 and f"{option} x" in re.sub("['\"]", "", run.stdout) for run in made)


def test_only_targets_for_a_person_say_that_make_runs_them() -> None:
    text = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    assert f"doctor matrix-test build train: export {BY_MAKE} = 1\n" in text
