"""Faults injected into a training on purpose, to test that each is found."""
