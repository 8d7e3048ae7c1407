"""Row about samples per second of the app's loops, the textbook loop, Lightning, a CUDA graph and a compiled step."""

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gpu_evidence.arrays import Arrays, feature_count
from benchmarks.gpu_evidence.checks.profiles import wait
from benchmarks.gpu_evidence.finding import Finding, Kit, finding_or_differs
from benchmarks.gpu_evidence.training import fit, options_of, steps_of
from vpoc.models.by_name import fresh_network
from vpoc.probes.checks.networks import require_compiler
from vpoc.probes.site import Site, Skipped
from vpoc.training.inputs.samples import Samples

HIDDEN = (32, 16)
RATE = 1e-3
SAMPLES = {8: 16_384, 256: 131_072, 8192: 262_144}
"""Samples of a measurement by batch size, on a GPU: about a second in the slowest loop."""
ON_CPU = 8
"""On a CPU the samples are divided by this number."""
GOALS = {"cuda": 10.0, "cpu": 4.0}
"""The goal: samples per second of the resident loop over those of the textbook loop, at a batch of 256."""
OURS = ("textbook", "plain", "resident")
"""Loops that must work; a failure of any other loop is only reported."""
COMPILED_AT = 256
STEPS_BEFORE_CAPTURE = 3

Loop = Callable[[], float]
"""A function that trains on all samples once and returns the seconds it took."""


