"""Finds out which ROCm x PyTorch x environment trains to completion on this host, and keeps the evidence."""

__version__ = "0.1.0"

# The rooms, the top floor first: a room imports only from rooms below it (tests/harness/test_house.py).
ROOMS = (
    "cli",
    "screen",
    "rehearsal",
    "faults",
    "report",
    "training",
    "slurm",
    "campaign",
    "search",
    "doctor",
    "registry",
    "run",
    "diagnosis",
    "evidence",
    "environments",
    "host",
    "matrix",
    "base",
)
