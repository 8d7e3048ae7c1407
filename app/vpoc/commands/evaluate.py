"""`vpoc evaluate`."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from vpoc.commands.shared_options import (
    DATA_OPTION,
    FEATURE_OPTIONS,
    FEATURES_FILE_OPTION,
    IN_FILE,
    JSON_OPTION,
    LARGEST_COUNT,
    SEED,
    TARGET_OPTION,
    feature_options,
    together,
)
from vpoc.commands.training_options import HIDDEN_LAYERS_OPTION, OPTIMISER_OPTIONS, THREADS_OPTION
from vpoc.data.own_output import require_replaceable, write_own
from vpoc.errors import UserError
from vpoc.files import json_bytes, require_output, require_writable
from vpoc.importing import importing
from vpoc.progress import Progress
from vpoc.terminal import folded

DEFAULT_EPOCHS = {"bar": 3, "session": 8}
"""Default number of epochs by kind of row.

There are a hundred times fewer session rows, and with fewer passes over them the network would hardly change.
"""
PLACEBO_FAILED = 5
FILES = ("evaluation.json", "evaluation.md", "evaluation.png")


@click.command("evaluate")
@DATA_OPTION
@FEATURES_FILE_OPTION
@FEATURE_OPTIONS
@TARGET_OPTION
@click.option(
    "--model",
    type=click.Choice(["mlp", "attention", "attention-small"]),
    default="mlp",
    help="The network, as in `vpoc train`.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, LARGEST_COUNT),
    help="Passes over the training rows of a fold.  [default: 3 for bar rows, 8 for session rows]",
)
@click.option("--batch-size", type=click.IntRange(1, LARGEST_COUNT), default=64, help="Samples per step.")
@together(OPTIMISER_OPTIONS)
@HIDDEN_LAYERS_OPTION
@click.option(
    "--first-sessions",
    type=click.IntRange(1, LARGEST_COUNT),
    default=500,
    help="Sessions before the first test block. Where the file is too short for three blocks, this, --block-sessions "
    "and the 126 held out are lowered in proportion.",
)
@click.option("--block-sessions", type=click.IntRange(1, LARGEST_COUNT), default=63, help="Sessions of a test block.")
@click.option(
    "--embargo",
    type=click.IntRange(0, LARGEST_COUNT),
    default=5,
    help="Sessions left out between the last one a training label looks at and the test block.",
)
@click.option(
    "--bootstrap", type=click.IntRange(100, 100_000), default=1000, help="Bootstrap replicates for the intervals."
)
@click.option("--seed", type=SEED, default=7, help="Seed of weights, batch order, bootstrap and shuffles.")
@THREADS_OPTION
@click.option("--output", type=IN_FILE, required=True, help="Folder for evaluation.json, .md and .png.")
@JSON_OPTION
def evaluate_command(output: Path, as_json: bool, **chosen: Any) -> None:
    """Say whether anything beats chance, and whether the network adds to the simplest that does.

    Expanding walk-forward over sessions with purge and embargo. The network, trained as `vpoc train` does, is compared
    with a constant rate, a rate by where the open sits, and logistic regressions on three and on all features. The
    report has log-loss, Brier score and calibration with intervals over sessions; a last part held out; and retraining
    on shuffled labels, which must find nothing. docs/evaluation.md has the definitions.

    \b
    vpoc evaluate --data merged.csv --rows session --as-of open --output EVALUATION
    vpoc evaluate --data merged.csv --rows bar --features bars.parquet --output EVALUATION

    Exit status: 0 edge, none, or not enough sessions, 2 wrong input, 3 the device is not there, 4 the network diverged,
    5 a model scored better than chance on shuffled labels, so that the evaluation is not valid.
    """  # noqa: D301 - click needs the character itself
    options = feature_options(chosen)
    chosen["epochs"] = chosen["epochs"] or DEFAULT_EPOCHS[options.rows]
    for name in FILES:
        require_output(output / name, chosen["data"], chosen["features"])
        require_replaceable(output / name, "evaluate", force=False, give="another --output, or remove it")
    existed = output.exists()
    require_writable(output)

    with importing("torch"):
        from vpoc.evaluation.evaluate_file import evaluate_file  # noqa: PLC0415 - imports torch
        from vpoc.evaluation.figure import draw_evaluation  # noqa: PLC0415
        from vpoc.evaluation.report import markdown, summary  # noqa: PLC0415
        from vpoc.plots.render import matplotlib_of_its_own, to_bytes  # noqa: PLC0415

    try:
        document = evaluate_file(options, chosen, Progress(None))
    except UserError:
        if not existed:
            with suppress(OSError):
                output.rmdir()
        raise
    content = json_bytes(document)
    with matplotlib_of_its_own(output):
        picture = to_bytes(draw_evaluation(document), "png", document["verdict"]["sentence"])
    for name, part in zip(FILES, (content, markdown(document).encode(), picture), strict=True):
        write_own(output / name, "evaluate", part)
    if as_json:
        click.echo(content.decode(), nl=False)
    else:
        click.echo(folded(summary(document)))
        click.echo(folded(f"\nwrote {', '.join(str(output / name) for name in FILES)}"))
    if document["placebo"]["better_than_chance"]:
        raise UserError(document["verdict"]["sentence"], exit_code=PLACEBO_FAILED)
