"""Fails unless what was installed is what the stack declares: verify.py PYTHON TORCH ROCM|cpu.

Run by the Python of /opt/venv. Then compiles what importing torch and one training step brought in, where it has no
bytecode yet.
"""

import importlib.util
import py_compile
import sys
from pathlib import Path

import numpy
import polars
import torch
import torch.distributed
import torch.utils.data


def main() -> None:
    """Compare, take one step of training, compile."""
    python, wanted_torch, rocm = sys.argv[1:]
    hip = torch.version.hip
    # torch.version.hip is like 6.3.42131-fa1d09cbd: its first two numbers are ROCm's.
    series = ".".join((hip or "cpu").split(".")[:2])
    found = (".".join(map(str, sys.version_info[:2])), torch.__version__.split("+")[0], series)
    declared = (python, wanted_torch, ".".join(rocm.split(".")[:2]))
    if found != declared:
        sys.exit(f"image: the stack declares Python, torch, ROCm {declared}; installed are {found}")
    weight = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(weight.parameters())
    weight(torch.from_numpy(numpy.ones((1, 2), dtype="float32"))).sum().backward()
    optimizer.step()
    polars.DataFrame({"a": [1]}).lazy().select(polars.col("a").sum()).collect()
    imported = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    for file in imported:
        if file.startswith(sys.prefix) and file.endswith(".py") and not has_bytecode(file):
            py_compile.compile(file, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def has_bytecode(file: str) -> bool:
    """Whether a module is compiled already."""
    return Path(importlib.util.cache_from_source(file)).exists()


if __name__ == "__main__":
    main()