def loops(site: Site, kit: Kit, batch: str) -> Finding:
    """Train the mlp on the same samples in every loop that works here, and compare their speed."""
    size, device = int(batch), site.devices[0]
    count = SAMPLES[size] // (1 if device.type == "cuda" else ON_CPU)
    count = max(min(count, SAMPLES[size] * kit.steps // 200), size) // size * size
    torch.set_num_threads(1)
    arrays = Arrays(kit.arrays)
    samples, _ = arrays.samples("mlp", count)
    found: dict[str, float] = {}
    left_out: dict[str, str] = {}
    made: dict[str, Callable[[], Loop]] = {
        "textbook": lambda: _textbook(samples, size, device),
        "plain": lambda: _app(site, arrays, size, count, "plain"),
        "resident": lambda: _app(site, arrays, size, count, "resident"),
        "Lightning": lambda: _lightning(samples, size, device),
        "CUDA graph": lambda: _graph(samples, size, device),
        "compiled": lambda: _compiled(site, samples, size, device),
    }
    for name, make in made.items():
        site.at(f"{name}, batch {size}")
        try:
            loop = make()
            loop()
            found[name] = count / loop()
        except Skipped as reason:
            left_out[name] = str(reason)
        except Exception as error:
            # A peer that does not work here must not prevent the others' measurements.
            if name in OURS:
                raise
            left_out[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    ratio = found["resident"] / found["textbook"]
    rates = ", ".join(f"{name} {rate:.3g}" for name, rate in found.items())
    out = "".join(f"; {name} left out: {why}" for name, why in left_out.items())
    goal = GOALS[device.type] if size == 256 else 1.0
    numbers = {**{f"{name}_samples_per_second": rate for name, rate in found.items()}, "resident_over_textbook": ratio}
    text = f"batch {size}, samples per second: {rates}; resident {ratio:.3g} x the textbook loop (goal {goal:g}){out}"
    return finding_or_differs(ratio >= goal, text, numbers)


def _app(site: Site, arrays: Arrays, size: int, count: int, loop: str) -> Loop:
    chosen = options_of("mlp", site.device, loop=loop, batch_size=size)
    training = fit(arrays, "mlp", site.folder, count // size, chosen)

    def once() -> float:
        began = time.perf_counter()
        for _ in steps_of(training):
            pass
        wait(site.devices[0])
        return time.perf_counter() - began

    return once


def _network(device: torch.device) -> torch.nn.Module:
    return fresh_network("mlp", feature_count(), HIDDEN, 7).to(device)


def _tensors(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(samples.inputs[samples.ends]), torch.from_numpy(samples.labels)


def _textbook(samples: Samples, size: int, device: torch.device) -> Loop:
    """Return the textbook loop: a DataLoader with its defaults, Adam, and the loss read after every step."""
    batches = DataLoader(TensorDataset(*_tensors(samples)), batch_size=size, shuffle=True)
    model = _network(device)
    adam = torch.optim.Adam(model.parameters(), lr=RATE)

    def once() -> float:
        total, began = 0.0, time.perf_counter()
        for inputs, labels in batches:
            adam.zero_grad()
            logits = model(inputs.to(device)).squeeze(1)
            loss = functional.binary_cross_entropy_with_logits(logits, labels.to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            total += loss.item()
        return time.perf_counter() - began

    return once


def _lightning(samples: Samples, size: int, device: torch.device) -> Loop:
    """Return Lightning's loop with all extras off, timed from the start to the end of training itself."""
    name = next(
        (n for n in ("lightning.pytorch", "pytorch_lightning") if importlib.util.find_spec(n.split(".")[0])), None
    )
    if name is None:
        raise Skipped("not installed")
    pl: Any = importlib.import_module(name)

    class Module(pl.LightningModule):  # type: ignore[misc]
        """The same network and optimizer."""

        def __init__(self) -> None:
            super().__init__()
            self.model = _network(torch.device("cpu"))
            self.began = self.seconds = 0.0

        def training_step(self, batch: Any, _number: int) -> torch.Tensor:
            """Return the loss of a batch."""
            inputs, labels = batch
            return functional.binary_cross_entropy_with_logits(self.model(inputs).squeeze(1), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return Adam."""
            return torch.optim.Adam(self.parameters(), lr=RATE)

        def on_train_start(self) -> None:
            """Start the clock."""
            self.began = time.perf_counter()

        def on_train_end(self) -> None:
            """Stop the clock."""
            wait(device)
            self.seconds = time.perf_counter() - self.began

    def once() -> float:
        module = Module()
        accelerator = "gpu" if device.type == "cuda" else "cpu"
        trainer = pl.Trainer(barebones=True, max_epochs=1, accelerator=accelerator, devices=1)
        trainer.fit(module, DataLoader(TensorDataset(*_tensors(samples)), batch_size=size, shuffle=True))
        return module.seconds

    return once


def _step(
    model: torch.nn.Module, adam: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    adam.zero_grad(set_to_none=True)
    loss = functional.binary_cross_entropy_with_logits(model(inputs).squeeze(1), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    adam.step()
    return loss


def _graph(samples: Samples, size: int, device: torch.device) -> Loop:
    """Return the loop that captures the step once as a CUDA graph and replays it, with samples on the device."""
    if device.type != "cuda":
        raise Skipped("needs a GPU")
    inputs, labels = (tensor.to(device) for tensor in _tensors(samples))
    model = _network(device)
    adam = torch.optim.Adam(model.parameters(), lr=RATE, capturable=True)
    batch, truth = inputs[:size].clone(), labels[:size].clone()
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(STEPS_BEFORE_CAPTURE):
            _step(model, adam, batch, truth)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    adam.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        _step(model, adam, batch, truth)

    def once() -> float:
        began = time.perf_counter()
        order = torch.randperm(len(labels), device=device)
        for start in range(0, len(labels), size):
            chosen = order[start : start + size]
            torch.index_select(inputs, 0, chosen, out=batch)
            torch.index_select(labels, 0, chosen, out=truth)
            graph.replay()
        wait(device)
        return time.perf_counter() - began

    return once


def _compiled(site: Site, samples: Samples, size: int, device: torch.device) -> Loop:
    """Return the loop with the model through torch.compile, with samples on the device."""
    if device.type != "cuda":
        raise Skipped("measured on GPUs")
    if size != COMPILED_AT:
        raise Skipped(f"measured at batch {COMPILED_AT}")
    require_compiler(site.device)
    inputs, labels = (tensor.to(device) for tensor in _tensors(samples))
    model: Any = torch.compile(_network(device))
    adam = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

    def once() -> float:
        began = time.perf_counter()
        order = torch.randperm(len(labels), device=device)
        for start in range(0, len(labels), size):
            chosen = order[start : start + size]
            _step(model, adam, inputs[chosen], labels[chosen])
        wait(device)
        return time.perf_counter() - began

    return once
