"""A stand-in for Python with the app on a simulated host with two GPUs, which behaves as a world file says.

It is started as an interpreter; the first arguments are the simulated host, the world file and the stack's name. The
world is JSON. `fails_on_two`: stacks that abort in their first step on both GPUs. `step_seconds`: duration of a step in
a training of several epochs. `torch`: the versions that each stack reports. All that it writes is simulated; nothing
of it is evidence.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from harness.rehearsal import stand_in_app as app

HOST, WORLD, STACK = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
KFD_IDS = (51001, 51002)


def hold_memory(gpus: list[int]) -> None:
    """Hold memory of GPUs, as KFD reports it, long enough for the harness to sample it."""
    folder = HOST / f"sys/class/kfd/kfd/proc/{os.getpid()}"
    folder.mkdir(parents=True)
    for gpu in gpus:
        (folder / f"vram_{KFD_IDS[gpu]}").write_text(f"{1 << 30}\n", encoding="utf-8")
    # The harness samples every half second.
    time.sleep(1.2)


def write_progress_of_all_ranks(folder: Path, ranks: int) -> None:
    """Make every rank write the progress that the first rank writes."""
    first = app.tell
    numbers = [itertools.count(1) for _ in range(ranks)]

    def write_progress(run_dir: Path, *values: Any, **named: Any) -> None:
        first(run_dir, *values, **named)
        line = json.loads((run_dir / "progress-0.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        for rank in range(1, ranks):
            told = {**line, "rank": rank, "number": next(numbers[rank])}
            with (run_dir / f"progress-{rank}.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(told) + "\n")

    app.tell = write_progress  # type: ignore[assignment]
    folder.mkdir(parents=True, exist_ok=True)


def train(words: list[str]) -> None:
    """Train as the stand-in app does, on the GPUs that the harness made visible."""
    gpus = [int(word) for word in os.environ["ROCR_VISIBLE_DEVICES"].split(",")]
    world = json.loads(WORLD.read_text(encoding="utf-8"))
    options = app.named_options(words)
    folder = Path(options["run_dir"])
    strategy = str(options["strategy"])
    used = gpus if strategy != "single" else gpus[:1]
    if len(used) > 1 and STACK in world["fails_on_two"]:
        for phase in ("import", "init", "data", "features", "first-step"):
            app.tell(folder, phase, 0)
        print("RuntimeError: NCCL error: unhandled system error", file=sys.stderr, flush=True)
        os.abort()
    write = app.write

    def write_of_gpus(file: Path, value: Any) -> None:
        if file.name == "result.json":
            facts = {"name": "a stand-in", "gfx": "gfx1100", "memory_bytes": 1}
            devices = [{"rank": rank, "device": f"cuda:{rank}", **facts} for rank in range(len(used))]
            weights = [app.WEIGHTS] * len(used)
            told = {"device": "cuda", "devices": devices, "strategy": strategy, "world_size": len(used)}
            value = {**value, **told, "rank_weights_sha256": weights}
            value["torch"] = {**value["torch"], **world["torch"][STACK]}
        write(file, value)

    app.write = write_of_gpus
    if options["epochs"] > 1:
        app.STEP_SECONDS = world["step_seconds"]
    write_progress_of_all_ranks(folder, len(used))
    hold_memory(used)
    app.stand_in_train(options)


def main() -> None:
    """Act as the interpreter or as the app, whichever the arguments ask for."""
    words = sys.argv[4:]
    if words[0] != "-c" and words[2] == "train":
        train(words[3:])
    elif words[0] != "-c" and words[2] == "probe":
        checks = [words[n + 1] for n, word in enumerate(words) if word == "--check"]
        told = [{"check": name, "outcome": "passed", "detail": "", "killable": True} for name in checks]
        print(json.dumps({"breaks_at": None, "checks": told}))
    else:
        sys.argv[1:] = words
        app.stand_in_main()


if __name__ == "__main__":
    main()
