"""Do the jobs of one side of benchmarks/training.py, in the interpreter that has the package to measure.

`training_worker.py KIND CSV` prepares, does every job once unmeasured, and prints a line of JSON with the names of its
jobs and the versions of its packages. Then it reads names of jobs, a line each, does the job once and prints the
measurements as JSON. The kinds app, prediction and plain use the app's interpreter; lightning uses the peers'
interpreter and the samples that the worker `app` wrote beside the CSV. All use one thread.
"""

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

EPOCH = 245_760
"""Samples in an epoch of the whole file."""
BATCHES = {8: 16_384, 256: 131_072, 8192: EPOCH}
"""Batch sizes, and the samples of an epoch here, which takes about a second in the slowest loop."""
WINDOWS, WINDOW_BATCH = 384, 32
"""Samples and batch size for the attention model, which takes most of a second for a hundred samples."""
HALF_WINDOWS = 64
"""Samples in bfloat16, which takes 16 times as long on a processor without it."""
PREDICTED = {"attention": 2_048, "attention bf16": 256}
"""Rows of a prediction by model, chosen for the same reasons."""
RESIDENT_EPOCHS = 8
"""Epochs of the fastest loop, because a single epoch is too short to be timed."""
HIDDEN = (32, 16)
LEARNING_RATE = 1e-3

Measured = dict[str, float]
Jobs = dict[str, Callable[[], Measured]]


def app(csv: Path) -> Jobs:
    """Return the jobs of the app's own trainings, as `vpoc train` makes them: progress, monitor, checks, checkpoints.

    Validation is not counted. Work done once per epoch, mainly a checkpoint, counts as in epochs of EPOCH samples.
    """
    import numpy as np  # noqa: PLC0415

    from vpoc.commands.train import train_command  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.features.targets import DEFAULT_TARGET  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.progress import Progress  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.training.fit import Fit  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.training.preparing.prepare import Prepared, prepare  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.training.run import ALONE  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.training.train_options import TrainOptions  # type: ignore[import-not-found]  # noqa: PLC0415

    @dataclass(frozen=True)
    class Part(Prepared):  # type: ignore[misc]
        """A run with `rows` samples for training and 64 for validation."""

        rows: int

        def samples(self, options: Any, kind: str) -> Any:
            made = super().samples(options, kind)
            parts = {"train": np.arange(self.rows), "validation": np.arange(64)}
            return replace(made, **{name: getattr(made, name).take(chosen) for name, chosen in parts.items()})

    words = ["--data", str(csv), "--output", str(csv.parent), "--rows", "bar", "--loader-workers", "0"]
    # The same choices as the peers': Adam, every epoch, the last weights.
    words += ["--weight-decay", "0", "--clip-norm", "0", "--keep", "last", "--patience", "0"]
    chosen = train_command.make_context("train", words).params
    known = {name: chosen[name] for name in (field.name for field in fields(TrainOptions)) if name in chosen}
    options = TrainOptions(**{**known, "target": DEFAULT_TARGET["bar"], "hidden_layers": HIDDEN})
    run = prepare(options, ALONE, Progress(None))
    training = run.samples(options, "mlp").train
    columns = {"labels": training.labels, "weights": training.weights}
    np.savez(samples_file(csv), inputs=training.inputs[training.ends], **columns)
    windows = run.samples(options, "attention").train
    chosen_windows = np.arange(WINDOWS)
    inputs = np.ascontiguousarray(windows.windows(chosen_windows))
    np.savez(windows_file(csv), inputs=inputs, labels=windows.labels[chosen_windows])
    if len(training) < max(BATCHES.values()):
        raise SystemExit(f"{len(training)} samples, {max(BATCHES.values())} are needed")

    def fit(kind: str, rows: int, changed: dict[str, Any], *, watched: bool = False) -> Measured:
        wanted = replace(options, **changed)
        with tempfile.TemporaryDirectory(dir=csv.parent) as folder:
            part = Part(**vars(run), rows=rows)
            one = Fit(wanted, part, kind, Path(folder) / "checkpoints", Progress(Path(folder)), lambda _line: None)
            epochs, watching = Clock(), Clock()
            epochs.around(one, "_train")
            if watched:
                watch(one, watching)
            began = time.perf_counter()
            one.to_the_end()
            wall = time.perf_counter() - began
        once = wall - epochs.seconds - one.ledger.seconds()["validate"]
        each = epochs.seconds / (wanted.epochs * rows) + once / (wanted.epochs * EPOCH)
        return {"seconds": each, "share": watching.seconds / epochs.seconds}

    jobs: Jobs = {}
    for size, rows in BATCHES.items():
        for loop, epochs in (("plain", 1), ("resident", RESIDENT_EPOCHS)):
            settings = {"batch_size": size, "epochs": epochs, "loop": loop}
            jobs[f"app {loop}, batch {size}"] = partial(fit, "mlp", rows, settings)
            if size == 256:
                jobs[f"watching, {loop}, batch {size}"] = partial(fit, "mlp", rows, settings, watched=True)
    half = {"use_mixed_precision": True, "mixed_precision_dtype": "bfloat16"}
    for loop in ("plain", "resident"):
        settings = {"batch_size": WINDOW_BATCH, "epochs": 1, "loop": loop}
        jobs[f"app {loop}, attention"] = partial(fit, "attention", WINDOWS, settings)
        jobs[f"app {loop}, attention bf16"] = partial(fit, "attention", HALF_WINDOWS, settings | half)
    return jobs


