"""Progress of Hugging Face's Trainer: `Trainer(..., callbacks=[Progress()])`."""

import json
import os

from transformers import TrainerCallback


class Progress(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero and (file := os.environ.get("MATRIX_PROGRESS")):
            told = [entry["loss"] for entry in state.log_history if "loss" in entry]
            with open(file, "a") as lines:
                step = {"step": state.global_step, "total": state.max_steps, "loss": told[-1] if told else None}
                lines.write(json.dumps(step) + "\n")
