"""Faults injected into a training on purpose, to see that each is found."""
