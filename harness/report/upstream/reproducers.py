"""Scripts that need only torch, and the classes of failures that each may show. They compute what a probe computes."""

from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
LONGEST_LINES = 60

_CLASSES = {
    "device": ("no-device", "missing-arch", "driver"),
    "products": ("blas-init", "blas-kernel", "hipblaslt-kernel", "blas-not-supported"),
    "convolution": ("miopen",),
    "training": (
        "kernel-fault",
        "runtime-resource",
        "runtime-error",
        "gpu-reset",
        "gpu-overheated",
        "gpu-hang",
        "hardware",
        "not-finite",
        "wrong-result",
        "crash",
        "hang",
        "hang-forward",
        "hang-backward",
        "hang-update",
        "unhealthy-gpu",
    ),
    "all_reduce": ("rccl", "hang-collective", "lost-peer"),
    "compiled": ("compile", "hang-compile"),
    "copies": ("hang-copy",),
    "fragmented": ("oom-gpu",),
}
SCRIPT_OF = {class_: name for name, classes in _CLASSES.items() for class_ in classes}


def reproducer(class_: str) -> str | None:
    """Return the script for a class of failures; None if none shows the failure without our app."""
    name = SCRIPT_OF.get(class_)
    return (SCRIPTS / f"{name}.py.txt").read_text(encoding="utf-8") if name else None
