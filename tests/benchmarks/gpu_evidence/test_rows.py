from importlib import import_module

from benchmarks.gpu_evidence.rows import ROWS
from benchmarks.gpu_evidence.run import Judged
from benchmarks.gpu_evidence.training import options_of
from vpoc.probes.all_checks import ALL_CHECKS
from vpoc.training.train_options import TrainOptions


def test_every_row_has_its_function_and_one_name():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        module, _, function = (row.probe.function if row.probe else row.function).partition(":")
        assert callable(getattr(import_module(module), function))


def test_every_check_of_the_probe_is_a_row():
    assert {row.probe.name for row in ROWS if row.probe} == {check.name for check in ALL_CHECKS}


def test_what_breaks_the_gpu_comes_last():
    destructive = [row.destructive for row in ROWS]
    assert destructive == sorted(destructive)
    assert sum(destructive) == 3


def test_a_row_as_it_stands_in_the_document():
    document = Judged(ROWS[0], "held", "a line", 1.5, {"x": 1.0}).as_json()
    assert document["row"] == "environment"
    assert document["numbers"] == {"x": 1.0}


def test_options_are_all_those_of_a_training():
    assert isinstance(options_of("mlp", "cpu"), TrainOptions)
