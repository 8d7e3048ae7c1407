"""A stand-in for Python with the app on a simulated GPU, which is reset as a plan says.

It is started as an interpreter; the first arguments are the simulated host and the plan, a file with one letter for
each training. `p` passes. `r` resets the GPU in the kernel log and aborts in the first step. `s` passes although the
GPU was reset meanwhile. All that it writes is simulated; nothing of it is evidence.
"""

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from harness.rehearsal import stand_in_app as app

HOST, PLAN = Path(sys.argv[1]), Path(sys.argv[2])
# The KFD id and the PCI address of each GPU of the simulated host.
GPUS = ((51001, "0000:03:00.0"), (51002, "0000:43:00.0"))
RESET = ("amdgpu: ring sdma0 timeout, signaled seq=42, emitted seq=44", "amdgpu: GPU reset begin!")


def next_letter() -> str:
    """Take the next letter of the plan; after the end of the plan every training passes."""
    plan = PLAN.read_text(encoding="utf-8")
    PLAN.write_text(plan[1:], encoding="utf-8")
    return plan[:1] or "p"


def reset(gpu: int) -> None:
    """Write to the kernel log that a GPU was reset."""
    with (HOST / "dev/kmsg").open("a", encoding="utf-8") as log:
        for number, line in enumerate(RESET):
            log.write(f"3,{number},{int(time.monotonic() * 1e6)},-;amdgpu {GPUS[gpu][1]}: {line}\n")


def hold_memory(gpu: int) -> None:
    """Hold memory of a GPU, as KFD reports it, until the harness has sampled it."""
    file = HOST / f"sys/class/kfd/kfd/proc/{os.getpid()}/vram_{GPUS[gpu][0]}"
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    with file.open("w", encoding="utf-8") as seen:
        seen.write(f"{1 << 30}\n")
    # A reader that opened the pipe since then reads nothing and samples again.
    waiting = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    whole = file.with_suffix(".tmp")
    whole.write_text(f"{1 << 30}\n", encoding="utf-8")
    whole.replace(file)
    os.close(waiting)


def train(words: list[str]) -> None:
    """Train as the stand-in app does, holding memory of the GPU that the harness made visible."""
    gpu = int(os.environ["ROCR_VISIBLE_DEVICES"].split(",")[0])
    letter = next_letter()
    options = app.named_options(words)
    if letter == "r":
        folder = Path(options["run_dir"])
        for phase in ("import", "init", "data", "features", "first-step"):
            app.tell(folder, phase, 0)
        reset(gpu)
        print("HW Exception by GPU node-2 : reason :GPU Hang", file=sys.stderr, flush=True)
        os.abort()
    write = app.write

    def write_of_gpu(file: Path, value: Any) -> None:
        device = {"rank": 0, "device": "cuda:0", "name": "a stand-in", "gfx": "gfx1100", "memory_bytes": 1}
        write(file, {**value, "device": "cuda", "devices": [device]} if file.name == "result.json" else value)

    app.write = write_of_gpu
    hold_memory(gpu)
    app.stand_in_train(options)
    if letter == "s":
        reset(gpu)


def probe() -> None:
    """Report the GPU as healthy."""
    checks = [name for word, name in pairwise(sys.argv) if word == "--check"]
    told = [{"check": name, "outcome": "passed", "detail": "", "killable": True} for name in checks]
    print(json.dumps({"breaks_at": None, "checks": told}))


def main() -> None:
    """Act as the interpreter or as the app, whichever the arguments ask for."""
    words = sys.argv[3:]
    if words[0] == "-c":
        told: dict[str, Any] = {"missing": [], "python": "3", "torch": app.TORCH, "hip": "6.3.1", "cuda": None}
        print(json.dumps({**told, "gpus": 1, "packages": ["stand-in==1"]}))
    elif words[2] == "train":
        train(words[3:])
    elif words[2] == "probe":
        probe()
    else:
        sys.argv[1:] = words
        app.stand_in_main()


if __name__ == "__main__":
    main()
