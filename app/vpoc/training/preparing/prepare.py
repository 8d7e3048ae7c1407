"""The first half of a run: devices, data and features, up to the samples of a model."""

from dataclasses import replace

from vpoc.device import clean_up
from vpoc.features.compute import features_for, rows_for
from vpoc.models.by_name import window_of
from vpoc.progress import Progress
from vpoc.ranks.launch import Ranks
from vpoc.training.inputs.sample_file import SampleFile
from vpoc.training.preparing.device_setup import start_devices
from vpoc.training.preparing.prepared import Prepared
from vpoc.training.train_options import TrainOptions


def prepare(options: TrainOptions, ranks: Ranks, progress: Progress) -> Prepared:
    """Start the devices, join the other ranks, read or compute the features.

    UserError when a device is not available.
    """
    progress.phase("init")
    jax = None
    if options.framework == "jax":
        from vpoc.training.with_jax.jax_device import require_plain, start_jax  # noqa: PLC0415 - only then it is there

        require_plain(options)
        jax = start_jax(options)
        # The remaining work of torch can be done on the CPU.
        options = replace(options, device="cpu")
    devices, memory = start_devices(options, ranks, progress)
    source = options.data, options.features, options.of_features
    if options.chunk_rows and options.rows == "bar":
        rows = rows_for(*source, progress, vpoc_path=options.vpoc_path, accepted=options.accepted)
        features = rows.features
        on_disk = SampleFile(rows, options.target, map(window_of, options.model), inner=options.chooses)
    else:
        features = features_for(
            *source, progress, vpoc_path=options.vpoc_path, device=options.device, accepted=options.accepted
        )
        on_disk = None
    clean_up(devices[0], skip=options.skip_gpu_cleanup)
    return Prepared(devices, ranks, features, memory, on_disk, jax)
