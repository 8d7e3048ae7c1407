"""Tests of the options of `matrix train`, and of the workload that they make."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.matrix.workload_options import TRAIN_OPTIONS, options_of
from harness.training.options import GIVEN, HELP, own_workload, training_options


@click.command()
@training_options
def command(**options: Any) -> None:
    click.echo(repr(options_of(own_workload(options))))


def asked(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return dict(eval(result.output))


def test_every_option_of_a_training_is_there() -> None:
    assert sorted(HELP) == sorted(TRAIN_OPTIONS)
    assert set(GIVEN) == {parameter.name for parameter in command.params}


def test_what_is_not_given_is_as_the_app_has_it() -> None:
    # These are the defaults that `vpoc train --help` shows.
    assert asked() == {
        "rows": "bar",
        "lookback": 60,
        "data_fraction": 1.0,
        "chunk_size": 64,
        "vpoc_path": "cpu",
        "model": ["mlp"],
        "epochs": 3,
        "batch_size": 64,
        "learning_rate": 0.001,
        "keep": "best",
        "patience": 2,
        "hidden_layers": [32, 16],
        "use_mixed_precision": False,
        "activation_checkpointing": False,
        "loader_workers": 2,
        "seed": 7,
        "threads": 1,
        "loop": "plain",
        "sdpa": "auto",
        "strategy": "single",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--epochs", "5", "--batch-size", "8"), {"epochs": 5, "batch_size": 8}),
        (("--learning-rate", "0.01", "--hidden-layers", "64, 8"), {"learning_rate": 0.01, "hidden_layers": [64, 8]}),
        (("--use-mixed-precision",), {"use_mixed_precision": True}),
        (("--micro-batch-size", "auto"), {"micro_batch_size": "auto"}),
        (("--micro-batch-size", "16"), {"micro_batch_size": 16}),
        (("--model", "mlp", "--model", "attention"), {"model": ["mlp", "attention"]}),
        (("--micro-batch-size", "auto", "--spare", "0.3"), {"micro_batch_size": "auto", "spare": 0.3}),
        (("--accumulation-steps", "4"), {"batch_size": 256, "micro_batch_size": 64}),
        (("--accumulation-steps", "4", "--batch-size", "8"), {"batch_size": 32, "micro_batch_size": 8}),
        (("--accept", "vix-range", "--accept", "bad_print"), {"accepted": ["vix_range", "bad_print"]}),
        (("--target", "prior_vpoc_touched"), {"target": "prior_vpoc_touched"}),
        (("--rows", "session", "--as-of", "open"), {"rows": "session", "as_of": "open"}),
        (("--data-fraction", ".5", "--loader-workers", "0"), {"data_fraction": 0.5, "loader_workers": 0}),
    ],
)
def test_what_is_given_is_taken(words: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert asked(*words) == {**asked(), **expected}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"epochs": "none"}, "--epochs none: "),
        ({"epochs": "0"}, "--epochs 0: "),
        ({"hidden_layers": "32,x"}, "--hidden-layers "),
        ({"micro_batch_size": "half"}, "--micro-batch-size half: 'half' is not a number from 1 on, nor auto"),
        ({"lookback": "19"}, "--lookback 19: "),
        ({"spare": "1"}, "--spare 1: "),
        ({"accumulation_steps": 2, "batch_size": "0"}, "--batch-size 0: "),
        ({"accumulation_steps": 2, "batch_size": "all"}, "--batch-size all: "),
        ({"accumulation_steps": 2, "micro_batch_size": "8"}, "--accumulation-steps and --micro-batch-size say the"),
        ({"backend": "gloo"}, "strategy single uses no backend"),
    ],
)
def test_what_cannot_be_is_reported_in_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        own_workload(given)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)
