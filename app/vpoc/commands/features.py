"""`vpoc features`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vpoc.commands.shared_options import DATA_OPTION, FEATURE_OPTIONS, IN_FILE, RUN_DIR_OPTION, feature_options
from vpoc.errors import UserError
from vpoc.files import hash_in_thread, remove, require_output
from vpoc.importing import importing
from vpoc.progress import Progress

if TYPE_CHECKING:
    from vpoc.features.feature_set import FeatureSet


@click.command("features")
@DATA_OPTION
@click.option("--output", type=IN_FILE, required=True, help="Parquet file to write.")
@FEATURE_OPTIONS
@RUN_DIR_OPTION
def features_command(
    data: Path, output: Path, run_dir: Path | None, vpoc_path: str, device: str, **chosen: Any
) -> None:
    """Compute the features and the targets of a merged CSV.

    Each row has what was known at its as-of time and nothing later. Prices are in ticks of 0.25;
    docs/reference/features.md has every formula. The file says which data and options it was made from, and `vpoc train
    --features` refuses it for others. Without --run-dir, the parsed bars are cached beside it, as NAME.bars.parquet, or
    for session rows the facts of each session, as NAME.session-facts.parquet; both are used while the data stays the
    same. If OUTPUT already has the features of these data and options, it is not written again.

    \b
    vpoc features --data merged.csv --output features.parquet
    vpoc features --data merged.csv --output sessions.parquet --rows session --as-of open
    """  # noqa: D301 - click needs the character itself
    options = feature_options(chosen)
    if output.suffix.lower() == ".csv":
        raise UserError(f"{output}: features are written as Parquet; give a name such as {output.stem}.parquet")
    require_output(output, data)
    # A run folder is evidence, so it has no caches for later commands.
    cache = None if run_dir else output.with_name(f"{output.stem}.bars.parquet")
    if cache is not None:
        require_output(cache, data, output)
    progress = Progress(run_dir)
    if run_dir is not None:
        remove(run_dir / "result.json")
    progress.phase("import")

    # A thread hashes the data, to see if the cache applies, while the packages are imported.
    digest = hash_in_thread(data) if cache is not None and (cache.exists() or output.exists()) else None

    with importing("polars"):
        from vpoc.features.store import held_features, require_no_other_file, write_features  # noqa: PLC0415

        if digest and vpoc_path == "cpu" and (held := held_features(output, digest, options, chosen["accepted"])):
            click.echo(_said(output, held))
            return
        require_no_other_file(output)
        from vpoc.features.compute import compute_features  # noqa: PLC0415

    with progress:
        built = compute_features(
            data,
            options,
            progress,
            cache=cache,
            digest=digest,
            vpoc_path=vpoc_path,
            device=device,
            accepted=chosen["accepted"],
        )
        progress.phase("checkpoint")
        write_features(output, built)
    click.echo(_said(output, built))


def _said(output: Path, features: "FeatureSet") -> str:
    return f"{output}: {features.frame.height} rows per {features.options.rows} of {features.summary()}"
