"""The first half of a run: device, data and features, up to samples and a fresh model."""

from dataclasses import dataclass

import torch

from vpoc.features.build import FeatureSet
from vpoc.features.command import compute_features
from vpoc.features.store import read_features, require_same
from vpoc.features.table import NAMES
from vpoc.files import sha256_file
from vpoc.models.mlp import fresh_mlp
from vpoc.progress import Progress
from vpoc.training.device import clean_up, memory_in_use, require_device
from vpoc.training.loop import Trainer
from vpoc.training.options import TrainOptions
from vpoc.training.samples import Samples, split


@dataclass(frozen=True)
class Prepared:
    """All that the loop needs."""

    trainer: Trainer
    features: FeatureSet
    train: Samples
    validation: Samples


def prepare_device(options: TrainOptions, progress: Progress) -> torch.device:
    """The device asked for, started, with the asked number of CPU threads; UserError when it is not there."""
    progress.phase("init")
    torch.set_num_threads(options.threads)
    device = require_device(options.device)
    if device.type == "cuda":
        torch.zeros(1, device=device)
        progress.device_memory = memory_in_use
    return device


def prepare(options: TrainOptions, device: torch.device, progress: Progress) -> Prepared:
    """Read or compute the features, split them and put a fresh model on `device`."""
    features = _features(options, progress)
    clean_up(device, skip=options.skip_gpu_cleanup)
    train, validation = split(features, options.target)
    model = fresh_mlp(len(NAMES), options.hidden_layers, options.seed)
    return Prepared(Trainer(model, device, options), features, train, validation)


def _features(options: TrainOptions, progress: Progress) -> FeatureSet:
    if options.features is None:
        return compute_features(
            options.data, options.of_features, progress, vpoc_path=options.vpoc_path, device=options.device
        )
    progress.phase("data")
    digest = sha256_file(options.data)
    progress.phase("features")
    features = read_features(options.features)
    require_same(options.features, features, digest, options.of_features)
    return features
