"""`vpoc features`."""

from pathlib import Path

import click

from vpoc.commands.options import CHUNK_SIZE, DATA, DATA_FRACTION, IN_FILE, ROWS, RUN_DIR, WARM_UP
from vpoc.files import remove, require_output
from vpoc.progress import Progress


@click.command()
@DATA
@click.option("--output", type=IN_FILE, required=True, help="Parquet file to write.")
@ROWS
@WARM_UP
@DATA_FRACTION
@CHUNK_SIZE
@RUN_DIR
def features(
    data: Path, output: Path, rows: str, warm_up: int, data_fraction: float, chunk_size: int, run_dir: Path | None
) -> None:
    """Compute the features and targets of a merged CSV.

    Levels (vpoc, vah, val) and atr20 are in ticks of 0.25. The file says which data it belongs to, and
    `vpoc train --features` refuses it for other data.
    """
    require_output(output, data)
    progress = Progress(run_dir)
    if run_dir is not None:
        remove(run_dir / "result.json")
    progress.phase("import")

    from vpoc.data.bars import load_bars  # noqa: PLC0415
    from vpoc.features.build import build_features  # noqa: PLC0415
    from vpoc.features.store import write_features  # noqa: PLC0415

    progress.phase("data")
    bars = load_bars(data)
    sizes = {"warm_up": warm_up, "chunk_size": chunk_size}
    built = build_features(bars, rows, data_fraction=data_fraction, progress=progress, **sizes)
    progress.phase("checkpoint")
    write_features(output, built)
    click.echo(
        f"{output}: {built.frame.height} rows per {rows} of {built.sessions_used} sessions "
        f"({built.sessions_total} in the file, {built.sessions_dropped} incomplete and left out, "
        f"{built.sessions_apart} left out after a gap)"
    )
