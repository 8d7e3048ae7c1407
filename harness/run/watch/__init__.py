"""Watches the processes of a run: progress, hangs, stacks, evidence of a failure."""