def prediction(csv: Path) -> Jobs:
    """Return the job of the app's own prediction, from features to probabilities, with an untrained network."""
    from vpoc.data.load import load_bars  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.features.build import build_features  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.features.feature_options import FeatureOptions  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.features.table import NAMES  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.features.targets import DEFAULT_TARGET  # noqa: PLC0415
    from vpoc.models.attention import WINDOW  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.models.by_name import fresh_network  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.training.inputs.samples import split  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.training.model_file.predict import predict  # type: ignore[import-not-found]  # noqa: PLC0415

    features = build_features(load_bars(csv), FeatureOptions(rows="bar"))
    scaling = split(features, DEFAULT_TARGET["bar"]).scaling
    network = fresh_network("attention", len(NAMES), HIDDEN, 7).eval()
    loaded = SimpleNamespace(kind="attention", model=network, scaling=scaling, path=csv)

    def predicted(count: int, *, half: bool) -> Measured:
        rows = replace(features, frame=features.frame[: count + WINDOW - 1])
        began = time.perf_counter()
        predict(loaded, rows, half=half)
        return {"seconds": (time.perf_counter() - began) / count}

    return {
        f"app predict, {name}": partial(predicted, count, half=name.endswith("bf16"))
        for name, count in PREDICTED.items()
    }


@dataclass
class Clock:
    """A stopwatch for functions: the seconds spent in those it was put around."""

    seconds: float = 0.0

    def around(self, owner: Any, name: str) -> None:
        """Time the method `name` of `owner` from now on."""
        method = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began

        setattr(owner, name, timed)


def watch(fit: Any, clock: Clock) -> None:
    """Time what a training does besides training: progress, curves, memory monitor, norm of the gradient."""
    clock.around(fit, "_note")
    clock.around(fit.trainer, "_gradient_norm")
    if hasattr(fit.trainer, "flat"):
        clock.around(fit.trainer.flat, "_norm")


def samples_file(csv: Path) -> Path:
    """Return the file with the training samples, for workers without the app."""
    return csv.with_suffix(".npz")


def windows_file(csv: Path) -> Path:
    """Return the file with the samples of the attention model, each with its window."""
    return csv.with_suffix(".windows.npz")


def mlp(inputs: int) -> Any:
    """Return the network that all loops train."""
    from torch import nn  # type: ignore[import-not-found]  # noqa: PLC0415

    first, second = HIDDEN
    return nn.Sequential(nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 1))


