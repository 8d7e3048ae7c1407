"""Tests of the adapters in `examples/`, each in a training by its library, in an interpreter that has the library."""

import os
import subprocess
from collections import deque
from pathlib import Path

import pytest

from harness.base.files.untrusted_tree import UntrustedTree
from harness.base.paths import CHECKOUT
from harness.evidence.app_reports.program_progress import ProgramProgress
from harness.matrix.programs import LINES

EXAMPLES = CHECKOUT / "examples"
PYTHON = Path(os.environ.get("LORA_PYTHON") or CHECKOUT / ".cache" / "lora" / "env" / "bin" / "python")
pytestmark = pytest.mark.long

PLAIN = """
import torch
from plain_progress import told
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 7):
    loss = model(torch.randn(2, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    told(step, 6, loss.item())
"""
LIGHTNING = """
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning_progress import Progress
class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        loss = self.layer(batch).pow(2).mean()
        return loss if number % 2 else {"loss": loss}
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(6, 4), batch_size=2)
Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[Progress()]).fit(
    Model(), data
)
"""
TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments
from transformers_progress import Progress
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) - labels).pow(2).mean()}
data = [{"x": torch.randn(4), "labels": torch.ones(1)} for _ in range(6)]
asked = TrainingArguments(
    "out", num_train_epochs=2, per_device_train_batch_size=2, logging_steps=1, use_cpu=True, report_to=[],
    save_strategy="no",
)
Trainer(Model(), asked, train_dataset=data, callbacks=[Progress()]).train()
"""


@pytest.mark.parametrize(
    ("library", "text"),
    [("torch", PLAIN), ("lightning", LIGHTNING), ("transformers", TRANSFORMERS)],
    ids=["plain", "lightning", "transformers"],
)
def test_every_step_of_a_training_is_reported(library: str, text: str, tmp_path: Path) -> None:
    asked = (PYTHON, "-c", f"import {library}, torch")
    if not PYTHON.is_file() or subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} lacks {library}; LORA_PYTHON names one that has it")
    file = tmp_path / "progress.jsonl"
    # The environment variables that a run has.
    variables = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(EXAMPLES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MATRIX_PROGRESS": str(file),
    }
    done = subprocess.run(
        (PYTHON, "-c", text), capture_output=True, text=True, check=False, cwd=tmp_path, env=variables, timeout=300
    )
    assert done.returncode == 0, done.stderr
    progress = ProgramProgress(UntrustedTree(tmp_path), file.name, LINES)
    deque(progress.new(), maxlen=0)
    assert (progress.advances, progress.step, progress.total) == (6, 6, 6), file.read_text(encoding="utf-8")
    assert progress.loss is not None
    assert progress.loss > 0
