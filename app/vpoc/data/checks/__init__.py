"""Faults of a file of bars: found, counted, and fixed in a copy."""