def loader(file: Path, rows: int, size: int, columns: tuple[str, ...] = ("inputs", "labels")) -> Any:
    """Return a DataLoader as in tutorials."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # type: ignore[import-not-found]  # noqa: PLC0415

    arrays = np.load(file)
    tensors = (torch.from_numpy(arrays[name][:rows]) for name in columns)
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=True)


def plain(csv: Path) -> Jobs:
    """Return the jobs of a tutorial's training loop: default DataLoader, Adam, the loss read after every step."""
    import torch  # noqa: PLC0415
    from torch.nn import functional  # type: ignore[import-not-found]  # noqa: PLC0415

    from vpoc.models.by_name import fresh_network  # noqa: PLC0415

    def epoch(model: Any, batches: Any) -> Measured:
        adam = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        total = 0.0
        began = time.perf_counter()
        for inputs, labels in batches:
            adam.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(model(inputs).squeeze(1), labels)
            loss.backward()
            adam.step()
            total += loss.item()
        return {"seconds": (time.perf_counter() - began) / len(batches.dataset)}

    def weighted_epoch(model: Any, batches: Any) -> Measured:
        """Return the time of a loop that computes as much as the app: weights, and whether the gradient is finite."""
        adam = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        total = 0.0
        began = time.perf_counter()
        for inputs, labels, weights in batches:
            adam.zero_grad()
            logits = model(inputs).squeeze(1)
            loss = functional.binary_cross_entropy_with_logits(logits, labels, weight=weights)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf, error_if_nonfinite=True)
            adam.step()
            total += loss.item()
        return {"seconds": (time.perf_counter() - began) / len(batches.dataset)}

    jobs: Jobs = {}
    for size, rows in BATCHES.items():
        batches = loader(samples_file(csv), rows, size)
        inputs = batches.dataset[0][0].numel()
        jobs[f"textbook, batch {size}"] = partial(epoch, mlp(inputs), batches)
        batches = loader(samples_file(csv), rows, size, ("inputs", "labels", "weights"))
        jobs[f"textbook with weights, batch {size}"] = partial(weighted_epoch, mlp(inputs), batches)
    windows = loader(windows_file(csv), WINDOWS, WINDOW_BATCH)
    attention = fresh_network("attention", windows.dataset[0][0].shape[1], HIDDEN, 7)
    jobs["textbook, attention"] = partial(epoch, attention, windows)
    return jobs


def lightning(csv: Path) -> Jobs:
    """Return the jobs of Lightning with all extras off (`barebones`), timed from the start to the end of training."""
    import pytorch_lightning  # type: ignore[import-not-found]  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    class Module(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.model = mlp(inputs)
            self.began = self.seconds = 0.0

        def training_step(self, batch: Any, _number: int) -> Any:
            inputs, labels = batch
            return functional.binary_cross_entropy_with_logits(self.model(inputs).squeeze(1), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=LEARNING_RATE)

        def on_train_start(self) -> None:
            self.began = time.perf_counter()

        def on_train_end(self) -> None:
            self.seconds = time.perf_counter() - self.began

    def epoch(batches: Any) -> Measured:
        module = Module(batches.dataset[0][0].numel())
        trainer = pytorch_lightning.Trainer(barebones=True, max_epochs=1, accelerator="cpu", devices=1)
        trainer.fit(module, batches)
        return {"seconds": module.seconds / len(batches.dataset)}

    return {
        f"Lightning, batch {size}": partial(epoch, loader(samples_file(csv), rows, size))
        for size, rows in BATCHES.items()
    }


KINDS = {one.__name__: one for one in (app, prediction, plain, lightning)}
PACKAGES = ("numpy", "torch", "pytorch-lightning")


def main() -> None:
    """Serve jobs until the input ends."""
    kind, csv = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = "1"
    # The original standard output is only for answers, because Lightning also writes to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    jobs = KINDS[kind](Path(csv))
    for job in jobs.values():
        job()
    loaded = {name: version(name) for name in PACKAGES if name.replace("-", "_") in sys.modules}
    print(json.dumps({"jobs": list(jobs), "versions": loaded}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(jobs[line.strip()]()), file=answers, flush=True)


if __name__ == "__main__":
    main()
