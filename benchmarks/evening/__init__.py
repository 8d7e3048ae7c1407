"""Simulated evenings of `make matrix-test`: `python -m benchmarks.evening`."""
