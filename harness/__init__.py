"""Finds out which ROCm x PyTorch x environment trains to completion on this host, and keeps the evidence."""

__version__ = "0.1.0"
