"""Progress of Lightning: `Trainer(callbacks=[Progress()])`."""

import json
import os

from lightning.pytorch import Callback


class Progress(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero and (file := os.environ.get("MATRIX_PROGRESS")):
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            line = {"step": trainer.global_step, "total": trainer.estimated_stepping_batches, "loss": float(loss)}
            with open(file, "a") as lines:
                lines.write(json.dumps(line) + "\n")
