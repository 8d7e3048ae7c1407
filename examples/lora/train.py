"""Fine-tune a tiny causal language model with LoRA on generated instructions; nothing is fetched.

    python train.py --output OUTPUT [--resume]

Prints `step N/TOTAL loss X`, one line a step. Leaves the base model, the adapter and `result.json` in OUTPUT, and ends
with status 1 where the criterion was not met: within the time limit, the loss below a bound, and the adapter, loaded
again beside the base model, computes what it did in training and writes an answer.
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Before anything imports the hub: no model, tokenizer or telemetry is asked for there.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import ProjectConfiguration, set_seed
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

BEGIN, END, PAD = 256, 257, 258
"""Tokens beside the 256 bytes."""
LENGTH = 80
"""Tokens of an example, padded."""
LAST_STEPS = 20
"""The final loss is the mean over so many."""
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def instructions(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield instructions with their answers: always the same ones for a seed."""
    chosen = random.Random(seed)  # noqa: S311
    for _ in range(count):
        a, b = chosen.randrange(100), chosen.randrange(100)
        word = "".join(chosen.choices(ALPHABET, k=chosen.randint(3, 8)))
        yield chosen.choice(
            [
                (f"Add {a} and {b}.", str(a + b)),
                (f"Which is larger, {a} or {b}?", str(max(a, b))),
                (f"Write {word} in capitals.", word.upper()),
                (f"What is the first letter of {word}?", word[0]),
            ]
        )


def prompt(instruction: str) -> list[int]:
    """Return the tokens before an answer."""
    return [BEGIN, *f"### Instruction:\n{instruction}\n### Response:\n".encode()]


def encode(instruction: str, answer: str) -> list[int]:
    """Return an example as LENGTH tokens."""
    tokens = [*prompt(instruction), *answer.encode(), END]
    return tokens + [PAD] * (LENGTH - len(tokens))


def base_model(seed: int) -> LlamaForCausalLM:
    """Return a model of 0.7 million parameters, randomly initialised."""
    set_seed(seed)
    config = LlamaConfig(
        vocab_size=PAD + 1,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2 * LENGTH,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(config)


def train(options: argparse.Namespace) -> tuple[torch.nn.Module, list[float]]:
    """Return the model with its adapter, and the loss of every step."""
    torch.set_num_threads(options.threads)
    output, checkpoints = options.output, options.output / "checkpoints"
    base = base_model(options.seed)
    base.save_pretrained(output / "base")
    lora = LoraConfig(
        r=options.rank,
        lora_alpha=2 * options.rank,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
        task_type="CAUSAL_LM",
    )
    # The path of the base model ends up in the adapter's configuration, and is of no use elsewhere.
    base.name_or_path = "base"
    model = get_peft_model(base, lora)
    model.print_trainable_parameters()
    tokens = torch.tensor([encode(*one) for one in instructions(options.examples, options.seed)])
    order = torch.Generator().manual_seed(options.seed)
    loader = DataLoader(tokens, options.batch_size, shuffle=True, generator=order)
    accelerator = Accelerator(project_config=ProjectConfiguration(str(output)), cpu=options.cpu)
    optimiser = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=options.learning_rate)
    model, optimiser, loader = accelerator.prepare(model, optimiser, loader)
    losses: list[float] = []
    if options.resume and (latest := last_checkpoint(checkpoints)):
        accelerator.load_state(str(latest))
        losses = json.loads((latest / "losses.json").read_text())
        print(f"resumed after step {len(losses)}", flush=True)
    total, saved = options.epochs * len(loader), time.monotonic()
    model.train()
    while len(losses) < total:
        epoch, done = divmod(len(losses), len(loader))
        # What an epoch is mixed by does not depend on where training was resumed.
        order.manual_seed(options.seed + epoch)
        for batch in skip_first_batches(loader, done):
            loss = model(input_ids=batch, labels=batch.masked_fill(batch == PAD, -100)).loss
            accelerator.backward(loss)
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.item())
            print(f"step {len(losses)}/{total} loss {losses[-1]:.4f}", flush=True)
            if time.monotonic() - saved >= options.checkpoint_every:
                save_checkpoint(accelerator, checkpoints, losses)
                saved = time.monotonic()
    model = accelerator.unwrap_model(model)
    model.save_pretrained(output / "adapter", save_embedding_layers=False)
    return model, losses


def save_checkpoint(accelerator: Accelerator, folder: Path, losses: list[float]) -> None:
    """Leave the one checkpoint, whole also where this process dies meanwhile."""
    unfinished, earlier = folder / "unfinished", last_checkpoint(folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    accelerator.save_state(str(unfinished))
    (unfinished / "losses.json").write_text(json.dumps(losses))
    unfinished.rename(folder / f"step-{len(losses):08d}")
    if earlier:
        shutil.rmtree(earlier)


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest whole checkpoint."""
    return max(folder.glob("step-*"), default=None)


def answer(output: Path, trained: torch.nn.Module, instruction: str) -> tuple[str, bool]:
    """Return what the model answers once it was loaded again, and whether it computes what the trained one does."""
    base = AutoModelForCausalLM.from_pretrained(output / "base", local_files_only=True)
    loaded = PeftModel.from_pretrained(base, output / "adapter").to(next(trained.parameters()).device).eval()
    asked = torch.tensor([prompt(instruction)], device=loaded.device)
    with torch.no_grad():
        same = torch.allclose(loaded(asked).logits, trained.eval()(asked).logits, rtol=1e-3, atol=1e-3)
        written = loaded.generate(
            input_ids=asked, attention_mask=torch.ones_like(asked), max_new_tokens=12, do_sample=False
        )
    new = [token for token in written[0, asked.shape[1] :].tolist() if token < BEGIN]
    return bytes(new).decode(errors="replace"), bool(same and written.shape[1] > asked.shape[1])


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Fine-tune a tiny language model with LoRA.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in OUTPUT")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="not on a GPU")
    parser.add_argument("--checkpoint-every", type=float, default=30, help="seconds")
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds that training may take")
    parser.add_argument("--loss-below", type=float, default=1.0, help=f"of the mean of the last {LAST_STEPS} steps")
    return parser.parse_args()


def main() -> int:
    """Train, load again, and say whether the criterion was met."""
    options, began = parse(), time.monotonic()
    disable_progress_bar()
    options.output.mkdir(parents=True, exist_ok=True)
    model, losses = train(options)
    seconds, loss = time.monotonic() - began, sum(losses[-LAST_STEPS:]) / len(losses[-LAST_STEPS:])
    said, loads = answer(options.output, model, "Write lora in capitals.")
    missed = [
        *([f"it took {seconds:.0f} s, not below {options.time_limit:.0f}"] if seconds >= options.time_limit else []),
        # A loss that is not a number is not below anything either.
        *([] if loss < options.loss_below else [f"the loss is {loss:.4f}, not below {options.loss_below}"]),
        *([] if loads else ["the adapter that was loaded again computes something else"]),
    ]
    result = {"steps": len(losses), "loss": loss, "seconds": seconds, "answer": said, "missed": missed}
    written = options.output / "result.json.new"
    written.write_text(json.dumps(result, indent=2) + "\n")
    written.replace(options.output / "result.json")
    print(f"{len(losses)} steps in {seconds:.0f} s, loss {loss:.4f}; the loaded adapter answers {said!r}")
    print(f"missed: {'; '.join(missed)}" if missed else "criterion met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
