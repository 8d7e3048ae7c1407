"""Tests of which checkpoints a training may resume from."""

from dataclasses import replace
from typing import Any

from harness.base.errors import UserError
from harness.matrix.workload_options import options_of
from harness.training.attempts import ATTEMPTS_FILE
from harness.training.options import own_workload
from harness.training.resumable import check_resumable
from tests.harness.training.scripted_attempts import DONE, TrainingUnderTest, write_checkpoint


def test_other_options_are_not_resumed_from_checkpoints_whose_record_tells_theirs(training: TrainingUnderTest) -> None:
    def refused(name: str = "bars", **options: Any) -> str | None:
        try:
            check_resumable(training.job.output, name, options_of(own_workload(options)), training.bench.results)
        except UserError as error:
            return str(error)
        return None

    assert refused() is None
    training.train(replace(DONE, step=100))
    assert refused(epochs=90, loader_workers=0) is None
    # The first training left these options to the app, so only the app knows whether the named values are the same.
    assert refused(target="up_30", schedule="constant") is None
    assert refused(lookback=25) == (
        f"--resume: the checkpoints in {training.job.output} are of a training with --lookback 60, this one has "
        "--lookback 25; give the same, or leave --resume out to train from the beginning"
    )
    assert "--hidden-layers" in str(refused(hidden_layers="8,8"))
    assert "this one has --chunk-rows 9" in str(refused(chunk_rows=9))
    assert refused("others", lookback=25) is None
    with (training.job.output / ATTEMPTS_FILE).open("ab") as stream:
        stream.write(b'[]\n{}\nx\n{"run": "\\u0000"}\n{"run": "\\ud800"}\n{"run": "../../x"}\n{"run": 1}\n')
    assert "--lookback 25" in str(refused(lookback=25)), "lines of others hide nothing"
    # Nor is it refused here if somebody has trained on since, because then only the app knows the options.
    write_checkpoint(training.job.output / "bars_checkpoints", 120)
    assert refused(lookback=25) is None
