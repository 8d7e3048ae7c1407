"""Names that commands need before torch is imported."""

RANKED = ("ddp", "averaging", "fsdp")
"""Strategies with a process per device."""
CPU_DEVICES = 2
"""Processes, or parts of a model, where devices are not counted."""
