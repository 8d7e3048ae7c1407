"""Sequences of runs: those of a fixed plan, of a goal, of stages, or spread over hosts."""
