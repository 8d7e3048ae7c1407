"""`vpoc check-model` and `vpoc predict`."""

import io
import json
from dataclasses import replace
from pathlib import Path

import click

from vpoc.commands.shared_options import (
    ACCEPT_OPTION,
    CHUNK_SIZE_OPTION,
    DATA_OPTION,
    DEVICE_OPTION,
    FORCE_OPTION,
    IN_FILE,
    JSON_OPTION,
)
from vpoc.errors import UserError, printable
from vpoc.importing import importing


@click.command("check-model")
@click.argument("model", type=IN_FILE)
@JSON_OPTION
def check_model_command(model: Path, as_json: bool) -> None:
    """Load a model file, run it once, and print what it is.

    Exit status 1, with one line, when the file is truncated or corrupt or has weights that are not finite.
    """
    with importing("torch"):
        from vpoc.models.by_name import parameter_count  # noqa: PLC0415
        from vpoc.training.model_file.artefact import load_model, require_finite, weights_sha256  # noqa: PLC0415

    loaded = load_model(model)
    require_finite(loaded)
    facts = {
        "schema": 2,
        "file": str(model),
        "sha256": loaded.sha256,
        "bytes": loaded.bytes,
        "model": loaded.kind,
        "parameters": parameter_count(loaded.model),
        "weights_sha256": weights_sha256(loaded.model.state_dict()),
        "target": loaded.target,
        "rows": loaded.feature_options.rows,
        "features": loaded.features,
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        if name != "schema":
            click.echo(printable(f"{name:<14} {', '.join(value) if isinstance(value, list) else value}"))


@click.command("predict")
@click.option("--model", type=IN_FILE, required=True, help="Model file that `vpoc train` wrote.")
@DATA_OPTION
@click.option(
    "--output",
    type=IN_FILE,
    required=True,
    help="CSV file to write: trade_date, ts (bar rows), known_at, in_training, close, vpoc, vah, val, probability.",
)
@click.option(
    "--lookback",
    type=click.IntRange(min=20),
    help="First complete sessions, which only feed the averages.  [default: as in training]",
)
@CHUNK_SIZE_OPTION
@DEVICE_OPTION
@click.option(
    "--use-mixed-precision",
    is_flag=True,
    help="Autocast, with fewer digits: float16 on a GPU; bfloat16 on a CPU, faster only where that computes in it.",
)
@click.option(
    "--other",
    "others",
    type=click.Choice(["symbol", "tick", "bars"]),
    multiple=True,
    help="Accept data of another symbol, tick or bar length than the model was trained on.",
)
@ACCEPT_OPTION
@FORCE_OPTION
def predict_command(
    model: Path,
    data: Path,
    output: Path,
    lookback: int | None,
    chunk_size: int,
    device: str,
    use_mixed_precision: bool,
    others: tuple[str, ...],
    accepted: tuple[str, ...],
    force: bool,
) -> None:
    """Apply a model to new data, and score it on the sessions that it has not seen.

    Writes, for every row, the probability of the model's target, the time when it is known (known_at: the end of the
    bar, or the as-of time of a session row), and whether the model saw the session in training or validation
    (in_training), where a good score proves nothing.
    A session that is still open at the end of the file is included when the model works on bars.
    """
    from vpoc.data.own_output import require_replaceable, write_own  # noqa: PLC0415
    from vpoc.files import require_output  # noqa: PLC0415

    require_output(output, model, data)
    require_replaceable(output, "predict", force=force)
    with importing("torch"):
        from vpoc.data.checks.plausibility_gate import require_plausible_bars  # noqa: PLC0415
        from vpoc.data.load import load_bars  # noqa: PLC0415
        from vpoc.device import require_device  # noqa: PLC0415
        from vpoc.evaluation.unseen import forecast_in_words, unseen_in_words  # noqa: PLC0415
        from vpoc.features.build import build_features  # noqa: PLC0415
        from vpoc.features.snapshots import NAKED_SESSIONS  # noqa: PLC0415
        from vpoc.training.model_file.artefact import load_model, require_finite  # noqa: PLC0415
        from vpoc.training.model_file.predict import predict as probabilities  # noqa: PLC0415
        from vpoc.training.model_file.predict import require_match, unnamed_symbol  # noqa: PLC0415
        from vpoc.training.model_file.prediction import with_levels  # noqa: PLC0415

    loaded = load_model(model)
    require_finite(loaded)
    require_device(device)
    bars = load_bars(data)
    require_plausible_bars(bars, accepted)
    asked = loaded.feature_options
    if lookback and min(NAKED_SESSIONS, lookback) != min(NAKED_SESSIONS, asked.lookback):
        raise UserError(
            f"--lookback {lookback}: naked levels are looked for over as many sessions, {NAKED_SESSIONS} at most, and "
            f"the model knows them over {min(NAKED_SESSIONS, asked.lookback)}; leave --lookback out"
        )
    options = replace(asked, lookback=lookback or asked.lookback, chunk_size=chunk_size, data_fraction=1.0)
    if bars.bar_seconds != loaded.bar_seconds:
        require_match(loaded, bars.bar_seconds, loaded.market, others)
    features = build_features(bars, options, fewest=1)
    require_match(loaded, bars.bar_seconds, features.market, others)
    found, outside = probabilities(loaded, features, device, half=use_mixed_precision)
    frame = with_levels(found, bars, features, loaded.market)
    buffer = io.BytesIO()
    frame.write_csv(buffer, datetime_format="%Y-%m-%dT%H:%M:%SZ")
    write_own(output, "predict", buffer.getvalue())
    notes = [unnamed_symbol(loaded, features.market), *features.notes()]
    if outside:
        notes.append(f"outside what the rows that trained the model had, in so many rows: {', '.join(outside)}")
    for note in filter(None, notes):
        click.echo(printable(note), err=True)
    seen = int(frame["in_training"].sum())
    told = f", {seen} of them of sessions that it was trained or validated on" if seen else ""
    click.echo(printable(f"{output}: {frame.height} rows, probability of {loaded.target}{told}"))
    if score := unseen_in_words(frame, features.frame, loaded.target):
        click.echo(score)
    if asked.rows == "session" and (forecast := forecast_in_words(frame, features.frame, loaded.target)):
        click.echo(forecast)
