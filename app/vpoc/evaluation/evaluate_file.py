"""Evaluates a merged CSV, and returns the evaluation's document."""

from typing import Any

import numpy as np
import torch

from vpoc import __version__
from vpoc.device import require_device
from vpoc.evaluation.all_folds import evaluate
from vpoc.evaluation.document import document
from vpoc.evaluation.network import NetworkFit, training_options
from vpoc.evaluation.rows import LabelledRows, rows_of
from vpoc.evaluation.walk_forward import Fold, Lengths
from vpoc.features.compute import features_for
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.features.targets import target_for
from vpoc.models.by_name import window_of
from vpoc.progress import Progress
from vpoc.training.inputs.samples import labelled
from vpoc.training.inputs.scaling import fit_scaling, outside_words
from vpoc.training.train_options import plain


def evaluate_file(options: FeatureOptions, chosen: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Evaluate with `chosen`, the options of `vpoc evaluate` by name; UserError for mistakes that the user can fix."""
    target = target_for(options.rows, chosen["target"])
    torch.set_num_threads(chosen["threads"])
    require_device(chosen["device"])
    features = features_for(
        chosen["data"],
        chosen["features"],
        options,
        progress,
        vpoc_path=chosen["vpoc_path"],
        device=chosen["device"],
        accepted=chosen["accepted"],
    )
    training = training_options(options, target, chosen)
    rows, samples = rows_of(features, target, window_of(training.model[0]))
    single = labelled(features.frame, target)
    network = NetworkFit(samples, single, training, features, purge=rows.reach > 0)
    lengths = Lengths(first=chosen["first_sessions"], block=chosen["block_sessions"], embargo=chosen["embargo"])
    found = evaluate(rows, network, lengths, replicates=chosen["bootstrap"], seed=chosen["seed"])
    facts = {
        "app_version": __version__,
        "torch_version": torch.__version__,
        "target": target,
        "rows": options.rows,
        "as_of": options.as_of,
        "options": {name: plain(value) for name, value in chosen.items()},
        "data": {
            "sha256": features.data_sha256,
            "rows": features.data_rows,
            "bar_seconds": features.bar_seconds,
            "sessions_total": features.sessions_total,
            "sessions_used": features.sessions_used,
            "left_out": features.left_out,
        },
        "notes": features.notes(),
        "out_of_range": _out_of_range(rows, found.plan.held_out),
    }
    return document(found, lengths, chosen["bootstrap"], facts)


def _out_of_range(rows: LabelledRows, held_out: Fold) -> list[str]:
    """Name the features with at least 1 % of the held-out rows outside the training range, with that share."""
    train, tested = rows.span(0, held_out.train_stop), rows.span(held_out.start, held_out.stop)
    scaling = fit_scaling(rows.inputs, np.arange(train.stop))
    return outside_words(scaling, rows.inputs[tested], NAMES)
